/**
 * A producer and a worker, by openapi-fetch with the types that openapi-typescript makes of the
 * OpenAPI document. `node story.js URL KEY` prints what became of each job.
 */
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./ojs.js";

type Job = components["schemas"]["Job"];

const [url = "", key = ""] = process.argv.slice(2);
const worker_id = "worker-typescript";
const ojs = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${key}` } });

function expect<T>(reply: { data?: T; error?: unknown }): T {
  assert(reply.data !== undefined, JSON.stringify(reply.error));
  return reply.data;
}

async function fetched(queue: string): Promise<Job> {
  const body = { queues: [queue], worker_id };
  const { jobs } = expect(await ojs.POST("/ojs/v1/workers/fetch", { body }));
  assert.equal(jobs.length, 1);
  return jobs[0]!;
}

// The simplest job
const simple = { type: "email.send", args: ["ann@example.com"] };
const made = expect(await ojs.POST("/ojs/v1/jobs", { body: simple })).job;
let job = await fetched("default");
assert.deepEqual([job.id, job.args, job.attempt], [made.id, ["ann@example.com"], 1]);

const beat = expect(
  await ojs.POST("/ojs/v1/workers/heartbeat", {
    body: { worker_id, state: "running", active_job_ids: [job.id] },
  }),
);
assert.deepEqual(beat.jobs_extended, [job.id]);

expect(
  await ojs.POST("/ojs/v1/workers/ack", {
    body: { job_id: job.id, worker_id, result: { sent: 1 } },
  }),
);
const path = { job_id: job.id };
const done = expect(await ojs.GET("/ojs/v1/jobs/{job_id}", { params: { path } })).job;
console.log(done.state, JSON.stringify(done.result));

// One that fails
const vip = { ...simple, options: { queue: "typescript", tags: ["vip"] } };
expect(await ojs.POST("/ojs/v1/jobs", { body: vip }));
job = await fetched("typescript");
const failed = expect(
  await ojs.POST("/ojs/v1/workers/nack", {
    body: { job_id: job.id, worker_id, error: { type: "SMTPError", message: "451 try later" } },
  }),
);
assert("attempt" in failed);
console.log(failed.state, failed.attempt);

// One that is refused
const wrong = { ...simple, options: { queue: "No such name" } };
const { error } = await ojs.POST("/ojs/v1/jobs", { body: wrong });
console.log(error?.error.code);

// @ts-expect-error: a job without arguments is refused by the compiler
void (() => ojs.POST("/ojs/v1/jobs", { body: { type: "email.send" } }));

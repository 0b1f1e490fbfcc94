"""A producer and a worker, by the client that openapi-python-client makes of the OpenAPI document.

`python story.py URL KEY` prints what became of each job. `test_generated.py` checks its types.
"""

from __future__ import annotations

import sys
from typing import TypeVar

from open_job_spec_client import AuthenticatedClient
from open_job_spec_client.api.jobs import get_jobs_job_id, post_jobs
from open_job_spec_client.api.workers import (
    post_workers_ack,
    post_workers_fetch,
    post_workers_heartbeat,
    post_workers_nack,
)
from open_job_spec_client.models import (
    AckReply,
    ErrorReply,
    Failed,
    Job,
    JobFailure,
    JobOptions,
    JobReply,
    NewJob,
    PostWorkersAckBody,
    PostWorkersFetchBody,
    PostWorkersFetchReply,
    PostWorkersHeartbeatBody,
    PostWorkersHeartbeatBodyState,
    PostWorkersHeartbeatReply,
    PostWorkersNackBody,
)

T = TypeVar("T")
WORKER = "worker-python"


def expect(reply: object, kind: type[T]) -> T:
    assert isinstance(reply, kind), reply
    return reply


def main(url: str, key: str) -> None:
    with AuthenticatedClient(base_url=url, token=key) as client:

        def fetched(queue: str) -> Job:
            body = PostWorkersFetchBody(queues=[queue], worker_id=WORKER)
            reply = expect(post_workers_fetch.sync(client=client, body=body), PostWorkersFetchReply)
            (job,) = reply.jobs
            return job

        # The simplest job
        new = NewJob(type_="email.send", args=["ann@example.com"])
        made = expect(post_jobs.sync(client=client, body=new), JobReply).job
        job = fetched("default")
        assert (job.id, job.args, job.attempt) == (made.id, ["ann@example.com"], 1)

        report = PostWorkersHeartbeatBody(
            worker_id=WORKER,
            state=PostWorkersHeartbeatBodyState.RUNNING,
            active_job_ids=[str(job.id)],
        )
        beat = expect(
            post_workers_heartbeat.sync(client=client, body=report), PostWorkersHeartbeatReply
        )
        assert beat.jobs_extended == [str(job.id)]

        outcome = PostWorkersAckBody(job_id=job.id, worker_id=WORKER, result={"sent": 1})
        expect(post_workers_ack.sync(client=client, body=outcome), AckReply)
        done = expect(get_jobs_job_id.sync(str(job.id), client=client), JobReply).job
        print(done.state.value, done.result)

        # One that fails
        new.options = JobOptions(queue="python", tags=["vip"])
        expect(post_jobs.sync(client=client, body=new), JobReply)
        job = fetched("python")
        failure = PostWorkersNackBody(
            job_id=job.id,
            worker_id=WORKER,
            error=JobFailure(type_="SMTPError", message="451 try later"),
        )
        failed = expect(post_workers_nack.sync(client=client, body=failure), Failed)
        print(failed.state.value, failed.attempt)

        # One that is refused
        new.options = JobOptions(queue="No such name")
        refused = expect(post_jobs.sync(client=client, body=new), ErrorReply)
        print(refused.error.code)


if __name__ == "__main__":
    main(*sys.argv[1:])

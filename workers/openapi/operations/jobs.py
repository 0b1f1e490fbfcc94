"""Jobs, results and progress, for producers."""

from __future__ import annotations

from jobs.errors import (
    Conflict,
    DuplicateJob,
    InvalidRetryPolicyRequest,
    NeedsEventLoop,
    ResultPruned,
    Unsupported,
    WaitTimeout,
)
from jobs.http.parameters import BLOCK_TIMEOUT, TENANT
from jobs.spec.bulk_requests import Batch, ResultIds
from jobs.spec.validation import Envelope
from workers.bindings.ojs.requests import ReportOfJob, ReportProgress

from ..operation import Operation, Reply
from ..refusals import CLOSED, FULL, LARGE_META, MAINTAINED, MISMATCH, NO_JOB, refuses
from ..schema import (
    COUNT,
    TIME,
    UUID,
    anything,
    array,
    enum,
    free,
    integer,
    nullable,
    number,
    obj,
    ref,
    text,
)

JOB = {
    "specversion": "1.0",
    "id": "019539a4-b68c-7def-8000-1a2b3c4d5e6f",
    "type": "email.send",
    "queue": "email",
    "args": ["user@example.com", "welcome"],
    "meta": {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
    "priority": 0,
    "state": "available",
    "attempt": 0,
    "max_attempts": 3,
    "tags": ["welcome"],
    "created_at": "2026-02-12T10:30:00.000Z",
    "enqueued_at": "2026-02-12T10:30:00.000Z",
}
NEW_JOB = {
    "type": "email.send",
    "args": ["user@example.com", "welcome"],
    "meta": JOB["meta"],
    "options": {"queue": "email", "retry": {"max_attempts": 3}, "tags": ["welcome"]},
}
DONE = JOB | {
    "state": "completed",
    "attempt": 1,
    "started_at": "2026-02-12T10:30:01.120Z",
    "completed_at": "2026-02-12T10:30:01.904Z",
    "result": {"message_id": "m-17"},
}
CANCELLED = JOB | {
    "state": "cancelled",
    "cancelled_at": "2026-02-12T10:31:00.000Z",
    "previous_state": "available",
}
RATE_HEADERS = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
"""Present if there is something to say."""
BREAKS_RETRY = refuses(InvalidRetryPolicyRequest, "The retry policy is invalid.")
TAKEN = (
    refuses(DuplicateJob, "A job with this id exists, or a unique policy refuses the job.")
    + BREAKS_RETRY
    + refuses(Unsupported, "The version of the envelope is not supported.")
    + LARGE_META
    + CLOSED
    + FULL
    + MISMATCH
)
RESULT = obj(
    "job_id state result",
    job_id=UUID,
    state=ref("JobState"),
    result=anything(),
    completed_at=TIME,
    result_stored_at=TIME,
    result_expires_at=TIME,
    result_size_bytes=COUNT,
    error=obj(type=text(), code=text(), message=text(), attempt=integer()),
)
PROGRESS = obj(
    "job_id state progress data message updated_at",
    job_id=UUID,
    state=ref("JobState"),
    progress=nullable(number(minimum=0, maximum=1)),
    data=nullable(free()),
    message=nullable(text()),
    updated_at=nullable(TIME),
)
PROGRESS_HEADERS = {
    "job_id": JOB["id"],
    "state": "active",
    "progress": 0.5,
    "data": {"rows": 5000},
    "message": "half way",
    "updated_at": "2026-02-12T10:30:01.500Z",
}
REPORTED = Operation(
    "Progress",
    "Report the progress of a job",
    {200: Reply("The current progress, which never decreases.", PROGRESS, PROGRESS_HEADERS)},
    body=ReportProgress,
    example={"progress": 0.5, "message": "half way", "worker_id": "worker-1"},
    refusals=NO_JOB,
)

OPERATIONS = {
    ("POST", "/ojs/v1/jobs"): Operation(
        "Jobs",
        "Enqueue a job",
        {
            201: Reply(
                "The job as it was stored. `X-RateLimit-*` are those of its tenant's rate of "
                "enqueues, or else of its own rate limit.",
                ref("JobReply"),
                {"job": JOB},
                ("Location", *RATE_HEADERS),
            ),
            200: Reply(
                "A unique policy ignored the job; this one existed already.",
                ref("JobReply"),
                {"job": JOB, "deduplicated": True},
            ),
        },
        "PUSH (OJS HTTP §9.1). It also takes a CloudEvent, as `application/cloudevents+json` or in "
        "headers that begin with `ce-`. Several, as `application/cloudevents-batch+json`, are "
        "answered 207: `results` has `id`, `source`, and `job_id` or `error` of each.",
        body=Envelope,
        example=NEW_JOB,
        headers=(TENANT, BLOCK_TIMEOUT),
        refusals=TAKEN + MAINTAINED,
    ),
    ("GET", "/ojs/v1/jobs"): Operation(
        "Jobs",
        "List jobs",
        {
            200: Reply(
                "Newest first.",
                obj(
                    "jobs total pagination",
                    jobs=array(ref("Job")),
                    total=COUNT,
                    pagination=ref("Pagination"),
                ),
                {
                    "jobs": [DONE],
                    "total": 1,
                    "pagination": {"total": 1, "limit": 50, "offset": 0, "has_more": False},
                },
            )
        },
        "For the public command line. More than 100,000 jobs are not counted.",
    ),
    ("GET", "/ojs/v1/jobs/{job_id}/retries"): Operation(
        "Jobs",
        "See the failed attempts of a job",
        {
            200: Reply(
                "Oldest first; the newest of a long history.",
                obj(
                    "job_id state attempt max_attempts retries total policy",
                    job_id=UUID,
                    state=ref("JobState"),
                    attempt=COUNT,
                    max_attempts=COUNT,
                    retries=array(ref("JobError")),
                    total=COUNT,
                    policy=nullable(free("The retry policy in force.")),
                ),
                {
                    "job_id": JOB["id"],
                    "state": "retryable",
                    "attempt": 1,
                    "max_attempts": 3,
                    "retries": [
                        {
                            "attempt": 1,
                            "type": "handler_error",
                            "code": "handler_error",
                            "message": "It broke.",
                            "occurred_at": "2026-02-12T10:30:01.904Z",
                            "timestamp": "2026-02-12T10:30:01.904Z",
                        }
                    ],
                    "total": 1,
                    "policy": {"max_attempts": 3, "initial_interval": "PT1S", "jitter": True},
                },
            )
        },
        refusals=NO_JOB,
    ),
    ("POST", "/ojs/v1/jobs/batch"): Operation(
        "Jobs",
        "Enqueue many jobs: all or none",
        {
            201: Reply(
                "All of them, in the order given; `enqueued` does not count those that a unique "
                "policy ignored. `X-RateLimit-*` are those of their tenant's "
                "rate of enqueues, or else of the rate limit that the jobs have, if it is one.",
                obj("jobs count enqueued failed", jobs=array(ref("Job")), count=COUNT)
                | {"additionalProperties": True},
                {"jobs": [JOB], "count": 1, "enqueued": 1, "failed": 0},
                RATE_HEADERS,
            )
        },
        'At most `OJS["MAX_BATCH"]` (OJS HTTP §9.2).',
        body=Batch,
        example={"jobs": [NEW_JOB]},
        headers=(TENANT, BLOCK_TIMEOUT),
        refusals=TAKEN + MAINTAINED,
    ),
    ("GET", "/ojs/v1/jobs/{job_id}"): Operation(
        "Jobs",
        "Show everything about a job",
        {200: Reply("The job with its failed attempts.", ref("JobReply"), {"job": DONE})},
        refusals=NO_JOB,
    ),
    ("POST", "/ojs/v1/jobs/{job_id}/cancel"): Operation(
        "Jobs",
        "Cancel a job",
        {200: Reply("The cancelled job.", ref("ChangedJobReply"), {"job": CANCELLED})},
        "Even an active one: its worker is notified with the next heartbeat (OJS core §7.6).",
        refusals=NO_JOB + refuses(Conflict, "The job has finished already."),
    ),
    ("POST", "/ojs/v1/jobs/{job_id}/activate"): Operation(
        "Jobs",
        "Release a pending job",
        {
            200: Reply(
                "The job, available now.",
                ref("ChangedJobReply"),
                {"job": JOB | {"previous_state": "pending"}},
            )
        },
        refusals=NO_JOB + refuses(Conflict, "The job is not pending, or waits for other jobs."),
    ),
    ("GET", "/ojs/v1/jobs/{job_id}/result"): Operation(
        "Results",
        "Read the result of a job, or wait for it",
        {
            200: Reply(
                "The outcome; without one, `Retry-After` gives the time of the next request.",
                RESULT,
                {
                    "job_id": JOB["id"],
                    "state": "completed",
                    "result": {"message_id": "m-17"},
                    "completed_at": "2026-02-12T10:30:01.904Z",
                },
                ("Retry-After",),
            )
        },
        refusals=NO_JOB
        + refuses(WaitTimeout, "The job has not finished in time.")
        + refuses(ResultPruned, "The result has expired."),
    ),
    ("POST", "/ojs/v1/jobs/results"): Operation(
        "Results",
        "Read the results of many jobs",
        {
            200: Reply(
                "Id → state and result; null for jobs that do not exist.",
                obj(
                    "results",
                    results={
                        "type": "object",
                        "additionalProperties": {
                            "anyOf": [
                                obj("state result", state=ref("JobState"), result=anything()),
                                {"type": "null"},
                            ]
                        },
                    },
                ),
                {"results": {JOB["id"]: {"state": "completed", "result": {"message_id": "m-17"}}}},
            )
        },
        body=ResultIds,
        example={"ids": [JOB["id"]]},
    ),
    ("GET", "/ojs/v1/jobs/{job_id}/progress"): Operation(
        "Progress",
        "Read the progress of a job",
        {200: Reply("The progress; null if none was reported.", PROGRESS, PROGRESS_HEADERS)},
        refusals=NO_JOB,
    ),
    ("GET", "/ojs/v1/jobs/{job_id}/progress/stream"): Operation(
        "Jobs",
        "Follow the progress of a job",
        {
            200: Reply(
                "`progress` for each report, then `completed`, `failed` or `cancelled`.",
                obj(
                    "event data",
                    event=enum("progress", "completed", "failed", "cancelled"),
                    data=text("A JSON object."),
                ),
                {"event": "progress", "data": '{"progress":0.47}'},
                media_types=("text/event-stream",),
            )
        },
        "Server-sent events (OJS progress §7.2). The stream ends with the job, or after "
        '`OJS["MAX_WAIT"]`; an `EventSource` reconnects automatically.',
        refusals=NO_JOB
        + refuses(NeedsEventLoop, "Django's ASGI handler serves it, without `JobServer.around()`."),
    ),
    ("PUT", "/ojs/v1/jobs/{job_id}/progress"): REPORTED,
    ("POST", "/ojs/v1/workers/progress"): Operation(
        "Progress",
        REPORTED.summary,
        REPORTED.replies,
        body=ReportOfJob,
        example=REPORTED.example | {"job_id": JOB["id"]},
        refusals=REPORTED.refusals,
    ),
}
ALIASES = {
    ("DELETE", "/ojs/v1/jobs/{job_id}"): ("POST", "/ojs/v1/jobs/{job_id}/cancel"),
    ("POST", "/ojs/v1/jobs/{job_id}/progress"): ("PUT", "/ojs/v1/jobs/{job_id}/progress"),
}

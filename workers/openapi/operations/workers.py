"""Worker protocol: register, beat, fetch, ack, fail, deregister; checkpoints."""

from __future__ import annotations

from jobs.errors import CheckpointTooLarge, Conflict, NotFound, ResultTooLarge
from workers.bindings.ojs.requests import (
    Acks,
    Checkpoint,
    DurableCheckpoint,
    Fetch,
    Heartbeat,
    JobAck,
    JobNack,
    Nacks,
    Named,
    Registration,
)

from .. import components
from ..operation import Operation, Reply
from ..refusals import NO_JOB, refuses
from ..schema import COUNT, TIME, array, boolean, enum, free, nullable, number, obj, ref, text
from .jobs import DONE, JOB

ID = JOB["id"]
LOST = NO_JOB + refuses(
    Conflict, "The job is not active, or another worker or attempt holds it: drop the outcome."
)
NOT_HELD = refuses(Conflict, "The job is not held by a worker for which the key may act.")
SETTLED = (
    "A list in `acks` or `nacks` gets a list in response, with a separate result for each outcome, "
    "which has the status that it would have had in a request of its own."
)
ACKED = {
    "acknowledged": True,
    "job_id": ID,
    "id": ID,
    "state": "completed",
    "attempt": 1,
    "completed_at": "2026-02-12T10:30:01.904Z",
    "job": {"id": ID, "state": "completed", "attempt": 1},
}
NACKED = {
    "acknowledged": True,
    "job_id": ID,
    "id": ID,
    "state": "retryable",
    "attempt": 1,
    "max_attempts": 3,
    "next_attempt_at": "2026-02-12T10:30:03.000Z",
    "next_retry_at": "2026-02-12T10:30:03.000Z",
    "retry_delay_ms": 1096,
    "job": {"id": ID, "state": "retryable", "attempt": 1},
}
OUTCOMES = {"acks": array(ref("Outcome")), "nacks": array(ref("Outcome"))}
BEAT = obj(
    "state directive acknowledged jobs_extended jobs_lost server_time visibility_timeout",
    state=enum("running", "quiet", "terminate", description="What to do now (§4.4)."),
    directive=enum("running", "quiet", "terminate"),
    acknowledged=boolean(),
    jobs_extended=array(text()),
    jobs_lost=array(
        text(), description="Reported jobs that the worker no longer holds: stop them."
    ),
    server_time=TIME,
    visibility_timeout=number(),
    stale=boolean(
        "A later heartbeat arrived first, or another process has taken over the worker's id: what "
        "this one says was not recorded."
    ),
)
HEALTH = obj(
    "worker_id id status ready state active_jobs last_heartbeat_at server_time",
    worker_id=text(),
    id=text(),
    status=enum("healthy", "unhealthy", description="Unhealthy: silent, or gone."),
    ready=boolean("It fetches jobs."),
    state=enum("running", "quiet", "terminate", "terminated"),
    active_jobs=COUNT,
    last_heartbeat_at=nullable(TIME),
    server_time=TIME,
)
CHECKPOINT = {
    "job_id": ID,
    "sequence": 3,
    "created_at": "2026-02-12T10:30:01.500Z",
}
DURABLE = {"state": {"row": 4200}, "step_index": 2, "metadata": {"attempt": "1"}}
SAVED = Operation(
    "Checkpoints",
    "Save a checkpoint for the job's next attempt",
    {
        200: Reply(
            "The checkpoint was saved.",
            ref("CheckpointReply"),
            CHECKPOINT | {"checkpoint": CHECKPOINT},
        )
    },
    "OJS durable execution §4.1.",
    body=Checkpoint,
    example={"state": {"row": 4200}, "worker_id": "worker-1"},
    refusals=LOST + refuses(CheckpointTooLarge, "The state exceeds 1 MB of JSON."),
)
LEFT = {
    200: Reply(
        "The worker has left; leaving again is not an error.",
        obj("ok worker_id deregistered", ok=boolean(), worker_id=text(), deregistered=boolean()),
        {"ok": True, "worker_id": "worker-1", "deregistered": True},
    )
}

OPERATIONS = {
    ("POST", "/ojs/v1/workers/register"): Operation(
        "Workers",
        "Register a worker",
        {
            200: Reply(
                "The expected intervals, in seconds.",
                obj(
                    "ok worker_id server_time heartbeat_interval heartbeat_timeout"
                    " visibility_timeout_default",
                    ok=boolean(),
                    worker_id=text(),
                    server_time=TIME,
                    heartbeat_interval=number(),
                    heartbeat_timeout=number(),
                    visibility_timeout_default=number(),
                ),
                {
                    "ok": True,
                    "worker_id": "worker-1",
                    "server_time": "2026-02-12T10:30:00.000Z",
                    "heartbeat_interval": 5,
                    "heartbeat_timeout": 30,
                    "visibility_timeout_default": 1800,
                },
            )
        },
        "Worker protocol §3. Registering again is a restart. Optional: heartbeats and fetches also "
        "make a worker known.",
        body=Registration,
        example={
            "worker_id": "worker-1",
            "hostname": "host-1",
            "pid": 4711,
            "queues": ["email", "default"],
            "concurrency": 10,
            "labels": ["eu"],
        },
    ),
    ("POST", "/ojs/v1/workers/deregister"): Operation(
        "Workers",
        "Leave",
        LEFT,
        "Worker protocol §3.4.",
        body=Named,
        example={"worker_id": "worker-1"},
    ),
    ("DELETE", "/ojs/v1/workers/{worker_id}"): Operation("Workers", "Leave", LEFT),
    ("GET", "/ojs/v1/workers/{worker_id}/health"): Operation(
        "Workers",
        "See how a worker is",
        {
            200: Reply(
                "By its last heartbeat: `ready` while it fetches jobs.",
                HEALTH,
                {
                    "worker_id": "worker-1",
                    "id": "worker-1",
                    "status": "healthy",
                    "ready": True,
                    "state": "running",
                    "active_jobs": 3,
                    "last_heartbeat_at": "2026-02-12T10:30:05.000Z",
                    "server_time": "2026-02-12T10:30:07.000Z",
                },
            )
        },
        refusals=refuses(NotFound, "There is no such worker."),
    ),
    ("POST", "/ojs/v1/workers/heartbeat"): Operation(
        "Workers",
        "Send a heartbeat",
        {
            200: Reply(
                "The directive for the worker, and the state of its jobs.",
                BEAT,
                {
                    "state": "running",
                    "directive": "running",
                    "acknowledged": True,
                    "jobs_extended": [ID],
                    "jobs_lost": [],
                    "server_time": "2026-02-12T10:30:05.000Z",
                    "visibility_timeout": 1800,
                },
            )
        },
        "BEAT (worker protocol §4): extends the reservations of the given jobs, and returns "
        "directives of operators.",
        body=Heartbeat,
        example={"worker_id": "worker-1", "state": "running", "active_job_ids": [ID]},
    ),
    ("POST", "/ojs/v1/workers/fetch"): Operation(
        "Workers",
        "Fetch jobs",
        {
            200: Reply(
                "Jobs reserved for the worker; an empty list is a normal response. `acks` and "
                "`nacks` are present if some were sent.",
                obj("jobs", jobs=array(ref("Job")), **OUTCOMES),
                {"jobs": [JOB | {"state": "active", "attempt": 1}]},
            )
        },
        "FETCH (worker protocol §6). Outcomes in `acks` and `nacks` are settled first: a busy "
        "worker needs one round trip. Queues are searched in the given order; with the strategy "
        "`weighted`, in an order drawn by their weights. A fetch that names a `pool` searches that "
        "pool's queues by its strategy.",
        body=Fetch,
        example={"queues": ["email", "default"], "worker_id": "worker-1", "count": 10},
        refusals=refuses(NotFound, "There is no such pool."),
    ),
    ("POST", "/ojs/v1/workers/ack"): Operation(
        "Workers",
        "Complete jobs",
        {
            200: Reply(
                "The job is completed.",
                {"anyOf": [ref("AckReply"), obj("acks", acks=OUTCOMES["acks"])]},
                ACKED,
            )
        },
        f"ACK (worker protocol §5.6). {SETTLED}",
        body=Acks,
        example={"job_id": ID, "worker_id": "worker-1", "result": DONE["result"]},
        refusals=LOST + refuses(ResultTooLarge, "The result is too large."),
    ),
    ("POST", "/ojs/v1/workers/nack"): Operation(
        "Workers",
        "Fail jobs, or return them unfinished",
        {
            200: Reply(
                "The new state, by the job's retry policy.",
                {"anyOf": [ref("Failed"), obj("nacks", nacks=OUTCOMES["nacks"])]},
                NACKED,
            )
        },
        f"FAIL (worker protocol §5.6, OJS retry). {SETTLED}",
        body=Nacks,
        example={
            "job_id": ID,
            "worker_id": "worker-1",
            "error": {"type": "SMTPError", "message": "451 try later", "retryable": True},
        },
        refusals=LOST,
    ),
    ("POST", "/ojs/v1/jobs/{job_id}/ack"): Operation(
        "Workers",
        "Complete a job",
        {200: Reply("The job is completed.", ref("AckReply"), ACKED)},
        body=JobAck,
        example={"worker_id": "worker-1", "result": DONE["result"]},
        optional=True,
        refusals=LOST + refuses(ResultTooLarge, "The result is too large."),
    ),
    ("POST", "/ojs/v1/jobs/{job_id}/nack"): Operation(
        "Workers",
        "Fail a job",
        {200: Reply("The new state, by the job's retry policy.", ref("Failed"), NACKED)},
        body=JobNack,
        example={
            "worker_id": "worker-1",
            "error": {"code": "handler_error", "message": "451 try later"},
        },
        refusals=LOST,
    ),
    ("POST", "/ojs/v1/jobs/{job_id}/checkpoint"): SAVED,
    ("GET", "/ojs/v1/jobs/{job_id}/checkpoint"): Operation(
        "Checkpoints",
        "Read the job's last checkpoint",
        {
            200: Reply(
                "The checkpoint with its state.",
                ref("CheckpointReply"),
                CHECKPOINT
                | {"state": {"row": 4200}, "checkpoint": CHECKPOINT | {"state": {"row": 4200}}},
            )
        },
        refusals=refuses(NotFound, "There is no such job, or it has no checkpoint.") + NOT_HELD,
    ),
    ("DELETE", "/ojs/v1/jobs/{job_id}/checkpoint"): Operation(
        "Checkpoints",
        "Delete the job's checkpoint",
        {
            200: Reply(
                "The checkpoint was deleted, or there was none.",
                obj("deleted job_id", deleted=boolean(), job_id=text(format="uuid")),
                {"deleted": True, "job_id": ID},
            )
        },
        refusals=NO_JOB + NOT_HELD,
    ),
    ("POST", "/ojs/v1/checkpoints/{job_id}"): Operation(
        "Checkpoints",
        "Save a checkpoint, as durable handlers of the public SDKs do",
        SAVED.replies,
        "`step_index` and `metadata` are kept beside the state.",
        body=DurableCheckpoint,
        example=DURABLE,
        refusals=SAVED.refusals,
    ),
    ("GET", "/ojs/v1/checkpoints/{job_id}/resume"): Operation(
        "Checkpoints",
        "Read the checkpoint from which a durable handler goes on",
        {
            200: Reply(
                "The checkpoint, if there is one.",
                obj(
                    "has_checkpoint",
                    has_checkpoint=boolean(),
                    checkpoint=obj(
                        "job_id sequence created_at state",
                        **components.CHECKPOINT,
                        step_index=nullable(COUNT),
                        metadata=nullable(free()),
                    ),
                ),
                {"has_checkpoint": True, "checkpoint": CHECKPOINT | DURABLE},
            )
        },
        refusals=NO_JOB + NOT_HELD,
    ),
}
_FETCH, _NACK = ("POST", "/ojs/v1/workers/fetch"), ("POST", "/ojs/v1/workers/nack")
_SAVE = ("POST", "/ojs/v1/checkpoints/{job_id}")
_RESUME = ("GET", "/ojs/v1/checkpoints/{job_id}/resume")
ALIASES = {
    ("POST", "/ojs/v1/jobs/fetch"): _FETCH,
    ("POST", "/ojs/v1/workers/beat"): ("POST", "/ojs/v1/workers/heartbeat"),
    ("POST", "/ojs/v1/workers/fail"): _NACK,
    ("POST", "/ojs/v1/jobs/{job_id}/fail"): ("POST", "/ojs/v1/jobs/{job_id}/nack"),
    ("DELETE", "/ojs/v1/checkpoints/{job_id}"): ("DELETE", "/ojs/v1/jobs/{job_id}/checkpoint"),
    ("POST", "/ojs/v1/ojs/v1/checkpoints/{job_id}"): _SAVE,
    ("DELETE", "/ojs/v1/ojs/v1/checkpoints/{job_id}"): (
        "DELETE",
        "/ojs/v1/jobs/{job_id}/checkpoint",
    ),
    ("GET", "/ojs/v1/ojs/v1/checkpoints/{job_id}/resume"): _RESUME,
    ("PUT", "/ojs/v1/jobs/{job_id}/checkpoint"): ("POST", "/ojs/v1/jobs/{job_id}/checkpoint"),
}

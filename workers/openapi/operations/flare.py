"""Zeridion Flare Workers API, if `OJS["FLARE"]["ENABLED"]` is set."""

from __future__ import annotations

from typing import Any

from jobs.errors import JobNotFound
from workers.bindings.flare import views
from workers.bindings.flare.requests import Ack, Heartbeat, JobRequest, Poll, Registration

from ..operation import Operation, Reply
from ..refusals import CLOSED, FULL, LARGE_JOB, MAINTAINED, MISMATCH, NOT_IN_THAT_STATE, refuses
from ..schema import (
    TIME,
    Schema,
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

MEDIA_TYPE = "application/json"
REFUSED = "FlareRefused"
refusal = views.refusal
ID = "job_01KGWTDD4D9ZQR00000G5HS4QY"
TAGS = {"Flare": "The Zeridion Flare Workers API, if it is enabled."}
LINKS = {("/flare/v1/jobs", "201"): ("job_id", "/id", ("/flare/v1/jobs/",))}
JOB = {
    "id": ID,
    "job_type": "email.send",
    "payload": {"to": "user@example.com"},
    "queue": "email",
    "status": "pending",
    "priority": 0,
    "attempt": 0,
    "max_attempts": 3,
    "timeout_seconds": 1800,
    "progress": None,
    "tags": [],
    "error": None,
    "created_at": "2026-02-12T10:30:00.000Z",
    "enqueued_at": "2026-02-12T10:30:00.000Z",
    "scheduled_at": None,
    "started_at": None,
    "finished_at": None,
}
POLLED = {
    name: JOB[name]
    for name in ("id", "job_type", "payload", "max_attempts", "timeout_seconds", "enqueued_at")
} | {"attempt": 1}
NO_JOB = refuses(JobNotFound, "There is no such job.")
STATE = NOT_IN_THAT_STATE

COMPONENTS: dict[str, Schema] = {
    "FlareJob": obj(
        "id job_type payload queue status priority attempt max_attempts timeout_seconds progress"
        " tags error created_at enqueued_at scheduled_at started_at finished_at",
        id=text(),
        job_type=text(),
        payload=free(),
        queue=text(),
        status=enum(
            "awaiting",
            "scheduled",
            "pending",
            "processing",
            "retrying",
            "succeeded",
            "cancelled",
            "failed",
            "dead_letter",
        ),
        priority=integer(),
        attempt=integer(),
        max_attempts=integer(),
        timeout_seconds=integer(),
        progress=nullable(number()),
        tags=array(text()),
        error=nullable(
            obj("type message stack_trace", type=text(), message=text(), stack_trace=text())
        ),
        created_at=TIME,
        enqueued_at=TIME,
        scheduled_at=nullable(TIME),
        started_at=nullable(TIME),
        finished_at=nullable(TIME),
    ),
}


def flare(summary: str, replies: dict[int, Reply], **more: Any) -> Operation:
    return Operation("Flare", summary, replies, media_type=MEDIA_TYPE, **more)


WHOLE = {200: Reply("The job.", ref("FlareJob"), JOB)}
OPERATIONS = {
    ("POST", "/flare/v1/workers/register"): flare(
        "Register a worker and its schedules",
        {
            200: Reply(
                "The worker was registered.", obj("status", status=text()), {"status": "registered"}
            )
        },
        body=Registration,
        example={"worker_id": "w-1", "queues": ["email"], "job_types": ["email.send"]},
        refusals=LARGE_JOB + MISMATCH,
    ),
    ("POST", "/flare/v1/workers/poll"): flare(
        "Fetch jobs",
        {
            200: Reply(
                "The claimed jobs; an empty array is a normal response.",
                obj(
                    "jobs",
                    jobs=array(
                        obj(
                            "id job_type payload attempt max_attempts timeout_seconds enqueued_at",
                            id=text(),
                            job_type=text(),
                            payload=free(),
                            attempt=integer(),
                            max_attempts=integer(),
                            timeout_seconds=integer(),
                            enqueued_at=TIME,
                        )
                    ),
                ),
                {"jobs": [POLLED]},
            )
        },
        body=Poll,
        example={"worker_id": "w-1", "queues": ["email"], "capacity": 10},
    ),
    ("POST", "/flare/v1/workers/ack"): flare(
        "Settle a job",
        {
            200: Reply(
                "What follows.",
                obj(
                    "action retry_at children_activated",
                    action=enum("succeeded", "retry", "failed", "dead_letter"),
                    retry_at=nullable(TIME),
                    children_activated=nullable(integer()),
                ),
                {"action": "succeeded", "retry_at": None, "children_activated": 0},
            )
        },
        body=Ack,
        example={"worker_id": "w-1", "job_id": ID, "status": "succeeded", "duration_ms": 784},
        refusals=NO_JOB + STATE,
    ),
    ("POST", "/flare/v1/workers/heartbeat"): flare(
        "Report that a job is still running",
        {
            200: Reply(
                "`cancel`: the job was cancelled meanwhile.",
                obj("status", status=enum("ok", "cancel")),
                {"status": "ok"},
            )
        },
        body=Heartbeat,
        example={"worker_id": "w-1", "job_id": ID, "progress": 0.5},
        refusals=NO_JOB + STATE,
    ),
    ("POST", "/flare/v1/jobs"): flare(
        "Enqueue a job",
        {201: Reply("The job.", ref("FlareJob"), JOB, ("Location",))},
        body=JobRequest,
        example={"job_type": "email.send", "payload": JOB["payload"], "queue": "email"},
        refusals=refuses(JobNotFound, "There is no such parent.")
        + CLOSED
        + FULL
        + MISMATCH
        + MAINTAINED,
    ),
    ("GET", "/flare/v1/jobs/{job_id}"): flare("A job", WHOLE, refusals=NO_JOB),
    ("POST", "/flare/v1/jobs/{job_id}/cancel"): flare(
        "Cancel a job", WHOLE, refusals=NO_JOB + STATE
    ),
}

"""Execution history: what happened to jobs, and which job enqueued which."""

from __future__ import annotations

from jobs.record.execution import ACTORS, TYPES

from ..operation import Operation, Reply
from ..refusals import NO_JOB
from ..schema import COUNT, TIME, UUID, array, boolean, enum, free, integer, nullable, obj, text
from .jobs import JOB

OF_JOB = "/ojs/v1/jobs/{job_id}/history"
LINEAGE = "/ojs/v1/jobs/{job_id}/lineage"
ALL = "/ojs/v1/history"
STATISTICS = "/ojs/v1/history/stats"

ENTRY = obj(
    "id job_id event_type timestamp data",
    id=text(),
    job_id=text("Of events about a whole workflow, the id of the workflow."),
    event_type=enum(*TYPES),
    timestamp=TIME,
    actor=obj("type", type=enum(*ACTORS), id=text()),
    data=free("Depends on the type."),
    metadata=free(),
)
BEGUN = {
    "id": "evt_000000000000-000000000017-1",
    "job_id": JOB["id"],
    "event_type": "job.attempt_started",
    "timestamp": "2026-02-12T10:30:01.120Z",
    "actor": {"type": "worker", "id": "worker-1"},
    "data": {"worker_id": "worker-1", "attempt": 1},
}
FAILED = BEGUN | {
    "id": "evt_000000000000-000000000018-0",
    "event_type": "job.attempt_failed",
    "timestamp": "2026-02-12T10:30:01.904Z",
    "data": {
        "error": "connection refused",
        "error_type": "smtp_error",
        "error_code": "smtp_error",
        "will_retry": True,
        "attempt": 1,
    },
}
CURSOR = nullable(text("Null after the last page."))
CHILD = {
    "job_id": "019539a4-b68d-7def-8000-1a2b3c4d5e6f",
    "type": "email.log",
    "queue": "email",
    "state": "completed",
    "children": [],
}
BUCKET = obj(
    "timestamp events avg_duration_ms p95_duration_ms",
    timestamp=TIME,
    events={"type": "object", "additionalProperties": COUNT},
    avg_duration_ms=nullable(COUNT),
    p95_duration_ms=nullable(COUNT),
)

OPERATIONS = {
    ("GET", OF_JOB): Operation(
        "History",
        "See what happened to a job",
        {
            200: Reply(
                "Oldest first.",
                obj(
                    "events next_cursor total",
                    events=array(ENTRY),
                    next_cursor=CURSOR,
                    total=COUNT,
                ),
                {"events": [BEGUN, FAILED], "next_cursor": None, "total": 2},
            )
        },
        "OJS execution history §7.1. It outlives the job, by "
        '`OJS["EVENT_RETENTION"]` from each event.',
        refusals=NO_JOB,
    ),
    ("DELETE", OF_JOB): Operation(
        "History",
        "Delete the history of a job",
        {
            200: Reply(
                "The record has no event about the job any more.",
                obj("deleted events_deleted", deleted=boolean(), events_deleted=COUNT),
                {"deleted": True, "events_deleted": 5},
            )
        },
        "OJS execution history §7.3. The job itself stays.",
        refusals=NO_JOB,
    ),
    ("GET", LINEAGE): Operation(
        "History",
        "See which job enqueued a job, and which jobs it enqueued",
        {
            200: Reply(
                "A job without a parent is its own root.",
                obj(
                    "job_id parent_id workflow_id root_id children",
                    job_id=UUID,
                    parent_id=nullable(UUID),
                    workflow_id=nullable(UUID),
                    root_id=UUID,
                    children=array(
                        obj(
                            "job_id type queue state children",
                            job_id=UUID,
                            type=text(),
                            queue=text(),
                            state={"$ref": "#/components/schemas/JobState"},
                            children=array(free("The same again.")),
                        )
                    ),
                    truncated=boolean("There are more than 1000 descendants."),
                ),
                {
                    "job_id": JOB["id"],
                    "parent_id": None,
                    "workflow_id": None,
                    "root_id": JOB["id"],
                    "children": [CHILD],
                },
            )
        },
        "OJS execution history §7.2.",
        refusals=NO_JOB,
    ),
    ("GET", ALL): Operation(
        "History",
        "Search the history of all jobs",
        {
            200: Reply(
                "Newest first. A page may have fewer entries than asked for, even none, and "
                "still name a next one.",
                obj(
                    "events next_cursor total_estimate query_time_ms",
                    events=array(ENTRY),
                    next_cursor=CURSOR,
                    total_estimate=COUNT,
                    query_time_ms=integer(minimum=0),
                ),
                {
                    "events": [FAILED],
                    "next_cursor": None,
                    "total_estimate": 1,
                    "query_time_ms": 4,
                },
                ("X-OJS-Limit-Clamped",),
            )
        },
        "OJS execution history §7.4.",
    ),
    ("DELETE", ALL): Operation(
        "History",
        "Delete the history before a moment",
        {
            200: Reply(
                "With `has_more`, 100,000 events were deleted, and the same request deletes more.",
                obj(
                    "purged events_purged async has_more",
                    purged=boolean(),
                    events_purged=COUNT,
                    **{"async": boolean()},
                    has_more=boolean(),
                ),
                {"purged": True, "events_purged": 15234, "async": False, "has_more": False},
            )
        },
        "OJS execution history §7.6.",
    ),
    ("GET", STATISTICS): Operation(
        "History",
        "Count the history period by period",
        {
            200: Reply(
                "Oldest first; periods in which nothing happened are left out.",
                obj("buckets", buckets=array(BUCKET)),
                {
                    "buckets": [
                        {
                            "timestamp": "2026-02-12T10:00:00.000Z",
                            "events": {
                                "job.created": 150,
                                "job.attempt_completed": 142,
                                "job.attempt_failed": 8,
                                "job.discarded": 2,
                            },
                            "avg_duration_ms": 1234,
                            "p95_duration_ms": 4567,
                        }
                    ]
                },
            )
        },
        "OJS execution history §7.5. Durations are accurate to a fifth.",
    ),
}
ALIASES = {
    (method, path.replace("/v1/", "/v1/admin/")): (method, path) for method, path in OPERATIONS
}

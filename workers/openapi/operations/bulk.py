"""Operations on many jobs, and the priority of one."""

from __future__ import annotations

from typing import Any

from jobs.errors import BatchTooLarge, Conflict
from jobs.http.parameters import IDEMPOTENCY_KEY
from jobs.spec.bulk_requests import BulkChange, BulkEnqueue, NewPriority

from ..operation import Operation, Reply
from ..refusals import MAINTAINED, NO_JOB, refuses
from ..schema import COUNT, array, boolean, enum, free, integer, obj, ref, text
from .jobs import JOB, NEW_JOB, RATE_HEADERS

ID = JOB["id"]
KEY_HEADER = (IDEMPOTENCY_KEY,)

USED = refuses(Conflict, "The idempotency key was used for a different request.")
TOO_MANY = refuses(BatchTooLarge, 'More than `OJS["MAX_BULK"]` jobs.')
NONE = "Nothing was done: no job could be changed, or not every job of an atomic request."

ITEM = obj("index job_id status", index=COUNT, job_id=text(), status=text(), reason=text())


def change(verb: str, did: str, states: str, description: str) -> Operation:
    """The three operations that change selected jobs."""
    report = obj(
        **{"total_matched": COUNT, did: COUNT, "skipped": COUNT},
        items=array(ITEM),
        has_more=boolean("There are more: repeat the request."),
        dry_run=boolean(),
    )
    item = {"index": 0, "job_id": ID, "status": did}
    example: dict[str, Any] = {"total_matched": 1, did: 1, "skipped": 0, "items": [item]}
    skipped = {"index": 1, "job_id": ID, "status": "skipped", "reason": "There is no such job"}
    return Operation(
        "Bulk",
        f"{verb} many jobs",
        {
            200: Reply("All of them, or the result of a dry run.", report, example),
            207: Reply(
                "Some of them.",
                report,
                example | {"total_matched": 2, "skipped": 1, "items": [item, skipped]},
            ),
            422: Reply(NONE, {"anyOf": [report, ref("ErrorReply")]}),
        },
        f"{description} Changes jobs that are {states}, and skips others. Jobs are selected by ids "
        "or by a filter; one request changes a limited number and reports whether there are more.",
        body=BulkChange,
        example={"filter": {"queue": "email", "type": "email.send"}, "dry_run": True},
        headers=KEY_HEADER,
        refusals=USED + TOO_MANY,
    )


ENQUEUED = obj(
    "total succeeded failed items",
    total=COUNT,
    succeeded=COUNT,
    failed=COUNT,
    items=array(
        obj(
            "index status",
            index=COUNT,
            status=enum("created", "duplicate", "failed"),
            job=ref("Job"),
            error=free(),
        )
    ),
)
CREATED = {
    "total": 1,
    "succeeded": 1,
    "failed": 0,
    "items": [{"index": 0, "status": "created", "job": JOB}],
}

OPERATIONS = {
    ("POST", "/ojs/v1/jobs/bulk"): Operation(
        "Bulk",
        "Enqueue many jobs",
        {
            201: Reply("All of them.", ENQUEUED, CREATED, RATE_HEADERS),
            207: Reply("Some of them; each item has its own result.", ENQUEUED),
            422: Reply(NONE, {"anyOf": [ENQUEUED, ref("ErrorReply")]}),
        },
        "OJS bulk operations §5.",
        body=BulkEnqueue,
        example={"jobs": [NEW_JOB], "atomicity": "partial"},
        headers=KEY_HEADER,
        refusals=USED + TOO_MANY + MAINTAINED,
    ),
    ("POST", "/ojs/v1/jobs/bulk/cancel"): change(
        "Cancel", "cancelled", "waiting", "OJS bulk operations §6."
    ),
    ("POST", "/ojs/v1/jobs/bulk/retry"): change(
        "Retry", "retried", "discarded or retryable", "OJS bulk operations §7."
    ),
    ("POST", "/ojs/v1/jobs/bulk/delete"): change(
        "Delete", "deleted", "finished", "OJS bulk operations §8: permanently."
    ),
    ("PATCH", "/ojs/v1/jobs/{job_id}"): Operation(
        "Jobs",
        "Change the priority of a waiting job",
        {
            200: Reply(
                "The job with its new priority.",
                obj(
                    "job id priority previous_priority",
                    job=ref("Job"),
                    id=text(),
                    priority=integer(),
                    previous_priority=integer(),
                ),
                {
                    "job": JOB | {"priority": 10},
                    "id": ID,
                    "priority": 10,
                    "previous_priority": 0,
                },
            )
        },
        "OJS priority §8.1.",
        body=NewPriority,
        example={"priority": 10},
        refusals=NO_JOB + refuses(Conflict, "The job is no longer waiting."),
    ),
}
ALIASES: dict[tuple[str, str], tuple[str, str]] = {}

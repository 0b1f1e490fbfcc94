"""Admin API: queues, and changes to many jobs by a filter."""

from __future__ import annotations

from jobs.spec.lifecycle import State
from jobs.spec.members import Members
from jobs.spec.operator_requests import AdminChange, Pause, Reason
from jobs.spec.rate_policy import QueueLimits

from ..operation import Operation, Reply
from ..schema import COUNT, TIME, array, boolean, free, nullable, obj, text
from .admin import BASE, FIRST, PAGINATION
from .jobs import JOB
from .queue_operations import ABOUT, CONFIGURED, DOCUMENT, FULL, NO_QUEUE, PAUSED
from .queue_operations import OPERATIONS as QUEUES

COUNTS = dict.fromkeys(State.values, 0) | {"available": 42}
FIGURES = FULL | {"counts": free(), "throughput": free(), "latency_ms": free()}
FARES = {"counts": COUNTS, "throughput": {}, "latency_ms": {}}
REPORT = {
    "action": "retry",
    "matched": 3,
    "succeeded": 2,
    "failed": 1,
    "errors": [{"job_id": JOB["id"], "error": "Job is currently active and cannot be retried"}],
    "has_more": False,
}


def by_filter(verb: str, summary: str) -> Operation:
    return Operation(
        "Admin",
        summary,
        {
            200: Reply(
                "What was changed, or would be without the dry run.",
                obj(
                    "action matched succeeded failed errors has_more",
                    action=text(),
                    matched=COUNT,
                    succeeded=COUNT,
                    failed=COUNT,
                    errors=array(obj("job_id error", job_id=text(), error=text())),
                    has_more=boolean("There are more: repeat the request."),
                    dry_run=boolean(),
                ),
                REPORT | {"action": verb},
            )
        },
        "A limited number per request, all of them or none (OJS admin API §8).",
        body=AdminChange,
        example={"filter": {"queue": "email"}, "confirm": True, "reason": "mail server is back"},
    )


def stopped(summary: str, like: str, body: type[Members]) -> Operation:
    same = QUEUES["POST", f"/ojs/v1/queues/{{name}}/{like}"]
    pattern = same.replies[200]
    schema = pattern.schema or {}
    properties = schema["properties"] | PAUSED
    return Operation(
        "Admin",
        summary,
        {200: Reply("The queue.", schema | {"properties": properties}, pattern.example)},
        body=body,
        example={"reason": "the mail server is down"},
        optional=True,
        refusals=same.refusals,
    )


OPERATIONS = {
    ("GET", f"{BASE}/queues"): Operation(
        "Admin",
        "List queues with their depth and throughput",
        {
            200: Reply(
                "By name.",
                obj(
                    "items pagination",
                    items=array(obj("name status counts throughput latency_ms", **FIGURES)),
                    pagination=PAGINATION,
                ),
                {"items": [CONFIGURED | FARES], "pagination": FIRST},
            )
        },
        "OJS admin API §6.1.",
    ),
    ("GET", f"{BASE}/queues/{{name}}"): Operation(
        "Admin",
        "Show a queue with its configuration",
        {
            200: Reply(
                "It.",
                obj(
                    "name status counts throughput latency_ms queue oldest_available_at pause",
                    **FIGURES,
                    queue=obj("name status paused", **DOCUMENT),
                    oldest_available_at=nullable(TIME),
                    pause=obj(**PAUSED),
                ),
                CONFIGURED | FARES | {"queue": ABOUT, "oldest_available_at": None, "pause": {}},
            )
        },
        refusals=NO_QUEUE,
    ),
    ("POST", f"{BASE}/queues/{{name}}/pause"): stopped("Pause a queue", "pause", Pause),
    ("POST", f"{BASE}/queues/{{name}}/resume"): stopped("Resume a queue", "resume", Reason),
    ("PUT", f"{BASE}/queues/{{name}}/rate-limit"): Operation(
        "Admin",
        "Set the rate limit of a whole queue",
        {
            200: Reply(
                "The queue with its new limit.", obj("name status config", **FULL), CONFIGURED
            )
        },
        "OJS rate limiting §7.2.",
        body=QueueLimits,
        example={"limit": 100, "period": "PT1M"},
    ),
    ("POST", f"{BASE}/jobs/bulk/retry"): by_filter("retry", "Give many jobs fresh attempts"),
    ("POST", f"{BASE}/dead-letter/retry"): by_filter(
        "retry", "Give many jobs of the dead letter fresh attempts"
    ),
    ("POST", f"{BASE}/jobs/bulk/cancel"): by_filter("cancel", "Cancel many jobs"),
    ("POST", f"{BASE}/jobs/bulk/delete"): by_filter("delete", "Permanently delete many jobs"),
}
ALIASES = {
    (method, path.replace("/ojs/v1/", f"{BASE}/", 1)): (method, path)
    for method, path in QUEUES
    if "{name}" in path and (method, path.replace("/ojs/v1/", f"{BASE}/", 1)) not in OPERATIONS
} | {
    (method, f"/ojs/v1/dead-letter{path}"): (method, f"{BASE}/dead-letter{path}")
    for method, path in (("DELETE", ""), ("GET", "/stats"), ("POST", "/retry"))
}
ALIASES["POST", "/ojs/v1/dead-letter/purge"] = ("DELETE", f"{BASE}/dead-letter")

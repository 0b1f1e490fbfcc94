"""Admin API: jobs, the dead letter, statistics, the server itself."""

from __future__ import annotations

from typing import Any

from jobs.errors import Conflict
from jobs.spec.operator_requests import (
    Prioritize,
    PurgeDead,
    Reason,
    RetryDeadFor,
    SwitchMaintenance,
)

from ..operation import Operation, Reply
from ..refusals import KEPT, NO_JOB, refuses
from ..schema import COUNT, TIME, array, boolean, free, integer, nullable, obj, ref, text
from .jobs import DONE, JOB
from .queues import NOT_DEAD, NOT_RETRIED

BASE = "/ojs/v1/admin"
WHY: dict[str, Any] = {
    "body": Reason,
    "example": {"reason": "customer asked"},
    "optional": True,
}
PAGINATION = obj(
    "total page per_page has_more",
    total=COUNT,
    page=integer(),
    per_page=integer(),
    has_more=boolean(),
    total_is_minimum=boolean("There are more than were counted."),
    next_cursor=text(),
)
FIRST = {"total": 1, "page": 1, "per_page": 20, "has_more": False}
LINE = obj(
    "id type queue state priority attempt max_attempts created_at enqueued_at",
    id=text(format="uuid"),
    type=text(),
    queue=text(),
    state=ref("JobState"),
    priority=integer(),
    attempt=integer(),
    max_attempts=integer(),
    created_at=TIME,
    enqueued_at=TIME,
    started_at=TIME,
    scheduled_at=TIME,
    completed_at=TIME,
    cancelled_at=TIME,
    discarded_at=TIME,
    worker_id=text(),
    tags=array(text()),
    dead_letter=boolean(),
    error=free("The last one."),
)
SHORT = {
    name: JOB[name]
    for name in (
        "id",
        "type",
        "queue",
        "state",
        "priority",
        "attempt",
        "max_attempts",
        "created_at",
        "enqueued_at",
    )
}
WHOLE = obj(
    "id type queue state args meta errors retry_policy metadata job",
    id=text(format="uuid"),
    type=text(),
    queue=text(),
    state=ref("JobState"),
    args=array({}),
    meta=free(),
    errors=array(free()),
    retry_policy=nullable(free("The effective policy, including defaults.")),
    metadata=free("Timestamps of the job."),
    worker_id=text(),
    redacted=boolean('Values of the keys in `OJS["REDACT_KEYS"]` are hidden.'),
    previous_state=ref("JobState"),
    previous_priority=integer(),
    re_enqueued_at=TIME,
    job=free("The same job again."),
)
KNOWN = DONE | {"errors": [], "retry_policy": None, "metadata": {}, "worker_id": "worker-1"}
LINES = Reply(
    "A page.",
    obj("items pagination", items=array(LINE), pagination=PAGINATION),
    {"items": [SHORT], "pagination": FIRST},
)
DETAIL = Reply(
    "The job: its members at the top level, and as `job`.", WHOLE, KNOWN | {"job": KNOWN}
)
MAINTENANCE = obj(
    "maintenance reason enabled_at estimated_end enabled started_at ends_at",
    maintenance=boolean(),
    reason=nullable(text()),
    enabled_at=nullable(TIME),
    estimated_end=nullable(TIME),
    enabled=boolean("The same as `maintenance`."),
    started_at=nullable(TIME | {"description": "The same as `enabled_at`."}),
    ends_at=nullable(TIME | {"description": "The same as `estimated_end`."}),
    until=nullable(TIME),
    enabled_by=text(),
    refuse_jobs=boolean(),
    disabled_at=TIME,
)
NONE = {
    "maintenance": False,
    "reason": None,
    "enabled_at": None,
    "estimated_end": None,
    "enabled": False,
    "started_at": None,
    "ends_at": None,
}
POINT = {
    "timestamp": "2026-02-12T10:30:00.000Z",
    "processed": 112,
    "completed": 110,
    "failed": 2,
    "enqueued": 120,
    "discarded": 1,
    "latency_p50_ms": 12,
    "latency_p99_ms": 480,
    "run_p50_ms": 780,
    "run_p99_ms": 3100,
}

OPERATIONS = {
    ("GET", f"{BASE}/jobs"): Operation("Admin", "Search jobs", {200: LINES}, "OJS admin API §7.1."),
    ("GET", f"{BASE}/jobs/{{job_id}}"): Operation(
        "Admin", "Everything about a job", {200: DETAIL}, refusals=NO_JOB
    ),
    ("PATCH", f"{BASE}/jobs/{{job_id}}"): Operation(
        "Admin",
        "Change the priority of a waiting job",
        {200: DETAIL},
        body=Prioritize,
        example={"priority": 10, "reason": "customer waits"},
        refusals=NO_JOB + refuses(Conflict, "The job is neither available nor scheduled."),
    ),
    ("POST", f"{BASE}/jobs/{{job_id}}/cancel"): Operation(
        "Admin",
        "Cancel a job",
        {200: DETAIL},
        refusals=NO_JOB + refuses(Conflict, "The job has finished already."),
        **WHY,
    ),
    ("POST", f"{BASE}/jobs/{{job_id}}/retry"): Operation(
        "Admin",
        "Give a discarded or cancelled job fresh attempts",
        {200: DETAIL},
        refusals=NO_JOB
        + refuses(Conflict, "The job is in neither state, or its workflow was cancelled."),
        **WHY,
    ),
    ("GET", f"{BASE}/dead-letter"): Operation("Admin", "Search the dead letter", {200: LINES}),
    ("DELETE", f"{BASE}/dead-letter"): Operation(
        "Admin",
        "Permanently delete the dead letter or a part of it",
        {
            200: Reply(
                "A limited number per request. Jobs of a workflow that has not ended are kept, as "
                "are those that other jobs wait for, and are not counted.",
                obj(
                    "purged_count has_more",
                    purged_count=COUNT,
                    deleted=COUNT | {"description": "The same, in an answer to `POST`."},
                    has_more=boolean(),
                ),
                {"purged_count": 17, "has_more": False},
            )
        },
        body=PurgeDead,
        example={"confirm": True, "queue": "email", "reason": "the address list was wrong"},
    ),
    ("GET", f"{BASE}/dead-letter/stats"): Operation(
        "Admin",
        "The number of dead jobs, by queue and by error",
        {
            200: Reply(
                "Counted now.",
                obj(
                    "total by_queue by_error_type oldest_at newest_at retention",
                    total=COUNT,
                    by_queue={"type": "object", "additionalProperties": COUNT},
                    by_error_type={"type": "object", "additionalProperties": COUNT},
                    oldest_at=nullable(TIME),
                    newest_at=nullable(TIME),
                    retention=obj("max_age max_count", max_age=text(), max_count=COUNT),
                ),
                {
                    "total": 2,
                    "by_queue": {"email": 2},
                    "by_error_type": {"SMTPError": 2},
                    "oldest_at": "2026-02-11T10:30:00.000Z",
                    "newest_at": "2026-02-12T10:30:00.000Z",
                    "retention": {"max_age": "P180D", "max_count": 10_000},
                },
            )
        },
    ),
    ("GET", f"{BASE}/dead-letter/{{job_id}}"): Operation(
        "Admin", "A job of the dead letter", {200: DETAIL}, refusals=NOT_DEAD
    ),
    ("DELETE", f"{BASE}/dead-letter/{{job_id}}"): Operation(
        "Admin",
        "Permanently delete a job of the dead letter",
        {204: Reply("The job was deleted.")},
        refusals=NOT_DEAD + KEPT,
    ),
    ("POST", f"{BASE}/dead-letter/{{job_id}}/retry"): Operation(
        "Admin",
        "Enqueue it again with fresh attempts",
        {200: DETAIL},
        refusals=NOT_RETRIED,
        **WHY | {"body": RetryDeadFor},
    ),
    ("GET", f"{BASE}/stats/history"): Operation(
        "Admin",
        "History, for charts",
        {
            200: Reply(
                "One point per period, oldest first.",
                obj(
                    "period queue data",
                    period=text(),
                    queue=nullable(text()),
                    data=array(
                        obj(
                            " ".join(POINT),
                            **{
                                name: TIME
                                if name == "timestamp"
                                else nullable(integer())
                                if name.endswith("_ms")
                                else COUNT
                                for name in POINT
                            },
                        )
                    ),
                ),
                {"period": "5m", "queue": None, "data": [POINT]},
            )
        },
    ),
    ("GET", f"{BASE}/system/maintenance"): Operation(
        "Admin",
        "Show whether the server is in maintenance mode",
        {200: Reply("It.", MAINTENANCE, NONE)},
    ),
    ("POST", f"{BASE}/system/maintenance"): Operation(
        "Admin",
        "Begin maintenance, or end it",
        {200: Reply("The current state.", MAINTENANCE, NONE | {"disabled_at": JOB["created_at"]})},
        "OJS admin API §12.1.",
        body=SwitchMaintenance,
        example={"enabled": True, "reason": "migration", "estimated_duration": "PT30M"},
    ),
    ("GET", f"{BASE}/system/config"): Operation(
        "Admin",
        "Show the server's configuration",
        {
            200: Reply(
                "Without secrets; durations in seconds.",
                obj(
                    "specversion version backend capabilities extensions options",
                    specversion=text(),
                    version=text(),
                    backend=text(),
                    capabilities=free(),
                    extensions={"description": "Names of extensions."},
                    options=free(),
                ),
            )
        },
    ),
}
ALIASES = {
    (method, f"{BASE}/{short}"): (method, f"{BASE}/system/{short}")
    for method, short in (("GET", "maintenance"), ("POST", "maintenance"), ("GET", "config"))
}

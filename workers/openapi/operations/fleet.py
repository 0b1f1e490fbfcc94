"""Admin API: workers, and statistics of the whole server."""

from __future__ import annotations

from typing import Any

from jobs.errors import Conflict, NotFound
from jobs.models import Source
from workers.api.requests import Direct, DirectMany, NewMark, OrderMany
from workers.fleet.marks import ALL_KINDS

from ..operation import Operation, Reply
from ..refusals import refuses
from ..schema import COUNT, TIME, array, boolean, enum, free, integer, nullable, obj, text
from .admin import BASE, FIRST, LINE, PAGINATION, WHY

NO_WORKER = refuses(NotFound, "There is no such worker.")
GONE = refuses(Conflict, "The worker is gone, or cannot return to running.")
STATES = ("running", "quiet", "terminate", "stale")
WORKER = {
    "id": text(
        "Present if another worker of this id is stored already: `PROJECT@/ID`, for a key without "
        "a project."
    ),
    "project": nullable(text("Null for a worker without a project.")),
    "hostname": text(),
    "pid": nullable(integer()),
    "state": enum(*STATES, "terminated"),
    "reported_state": text(),
    "directive": nullable(text()),
    "desired_state": text(),
    "condition": text(),
    "queues": array(text()),
    "labels": array(text()),
    "capabilities": array({}),
    "versions": free("Accepted versions by job type, if not all: `>=1.0 <3.0`."),
    "concurrency": nullable(integer()),
    "active_jobs": COUNT,
    "jobs_done": COUNT,
    "jobs_failed": COUNT,
    "started_at": nullable(TIME),
    "last_heartbeat_at": nullable(TIME),
    "protocol": text(),
    "version": text(),
    "metadata": free(),
}
ONE = {
    "id": "worker-1",
    "project": None,
    "hostname": "host-1",
    "pid": 4711,
    "state": "running",
    "reported_state": "running",
    "directive": None,
    "desired_state": "running",
    "condition": "running",
    "queues": ["email"],
    "labels": ["eu"],
    "capabilities": [],
    "versions": {"invoice.generate": ">=1.0 <3.0"},
    "concurrency": 10,
    "active_jobs": 3,
    "jobs_done": 1200,
    "jobs_failed": 4,
    "started_at": "2026-02-12T10:00:00.000Z",
    "last_heartbeat_at": "2026-02-12T10:30:00.000Z",
    "protocol": "ojs",
    "version": "acme-worker/2.1",
    "metadata": {},
}
DETAIL = {
    "jobs": array(LINE),
    "directives": array(
        obj(
            "directive asked_by source reason asked_at answer answered_at",
            directive=text(),
            asked_by=text(),
            source=text(),
            reason=text(),
            asked_at=nullable(TIME),
            answer=text(),
            answered_at=nullable(TIME),
        )
    ),
}
ORDERED = Reply(
    "The worker; it is notified with its next heartbeat.",
    obj(f"{' '.join(WORKER)} jobs directives signalled", **WORKER, **DETAIL, signalled=boolean()),
    ONE | {"directive": "quiet", "jobs": [], "directives": [], "signalled": True},
)
NUMBERS = {"type": "object", "additionalProperties": COUNT}

MANY: dict[str, Any] = {
    "body": OrderMany,
    "example": {"filter": {"label": "blue"}, "confirm": True, "reason": "Release 42"},
}
ORDERED_MANY = Reply(
    "The addressed workers; each is notified with its next heartbeat.",
    obj(
        "action matched signalled active_jobs workers unserved_queues has_more",
        action=text(),
        matched=COUNT,
        signalled=integer("The number of workers whose directive changed.", minimum=0),
        active_jobs=integer("Jobs that they hold.", minimum=0),
        workers=array(text()),
        unserved_queues=array(text()),
        has_more=boolean(),
        dry_run=boolean(),
    ),
    {
        "action": "quiet",
        "matched": 2,
        "signalled": 2,
        "active_jobs": 5,
        "workers": ["worker-1", "worker-2"],
        "unserved_queues": ["email"],
        "has_more": False,
    },
)

MARK = {
    "id": nullable(integer("Null for an action of the audit.")),
    "kind": enum(*ALL_KINDS),
    "text": text("The version, the note, or the reason of an action."),
    "at": TIME,
    "project": nullable(text("Null for all.")),
    "by": text("A user, an API key, or the first worker with a version."),
    "source": enum(*Source.values),
    "action": nullable(
        obj(
            "id verb count targets change",
            id=integer(),
            verb=text(),
            count=COUNT,
            targets=array(text()),
            change=nullable(text("Of maintenance `on` or `off`; of a drain its new state.")),
        )
    ),
}
MARKED = {
    "id": 7,
    "kind": "deployment",
    "text": "v2.1",
    "at": "2026-02-12T10:30:00.000Z",
    "project": None,
    "by": "ci",
    "source": "api",
    "action": None,
}

OPERATIONS = {
    ("GET", f"{BASE}/marks"): Operation(
        "Admin",
        "List the marks of charts",
        {
            200: Reply(
                "Deployments, notes, pauses, drains and maintenance, the newest first.",
                obj(
                    "items has_more",
                    items=array(obj(" ".join(MARK), **MARK)),
                    has_more=boolean("There are older ones: ask for those `until` the last."),
                ),
                {"items": [MARKED], "has_more": False},
            )
        },
        "The key of a project sees the deployments and notes of its project.",
    ),
    ("POST", f"{BASE}/marks"): Operation(
        "Admin",
        "Mark this moment in the charts",
        {201: Reply("The mark.", obj(" ".join(MARK), **MARK), MARKED)},
        body=NewMark,
        example={"kind": "deployment", "text": "v2.1"},
    ),
    ("POST", f"{BASE}/workers/bulk/quiet"): Operation(
        "Admin", "Ask many workers to take no more jobs", {200: ORDERED_MANY}, **MANY
    ),
    ("POST", f"{BASE}/workers/bulk/resume"): Operation(
        "Admin", "Ask many workers to resume", {200: ORDERED_MANY}, **MANY
    ),
    ("POST", f"{BASE}/workers/bulk/terminate"): Operation(
        "Admin",
        "Ask many workers to finish their jobs and stop",
        {200: ORDERED_MANY},
        **MANY,
    ),
    ("POST", f"{BASE}/workers/directive"): Operation(
        "Admin",
        "Give one of these orders to many workers",
        {200: ORDERED_MANY},
        "For the public command line: without a filter, to every worker.",
        body=DirectMany,
        example={"directive": "quiet", "confirm": True, "reason": "Release 42"},
    ),
    ("GET", f"{BASE}/workers"): Operation(
        "Admin",
        "List workers",
        {
            200: Reply(
                "Every worker that has not left.",
                obj(
                    "items summary pagination",
                    items=array(obj(" ".join(WORKER), **WORKER)),
                    summary=NUMBERS,
                    pagination=PAGINATION,
                ),
                {"items": [ONE], "summary": {"total": 1, "running": 1}, "pagination": FIRST},
            )
        },
        "OJS admin API §9.1.",
    ),
    ("GET", f"{BASE}/workers/{{worker_id}}"): Operation(
        "Admin",
        "Show a worker, its jobs and its directives",
        {
            200: Reply(
                "The worker.",
                obj(f"{' '.join(WORKER)} jobs directives", **WORKER, **DETAIL),
                ONE | {"jobs": [], "directives": []},
            )
        },
        refusals=NO_WORKER,
    ),
    ("POST", f"{BASE}/workers/{{worker_id}}/quiet"): Operation(
        "Admin",
        "Ask a worker to take no more jobs",
        {200: ORDERED},
        refusals=NO_WORKER + GONE,
        **WHY,
    ),
    ("POST", f"{BASE}/workers/{{worker_id}}/resume"): Operation(
        "Admin", "Ask a worker to resume", {200: ORDERED}, refusals=NO_WORKER + GONE, **WHY
    ),
    ("POST", f"{BASE}/workers/{{worker_id}}/terminate"): Operation(
        "Admin",
        "Ask a worker to finish its jobs and stop",
        {200: ORDERED},
        refusals=NO_WORKER + GONE,
        **WHY,
    ),
    ("POST", f"{BASE}/workers/{{worker_id}}/directive"): Operation(
        "Admin",
        "Send a directive to a worker",
        {200: ORDERED},
        body=Direct,
        example={"directive": "terminate", "reason": "new version"},
        refusals=NO_WORKER + GONE,
    ),
    ("DELETE", f"{BASE}/workers/{{worker_id}}"): Operation(
        "Admin",
        "Remove a stale worker, and reclaim its jobs",
        {
            200: Reply(
                "The worker was removed.",
                obj(
                    "id deregistered removed jobs_rescheduled",
                    id=text(),
                    deregistered=boolean(),
                    removed=boolean(),
                    jobs_rescheduled=COUNT,
                ),
                {
                    "id": "worker-1",
                    "deregistered": True,
                    "removed": True,
                    "jobs_rescheduled": 3,
                },
            )
        },
        refusals=NO_WORKER + refuses(Conflict, "The worker is not stale."),
        **WHY,
    ),
    ("GET", f"{BASE}/stats"): Operation(
        "Admin",
        "Queues, workers and jobs of the whole server",
        {
            200: Reply(
                "Counted now.",
                obj(
                    "queues workers jobs throughput uptime_seconds",
                    queues={"description": "Their number, or an object with details."},
                    workers=COUNT,
                    jobs=free(),
                    throughput=free(),
                    uptime_seconds=COUNT,
                ),
            )
        },
        "OJS admin API §10.1.",
    ),
}
ALIASES: dict[tuple[str, str], tuple[str, str]] = {}

"""Operators' requests about queues."""

from __future__ import annotations

from jobs.errors import Conflict, NotFound, Unsupported
from jobs.spec.lifecycle import State
from jobs.spec.members import Members
from jobs.spec.operator_requests import DeleteQueue, NewQueue, Pause, Purge
from jobs.spec.queue_config import QueueConfig

from ..operation import Operation, Reply
from ..refusals import Refusals, refuses
from ..schema import (
    COUNT,
    TIME,
    Schema,
    array,
    boolean,
    enum,
    free,
    integer,
    nullable,
    number,
    obj,
    text,
)

NO_QUEUE = refuses(NotFound, "There is no such queue.")
NOT_OURS = refuses(Unsupported, "A member of the documents that this server does not support.")
ABOUT = {
    "name": "email",
    "status": "active",
    "paused": False,
    "created_at": "2026-02-12T10:30:00.000Z",
}
CONFIGURED = ABOUT | {
    "state": "active",
    "config": {"concurrency": 10},
    "configuration": {"concurrency": 10},
}
STATS = dict.fromkeys(State.values, 0) | {"available": 42, "active": 8, "depth": 42}
DOCUMENT: dict[str, Schema] = {
    "name": text(),
    "status": text(),
    "paused": boolean(),
    "created_at": TIME,
    "paused_at": TIME,
}
FULL = DOCUMENT | {
    "state": text(),
    "config": free(),
    "configuration": free(),
    "updated_at": TIME,
}
PAUSED: dict[str, Schema] = {
    "paused_by": text(),
    "reason": text(),
    "paused_until": nullable(TIME),
}
RECENTLY = {
    "completed_last_hour": 8920,
    "failed_last_hour": 12,
    "avg_duration_ms": 234,
    "avg_wait_ms": 1456,
    "throughput_per_second": 2.48,
}
STATISTICS = obj(
    **dict.fromkeys((*State.values, "total", "depth", "max_depth"), COUNT),
    **{name: number() for name in RECENTLY},
    queue=text(),
)
COUNTS = obj(**dict.fromkeys(State.values, COUNT), depth=COUNT, max_depth=COUNT)


def stopped(
    summary: str,
    word: str,
    *,
    body: type[Members] | None = None,
    more: dict[str, Schema] | None = None,
    refusals: Refusals = (),
) -> Operation:
    return Operation(
        "Queues",
        summary,
        {
            200: Reply(
                "The queue.",
                obj(
                    f"queue name status paused {word}",
                    queue=free(),
                    name=text(),
                    status=text(),
                    paused=boolean(),
                    **{word: TIME},
                    **(more or {}),
                ),
                {
                    "queue": ABOUT,
                    "name": "email",
                    "status": "active",
                    "paused": False,
                    word: "2026-02-12T11:00:00.000Z",
                },
            )
        },
        body=body,
        example={"reason": "the mail server is down"} if body else None,
        optional=True,
        refusals=refusals,
    )


OPERATIONS = {
    ("POST", "/ojs/v1/queues"): Operation(
        "Queues",
        "Create a queue before its first job",
        {201: Reply("The queue.", obj("name status config", **FULL), CONFIGURED)},
        "Queue configuration §9.2.",
        body=NewQueue,
        example={"name": "email", "config": {"concurrency": 10}},
        refusals=refuses(Conflict, "The queue exists already.") + NOT_OURS,
    ),
    ("GET", "/ojs/v1/queues/{name}"): Operation(
        "Queues",
        "Show a queue, its configuration and its depth",
        {
            200: Reply(
                "Its members are at the top level, too.",
                obj("name status queue stats counts", **FULL, queue=free(), stats=COUNTS)
                | {"additionalProperties": True},
                CONFIGURED | {"queue": CONFIGURED, "stats": STATS, "counts": {}},
            )
        },
        refusals=NO_QUEUE,
    ),
    ("DELETE", "/ojs/v1/queues/{name}"): Operation(
        "Queues",
        "Delete a queue",
        {
            status: Reply(
                description,
                obj(
                    "queue strategy jobs_affected state",
                    queue=text(),
                    strategy=text(),
                    jobs_affected=COUNT,
                    state=enum("deleted", "draining"),
                    target_queue=text(),
                ),
                {"queue": "email", "strategy": "reject", "jobs_affected": 0, "state": state},
            )
            for status, state, description in (
                (200, "deleted", "The queue was deleted."),
                (202, "draining", "The queue will be deleted when its active jobs have ended."),
            )
        },
        "Queue configuration §5.3.",
        body=DeleteQueue,
        example={"strategy": "move", "target_queue": "default"},
        optional=True,
        refusals=NO_QUEUE + refuses(Conflict, "The queue has jobs, and the strategy is `reject`."),
    ),
    ("GET", "/ojs/v1/queues/{name}/stats"): Operation(
        "Queues",
        "Count the jobs of a queue by state",
        {
            200: Reply(
                "Counted now.",
                obj(
                    "queue status stats computed_at",
                    queue=free(),
                    status=text(),
                    stats=STATISTICS,
                    computed_at=TIME,
                ),
                {
                    "queue": ABOUT | STATS,
                    "status": "active",
                    "stats": STATS | RECENTLY | {"queue": "email", "total": 50},
                    "computed_at": "2026-02-12T10:30:00.000Z",
                },
            )
        },
        refusals=NO_QUEUE,
    ),
    ("GET", "/ojs/v1/queues/{name}/priority-stats"): Operation(
        "Queues",
        "Count the available jobs of a queue by priority",
        {
            200: Reply(
                "Priority → jobs.",
                obj(
                    "queue counts_by_priority distribution total",
                    queue=text(),
                    counts_by_priority={"type": "object", "additionalProperties": COUNT},
                    distribution=array(obj("priority count", priority=integer(), count=COUNT)),
                    total=COUNT,
                ),
                {
                    "queue": "email",
                    "counts_by_priority": {"0": 40, "10": 2},
                    "distribution": [
                        {"priority": 0, "count": 40},
                        {"priority": 10, "count": 2},
                    ],
                    "total": 42,
                },
            )
        },
        refusals=NO_QUEUE,
    ),
    ("POST", "/ojs/v1/queues/{name}/pause"): stopped(
        "Pause a queue", "paused_at", body=Pause, more=PAUSED
    ),
    ("POST", "/ojs/v1/queues/{name}/drain"): stopped(
        "Accept no new jobs, work off those there are", "draining_since", refusals=NO_QUEUE
    ),
    ("POST", "/ojs/v1/queues/{name}/resume"): stopped(
        "Hand them out again, or accept them again", "resumed_at", refusals=NO_QUEUE
    ),
    ("GET", "/ojs/v1/queues/{name}/config"): Operation(
        "Queues",
        "Show the configuration of a queue",
        {
            200: Reply(
                "Its configuration.",
                obj("queue config", queue=text(), config=free()),
                {"queue": "email", "config": {"concurrency": 10}},
            )
        },
        refusals=NO_QUEUE,
    ),
    ("PUT", "/ojs/v1/queues/{name}/config"): Operation(
        "Queues",
        "Configure a queue",
        {
            200: Reply(
                "The queue with its new configuration.",
                obj("name status config queue", **FULL, queue=free()),
                CONFIGURED | {"queue": CONFIGURED},
            )
        },
        "Other members remain unchanged (queue configuration §9.1, backpressure §6.2).",
        body=QueueConfig,
        example={"backpressure": {"max_depth": 1000, "strategy": "reject"}},
        refusals=NOT_OURS,
    ),
    ("DELETE", "/ojs/v1/queues/{name}/jobs"): Operation(
        "Queues",
        "Permanently delete jobs of a queue by state",
        {
            200: Reply(
                "A limited number per request.",
                obj(
                    "purged_count states has_more",
                    purged_count=COUNT,
                    deleted=COUNT | {"description": "The same, in an answer to `POST`."},
                    states=array(text()),
                    has_more=boolean("There are more: repeat the request."),
                ),
                {"purged_count": 17, "states": ["completed"], "has_more": False},
            )
        },
        body=Purge,
        example={"states": ["completed"], "confirm": True},
        refusals=NO_QUEUE,
    ),
}
ALIASES = {("POST", "/ojs/v1/queues/{name}/purge"): ("DELETE", "/ojs/v1/queues/{name}/jobs")}

"""Queues, the dead letter, events, and endpoints for monitoring."""

from __future__ import annotations

from jobs.errors import (
    DuplicateJob,
    NeedsEventLoop,
    NotFound,
    NotInstalled,
    TooManyConnections,
    UpgradeRequired,
)
from jobs.http.parameters import LAST_EVENT_ID
from jobs.spec.operator_requests import RetryDead
from jobs.store import standby

from ..operation import Operation, Reply
from ..refusals import (
    CANCELLED_AROUND,
    CLOSED,
    FULL_QUEUE,
    KEPT,
    LARGE_JOB,
    LARGE_META,
    MISMATCH,
    NO_JOB,
    refuses,
)
from ..schema import (
    COUNT,
    TIME,
    array,
    boolean,
    enum,
    free,
    integer,
    nullable,
    number,
    obj,
    ref,
    text,
)
from .jobs import JOB

PAGE_OF_ONE = {"total": 1, "limit": 50, "offset": 0, "has_more": False}
DEAD = JOB | {"state": "discarded", "attempt": 3, "discarded_at": "2026-02-12T11:00:00.000Z"}
NOT_DEAD = refuses(NotFound, "There is no such job in the dead letter.")
NOT_RETRIED = (
    NOT_DEAD
    + CANCELLED_AROUND
    + refuses(DuplicateJob, "Another job has the unique key of what it is changed to.")
    + LARGE_META
    + LARGE_JOB
    + MISMATCH
    + CLOSED
    + FULL_QUEUE
)
EVENT = {
    "specversion": "1.0",
    "id": "evt_00000000002a-00000000012c",
    "type": "job.completed",
    "source": "ojs://server/api",
    "time": "2026-02-12T10:30:01.904Z",
    "timestamp": "2026-02-12T10:30:01.904Z",
    "subject": JOB["id"],
    "job_id": JOB["id"],
    "job_type": "email.send",
    "queue": "email",
    "state": "completed",
    "data": {"job_id": JOB["id"], "job_type": "email.send", "queue": "email", "duration_ms": 784},
}
STREAMED = {
    200: Reply(
        "`id`, `event` and `data` of each event.",
        obj(
            "id event data",
            id=text("A cursor; also for `GET /ojs/v1/events?after=`."),
            event=text(examples=["job.state_changed"]),
            data=text("A JSON object."),
        ),
        {
            "id": EVENT["id"],
            "event": "job.state_changed",
            "data": f'{{"job_id":"{JOB["id"]}","queue":"email","type":"email.send",'
            '"from":"active","to":"completed","timestamp":"2026-02-12T10:30:01.904Z"}',
        },
        media_types=("text/event-stream",),
    )
}
UNSTREAMED = (
    *refuses(TooManyConnections, "The client has reached its limit of open connections."),
    *refuses(NeedsEventLoop, "The server has no event loop."),
)
HEALTH = obj(
    "status version uptime_seconds backend",
    status=enum("ok", "degraded"),
    version=text(),
    uptime_seconds=COUNT,
    backend=obj("type status", type=text(), status=text(), latency_ms=COUNT, error=text()),
    reaper=obj("status", status=text(), last_seen_at=TIME, message=text()),
)
WELL = {
    "status": "ok",
    "version": "1.0",
    "uptime_seconds": 86_400,
    "backend": {"type": "postgres", "status": "healthy", "latency_ms": 1},
    "reaper": {"status": "healthy", "last_seen_at": "2026-02-12T10:30:00.000Z"},
}
UNWELL = {
    "status": "degraded",
    "version": "1.0",
    "uptime_seconds": 86_400,
    "backend": {
        "type": "postgres",
        "status": "unhealthy",
        "error": "The database did not answer in time.",
    },
}
READINESS = obj(
    "status backend",
    status=enum("ready", "unavailable"),
    backend=obj("type status", type=text(), status=text(), latency_ms=COUNT, error=text()),
)
READY = {
    "status": "ready",
    "backend": {"type": "postgres", "status": "healthy", "latency_ms": 2},
}
NOT_READY = {
    "status": "unavailable",
    "backend": {
        "type": "postgres",
        "status": "unhealthy",
        "error": "The database did not answer in time.",
    },
}
DEMAND = obj(
    "queue wanted_workers wanted_concurrency worker_concurrency available active"
    " arrivals_per_second run_seconds paused",
    queue=text(),
    wanted_workers=COUNT,
    wanted_concurrency=number("Jobs that should run at once."),
    worker_concurrency=number("Jobs that a worker of this queue runs at once, on average."),
    available=COUNT,
    active=COUNT,
    arrivals_per_second=number(),
    run_seconds=nullable(number()),
    paused=boolean(),
)

OPERATIONS = {
    ("GET", "/ojs/v1/queues"): Operation(
        "Queues",
        "List queues",
        {
            200: Reply(
                "Every queue that has been used, by name.",
                obj(
                    "queues pagination",
                    queues=array(
                        obj(
                            "name status paused created_at",
                            name=text(),
                            status=text(),
                            paused=boolean(),
                            created_at=TIME,
                            paused_at=TIME,
                        )
                    ),
                    pagination=ref("Pagination"),
                ),
                {
                    "queues": [
                        {
                            "name": "email",
                            "status": "active",
                            "paused": False,
                            "created_at": "2026-02-12T10:30:00.000Z",
                        }
                    ],
                    "pagination": PAGE_OF_ONE,
                },
            )
        },
    ),
    ("GET", "/ojs/v1/dead-letter"): Operation(
        "Dead letter",
        "List the dead letter",
        {
            200: Reply(
                "Newest first.",
                obj(
                    "jobs pagination total",
                    jobs=array(ref("Job")),
                    pagination=ref("Pagination"),
                    total=COUNT,
                ),
                {"jobs": [DEAD], "pagination": PAGE_OF_ONE, "total": 1},
            )
        },
    ),
    ("GET", "/ojs/v1/dead-letter/{job_id}"): Operation(
        "Dead letter",
        "Show a job of the dead letter",
        {200: Reply("The job with its failed attempts.", ref("JobReply"), {"job": DEAD})},
        refusals=NOT_DEAD,
    ),
    ("DELETE", "/ojs/v1/dead-letter/{job_id}"): Operation(
        "Dead letter",
        "Permanently delete a job of the dead letter",
        {
            200: Reply(
                "The job was deleted.",
                obj("deleted job_id", deleted=boolean(), job_id=text()),
                {"deleted": True, "job_id": JOB["id"]},
            )
        },
        refusals=NOT_DEAD + KEPT,
    ),
    ("POST", "/ojs/v1/dead-letter/{job_id}/retry"): Operation(
        "Dead letter",
        "Enqueue a dead job again with fresh attempts",
        {200: Reply("The job, available again.", ref("ChangedJobReply"), {"job": JOB})},
        "`meta` counts how often it was (`ojs.replay_count`).",
        body=RetryDead,
        example={"override": {"queue": "slow", "retry": {"max_attempts": 1}}},
        optional=True,
        refusals=NOT_RETRIED,
    ),
    ("GET", "/ojs/v1/events"): Operation(
        "Events",
        "List events in order",
        {
            200: Reply(
                "Continue with `after=<cursor>`; no event is missed or repeated.",
                obj(
                    "events cursor has_more",
                    events=array(ref("Event")),
                    cursor=nullable(text()),
                    has_more=boolean(),
                    items=array(ref("Event")),
                    pagination=free("As of the lists of the Admin API."),
                ),
                {"events": [EVENT], "cursor": EVENT["id"], "has_more": False},
                headers=(standby.HEADER,),
            )
        },
        "OJS events §6.4. A cursor that is ahead of the record, because the database was restored "
        "from an older backup, is refused with 400: begin again without one. With `Accept: "
        "application/cloudevents-batch+json` the body is an array of CloudEvents, and the cursor "
        "is in `OJS-Cursor` and `OJS-Has-More`. With `page` or `per_page`, pages are newest first, "
        "for the admin UI: the cursor is that of the newest event of the page, and `items` are the "
        "same events. For the key of a project, such pages end with the newest 2000 events of all "
        "projects.",
    ),
    ("GET", "/ojs/v1/events/stream"): Operation(
        "Events",
        "Follow a channel",
        STREAMED,
        "For the public SDKs and the command line: as the streams of jobs and of queues, but that "
        "the data of each event has its name as `event`, too.",
        headers=(LAST_EVENT_ID,),
        refusals=UNSTREAMED + refuses(NotFound, "There is no such job or queue."),
    ),
    ("GET", "/ojs/v1/jobs/{job_id}/events"): Operation(
        "Events",
        "Follow a job",
        STREAMED,
        "Server-sent events (OJS realtime §2.1). The stream ends with the job; of one that has "
        "ended it has a single event. Silence is broken by a comment every 15 s.",
        headers=(LAST_EVENT_ID,),
        refusals=UNSTREAMED + NO_JOB,
    ),
    ("GET", "/ojs/v1/queues/{name}/events"): Operation(
        "Events",
        "Follow the jobs of a queue",
        STREAMED,
        "Server-sent events (OJS realtime §2.2).",
        headers=(LAST_EVENT_ID,),
        refusals=UNSTREAMED + refuses(NotFound, "There is no such queue."),
    ),
    ("GET", "/ojs/v1/ws"): Operation(
        "Events",
        "Open a WebSocket for events",
        {101: Reply('Send `{"action":"subscribe","channel":"all"}`.')},
        "OJS realtime §3, with the subprotocol `ojs.v1`. A browser sends its key as another "
        "subprotocol, `bearer.KEY`.",
        refusals=refuses(UpgradeRequired, "The request is not a WebSocket handshake."),
    ),
    ("GET", "/ojs/v1/health"): Operation(
        "Server",
        "Show the health of the server",
        {
            200: Reply(
                "`degraded`: no reaper runs, or the database takes only reads.", HEALTH, WELL
            ),
            503: Reply("The database cannot be reached.", HEALTH, UNWELL),
        },
        asks_database=False,
    ),
    ("GET", "/ojs/v1/ready"): Operation(
        "Server",
        "Check whether the server can serve requests",
        {
            200: Reply("The table of jobs can be written to.", READINESS, READY),
            503: Reply(
                "The database did not respond within a second or takes only reads, or the process "
                "is stopping.",
                READINESS,
                NOT_READY,
            ),
        },
        asks_database=False,
    ),
    ("GET", "/ojs/manifest"): Operation(
        "Server",
        "Show the manifest of the server",
        {
            200: Reply(
                "Conformance level, capabilities and extensions (OJS HTTP §21).",
                obj(
                    "ojs_version specversion implementation conformance_level"
                    " conformance_tier protocols backend"
                    " capabilities delivery_guarantees extensions endpoints",
                    ojs_version=text(),
                    specversion=text(),
                    implementation=obj("name version", name=text(), version=text()),
                    conformance_level=integer(minimum=0, maximum=4),
                    conformance_tier=enum("parser", "runtime", "full"),
                    protocols=array(text()),
                    backend=text(),
                    capabilities=free(),
                    delivery_guarantees=obj(
                        "jobs events",
                        jobs=enum("at-least-once"),
                        events=enum("at-least-once", "best-effort"),
                    ),
                    extensions=array(text("The URN of an extension.")),
                    payload_limits=free("Maximum sizes (OJS payload limits §8)."),
                    endpoints=free(),
                ),
            )
        },
        asks_database=False,
    ),
    ("GET", "/ojs/v1/metrics"): Operation(
        "Server",
        "Metrics for Prometheus",
        {
            200: Reply(
                "In the text format, or in OpenMetrics if the client accepts it "
                "(OJS observability §8).",
                text(),
                'ojs_job_enqueued_total{queue="email",type="email.send"} 15234.0\n',
                headers=(standby.HEADER,),
                media_types=(
                    "text/plain",
                    "application/openmetrics-text; version=1.0.0; charset=utf-8",
                ),
            )
        },
        refusals=refuses(NotFound, "Metrics are switched off.")
        + refuses(NotInstalled, "The extra `metrics` is not installed."),
    ),
    ("GET", "/ojs/v1/autoscaling"): Operation(
        "Server",
        "Show how many workers queues need",
        {
            200: Reply(
                "All named queues together, and each.",
                obj("wanted_workers queues", wanted_workers=COUNT, queues=array(DEMAND)),
                {
                    "wanted_workers": 3,
                    "queues": [
                        {
                            "queue": "email",
                            "wanted_workers": 3,
                            "wanted_concurrency": 26.4,
                            "worker_concurrency": 10.0,
                            "available": 120,
                            "active": 22,
                            "arrivals_per_second": 11.2,
                            "run_seconds": 2.2,
                            "paused": False,
                        }
                    ],
                },
            )
        },
    ),
    ("POST", "/ojs/v1/admin/reset"): Operation(
        "Server",
        "Delete everything",
        {200: Reply("Everything was deleted.", obj("reset", reset=boolean()), {"reset": True})},
        'For the conformance suite; exists only with `OJS["CONFORMANCE_MODE"]`.',
        asks_database=False,
    ),
}
ALIASES: dict[tuple[str, str], tuple[str, str]] = {}

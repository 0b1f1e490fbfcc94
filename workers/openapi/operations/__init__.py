"""The tables, one module for each part of the API, put together."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from jobs.conf import protocols

from ..operation import Operation
from . import (
    admin,
    admin_queues,
    bulk,
    fleet,
    jobs,
    limits,
    queue_operations,
    queues,
    schemas,
    workflows,
)

Key = tuple[str, str]
"""Method and path: `("GET", "/ojs/v1/jobs/{job_id}")`."""

OF_PROTOCOLS: list[ModuleType] = [
    import_module(protocol.http.operations)
    for protocol in protocols()
    if protocol.http is not None and protocol.http.operations
]
"""What the packages of worker protocols name: `OPERATIONS`, and where there are any, `ALIASES`,
`TAGS`, `COMPONENTS` and `LINKS`. One whose answers have a `MEDIA_TYPE` of its own also has
`REFUSED`, the beginning of its refusals' names, and `refusal()`, which writes one."""

TABLES = (
    jobs,
    bulk,
    *OF_PROTOCOLS,
    workflows,
    queues,
    queue_operations,
    limits,
    admin,
    admin_queues,
    schemas,
    fleet,
)

OPERATIONS: dict[Key, Operation] = {
    key: operation for table in TABLES for key, operation in table.OPERATIONS.items()
}
ALIASES: dict[Key, Key] = {
    key: same for table in TABLES for key, same in getattr(table, "ALIASES", {}).items()
}
"""Other ways to say the same, for other clients."""

TAGS = {
    "Jobs": "Enqueue, look, cancel.",
    "Bulk": "Many jobs in one request.",
    "Results": "What jobs led to.",
    "Progress": "How far jobs are.",
    "Workflows": "Chains, groups, batches and graphs of jobs.",
    "Cron": "Jobs that come again and again.",
    "Workers": "The worker protocol: fetch, settle, heartbeat.",
    "Checkpoints": "What a job keeps for its next attempt.",
    "Queues": "What waits, and where.",
    "Rate limits": "How many jobs of a key may start.",
    "Job specs": "What a deployment registers.",
    "Dead letter": "Jobs that were given up.",
    "Events": "What happened.",
    "Server": "What it can do, and how it is.",
    "Admin": "For operators without a browser.",
}
for table in OF_PROTOCOLS:
    TAGS |= getattr(table, "TAGS", {})

"""Tables of operations, one module for each part of the API."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from jobs.conf import protocols

from ..operation import Operation
from . import (
    admin,
    admin_queues,
    bulk,
    codec,
    fleet,
    history,
    jobs,
    limits,
    queue_operations,
    queues,
    schemas,
    tenants,
    webhooks,
    workflows,
)

Key = tuple[str, str]
"""Method and path: `("GET", "/ojs/v1/jobs/{job_id}")`."""

OF_PROTOCOLS: list[ModuleType] = [
    import_module(protocol.http.operations)
    for protocol in protocols()
    if protocol.http is not None and protocol.http.operations
]
"""Attributes of worker protocols' packages: `OPERATIONS`, and optionally `ALIASES`, `TAGS`,
`COMPONENTS` and `LINKS`. A protocol whose responses have their own `MEDIA_TYPE` also has
`REFUSED`, the prefix of its refusals' names, and `refusal()`, which renders one."""

TABLES = (
    jobs,
    history,
    bulk,
    codec,
    *OF_PROTOCOLS,
    workflows,
    queues,
    queue_operations,
    limits,
    admin,
    admin_queues,
    schemas,
    tenants,
    fleet,
    webhooks,
)

OPERATIONS: dict[Key, Operation] = {
    key: operation for table in TABLES for key, operation in table.OPERATIONS.items()
}
ALIASES: dict[Key, Key] = {
    key: same for table in TABLES for key, same in getattr(table, "ALIASES", {}).items()
}
"""Other paths for the same operations, for other clients."""

TAGS = {
    "Jobs": "Enqueue, inspect, cancel.",
    "Bulk": "Many jobs in one request.",
    "Results": "The outcomes of jobs.",
    "Progress": "The progress of running jobs.",
    "Workflows": "Chains, groups, batches and graphs of jobs.",
    "Cron": "Jobs that are enqueued on a schedule.",
    "Workers": "The worker protocol: fetch, settle, heartbeat.",
    "Checkpoints": "State that a job saves for its next attempt.",
    "Codec": "The codec server: clear text for those who may see it.",
    "Schemas": "JSON Schemas of the arguments of job types, by version.",
    "Queues": "Queues, their configuration and their jobs.",
    "Rate limits": "Limits on starts of jobs with a common key.",
    "Job specs": "Checksums of job types that a deployment registers.",
    "Dead letter": "Jobs that failed for good.",
    "Events": "What happened.",
    "Webhooks": "Events that are sent to subscribed URLs.",
    "History": "What happened to each job, and which job enqueued which.",
    "Tenants": "Limits and shares of tenants; worker pools.",
    "Server": "Capabilities, health and metrics of the server.",
    "Admin": "The Admin API for operators.",
}
for table in OF_PROTOCOLS:
    TAGS |= getattr(table, "TAGS", {})

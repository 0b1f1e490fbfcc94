"""Jobs and their life cycle: the Open Job Spec core (Layer 1) as a Django app.

import jobs

jobs.enqueue("email.send", ["user@example.com"], queue="mail")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .composition import Composition, Step, batch, chain, graph, group, job
    from .crontab import cron
    from .handles import (
        AttemptError,
        JobHandle,
        WaitsForever,
        WorkflowHandle,
        afind,
        aget,
        aget_workflow,
        find,
        get,
        get_workflow,
        wait,
        wait_async,
    )
    from .options import JSON, JobOptions, Retry
    from .producer import acancel, aenqueue, aenqueue_many, cancel, enqueue, enqueue_many

__version__ = "0.1.0"
OPEN_JOB_SPEC = True
"""Lets the two apps recognize each other: a site may have packages with the same names."""
_PLACES = {
    "composition": ("Composition", "Step", "batch", "chain", "graph", "group", "job"),
    "crontab": ("cron",),
    "handles": (
        *("AttemptError", "JobHandle", "WaitsForever", "WorkflowHandle"),
        *("afind", "aget", "aget_workflow", "find", "get", "get_workflow", "wait", "wait_async"),
    ),
    "options": ("JSON", "JobOptions", "Retry"),
    "producer": ("acancel", "aenqueue", "aenqueue_many", "cancel", "enqueue", "enqueue_many"),
}
__all__ = [
    "JSON",
    "AttemptError",
    "Composition",
    "JobHandle",
    "JobOptions",
    "Retry",
    "Step",
    "WaitsForever",
    "WorkflowHandle",
    "acancel",
    "aenqueue",
    "aenqueue_many",
    "afind",
    "aget",
    "aget_workflow",
    "batch",
    "cancel",
    "chain",
    "cron",
    "enqueue",
    "enqueue_many",
    "find",
    "get",
    "get_workflow",
    "graph",
    "group",
    "job",
    "wait",
    "wait_async",
]

# Hidden from type checkers, to which it would make every misspelt name valid.
if not TYPE_CHECKING:

    def __getattr__(name):
        # Imported late: `INSTALLED_APPS` imports this package before models may be imported.
        for module, names in _PLACES.items():
            if name in names:
                from importlib import import_module

                # Only once: Python calls this only for names it does not find.
                globals()[name] = found = getattr(import_module(f"{__name__}.{module}"), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})

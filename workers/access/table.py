"""Permissions for operators' actions on workers: rows of the table in `jobs.access`.

The commands of workers are declared by the package of each protocol, in its module
`authorization`. `workers.access.admission` enforces the bindings of keys to a worker or a label.
"""

from __future__ import annotations

from functools import partial

from jobs.access import Binding, Command, OfProject, Scope, declare

READ, WRITE = (Scope.ADMIN_READ,), (Scope.ADMIN_WRITE,)
OWN, NOTHING = OfProject.OWN, OfProject.NOTHING

READS_HOOKS = ("list", "retrieve", "deliveries", "delivery")

admin = partial(Command, Binding.ADMIN)

HOOKS = (Scope.OPERATE,)
"""A subscription sends events elsewhere, and outlives the key that made it."""

declare(
    *(
        Command(Binding.OJS, f"webhooks.{name}", HOOKS, OWN, reads=name in READS_HOOKS)
        for name in (
            *READS_HOOKS,
            "create",
            "update",
            "destroy",
            "test",
            "rotate",
            "pause",
            "resume",
            "retry",
        )
    )
)
declare(
    admin("workers.list", READ, OWN, reads=True),
    admin("workers.retrieve", READ, OWN, reads=True, note="Its jobs without their arguments."),
    admin("workers.quiet", WRITE, OWN),
    admin("workers.resume", WRITE, OWN),
    admin("workers.terminate", WRITE, OWN),
    admin("workers.direct", WRITE, OWN),
    admin("workers.destroy", WRITE, OWN),
    admin("workers-bulk.quiet", WRITE, OWN),
    admin("workers-bulk.resume", WRITE, OWN),
    admin("workers-bulk.terminate", WRITE, OWN),
    admin("workers-bulk.direct", WRITE, OWN),
    admin("pools.list", READ, NOTHING, reads=True),
    admin("pools.retrieve", READ, NOTHING, reads=True),
    admin("pools.configure", WRITE, NOTHING),
    admin("pools.destroy", WRITE, NOTHING),
    admin("scheduling.retrieve", READ, NOTHING, reads=True),
    admin("marks.list", READ, OWN, reads=True),
    admin("marks.create", WRITE, OWN),
    admin("statistics.retrieve", READ, NOTHING, reads=True),
)

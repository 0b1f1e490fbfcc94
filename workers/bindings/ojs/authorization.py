"""Permissions for the worker endpoints of OJS HTTP: rows of the table in `jobs.access`."""

from __future__ import annotations

from functools import partial

from jobs.access import Binding, Command, OfProject, OfWorker, Scope

PRODUCE, WORK, OBSERVE = (Scope.PRODUCE,), (Scope.WORK,), (Scope.OBSERVE,)
OWN, SHARED, NOTHING = OfProject.OWN, OfProject.SHARED, OfProject.NOTHING
SELF, HELD = OfWorker.SELF, OfWorker.HELD
LATE = "A report on a job that another worker holds is ignored, like a late one."

command = partial(Command, Binding.OJS)

COMMANDS = (
    command("workers.register", WORK, OWN, SELF),
    command("workers.deregister", WORK, OWN, SELF),
    command("workers.heartbeat", WORK, OWN, SELF),
    command("workers.health", WORK, OWN, SELF, reads=True),
    command("workers.fetch", WORK, OWN, SELF),
    command("workers.ack", WORK, OWN, HELD),
    command("workers.nack", WORK, OWN, HELD),
    command("progress.report", WORK, OWN, HELD, note=LATE),
    command("progress.retrieve", PRODUCE, OWN, reads=True),
    command("progress.stream", PRODUCE, OWN, reads=True),
    command("checkpoint.save", WORK, OWN, HELD),
    command("checkpoint.retrieve", WORK, OWN, HELD, reads=True),
    command("checkpoint.destroy", WORK, OWN, HELD),
    command("metrics.retrieve", OBSERVE, NOTHING, reads=True),
    command("autoscaling.retrieve", OBSERVE, NOTHING, reads=True),
    command("health.retrieve", (), SHARED, reads=True, is_open=True),
    command("readiness.retrieve", (), SHARED, reads=True, is_open=True),
    command("documentation.openapi_json", (), SHARED, reads=True, is_open=True),
    command("documentation.docs", (), SHARED, reads=True, is_open=True),
)

"""Permissions for Drum."""

from __future__ import annotations

from functools import partial

from jobs.access import Command, OfProject, OfWorker, Scope

from . import PROTOCOL

command = partial(Command, PROTOCOL.named_in_table, of_project=OfProject.OWN)

COMMANDS = (
    command("join", (Scope.WORK,), of_worker=OfWorker.SELF),
    command("beat", (Scope.WORK,), of_worker=OfWorker.SELF),
    command("next", (Scope.WORK,), of_worker=OfWorker.SELF),
    command("done", (Scope.WORK,), of_worker=OfWorker.HELD),
    command("workers.list", (Scope.OPERATE,), reads=True),
)

"""Permissions for Flare: rows of the table in `jobs.access`."""

from __future__ import annotations

from functools import partial

from jobs.access import Command, OfProject, OfWorker, Scope

from . import PROTOCOL

PRODUCE, WORK = (Scope.PRODUCE,), (Scope.WORK,)
OWN = OfProject.OWN
SELF, HELD = OfWorker.SELF, OfWorker.HELD

command = partial(Command, PROTOCOL.named_in_table)

COMMANDS = (
    command("workers.register", WORK, OWN, SELF, note="Its recurring schedules are the project's."),
    command("workers.poll", WORK, OWN, SELF),
    command("workers.ack", WORK, OWN, HELD),
    command("workers.heartbeat", WORK, OWN, HELD),
    command("jobs.create", PRODUCE, OWN),
    command("jobs.retrieve", PRODUCE, OWN, reads=True),
    command("jobs.cancel", PRODUCE, OWN),
)

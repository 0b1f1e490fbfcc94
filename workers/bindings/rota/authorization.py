"""Permissions for Rota: rows of the table in `jobs.access`."""

from __future__ import annotations

from functools import partial

from jobs.access import Command, OfProject, OfWorker, Scope

from . import PROTOCOL

WORK = (Scope.WORK,)
OWN, SHARED = OfProject.OWN, OfProject.SHARED
SELF, HELD = OfWorker.SELF, OfWorker.HELD

command = partial(Command, PROTOCOL.named_in_table)

COMMANDS = (
    command("handshake", WORK, SHARED),
    command("registration", WORK, OWN, SELF),
    command("status", WORK, OWN, HELD, note="A job that another worker holds is reported as lost."),
    command("results", WORK, OWN, HELD),
    command("wanted", WORK, OWN, SELF, note="Requests assignments."),
)

"""Permissions for the commands of AGQ: rows of the table in `jobs.access`."""

from __future__ import annotations

from functools import partial

from jobs.access import Command, OfProject, OfWorker, Scope

from . import PROTOCOL

PRODUCE, WORK, OPERATE = (Scope.PRODUCE,), (Scope.WORK,), (Scope.OPERATE,)
INSPECT = (Scope.WORK, Scope.OPERATE)
"""Over AGQ, workers may read about each other, and operators about all of them (AGQ §9.2)."""
ANY_KEY: tuple[Scope, ...] = ()
OWN, SHARED = OfProject.OWN, OfProject.SHARED
SELF, HELD = OfWorker.SELF, OfWorker.HELD
HELD_JOBS = "Of jobs: those held by such a worker."

command = partial(Command, PROTOCOL.named_in_table)

COMMANDS = (
    command("AUTH", (), SHARED, is_open=True),
    command("HELLO", (), SHARED, is_open=True, note="Answered once the client has authenticated."),
    command("QUIT", (), SHARED, is_open=True),
    command("CLIENT", (), SHARED, is_open=True),
    command("COMMAND", (), SHARED, is_open=True),
    command("PING", ANY_KEY, SHARED, reads=True),
    command("ECHO", ANY_KEY, SHARED, reads=True),
    command("SELECT", ANY_KEY, SHARED, reads=True),
    command("INFO", ANY_KEY, SHARED, reads=True),
    command("WORKER.REGISTER", WORK, OWN, SELF),
    command("WORKER.HEARTBEAT", WORK, OWN, SELF),
    command("WORKER.UNREGISTER", WORK, OWN, SELF),
    command("BRPOP", WORK, OWN, SELF),
    command("JOB.UPDATE", WORK, OWN, HELD),
    command("LPUSH", PRODUCE, OWN),
    command("KEYS", INSPECT, OWN, SELF, reads=True),
    command("GET", INSPECT, OWN, SELF, reads=True, note=HELD_JOBS),
    command("TTL", INSPECT, OWN, SELF, reads=True, note=HELD_JOBS),
    command("EXISTS", INSPECT, OWN, SELF, reads=True, note=HELD_JOBS),
    command("SMEMBERS", INSPECT, OWN, SELF, reads=True),
    command("SCAN", INSPECT, OWN, SELF, reads=True, note=HELD_JOBS),
    command("TYPE", INSPECT, OWN, SELF, reads=True, note=HELD_JOBS),
    command("PTTL", INSPECT, OWN, SELF, reads=True, note=HELD_JOBS),
    command("LLEN", INSPECT, OWN, reads=True),
    command("MULTI", ANY_KEY, SHARED, note="Each queued command is authorized separately."),
    command("EXEC", ANY_KEY, SHARED, note="Each of its commands is authorized again."),
    command("DISCARD", ANY_KEY, SHARED),
    command("WATCH", ANY_KEY, SHARED, note="Refused."),
    command("UNWATCH", ANY_KEY, SHARED),
    command("RESET", (), SHARED, is_open=True),
    command("WORKER.VERIFY", OPERATE, OWN, SELF),
)

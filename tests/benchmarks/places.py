"""Names of measurements, mainly for the goals, which find measurements by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

ENGINE = "Engine in process, one connection"
LIMIT = "The limit: claim n + ack n, bare"
RECOVERY = "Recovery of dead workers' jobs"
FLOOR = "floor: a bare DRF view"
FLEET = "heartbeat of many workers, 10 jobs"
FETCH = "FETCH 10, by what is in the table"
ACK = "ACK 10, by what is in flight"
IDLE = "An idle worker"
PAGES = "Pages of the admin, 1,000,000 jobs and 1,000 workers"
WAITING = "Waiting on the event loop, one server process"
FETCHES = "waiting fetches"
STREAMS = "event streams"
BODIES = "unfinished bodies"
LOGINS = "unfinished logins"
GONE = "fetches that left"
ENDED = "fetches at SIGTERM"
SOAK = "A steady load, two server processes"
PROCESSORS = ("The machine", "processors for all machines, PostgreSQL and clients")
WOKEN = "Machines: from sending an enqueue to the arrival of the job"
STANDBY = "Read from a standby or not: processor time of PostgreSQL's sessions for a request"
CUT_OFF = "Machines: one is cut off for a while"
CLOCKS = "Machines: their clocks an hour apart"
LOST = "jobs lost"
ELSEWHERE = "its jobs run elsewhere after"
LATE = "a delayed job or a cron is late by at most"
EARLY = "a delayed job or a cron is early by at most"
FILLED = "Filled tables beside small ones, in process"
FILLED_PAGES = "Pages of the admin, filled tables"
UPKEEP = "Housekeeping, filled tables"
LARGE_WORKFLOWS = "A large workflow, filled tables"
FETCH_TEN, FETCH_AND_ACK, ACK_TEN = "FETCH of ten", "FETCH of one + ACK", "ACK of ten"
BEAT, ENQUEUE, ENQUEUE_MANY = "heartbeat with ten jobs", "enqueue 1", "enqueue 100"
HOT_VERBS = (FETCH_TEN, ACK_TEN, FETCH_AND_ACK, BEAT, ENQUEUE, ENQUEUE_MANY)
REFERENCE = "Beside the reference server, one load client"
THEIRS = "reference server"
STOCKS = (20_000, 150_000)
"""Available jobs of both servers before a measurement of fetches. The reference server's fetches
take longer the more there are, and ours do not, so one number would say little."""
PATHS = "Gains of fast paths"


def group_of(processes: int) -> str:
    return f"HTTP, {processes} server {in_words(processes)}"


def of_interface(interface: str) -> str:
    return f"HTTP, 2 server processes, {interface.upper()} beside the other"


def of_clients(name: str, clients: int) -> str:
    """The name of a scenario with an unusual number of clients."""
    return f"{name}, {clients} client{'s' if clients > 1 else ''}"


def ours(processes: int) -> str:
    return f"runhttp, {processes} {in_words(processes)}"


def of_reference(server: str, name: str, connections: int) -> str:
    plural = "s" if connections > 1 else ""
    return f"{name}, {connections} connection{plural}: {server}"


def among(name: str, available: int) -> str:
    return f"{name} of {available:,} available"


def bare(count: int, connections: int) -> str:
    plural = "s" if connections > 1 else ""
    return f"pgbench: claim + ack {count}, {connections} connection{plural}"


def of_many(count: int, what: str, measure: str) -> str:
    return f"{count:,} {what}: {measure}"


def in_words(number: int) -> str:
    return f"process{'es' if number > 1 else ''}"


def at_the_end(what: str) -> str:
    return f"{what}: at the end, of before"


def recovered(kind: str) -> str:
    return f"{kind}, p99: two minutes after an idle transaction, of before"


def with_past(jobs: int) -> str:
    return f"fetch, p50: with {jobs:,} finished jobs, of without"


def of_machines(load: str, share: float | None) -> str:
    """Throughput of servers on machines, which may use that share of a processor each."""
    limit = "" if share is None else f", each server with {share:g} of a processor"
    return f"Machines: {load}{limit}"


def in_number(machines: int) -> str:
    return f"{machines} machine{'s' if machines > 1 else ''}"


def woken(where: str, share: int) -> str:
    return f"{where}, p{share}"


def floors(documents: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Group → what its others are compared with."""
    servers = {group_of(number): FLOOR for number in range(1, 65)}
    return {document["group"]: in_number(1) for document in documents} | servers


def of_verb(verb: str, share: str, tables: str) -> str:
    return f"{verb}, {share}: {tables}"

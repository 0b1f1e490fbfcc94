"""The names of measurements of peers."""

from __future__ import annotations

from ..places import in_words

PEERS = "Beside others: no-op jobs a second, each at its best"
SETTINGS = "Beside others: every setting"


def worked_off(peer: str, processes: int) -> str:
    return f"{peer}: worked off, {processes} {in_words(processes)}"


def enqueued(peer: str, at_a_time: int = 1) -> str:
    return f"{peer}: enqueue {at_a_time}"

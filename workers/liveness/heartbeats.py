"""Writes heartbeats and sends their signals (OJS worker protocol §4, §5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.signals import jobs_extended, send_on_commit

from ..models import Worker
from ..signals import worker_beat, worker_quieted
from ..store.contract import Description, Heartbeat, Written
from ..store.stores import store


def write(heartbeat: Heartbeat) -> Written | None:
    """Record a heartbeat of a live worker and extend the jobs it holds.

    None if no such worker is live, or if the heartbeat came too late.
    """
    written = store().beat(heartbeat)
    if written is not None:
        _send_signals(heartbeat, written)
    return written


def write_all(heartbeats: Sequence[Heartbeat]) -> list[Written | None]:
    """Record heartbeats of different workers at once; None for each that `write` must record."""
    found = store().beat_all(heartbeats)
    for heartbeat, written in zip(heartbeats, found, strict=True):
        if written is not None:
            _send_signals(heartbeat, written)
    return found


def _send_signals(heartbeat: Heartbeat, written: Written) -> None:
    about: dict[str, Any] = {"worker_id": heartbeat.worker_id}
    if worker_beat.has_listeners():
        send_on_commit(worker_beat, Worker, state=written.desired_state, **about)
    if written.fell_quiet and worker_quieted.has_listeners():
        send_on_commit(worker_quieted, Worker, **about)
    if jobs_extended.has_listeners():
        extended = written.extended
        if extended is None:
            extended = {job_id for job_id in heartbeat.job_ids().values() if job_id is not None}
        if extended:
            send_on_commit(jobs_extended, Worker, job_ids=list(extended), **about)


__all__ = ["Description", "Heartbeat", "Written", "write", "write_all"]

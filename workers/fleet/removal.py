"""Take a worker that is silent or gone off the list, and its jobs back (OJS admin API §9.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models.functions import Now

from jobs import engine
from jobs.access.audit import Actor, record_action
from jobs.errors import Conflict
from jobs.models import Job
from jobs.record.events import record, worker_event
from jobs.signals import send_on_commit
from jobs.store.database import atomic

from ..lifecycle import WorkerState
from ..models import Worker
from ..signals import workers_died
from .orders import find

BATCHES = 20


@dataclass(frozen=True)
class Removal:
    """What became of a worker and of its jobs."""

    jobs_taken_back: int
    removed: bool
    """Whether its record is gone; else the reaper takes the rest of its jobs back first."""


def remove(worker_id: str, *, actor: Actor, reason: str = "") -> Removal:
    """Declare a silent worker dead now, take its jobs back, and forget it.

    Should it speak again, it is met as a new one, and its reservations are lost (§10.4).

    Raises:
        NotFound: nobody knows it.
        Conflict: it is alive.
    """
    with atomic():
        # Locked first, as a heartbeat locks it: one that returns just now is alive.
        Worker.objects.filter(pk=worker_id).select_for_update().first()
        died = (
            Worker.objects.silent()
            .filter(pk=worker_id)
            .update(state=WorkerState.TERMINATED, directive="", died_at=Now(), active_job_ids=[])
        )
        worker = find(worker_id)
        if worker.state != WorkerState.TERMINATED:
            raise Conflict(
                f"Worker '{worker_id}' is alive: it was heard within its heartbeat timeout.",
                hint="Tell it to terminate, and it leaves by itself.",
                worker_id=worker_id,
                state=worker.state,
            )
        held, count = Job.objects.held_by(worker_id), 0
        dead: Any = Worker.objects.annotate(now=Now()).get(pk=worker_id)
        silent = {worker_id: dead.silence_at(dead.now)}
        for _ in range(BATCHES):
            batch = engine.reclaim([worker_id], silent)
            count += batch
            if not batch:
                break
        record_action(actor, "delete_worker", [worker], reason=reason)
        # A job that somebody is changing right now was passed over; its worker's record is how the
        # reaper finds it.
        gone = Worker.objects.filter(pk=worker_id, state=WorkerState.TERMINATED)
        removed = not held.exists() and bool(gone.delete()[0])
        if died:
            record([worker_event("worker.stopped", worker_id, reason="error")])
            send_on_commit(workers_died, Worker, worker_ids=[worker_id])
    return Removal(count, removed)

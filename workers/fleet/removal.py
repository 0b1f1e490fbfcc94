"""Removes a silent or terminated worker and reclaims its jobs (OJS admin API §9.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models.functions import Now

from jobs.access.audit import Actor, record_action
from jobs.access.projects import scope_to
from jobs.errors import Conflict
from jobs.record.events import record, worker_event
from jobs.signals import send_on_commit
from jobs.store.database import atomic

from ..lifecycle import WorkerState
from ..liveness import holdings
from ..models import Worker
from ..signals import workers_died
from .orders import find

BATCHES = 20


@dataclass(frozen=True)
class Removal:
    """The outcome of a removal."""

    jobs_taken_back: int
    removed: bool
    """Whether its record is gone; if not, the reaper reclaims the rest of its jobs first."""


def remove(worker_id: str, *, actor: Actor, reason: str = "", project: str = "") -> Removal:
    """Declare a silent worker dead now, reclaim its jobs, and delete its record.

    If it is heard again, it is a new worker, and its reservations are lost (§10.4).

    Args:
        worker_id: the id that a key of `project` uses.

    Raises:
        NotFound: there is no such worker.
        Conflict: it is alive.
    """
    name = find(worker_id, project=project).pk
    with atomic():
        # Locked first, as a heartbeat does: a worker that returns right now is alive.
        Worker.objects.filter(pk=name).select_for_update().first()
        died = (
            scope_to(Worker.objects.silent(), project)
            .filter(pk=name)
            .update(state=WorkerState.TERMINATED, directive="", died_at=Now(), active_job_ids=[])
        )
        worker = find(worker_id, project=project)
        if worker.state != WorkerState.TERMINATED:
            raise Conflict(
                f"Worker '{worker_id}' is alive: it was heard within its heartbeat timeout.",
                hint="Direct it to terminate, and it will leave.",
                worker_id=worker_id,
                state=worker.state,
            )
        held, count = holdings.held_by([worker]), 0
        dead: Any = Worker.objects.annotate(now=Now()).get(pk=name)
        silent = {name: dead.silence_at(dead.now)}
        for _ in range(BATCHES):
            batch = holdings.reclaim([worker], silent)
            count += batch
            if not batch:
                break
        record_action(actor, "delete_worker", [worker], reason=reason)
        # A job whose row is locked was skipped; the reaper finds it through its worker's record.
        gone = Worker.objects.filter(pk=name, state=WorkerState.TERMINATED)
        removed = not held.exists() and bool(gone.delete()[0])
        if died:
            record([worker_event("worker.stopped", name, reason="error")])
            send_on_commit(workers_died, Worker, worker_ids=[name])
    return Removal(count, removed)

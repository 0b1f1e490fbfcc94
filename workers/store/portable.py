"""Heartbeats through Django's ORM, for SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Case, F, Q, Value, When

from jobs import engine
from jobs.access.projects import scope_to
from jobs.conf import ojs_settings
from jobs.record.events import record, worker_event
from jobs.store import clock
from jobs.store.database import atomic

from ..lifecycle import WorkerState
from ..models import Worker
from .contract import SAME_START, SETTLED, Description, Heartbeat, Written

QUIET = WorkerState.QUIET


class PortableHeartbeatStore:
    def beat(self, heartbeat: Heartbeat) -> Written | None:
        with atomic():
            fresh = scope_to(Worker.objects.live(), heartbeat.project).filter(
                pk=heartbeat.worker_id
            )
            fresh = fresh.filter(_of_the_same_process(heartbeat))
            if heartbeat.sequence is not None:
                fresh = fresh.filter(Q(sequence__isnull=True) | Q(sequence__lt=heartbeat.sequence))
            before = fresh.select_for_update().values_list("state", flat=True).first()
            if before is None:
                return None
            fields = {name: it for name, it in changes(heartbeat).items() if name not in SETTLED}
            Worker.objects.filter(pk=heartbeat.worker_id).update(**fields)
            worker = Worker.objects.only("state", "directive", "queues").get(pk=heartbeat.worker_id)
            jobs = {job_id for job_id in heartbeat.job_ids().values() if job_id is not None}
            fell_quiet = worker.state == QUIET != before
            if fell_quiet:
                quiet = worker_event("worker.quiet", worker.worker_id, active_jobs=len(jobs))
                record([quiet])
            terminating = WorkerState.TERMINATE in (worker.state, worker.directive)
            extended = engine.extend(
                jobs,
                worker_id=heartbeat.worker_id,
                requested=heartbeat.requested,
                at_least=ojs_settings.GRACE_PERIOD if terminating else None,
            )
            if ojs_settings.RECORD_HEARTBEATS:
                recorded = {"active_jobs": len(jobs), "queues": worker.queues}
                record([worker_event("worker.heartbeat", worker.worker_id, **recorded)])
        return Written(worker.desired_state, extended, fell_quiet)

    def beat_all(self, heartbeats: Sequence[Heartbeat]) -> list[Written | None]:
        return [None] * len(heartbeats)


def _of_the_same_process(heartbeat: Heartbeat) -> Q:
    """`liveness.incarnations.sender` in SQL; what one side does not say proves nothing."""
    said, same = heartbeat.description or Description(), Q()
    if said.hostname:
        same &= Q(hostname__in=("", said.hostname))
    if said.pid is not None:
        same &= Q(pid__isnull=True) | Q(pid=said.pid)
    if said.started_at is not None:
        about = (said.started_at - SAME_START, said.started_at + SAME_START)
        same &= Q(started_at__isnull=True) | Q(started_at__range=about)
    return same


def changes(heartbeat: Heartbeat) -> dict[str, Any]:
    """Columns that a worker's first heartbeat writes; later ones leave those in `SETTLED` alone."""
    members: dict[str, Any] = heartbeat.description.given() if heartbeat.description else {}
    members["last_heartbeat_at"] = clock.now()
    if heartbeat.active_job_ids is not None:
        members["active_job_ids"] = list(heartbeat.active_job_ids)
    if heartbeat.sequence is not None:
        members["sequence"] = heartbeat.sequence
    if heartbeat.state is not None:
        terminate = WorkerState.TERMINATE
        members["state"] = Case(
            When(state=terminate, then=Value(terminate)), default=Value(heartbeat.state)
        )
    if heartbeat.state == WorkerState.RUNNING:
        members["directive"] = Case(
            When(directive=WorkerState.RUNNING, then=Value("")), default=F("directive")
        )
    return members

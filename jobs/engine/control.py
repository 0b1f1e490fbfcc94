"""Verbs of producers and operators: cancel, activate, retry and delete jobs; pause queues."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models.functions import Now

from ..errors import Conflict, InvalidTransition, JobNotFound, NotFound
from ..models import Checkpoint, Job, Queue, Workflow, WorkflowState
from ..models.querysets import JobQuerySet
from ..record.events import PREVIOUS, first_enqueued, job_event, queue_event, record
from ..signals import jobs_cancelled, send_on_commit
from ..spec import queue_config
from ..spec.fields import inside
from ..spec.lifecycle import Event, State, sources
from ..spec.operator_requests import Override
from ..spec.timestamps import format_timestamp
from ..store import clock, wakeup
from ..store.database import atomic
from ..store.expressions import Among, JSONMerged
from . import content, queue_marks, queue_policy
from .dependencies import ended_with_workflow, is_waiting
from .ends import cancel_unfinished
from .flow import ending
from .retention import erase, lock_deletable

REPLAYS = "ojs.replay_count"
"""Member of `meta` that says how often a job was taken out of the dead letter."""


@dataclass(frozen=True)
class Change:
    """A job after an intervention, and the state it was in before."""

    job: Job
    previous_state: State
    previous_priority: int = 0


def _locked(job_id: UUID) -> Job:
    job = Job.objects.filter(pk=job_id).select_for_update().first()
    if job is None:
        raise JobNotFound(job_id)
    return job


def _known(**members: str) -> dict[str, str]:
    """Members of an event's data, without those that nobody said."""
    return {name: value for name, value in members.items() if value}


def cancel(job_id: UUID, *, cancelled_by: str = "", reason: str = "") -> Change:
    """Cancel an unfinished job, even an active one; its worker is notified (OJS core §7.6).

    Raises:
        JobNotFound: there is no such job.
        InvalidTransition: it is in a terminal state.
    """
    with ending() as ended:
        job = _locked(job_id)
        previous = State(job.state)
        holder = job.reserved_by
        if not Job.objects.filter(pk=job_id).transition(Event.CANCEL, State.CANCELLED):
            raise InvalidTransition(
                f"Cannot cancel job in terminal state '{job.state}'.",
                job_id=str(job_id),
                current_state=str(job.state),
            )
        job.refresh_from_db()
        data = _known(cancelled_by=cancelled_by, reason=reason) | {PREVIOUS: str(previous)}
        record([job_event("job.cancelled", job, time=clock.now(), worker_id=holder, data=data)])
        if job.followed:
            ended.append(job_id)
    send_on_commit(jobs_cancelled, Job, job_ids=[job_id])
    return Change(job, previous)


def activate(job_id: UUID, *, activated_by: str = "") -> Change:
    """Make a pending job available (ACTIVATE, OJS HTTP §7.8).

    Raises:
        JobNotFound: there is no such job.
        InvalidTransition: it is not pending.
    """
    with atomic():
        job = _locked(job_id)
        previous = State(job.state)
        pending = Job.objects.filter(pk=job_id)
        if job.followed and pending.filter(is_waiting()).exists():
            raise InvalidTransition(
                "Cannot activate a job that waits for other jobs: it starts automatically.",
                job_id=str(job_id),
                current_state=str(job.state),
            )
        moved = pending.transition(Event.ACTIVATE, State.AVAILABLE, enqueued_at=Now())
        if not moved:
            raise InvalidTransition(
                f"Cannot activate job in state '{job.state}'. "
                "Only jobs in 'pending' state can be activated.",
                job_id=str(job_id),
                current_state=str(job.state),
            )
        job.refresh_from_db()
        who = _known(activated_by=activated_by)
        record([first_enqueued(job, time=clock.now(), **who)])
        wakeup.notify([job.queue])
    return Change(job, previous)


def prioritize(job_id: UUID, priority: int, *, changed_by: str = "") -> Change:
    """Change a waiting job's priority; `previous_priority` holds the old one (priority §8.1).

    Raises:
        JobNotFound: there is no such job.
        InvalidTransition: it is neither available nor scheduled.
    """
    with atomic():
        job = _locked(job_id)
        if job.state not in (State.AVAILABLE, State.SCHEDULED):
            raise InvalidTransition(
                f"The priority of a job in state '{job.state}' cannot be changed.",
                job_id=str(job_id),
                current_state=str(job.state),
            )
        change = Change(job, State(job.state), previous_priority=job.priority)
        if job.priority != priority:
            Job.objects.filter(pk=job_id).update(priority=priority)
            data: dict[str, Any] = {"previous_priority": job.priority, "new_priority": priority}
            data |= _known(changed_by=changed_by)
            record([job_event("priority.changed", job, time=clock.now(), data=data)])
        job.refresh_from_db()
    return change


RETRIED = ("type", "queue", "state", "attempt", "meta", "rate_key", "project", "workflow_id")


def retriable(
    jobs: JobQuerySet, *, cancelled: bool = False, also: Collection[State] = ()
) -> JobQuerySet:
    """Return the discarded jobs that may run again: those that did not end with their workflow.

    Args:
        cancelled: also cancelled jobs (OJS admin API §7.4).
        also: also jobs in these states.
    """
    states = {State.DISCARDED, *also}
    if cancelled:
        states.add(State.CANCELLED)
    return jobs.filter(state__in=sorted(states)).exclude(ended_with_workflow())


def lock_retriable(
    jobs: JobQuerySet, *, cancelled: bool = False, skip_locked: bool = False
) -> list[Job]:
    """Lock the jobs that may run again, and their workflows; return these jobs.

    Of a retry and a cancellation of the workflow, the later one sees the other.
    """
    rows = retriable(jobs, cancelled=cancelled).order_by("pk")
    locked = rows.select_for_update(skip_locked=skip_locked)
    found = list(locked.only(*RETRIED))
    around = {job.workflow_id for job in found if job.workflow_id is not None}
    if not around:
        return found
    workflows = Workflow.objects.filter(Among("pk", around)).order_by("-depth", "pk")
    states = workflows.select_for_update().values_list("pk", "state")
    over = {pk for pk, state in states if state == WorkflowState.CANCELLED}
    return [job for job in found if job.workflow_id not in over]


def retry(job_ids: Collection[UUID], *, cancelled: bool = False) -> int:
    """Take jobs out of the dead letter for fresh attempts; return how many (OJS dead letter §6).

    The error history stays, so that a second failure can be compared with the first.

    Args:
        cancelled: see `retriable`.
    """
    with atomic():
        jobs = lock_retriable(Job.objects.filter(Among("pk", job_ids)), cancelled=cancelled)
        return retry_locked(jobs)


def retry_locked(jobs: Sequence[Job]) -> int:
    """`retry` for jobs that `lock_retriable` has returned in this transaction."""
    now = clock.now()
    queue_marks.prepare(jobs)
    _count_replays(jobs, now)
    moved = Job.objects.these(jobs).transition(
        Event.RETRY,
        State.AVAILABLE,
        attempt=0,
        attempt_counted=False,
        retry_delay=None,
        started_at=None,
        scheduled_at=None,
        expires_at=None,
        deadline=None,
        finished_by="",
        unfenced=False,
        result_pruned=False,
        enqueued_at=Now(),
    )
    # Attempts are counted afresh; the first one still finds the last checkpoint.
    Checkpoint.objects.filter(Among("pk", [job.pk for job in jobs])).update(attempt=0)
    record(
        job_event("job.enqueued", job, time=now, data={"retried": True, PREVIOUS: str(job.state)})
        for job in jobs
    )
    wakeup.notify({job.queue for job in jobs})
    return moved


def _count_replays(jobs: Iterable[Job], now: datetime) -> None:
    """Write into `meta` how often each job was taken out of the dead letter (dead letter §7.2)."""
    by_count: dict[int, list[UUID]] = {}
    for job in jobs:
        known = job.meta.get(REPLAYS)
        count = known + 1 if type(known) is int and known >= 0 else 1
        by_count.setdefault(count, []).append(job.pk)
    for count, ids in by_count.items():
        changes = {REPLAYS: count, "ojs.last_replayed_at": format_timestamp(now)}
        Job.objects.filter(Among("pk", ids)).update(meta=JSONMerged("meta", changes))


def retry_one(job_id: UUID, override: Override | None = None) -> Job:
    """Retry one dead letter job, perhaps changed (OJS dead letter §6.3).

    Raises:
        NotFound: there is none with this id in the dead letter.
        InvalidTransition: its workflow was cancelled.
        InvalidRequest, BodyTooLarge, DuplicateJob: an enqueue would refuse what is changed; see
            `content.overridden`.
        QueueFull, QueueClosed, JobTypeNotAllowed: its new queue does not accept it.
    """
    with ending() as ended:
        dead = Job.objects.filter(pk=job_id, state=State.DISCARDED)
        if not lock_retriable(dead):
            job = dead.first()
            raise not_dead(job_id) if job is None else _not_retriable(job)
        # Before it is available: no worker gets it as it was.
        if override is not None:
            ended += _change(job_id, override)
        retry([job_id])
    return Job.objects.get(pk=job_id)


def _change(job_id: UUID, override: Override) -> list[UUID]:
    job = Job.objects.get(pk=job_id)
    with inside("override"):
        changes = content.overridden(job, override)
    ended = content.admit(job, changes.get("queue", job.queue))
    if changes:
        Job.objects.filter(pk=job_id).update(**changes)
    return ended


def retry_finished(job_id: UUID) -> Change:
    """Retry one discarded or cancelled job (OJS admin API §7.4).

    Raises:
        JobNotFound: there is no such job.
        InvalidTransition: it is in another state, or its workflow was cancelled.
    """
    with atomic():
        job = _locked(job_id)
        if not retry([job_id], cancelled=True):
            raise _not_retriable(job)
        previous = State(job.state)
        job.refresh_from_db()
    return Change(job, previous)


def _not_retriable(job: Job) -> InvalidTransition:
    mine = {State.CANCELLED: " of a workflow", State.DISCARDED: " of a cancelled workflow"}
    return InvalidTransition(
        f"Cannot retry job{mine.get(State(job.state), '')} in state '{job.state}'. "
        "Only discarded and cancelled jobs can be retried.",
        job_id=str(job.pk),
        current_state=str(job.state),
    )


def delete_dead(job_ids: Collection[UUID]) -> int:
    """Permanently delete discarded jobs; return how many (OJS HTTP §12.3).

    Raises:
        Conflict: none may be deleted yet (see `deletable`).
    """
    with atomic():
        dead = Job.objects.filter(Among("pk", job_ids), state=State.DISCARDED)
        ids = lock_deletable(dead)
        if not ids and (kept := dead.select_related("workflow").first()):
            raise Conflict(
                f"Job '{kept.pk}' cannot be deleted: {_why_kept(kept)}.", job_id=str(kept.pk)
            )
        erase(ids)
        return len(ids)


def _why_kept(job: Job) -> str:
    if Job.objects.filter(pk=job.pk).protected().exists():
        return "a row of this site refers to it, with a key that protects it"
    if job.workflow is not None:
        return f"the workflow '{job.workflow.root_id}' has not ended, and needs its outcome"
    return "other jobs wait for its outcome"


def not_dead(job_id: object) -> NotFound:
    return NotFound(
        f"Dead letter job '{job_id}' not found.",
        resource_type="dead_letter_job",
        resource_id=str(job_id),
    )


def pause(
    queue: str, *, paused_by: str = "", reason: str = "", until: datetime | None = None
) -> Queue:
    """Stop handing out jobs of `queue`; active ones are not affected (OJS HTTP §11.3).

    Pausing a paused queue keeps the time of the first pause.
    """
    with atomic():
        if not Queue.objects.filter(pk=queue).exists():
            queue_policy.make([queue], queue_policy.default_policy())
        row = Queue.objects.select_for_update().get(pk=queue)
        since = row.paused_at if row.is_paused else clock.now()
        Queue.objects.filter(pk=queue).update(
            paused_at=since, paused_until=until, paused_by=paused_by, pause_reason=reason
        )
        row.refresh_from_db()
        record([queue_event("queue.paused", queue, paused_by=paused_by, reason=reason)])
    return row


def resume(queue: str, *, resumed_by: str = "") -> Queue:
    """Hand out jobs of `queue` again, and accept them if it was draining (OJS HTTP §11.4).

    Raises:
        NotFound: there is no such queue.
    """
    with atomic():
        row = Queue.objects.select_for_update().filter(pk=queue).first()
        if row is None:
            raise NotFound(f"Queue '{queue}' not found.", resource_type="queue", resource_id=queue)
        Queue.objects.filter(pk=queue).update(
            paused_at=None,
            paused_until=None,
            paused_by="",
            pause_reason="",
            is_draining=False,
            is_guarded=row.has_tenants or queue_config.says_something_about_new_jobs(row.config),
        )
        record([queue_event("queue.resumed", queue, resumed_by=resumed_by)])
        wakeup.notify([queue])
    return Queue.objects.get(pk=queue)


def cancel_jobs(
    job_ids: Collection[UUID], *, cancelled_by: str = "", reason: str = ""
) -> list[UUID]:
    """Cancel the unfinished jobs among these; return their ids (OJS core §7.6)."""
    with ending() as ended:
        ids, followed = cancel_unfinished(job_ids, cancelled_by=cancelled_by, reason=reason)
        ended += followed
    return ids


def run_now(job_ids: Collection[UUID]) -> list[UUID]:
    """Make scheduled, retryable and pending jobs available; return their ids (OJS core §6.3).

    Jobs that wait for other jobs are left alone: they start automatically.
    """
    due = sources(Event.TIMER, State.AVAILABLE)
    pending = sources(Event.ACTIVATE, State.AVAILABLE)
    with atomic():
        rows = Job.objects.filter(pk__in=job_ids, state__in=(*due, *pending))
        columns = ("type", "queue", "attempt", "state", "followed")
        jobs = list(rows.exclude(is_waiting()).select_for_update().order_by("pk").only(*columns))
        for event, states in ((Event.TIMER, due), (Event.ACTIVATE, pending)):
            chosen = [job.pk for job in jobs if job.state in states]
            Job.objects.filter(Among("pk", chosen)).transition(
                event, State.AVAILABLE, enqueued_at=Now()
            )
        now = clock.now()
        record(
            job_event("job.enqueued", job, time=now, data={PREVIOUS: str(job.state)})
            for job in jobs
        )
        wakeup.notify({job.queue for job in jobs})
    return [job.pk for job in jobs]

"""The worker protocol without a transport: register, beat, fetch, ack, fail, deregister.

Every wire format calls these six; what is written here holds on all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypedDict, Unpack

from django.db.models import F

from jobs import engine
from jobs.access.projects import own
from jobs.conf import ojs_settings
from jobs.engine import ClaimedJob, Completion, Failure, Outcome
from jobs.errors import InvalidRequest
from jobs.models import Job
from jobs.record.events import record, worker_event
from jobs.signals import send_on_commit
from jobs.store import clock
from jobs.store.database import atomic

from .access.admission import foreign_jobs, own_jobs, settle_own, with_foreign
from .fetching import gate
from .lifecycle import WorkerState
from .liveness import heartbeats
from .liveness.claims import SessionClaim, WorkerExists, claimed, require_own
from .liveness.heartbeats import Description, Heartbeat
from .liveness.incarnations import same_process
from .models import Worker
from .signals import worker_left, worker_registered, worker_returned
from .store.portable import changes


@dataclass(slots=True)
class Reply:
    """What a heartbeat is answered with (§4.4; docs/architecture.md)."""

    state: WorkerState
    jobs_extended: list[str] = field(default_factory=list)
    jobs_lost: list[str] = field(default_factory=list)
    """Reported as running, but no longer this worker's: drop them (§10.4)."""
    stale: bool = False
    """An older heartbeat that arrived late: nothing was changed (§10.3)."""


def register(
    worker_id: str,
    description: Description,
    *,
    claim: SessionClaim | None = None,
    starts: bool = False,
) -> Worker:
    """Store a worker, or meet it again (§3).

    Another process under a known id is a new incarnation: what the old one left behind is
    forgotten, a directive too, and the jobs it held are recovered like those of a dead worker.

    Args:
        claim: the right to the id, where it must be unique among active workers (AGQ §2.2).
        starts: workers of this protocol register when they start (§3.1), so that only one that
            says when it started can be known again. In a container, a process that takes the
            place of another often has its id, its host name and its pid.

    Raises:
        WorkerExists: an active worker has the id, and the claim is not to it.
        ForeignWorker: the id is another project's, or none's, and the key is of a project.
    """
    now = clock.now()
    with atomic():
        known = Worker.objects.filter(pk=worker_id).select_for_update().first()
        if known is not None:
            require_own(known, description.project)
        if claim is not None:
            known = claimed(worker_id, known, claim, description.project)
        fresh = description.given() | {
            "last_heartbeat_at": now,
            "registered_at": now,
            "state": WorkerState.RUNNING,
            "sequence": None,
            "left_at": None,
        }
        # Ranges that a registration leaves out are not in force any more.
        fresh.setdefault("job_versions", None)
        if known is None:
            worker = _made(worker_id, fresh)
        else:
            if same_process(known, description, must_say=starts):
                if known.state == WorkerState.TERMINATE:
                    # Nothing leads back from it, no registration either (§2.3).
                    fresh["state"] = WorkerState.TERMINATE
            else:
                fresh = {"labels": [], "started_at": None} | fresh
                fresh |= {
                    "directive": "",
                    "active_job_ids": [],
                    "flagged_at": None,
                    "incarnation": F("incarnation") + 1,
                }
                while engine.reclaim([worker_id]):
                    pass
            Worker.objects.filter(pk=worker_id).update(**fresh)
            worker = Worker.objects.get(pk=worker_id)
        record([_started(worker)])
    send_on_commit(worker_registered, Worker, worker_id=worker_id, incarnation=worker.incarnation)
    return worker


def _made(worker_id: str, fresh: dict[str, Any]) -> Worker:
    """Store a worker that was not there a moment ago.

    Raises:
        ForeignWorker: in that moment another project's took the id.
    """
    worker, created = Worker.objects.get_or_create(pk=worker_id, defaults=fresh)
    if not created:
        require_own(worker, fresh.get("project"))
        Worker.objects.filter(pk=worker_id).update(**fresh)
        worker.refresh_from_db()
    return worker


def _started(worker: Worker) -> Any:
    return worker_event(
        "worker.started",
        worker.worker_id,
        queues=worker.queues,
        concurrency=worker.concurrency or ojs_settings.CONCURRENCY,
    )


def deregister(worker_id: str) -> bool:
    """Record that a worker leaves (§3.4); return whether it was there.

    Jobs it still holds are recovered by the reaper, as a dead worker's would be.
    """
    now = clock.now()
    with atomic():
        worker = Worker.objects.live().filter(pk=worker_id).select_for_update().first()
        if worker is None:
            return False
        Worker.objects.filter(pk=worker_id).update(
            state=WorkerState.TERMINATED, directive="", left_at=now, active_job_ids=[]
        )
        uptime = now - (worker.started_at or worker.created_at)
        record(
            [
                worker_event(
                    "worker.stopped",
                    worker_id,
                    reason="shutdown",
                    uptime_ms=max(0, uptime // timedelta(milliseconds=1)),
                )
            ]
        )
    send_on_commit(worker_left, Worker, worker_id=worker_id)
    return True


def beat(
    worker_id: str,
    *,
    state: WorkerState | None = None,
    active_job_ids: Collection[str] | None = None,
    description: Description | None = None,
    requested: timedelta | None = None,
    sequence: int | None = None,
    discover: bool = True,
    project: str = "",
) -> Reply:
    """Record a heartbeat, extend the jobs it names, and answer what the worker shall be (§4).

    A worker nobody knew is discovered by it (§3.1); one declared dead is live again (§10.4), and
    what an operator asked of it still stands.

    Args:
        state: what the worker says it is; None leaves what it said before.
        active_job_ids: the jobs it runs, as it spelled them; None if it did not say.
        requested: the visibility extension it asks for; None means each job's own.
        sequence: number of this heartbeat; a lower one than seen before changes nothing (§10.3).
        discover: False where a worker that is not live must register first (AGQ §3.3); it is
            answered `terminated`.
        project: whose jobs it may extend; empty means anybody's.
    """
    if project and active_job_ids:
        active_job_ids = own_jobs(active_job_ids, project)
    heartbeat = Heartbeat(worker_id, state, active_job_ids, description, requested, sequence)
    written = heartbeats.write(heartbeat)
    if written is None and not discover:
        return Reply(WorkerState.TERMINATED)
    if written is None and _meet(heartbeat):
        written = heartbeats.write(replace(heartbeat, sequence=None))
    elif written is None:
        # It came late, or another heartbeat of the same worker discovered it just now.
        written = heartbeats.write(heartbeat)
        if written is None:
            return Reply(_standing_order(heartbeat), stale=True)
    # Gone again already: it deregistered while this heartbeat was under way.
    reply = Reply(written.desired_state if written else WorkerState.TERMINATE)
    held = written.extended if written else set()
    if held is None:
        reply.jobs_extended = list(dict.fromkeys(heartbeat.active_job_ids or ()))
    else:
        for text, job_id in heartbeat.job_ids().items():
            (reply.jobs_extended if job_id in held else reply.jobs_lost).append(text)
    if ojs_settings.CONFORMANCE_MODE and reply.jobs_extended:
        _obey_test_directive(reply)
    return reply


def _meet(heartbeat: Heartbeat) -> bool:
    """Discover a worker by its heartbeat, or see one return that was taken for dead.

    False if neither: the worker is known and live, or the heartbeat was sent before it went.
    """
    fresh = changes(heartbeat) | {
        "state": heartbeat.state or WorkerState.RUNNING,
        "left_at": None,
    }
    with atomic():
        known = Worker.objects.filter(pk=heartbeat.worker_id).select_for_update().first()
        if known is not None and (
            known.state != WorkerState.TERMINATED or _came_late(known, heartbeat)
        ):
            return False
        fresh["directive"] = known.directive if known and known.left_at is None else ""
        if known is not None:
            require_own(known, fresh.get("project"))
        worker = _made(heartbeat.worker_id, fresh)
        record([_started(worker)])
    if known is not None:
        send_on_commit(worker_returned, Worker, worker_id=worker.worker_id)
    return True


def _came_late(gone: Worker, heartbeat: Heartbeat) -> bool:
    """Whether the heartbeat of a worker that is gone was sent before it went (§10.3).

    None is under way for two timeouts: that is rather a new process that counts from one again.
    """
    return (
        heartbeat.sequence is not None
        and gone.sequence is not None
        and heartbeat.sequence <= gone.sequence
        and clock.now() - gone.last_heartbeat_at < 2 * gone.heartbeat_timeout
    )


def _standing_order(heartbeat: Heartbeat) -> WorkerState:
    """What the worker was told last; one that is gone hears nothing new."""
    worker = Worker.objects.live().filter(pk=heartbeat.worker_id).first()
    return worker.desired_state if worker else heartbeat.state or WorkerState.RUNNING


def _obey_test_directive(reply: Reply) -> None:
    """Let a job of the public conformance suite say what its worker shall hear."""
    jobs = Job.objects.filter(pk__in=reply.jobs_extended).values_list("meta", flat=True)
    for meta in jobs:
        directive = meta.get("test_directive")
        if directive in (WorkerState.QUIET, WorkerState.TERMINATE):
            reply.state = WorkerState(directive)


def _returns(worker_id: str, project: str) -> bool:
    """See a worker return that was declared dead, as by a heartbeat (§10.4); False if it was not.

    Asking for jobs, or reporting one, is as good a sign of life, and some workers send heartbeats
    only while they have jobs. One that has left does not return by this: what it asks was under way
    when it left.
    """
    if not worker_id or not own(Worker.objects.dead(), project).filter(pk=worker_id).exists():
        return False
    return _meet(Heartbeat(worker_id, WorkerState.RUNNING))


class FetchOptions(TypedDict, total=False):
    """What a fetch may ask for besides queues; see `engine.ClaimOptions`."""

    worker_id: str
    count: int
    types: Sequence[str] | None
    visibility_timeout: timedelta | None
    registered: bool
    """Nothing for a worker that never registered (AGQ §6)."""


def fetch(
    queues: Sequence[str],
    *,
    discover: bool = True,
    project: str = "",
    **options: Unpack[FetchOptions],
) -> list[ClaimedJob]:
    """Claim jobs for a worker (§6); see `engine.claim`.

    Nothing for a worker that is quiet or terminating, or was asked to be (§6.6), or that already
    runs all it can (§8.2). One that was declared dead is live again.

    Args:
        discover: False where this is no sign of life: the server looks by itself for a worker that
            waits, or a worker that is not live must register first. A dead one is given nothing.
        project: whose jobs; empty means anybody's.

    Raises:
        InvalidRequest: no queue is named.
    """
    claim = _claim_options(queues, project, options)
    jobs = engine.claim(queues, **claim)
    # Only when there was nothing: a fetch that finds jobs is one statement.
    if not jobs and discover and _returns(options.get("worker_id", ""), project):
        jobs = engine.claim(queues, **claim)
    return jobs


def _claim_options(
    queues: Sequence[str], project: str, options: FetchOptions
) -> engine.ClaimOptions:
    if not queues:
        raise InvalidRequest(
            "The 'queues' field must name at least one queue.",
            field="queues",
            validation="min_items",
        )
    return {
        "worker_id": options.get("worker_id", ""),
        "types": options.get("types"),
        "visibility_timeout": options.get("visibility_timeout"),
        "project": project,
        "count": options.get("count", 1),
        "gate": gate.REGISTERED if options.get("registered") else gate.GATE,
    }


def exchange(
    completions: Sequence[Completion],
    queues: Sequence[str],
    *,
    discover: bool = True,
    project: str = "",
    **options: Unpack[FetchOptions],
) -> tuple[list[Outcome], list[ClaimedJob]]:
    """`ack`, then `fetch`, in one transaction and, where that is possible, one round trip.

    Args:
        discover: as in `fetch`.
    """
    claim = _claim_options(queues, project, options)
    foreign = foreign_jobs(completions, project)
    own_ones = [item for item in completions if item.job_id not in foreign]
    outcomes, jobs = engine.exchange(own_ones, queues, **claim)
    if not jobs and discover and _returns(options.get("worker_id", ""), project):
        jobs = engine.claim(queues, **claim)
    return with_foreign(completions, outcomes, foreign), jobs


def ack(
    completions: Sequence[Completion], *, discover: bool = True, project: str = ""
) -> list[Outcome]:
    """Settle jobs as completed (§5.6); one outcome for each, a refused one carries its error.

    Args:
        discover: whether a worker that was declared dead is live again by this; see `fetch`.
    """
    outcomes = settle_own(engine.complete, completions, project)
    if discover:
        _heard(completions, outcomes, project)
    return outcomes


def fail(failures: Sequence[Failure], *, discover: bool = True, project: str = "") -> list[Outcome]:
    """Settle jobs as failed (§5.6, §7.2); one outcome for each.

    Args:
        discover: as in `ack`.
    """
    outcomes = settle_own(engine.fail, failures, project)
    if discover:
        _heard(failures, outcomes, project)
    return outcomes


def _heard(
    reports: Sequence[Completion | Failure], outcomes: Sequence[Outcome], project: str
) -> None:
    """Who reports a job that was taken from it may have been taken for dead."""
    senders = {
        report.worker_id
        for report, outcome in zip(reports, outcomes, strict=True)
        if outcome.error is not None and report.worker_id
    }
    for worker_id in sorted(senders):
        _returns(worker_id, project)


__all__ = [
    "Completion",
    "Description",
    "Failure",
    "Outcome",
    "Reply",
    "SessionClaim",
    "WorkerExists",
    "ack",
    "beat",
    "deregister",
    "exchange",
    "fail",
    "fetch",
    "register",
]

"""Worker protocol without a transport: register, beat, fetch, ack, fail, deregister.

Every wire format calls these six; what is documented here holds for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Self, TypedDict, Unpack
from uuid import UUID

from django.db.models import F

from jobs import engine
from jobs.access.projects import scope_to
from jobs.conf import ojs_settings
from jobs.engine import ClaimedJob, Completion, Failure, Outcome
from jobs.errors import InvalidRequest
from jobs.protocols import OJS
from jobs.record import tracing
from jobs.record.events import record, worker_event
from jobs.signals import send_on_commit
from jobs.spec import reserved, worker_ids
from jobs.spec.reports import LARGEST_ABOUT, measure
from jobs.store import clock
from jobs.store.database import atomic
from jobs.store.expressions import Among

from .access.admission import foreign_jobs, own_jobs, settle_own, with_foreign
from .access.claims import SessionClaim, WorkerExists, claimed, require_own
from .fetching import gate
from .lifecycle import WorkerState
from .liveness import deployments, heartbeats, holdings
from .liveness.heartbeats import Description, Heartbeat, Written
from .liveness.incarnations import Sender, same_process, sender
from .models import Worker, places
from .signals import worker_left, worker_registered, worker_returned
from .store.contract import SETTLED
from .store.portable import changes


@dataclass(slots=True)
class Reply:
    """The reply to a heartbeat (§4.4; docs/architecture.md)."""

    state: WorkerState
    jobs_extended: list[str] = field(default_factory=list)
    jobs_lost: list[str] = field(default_factory=list)
    """Reported as running, but no longer this worker's: drop them (§10.4)."""
    stale: bool = False
    """The heartbeat arrived late, after a newer one, or after another process had taken over: what
    it says was not recorded (§10.3)."""


before_reply: Callable[[Reply], None] | None = None
"""Set by `workers.conformance`, which only `CONFORMANCE_MODE` loads."""


def register(
    worker_id: str,
    description: Description,
    *,
    claim: SessionClaim | None = None,
    starts: bool = False,
) -> Worker:
    """Store a worker, or recognize it again (§3).

    Another process under a known id is a new incarnation: the state of the old one is forgotten,
    including its directive, and the jobs it held are recovered like those of a dead worker.

    Args:
        claim: the right to the id, where it must be unique among active workers (AGQ §2.2).
        starts: workers of this protocol register when they start (§3.1), so only a worker that
            sends its start time can be recognized again. In a container, a replacement process
            often has the same id, host name and pid.

    Raises:
        WorkerExists: an active worker has the id, and the claim does not cover it.
        ForeignWorker: the key belongs to a project, and the name to another one or to none.
        InvalidRequest: a new worker's id has control characters, or its registration, where it is
            kept as it was sent, is too large.
    """
    if description.details is not None:
        measure(description.details, "", LARGEST_ABOUT)
    now = clock.now()
    with atomic():
        known = Worker.objects.filter(pk=worker_id).select_for_update().first()
        if known is None:
            worker_ids.check_new(worker_id)
        else:
            require_own(known, description.project)
        if claim is not None:
            known = claimed(worker_id, known, claim, description.project)
        fresh = _terms() | UNDECLARED | description.given()
        fresh |= {
            "last_heartbeat_at": now,
            "registered_at": now,
            "state": WorkerState.RUNNING,
            "sequence": None,
            "left_at": None,
            # It has come back: a running worker cannot be dead. The record of events shows that it
            # was away.
            "died_at": None,
        }
        if known is None:
            worker = _made(worker_id, fresh)
        else:
            if same_process(known, description, must_say=starts):
                if known.state == WorkerState.TERMINATE:
                    # There is no way back from it, not even by registering (§2.3).
                    fresh["state"] = WorkerState.TERMINATE
            else:
                fresh = {"labels": [], "started_at": None} | fresh
                fresh |= {
                    "directive": "",
                    "active_job_ids": [],
                    "flagged_at": None,
                    "incarnation": F("incarnation") + 1,
                }
                while holdings.reclaim([known]):
                    pass
            Worker.objects.filter(pk=worker_id).update(**fresh)
            worker = Worker.objects.get(pk=worker_id)
        record([_started(worker)])
        deployments.notice(worker)
    send_on_commit(worker_registered, Worker, worker_id=worker_id, incarnation=worker.incarnation)
    return worker


UNDECLARED: dict[str, Any] = {
    "capabilities": [],
    "job_types": None,
    "job_versions": None,
    "specs": None,
    "details": None,
}
"""What a worker declares when it arrives: what a registration leaves out no longer applies."""


def _terms() -> dict[str, Any]:
    """The terms for a worker that arrives, unless its protocol has its own (§3.3).

    They hold until it arrives again: a worker sends heartbeats at the interval it was given.
    """
    return {"protocol": OJS, "heartbeat_timeout": ojs_settings.HEARTBEAT_TIMEOUT}


def _made(worker_id: str, fresh: dict[str, Any]) -> Worker:
    """Store a worker that did not exist a moment ago.

    Raises:
        ForeignWorker: a worker of another project has taken the name meanwhile.
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
        concurrency=places(worker.concurrency),
    )


def deregister(worker_id: str, *, project: str = "", registered_at: datetime | None = None) -> bool:
    """Record that a worker leaves (§3.4); return whether it was there.

    The reaper recovers any jobs it still holds, like those of a dead worker.

    Args:
        project: the worker's project; empty means any.
        registered_at: the registration that ends, where it belongs to a connection: a worker that
            has registered again meanwhile, on another one, stays. None means any.
    """
    now = clock.now()
    with atomic():
        live = scope_to(Worker.objects.live(), project)
        if registered_at is not None:
            live = live.filter(registered_at=registered_at)
        worker = live.filter(pk=worker_id).select_for_update().first()
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
    registered_at: datetime | None = None,
) -> Reply:
    """Record a heartbeat, extend the jobs it names, and reply with the worker's desired state (§4).

    A heartbeat discovers an unknown worker (§3.1). A worker that was declared dead is live again
    (§10.4), and its directive still applies. So it does for another process that takes over a
    worker's id; but that one has its own state, and counts its heartbeats from one again.

    Args:
        state: the state the worker reports; None keeps the one reported before.
        active_job_ids: the jobs it runs, as the worker spelled them; None if it sent no list.
        requested: the requested visibility extension; None means each job's own.
        sequence: the heartbeat's number; one lower than seen before is a sign of life, and changes
            nothing else (§10.3).
        discover: False where a worker that is not live must register first (AGQ §3.3); the reply
            is then `terminated`.
        project: the project of the worker, and of the jobs it may extend; empty means any.
        registered_at: the registration on the open connection it came on, if there is one.

    Raises:
        ForeignWorker: the name belongs to another project, or to none.
        InvalidRequest: a new worker's id has control characters.
    """
    if project and active_job_ids:
        active_job_ids = own_jobs(active_job_ids, project)
    heartbeat = Heartbeat(
        worker_id, state, active_job_ids, description, requested, sequence, project, registered_at
    )
    written = heartbeats.write(heartbeat)
    if written is None and not discover:
        return Reply(WorkerState.TERMINATED)
    if written is None:
        with atomic():
            is_met = _meet(heartbeat)
            if is_met:
                written = heartbeats.write(replace(heartbeat, sequence=None))
        if not is_met:
            # It is late, or another heartbeat of the same worker has just discovered the worker.
            written = heartbeats.write(heartbeat)
            if written is None:
                return _reply_to_late(heartbeat)
    return _reply(heartbeat, written)


def beat_all(beats: Sequence[Heartbeat]) -> list[Reply | None]:
    """Record heartbeats that came at the same time; None for each that must go through `beat`.

    Those are the heartbeats that discover a worker, report a change or lose a job, and all but the
    first of one worker.
    """
    first: dict[str, Heartbeat] = {}
    for heartbeat in beats:
        # Which jobs are a project's own has to be looked up.
        if not (heartbeat.project and heartbeat.active_job_ids):
            first.setdefault(heartbeat.worker_id, heartbeat)
    together = list(first.values())
    found = zip(together, heartbeats.write_all(together), strict=True)
    written = {heartbeat.worker_id: result for heartbeat, result in found if result is not None}
    return [
        _reply(heartbeat, written[heartbeat.worker_id])
        if heartbeat.worker_id in written and first.get(heartbeat.worker_id) is heartbeat
        else None
        for heartbeat in beats
    ]


def _reply(heartbeat: Heartbeat, written: Written | None) -> Reply:
    # Already gone: the worker deregistered while this heartbeat was under way.
    reply = Reply(written.desired_state if written else WorkerState.TERMINATE)
    held = written.extended if written else set()
    if held is None:
        reply.jobs_extended = list(dict.fromkeys(heartbeat.active_job_ids or ()))
    else:
        for text, job_id in heartbeat.job_ids().items():
            (reply.jobs_extended if job_id in held else reply.jobs_lost).append(text)
    if before_reply is not None and reply.jobs_extended:
        before_reply(reply)
    return reply


def _meet(heartbeat: Heartbeat) -> bool:
    """Discover a worker by its heartbeat, revive one that was taken for dead, or note that another
    process has taken over its id.

    False if none of these: the worker is known and live, or the heartbeat came late.

    Raises:
        ForeignWorker: the name belongs to another project, or to none.
        InvalidRequest: a new worker's id has control characters.
    """
    fresh = changes(heartbeat) | {
        "state": heartbeat.state or WorkerState.RUNNING,
        "left_at": None,
    }
    if heartbeat.project:
        fresh["project"] = heartbeat.project
    with atomic():
        known = Worker.objects.filter(pk=heartbeat.worker_id).select_for_update().first()
        if known is None:
            worker_ids.check_new(heartbeat.worker_id)
        else:
            require_own(known, heartbeat.project)
        process = sender(known, heartbeat.description)
        if process is Sender.LATER:
            fresh["sequence"] = heartbeat.sequence
        if known is not None and known.state != WorkerState.TERMINATED:
            return _take_over(known, process, heartbeat, fresh)
        if known is not None and _came_late(known, process, heartbeat):
            return False
        fresh["directive"] = known.directive if known and known.left_at is None else ""
        if heartbeat.description is not None:
            fresh = _terms() | fresh
            if known is not None and known.protocol != fresh["protocol"]:
                fresh = UNDECLARED | fresh
        worker = _made(heartbeat.worker_id, fresh)
        record([_started(worker)])
        deployments.notice(worker)
    if known is not None:
        send_on_commit(worker_returned, Worker, worker_id=worker.worker_id)
    return True


def _take_over(known: Worker, process: Sender, heartbeat: Heartbeat, fresh: dict[str, Any]) -> bool:
    """Note that another process has taken over the id of a live worker; False if none has.

    Args:
        fresh: the columns that the heartbeat writes.
    """
    if process is Sender.LATER:
        own = {name: it for name, it in fresh.items() if name not in SETTLED}
        Worker.objects.filter(pk=known.pk).update(**own)
        return True
    if process is Sender.SAME and _is_overtaken(known, heartbeat):
        # It is delayed, not missing. Yet it may be old: it saves no worker whose time is up.
        heard = fresh["last_heartbeat_at"]
        Worker.objects.heard().filter(pk=known.pk).update(last_heartbeat_at=heard)
    return False


def _is_overtaken(known: Worker, heartbeat: Heartbeat) -> bool:
    """Whether the process has sent a heartbeat with this number, or a higher one, already."""
    return (
        heartbeat.sequence is not None
        and known.sequence is not None
        and heartbeat.sequence <= known.sequence
    )


def _came_late(gone: Worker, process: Sender, heartbeat: Heartbeat) -> bool:
    """Whether the heartbeat of a worker that is gone was sent before it left (§10.3).

    No heartbeat is under way for two timeouts: after that, a low number means a new process that
    counts from one again.
    """
    if clock.now() - gone.last_heartbeat_at >= 2 * gone.heartbeat_timeout:
        return False
    if process is Sender.SAME:
        return _is_overtaken(gone, heartbeat) or _has_deregistered(gone, heartbeat)
    return process is Sender.EARLIER


def _has_deregistered(gone: Worker, heartbeat: Heartbeat) -> bool:
    """Whether the process that sent the heartbeat has left for good (§2.3, §3.4).

    A new process may look the same (`incarnations.same_process`): if the worker never registered,
    only a start time tells. The connection on which it last registered tells more: while it is
    open, the worker has not left by itself.
    """
    if heartbeat.registered_at is not None and heartbeat.registered_at == gone.registered_at:
        return False
    # Otherwise it was found silent while it was quiet.
    was_heard = gone.left_at is not None and (
        gone.left_at - gone.last_heartbeat_at < gone.heartbeat_timeout
    )
    said = heartbeat.description
    started = gone.started_at is not None and said is not None and said.started_at is not None
    return was_heard and (gone.registered_at is not None or started)


def _reply_to_late(heartbeat: Heartbeat) -> Reply:
    """The state last requested of the worker; one that is gone gets back what it reports.

    No job is extended, but the sender hears which of those it named are lost.
    """
    worker = Worker.objects.filter(pk=heartbeat.worker_id).first()
    is_live = worker is not None and worker.state != WorkerState.TERMINATED
    state = worker.desired_state if worker and is_live else heartbeat.state or WorkerState.RUNNING
    named = heartbeat.job_ids()
    known = [job_id for job_id in named.values() if job_id is not None]
    held: set[UUID] = set()
    if worker is not None and known:
        theirs = holdings.held_by([worker]).filter(Among("pk", known))
        held = set(theirs.values_list("pk", flat=True))
    lost = [text for text, job_id in named.items() if job_id not in held]
    return Reply(state, jobs_lost=lost, stale=True)


def _returns(worker_id: str, project: str) -> bool:
    """Revive a worker that was declared dead, as a heartbeat does (§10.4); False if it was not.

    Fetching jobs or reporting one is as good a sign of life, and some workers send heartbeats only
    while they have jobs. It does not revive a worker that has left: its request was under way when
    it left.
    """
    if not worker_id or not scope_to(Worker.objects.dead(), project).filter(pk=worker_id).exists():
        return False
    return _meet(Heartbeat(worker_id, WorkerState.RUNNING, project=project))


class FetchOptions(TypedDict, total=False):
    """What a fetch may ask for besides queues; see `engine.ClaimOptions`."""

    worker_id: str
    count: int
    types: Sequence[str] | None
    visibility_timeout: timedelta | None
    registered: bool
    """A worker that never registered gets no jobs (AGQ §6)."""
    pool: str | None
    """The worker pool it fetches through; None, the default: the one in the worker's labels."""
    is_ours: bool
    """The worker is a process of this site, so that it may run this server's own jobs."""


class Fetch(NamedTuple):
    """The arguments of a `fetch`."""

    queues: Sequence[str]
    project: str
    options: FetchOptions

    @classmethod
    def of(cls, queues: Sequence[str], project: str, **options: Unpack[FetchOptions]) -> Self:
        return cls(queues, project, options)


def fetch(
    queues: Sequence[str],
    *,
    discover: bool = True,
    project: str = "",
    **options: Unpack[FetchOptions],
) -> list[ClaimedJob]:
    """Claim jobs for a worker (§6); see `engine.claim`.

    Returns nothing for a worker that is quiet or terminating, or was asked to be (§6.6), or that
    already runs as many jobs as it can (§8.2). One that was declared dead is live again.

    Args:
        discover: False where a fetch is not a sign of life: the server fetches for a waiting
            worker, or a worker that is not live must register first. A dead one gets no jobs.
        project: the project of the jobs; empty means any.

    Raises:
        InvalidRequest: no queue is named, or one that is for this server's own jobs.
    """
    claim = _claim_options(queues, project, options)
    began = tracing.clock()
    jobs = engine.claim(queues, **claim)
    return _fetched(jobs, queues, claim, began, discover)


def fetch_each(asked: Sequence[Fetch]) -> list[list[ClaimedJob] | Exception]:
    """`fetch` for workers that asked at the same time; the jobs of each, or why it gets none."""
    found: dict[int, list[ClaimedJob] | Exception] = {}
    claims: dict[int, tuple[Sequence[str], engine.ClaimOptions]] = {}
    for index, (queues, project, options) in enumerate(asked):
        try:
            claims[index] = queues, _claim_options(queues, project, options)
        except Exception as problem:
            found[index] = problem
    began = tracing.clock()
    for index, jobs in zip(claims, engine.claim_each(list(claims.values())), strict=True):
        try:
            if isinstance(jobs, Exception):
                raise jobs
            found[index] = _fetched(jobs, *claims[index], began)
        except Exception as problem:
            found[index] = problem
    return [found[index] for index in range(len(asked))]


def _fetched(
    jobs: list[ClaimedJob],
    queues: Sequence[str],
    claim: engine.ClaimOptions,
    began: int,
    discover: bool = True,
) -> list[ClaimedJob]:
    # Only if it found nothing: a fetch that finds jobs is one statement.
    if not jobs and discover and _returns(claim["worker_id"], claim["project"]):
        jobs = engine.claim(queues, **claim)
    tracing.fetched(jobs, claim["worker_id"], began)
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
    if not options.get("is_ours"):
        reserved.refuse_queues(queues)
    return {
        "worker_id": options.get("worker_id", ""),
        "types": options.get("types"),
        "visibility_timeout": options.get("visibility_timeout"),
        "project": project,
        "count": options.get("count", 1),
        "pool": options.get("pool"),
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
    """`ack`, then `fetch`, in one transaction and, if possible, in one round trip.

    Args:
        discover: as in `fetch`.
    """
    claim = _claim_options(queues, project, options)
    began = tracing.clock()
    foreign = foreign_jobs(completions, project)
    own_ones = [item for item in completions if item.job_id not in foreign]
    with tracing.settling("ojs.ack", own_ones) as settled:
        outcomes, jobs = engine.exchange(own_ones, queues, **claim)
        settled(outcomes)
    jobs = _fetched(jobs, queues, claim, began, discover)
    return with_foreign(completions, outcomes, foreign), jobs


def ack(
    completions: Sequence[Completion], *, discover: bool = True, project: str = ""
) -> list[Outcome]:
    """Settle jobs as completed (§5.6); return one outcome for each, with the error if refused.

    Args:
        discover: whether this revives a worker that was declared dead; see `fetch`.
    """
    with tracing.settling("ojs.ack", completions) as settled:
        outcomes = settle_own(engine.complete, completions, project)
        settled(outcomes)
    if discover:
        _heard(completions, outcomes, project)
    return outcomes


def fail(failures: Sequence[Failure], *, discover: bool = True, project: str = "") -> list[Outcome]:
    """Settle jobs as failed (§5.6, §7.2); return one outcome for each.

    Args:
        discover: as in `ack`.
    """
    with tracing.settling("ojs.nack", failures) as settled:
        outcomes = settle_own(engine.fail, failures, project)
        settled(outcomes)
    if discover:
        _heard(failures, outcomes, project)
    return outcomes


def release(jobs: Sequence[ClaimedJob], worker_id: str) -> None:
    """Return jobs that never reached their worker; the attempt does not count."""
    back = [Failure(job.id, worker_id, job.attempt, release=True) for job in jobs]
    fail(back, discover=False)


def _heard(
    reports: Sequence[Completion | Failure], outcomes: Sequence[Outcome], project: str
) -> None:
    """Revive workers whose reports were refused: they may have been declared dead."""
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
    "Fetch",
    "Heartbeat",
    "Outcome",
    "Reply",
    "SessionClaim",
    "WorkerExists",
    "ack",
    "beat",
    "beat_all",
    "deregister",
    "exchange",
    "fail",
    "fetch",
    "fetch_each",
    "register",
    "release",
]

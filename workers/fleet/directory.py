"""Queries about workers and the jobs they hold, and small updates of what workers report.

Independent of any wire format. With a `caller`, results contain only what its key may see, and
worker ids are the caller's. Otherwise they are stored names.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from jobs import engine
from jobs.access.projects import scope_to
from jobs.models import Job, Queue
from jobs.spec.lifecycle import State
from jobs.spec.reports import LARGEST_ABOUT, fitting
from jobs.spec.worker_ids import shown, spellings
from jobs.store.expressions import JSONArrayHas, JSONMerged

from ..access.admission import own_reservations, own_workers
from ..lifecycle import WorkerState
from ..models import Worker

if TYPE_CHECKING:
    from jobs.http.authentication import Caller

MOST = 10_000
"""Most ids in one answer."""


def active(capability: str = "", caller: Caller | None = None) -> list[str]:
    """Ids of the active workers; if `capability` is given, only of those that have it."""
    workers = own_workers(Worker.objects.heard(), caller)
    if capability:
        workers = workers.filter(JSONArrayHas("capabilities", capability))
    return _ids(workers, caller)


def registered(protocol: str, caller: Caller | None = None) -> list[str]:
    """Ids of the workers that registered over `protocol` and did not leave, including dead ones."""
    workers = Worker.objects.filter(protocol=protocol, left_at=None, details__isnull=False)
    return _ids(own_workers(workers, caller), caller)


def measured(protocol: str, within: timedelta, caller: Caller | None = None) -> list[str]:
    """Ids of the workers of `protocol` whose statistics are no older than `within`."""
    workers = Worker.objects.filter(protocol=protocol, left_at=None, stats__isnull=False)
    return _ids(own_workers(workers.filter(stats_at__gt=Now() - within), caller), caller)


def _ids(workers: Any, caller: Caller | None) -> list[str]:
    names = list(workers.order_by("pk").values_list("pk", flat=True)[:MOST])
    if caller is None or not caller.project:
        return names
    return sorted(id_of(name, caller) for name in names)


def id_of(name: str, caller: Caller | None) -> str:
    """The id that a caller uses for the worker stored under `name`."""
    return shown(name, caller.project) if caller else name


def capabilities(caller: Caller | None = None) -> list[str]:
    """The capabilities of all active workers."""
    workers = Worker.objects.live().exclude(pk__in=Worker.objects.silent().values("pk"))
    workers = own_workers(workers.exclude(capabilities=[]), caller)
    found = workers.values_list("capabilities", flat=True)
    return sorted({word for words in found[:MOST] for word in words})[:MOST]


def queues_with_work(project: str = "") -> list[str]:
    """Names of the queues in which jobs are available."""
    waiting = scope_to(
        Job.objects.filter(state=State.AVAILABLE).filter(queue=OuterRef("pk")), project
    )
    queues = Queue.objects.filter(Exists(waiting)).order_by("pk")
    return list(queues.values_list("pk", flat=True)[:MOST])


def available_in(queue: str, project: str = "", *, most: int | None = None) -> int:
    """How many jobs are available in a queue; no more than `most` are counted."""
    waiting: Any = scope_to(Job.objects.filter(state=State.AVAILABLE).filter(queue=queue), project)
    return int(waiting[:most].count())


def claimed(caller: Caller | None = None) -> list[UUID]:
    """Ids of the jobs held by workers that have a name."""
    held = Job.objects.active().filter(reserved_for__isnull=False).exclude(reserved_by="")
    return list(own_reservations(held, caller).order_by("pk").values_list("pk", flat=True)[:MOST])


def find(worker_id: str, caller: Caller | None = None) -> Any | None:
    """The row (read-only) of the worker that a caller knows by this id; None if there is none."""
    names = spellings(worker_id, caller.project if caller else "")
    named = own_workers(Worker.objects.filter(pk__in=names), caller)
    found = {worker.pk: worker for worker in named}
    return found.get(worker_id) or next(iter(found.values()), None)


def is_active(worker: Any) -> bool:
    """Whether the worker is live and was heard within its heartbeat timeout."""
    gone: bool = worker.state == WorkerState.TERMINATED
    return not gone and not worker.is_silent


def fetch_state(worker_id: str, *, registered: bool = False) -> tuple[bool, frozenset[str]] | None:
    """Whether the worker may have jobs, and what it can do; None if it is not live.

    Args:
        registered: also None for a worker that never registered (AGQ §6).
    """
    columns = ("state", "directive", "labels", "capabilities", "registered_at")
    worker = Worker.objects.live().filter(pk=worker_id).only(*columns).first()
    if worker is None or (registered and worker.registered_at is None):
        return None
    return worker.may_fetch, frozenset(worker.labels) | frozenset(worker.capabilities)


def keep_stats(worker_id: str, stats: dict[str, Any], *, partial: bool = False) -> None:
    """Store the statistics that a worker sent (AGQ §3.3; Rota, Status).

    No heartbeat is refused for them: those that are too large are cut.

    Args:
        partial: keep the values that it did not send.
    """
    stats = fitting(stats, LARGEST_ABOUT)
    measured: Any = JSONMerged("stats", stats) if partial else stats
    Worker.objects.live().filter(pk=worker_id).update(stats=measured, stats_at=Now())


def keep_queues(worker_id: str, queues: Collection[str]) -> None:
    """Store the queues that a worker fetches from, if it does not declare them at registration."""
    Worker.objects.live().filter(pk=worker_id).update(queues=list(queues))


def keep_reports_state(worker_id: str, reports_state: bool) -> None:
    """Store whether a worker reports its state, where its protocol makes that optional."""
    changed = Worker.objects.filter(pk=worker_id).exclude(reports_state=reports_state)
    changed.update(reports_state=reports_state)


def job(job_id: UUID, caller: Caller | None = None) -> Any | None:
    """A job's state, holder, end of reservation and result; None if there is no such job."""
    columns = ("state", "dead_letter", "reserved_by", "reserved_until", "result")
    return own_reservations(Job.objects.only(*columns).filter(pk=job_id), caller).first()


def held_by(worker_id: str) -> dict[UUID, int]:
    """The jobs that a worker holds → the number of the current attempt."""
    return dict(Job.objects.held_by(worker_id).values_list("pk", "attempt"))


def extend(job_id: UUID, worker_id: str) -> bool:
    """Restart the job's reservation; False if the worker does not hold it (§5.4)."""
    return bool(engine.extend([job_id], worker_id=worker_id))


def report_progress(
    job_id: UUID, worker_id: str, share: float | None, data: dict[str, Any] | None
) -> bool:
    """Record a job's progress, 0 to 1, with its data; False if the worker does not hold it.

    A report is a sign of life of the job: it restarts its reservation.
    """
    engine.report_progress(job_id, value=share, data=data, worker_id=worker_id)
    return Job.objects.held_by(worker_id).filter(pk=job_id).exists()

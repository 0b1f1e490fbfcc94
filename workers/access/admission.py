"""Decides for which worker a caller acts, and which workers and jobs it may see.

Enforces `OfWorker` and `OfProject` from the table of `jobs.access`. Keys without a binding, nearly
all of them, cost no query here.

A client sends a worker's id; it may be stored under another name (`names`). This module translates
between the two: the protocol and the engine know stored names only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from jobs.access import projects
from jobs.engine import Outcome
from jobs.errors import JobNotFound, PermissionDenied, ReservationLost
from jobs.models import Job
from jobs.spec.fields import refuse
from jobs.spec.identifiers import parse_uuid
from jobs.spec.lifecycle import State
from jobs.spec.worker_ids import SEPARATOR, is_reserved, spellings
from jobs.store.expressions import JSONArrayHas

from ..models import Worker
from .claims import ForeignWorker
from .names import stored_names

if TYPE_CHECKING:
    from jobs.http.authentication import Caller

Result = TypeVar("Result")


class OtherWorker(PermissionDenied):
    """The key is bound to another worker."""

    def __init__(self, bound: str, worker_id: str) -> None:
        super().__init__(f"This API key speaks for worker '{bound}' only.", worker_id=worker_id)
        self.bound = bound


def speak_for(caller: Caller, worker_id: str | None) -> str | None:
    """Return the worker for which a caller acts: the one it names, else that of its key.

    None if there is neither. The id is the client's, not the stored name.

    Raises:
        InvalidRequest: it cannot be a worker's id.
        OtherWorker: the key is bound to another worker.
    """
    if worker_id and is_reserved(worker_id):
        raise refuse(
            "worker_id", f"A worker's id must not contain '{SEPARATOR}'.", validation="pattern"
        )
    if not caller.worker_id:
        return worker_id or None
    if worker_id and worker_id != caller.worker_id:
        raise OtherWorker(caller.worker_id, worker_id)
    return caller.worker_id


def admit(
    caller: Caller, worker_id: str | None, *, labels: Collection[str] | None = None
) -> str | None:
    """Restrict a label-bound key to workers with its label; return the worker's stored name.

    Args:
        worker_id: the worker for which the caller acts; None for an anonymous worker.
        labels: those that a worker declares when it arrives. They must include the key's label,
            and so must the labels of a known worker.

    Raises:
        PermissionDenied: the worker does not have the label.
    """
    return admit_all(caller, [worker_id], labels=labels)[worker_id]


def admit_all(
    caller: Caller, worker_ids: Collection[str | None], *, labels: Collection[str] | None = None
) -> dict[str | None, str | None]:
    """`admit()` for several workers: worker id → stored name."""
    if not (caller.label or caller.project):
        return {worker_id: worker_id for worker_id in worker_ids}
    names = stored_names({worker_id for worker_id in worker_ids if worker_id}, caller.project)
    if caller.label:
        if labels is not None:
            _check_label(caller, labels)
        known = dict(Worker.objects.filter(pk__in=names.values()).values_list("pk", "labels"))
        for worker_id in worker_ids:
            _check_label(caller, known.get(names.get(worker_id or "", ""), labels) or ())
    return {worker_id: names.get(worker_id or "", worker_id) for worker_id in worker_ids}


def as_worker(
    caller: Caller,
    worker_id: str,
    act: Callable[[str], Result],
    *,
    labels: Collection[str] | None = None,
    name: str | None = None,
) -> Result:
    """Run an action that may create a worker; `act` gets the worker's stored name.

    Args:
        act: raises `ForeignWorker` if another worker has taken the name meanwhile; it is then
            called again with the name that only this project uses.
        said: as in `admit`.
        name: the result of `admit`, if it has been called already.

    Raises:
        PermissionDenied: the worker does not have the key's label.
    """
    name = name or admit(caller, worker_id, labels=labels) or worker_id
    try:
        return act(name)
    except ForeignWorker:
        return act(admit(caller, worker_id, labels=labels) or worker_id)


def _check_label(caller: Caller, labels: Collection[str]) -> None:
    if caller.label not in labels:
        raise PermissionDenied(
            f"This API key is for workers labelled '{caller.label}' only.", labels=list(labels)
        )


def holder_of(caller: Caller, job_id: UUID) -> str | None:
    """Return the worker that must hold a job for this caller to touch its current attempt.

    None if any may, because the key is not bound. Act on the job only while that worker holds it:
    it may lose the job at any moment.

    Raises:
        JobNotFound: there is no such job.
        ReservationLost: the job is not held by a worker for which the key may act.
    """
    if not caller.is_bound:
        return None
    # Before the job is read: this may change the name that the job's holder has.
    bound = stored_names([caller.worker_id], caller.project)[caller.worker_id]
    found = Job.objects.filter(pk=job_id).values_list("state", "attempt", "reserved_by").first()
    if found is None:
        raise JobNotFound(job_id)
    state, attempt, holder = found
    is_own = state == State.ACTIVE and holder and bound in ("", holder)
    if is_own and caller.label:
        labelled = Worker.objects.filter(JSONArrayHas("labels", caller.label), pk=holder)
        is_own = projects.scope_to(labelled, caller.project).exists()
    if not is_own:
        raise ReservationLost(
            f"Job '{job_id}' is not held by a worker that this API key speaks for.",
            job_id=str(job_id),
            current_state=str(state),
            attempt=attempt,
        )
    return str(holder)


def own_workers(workers: Any, caller: Caller | None) -> Any:
    """Narrow the queryset `workers` to those that a caller may see; None sees all."""
    if caller is None:
        return workers
    workers = projects.scope_to(workers, caller.project)
    if caller.worker_id:
        workers = workers.filter(pk__in=spellings(caller.worker_id, caller.project))
    if caller.label:
        workers = workers.filter(JSONArrayHas("labels", caller.label))
    return workers


def own_reservations(jobs: Any, caller: Caller | None) -> Any:
    """Narrow the queryset `jobs` to those whose holders a caller may see; None sees all."""
    if caller is None:
        return jobs
    jobs = projects.scope_to(jobs, caller.project)
    if caller.worker_id:
        jobs = jobs.filter(reserved_by__in=spellings(caller.worker_id, caller.project))
    if caller.label:
        labelled = Worker.objects.filter(JSONArrayHas("labels", caller.label))
        labelled = projects.scope_to(labelled, caller.project)
        jobs = jobs.filter(reserved_by__in=labelled.values("pk"))
    return jobs


def own_jobs(active_job_ids: Collection[str], project: str) -> list[str]:
    """The ids of the project's jobs. The others are hidden from it, lost or not."""
    ids = {text: parse_uuid(text) for text in active_job_ids}
    foreign = projects.outside_project((job_id for job_id in ids.values() if job_id), project)
    return [text for text, job_id in ids.items() if job_id not in foreign]


def settle_own(
    settle: Callable[[Sequence[Any]], list[Outcome]], items: Sequence[Any], project: str
) -> list[Outcome]:
    """Settle the jobs of `project`; another project's jobs do not exist for it."""
    foreign = foreign_jobs(items, project)
    outcomes = settle([item for item in items if item.job_id not in foreign])
    return with_foreign(items, outcomes, foreign)


def foreign_jobs(items: Sequence[Any], project: str) -> set[UUID]:
    """Return the ids of the jobs among reports that are not `project`'s."""
    return projects.outside_project((item.job_id for item in items), project)


def with_foreign(
    items: Sequence[Any], outcomes: Sequence[Outcome], foreign: Collection[UUID]
) -> list[Outcome]:
    """Insert `JobNotFound` outcomes for foreign jobs, in order: the project cannot see them."""
    if not foreign:
        return list(outcomes)
    settled = iter(outcomes)
    return [
        Outcome(item.job_id, error=JobNotFound(item.job_id))
        if item.job_id in foreign
        else next(settled)
        for item in items
    ]

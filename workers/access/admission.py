"""For whom a caller speaks, and which workers and jobs of others it may see.

What `OfWorker` and `OfProject` promise in the table of `jobs.access`, carried out. Keys that are
bound to nothing, nearly all, cost no query here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from jobs.access import projects
from jobs.engine import Outcome
from jobs.errors import JobNotFound, PermissionDenied, ReservationLost
from jobs.models import Job
from jobs.spec.identifiers import parse_uuid
from jobs.spec.lifecycle import State
from jobs.store.expressions import JSONArrayHas

from ..liveness.claims import ForeignWorker
from ..models import Worker

if TYPE_CHECKING:
    from jobs.http.authentication import Caller


class OtherWorker(PermissionDenied):
    """The key is bound to another worker than it was used for."""


def speak_for(caller: Caller, said: str | None) -> str | None:
    """Return the worker for which a caller speaks: whom it names, else the one its key is bound to.

    None if neither names one.

    Raises:
        OtherWorker: the key speaks for another worker.
    """
    if not caller.worker_id:
        return said or None
    if said and said != caller.worker_id:
        raise OtherWorker(
            f"This API key speaks for worker '{caller.worker_id}' only.", worker_id=said
        )
    return caller.worker_id


def admit(
    caller: Caller, worker_ids: Collection[str | None], *, said: Collection[str] | None = None
) -> None:
    """Hold a key made for workers of one label, or of one project, to them.

    Args:
        worker_ids: those it speaks for; None is one without a name.
        said: the labels that a worker gives itself when it arrives. They must hold the key's, and
            so must those of one that is known.

    Raises:
        PermissionDenied: one of them does not carry the label, or is another project's.
    """
    if not (caller.label or caller.project):
        return
    named = {worker_id or "" for worker_id in worker_ids}
    if caller.project:
        # Dead ones too: they may come back, and their id is theirs for as long as they are known.
        others = Worker.objects.filter(pk__in=named).exclude(project=caller.project)
        taken = others.values_list("pk", flat=True).first()
        if taken is not None:
            raise ForeignWorker(taken)
    if caller.label:
        if said is not None:
            _check_label(caller, said)
        known = dict(Worker.objects.filter(pk__in=named).values_list("pk", "labels"))
        for worker_id in named:
            _check_label(caller, known.get(worker_id, said) or ())


def _check_label(caller: Caller, labels: Collection[str]) -> None:
    if caller.label not in labels:
        raise PermissionDenied(
            f"This API key is for workers labelled '{caller.label}' only.", labels=list(labels)
        )


def holder_of(caller: Caller, job_id: UUID) -> str | None:
    """Return who must hold a job for this caller to touch what belongs to its attempt.

    None: it does not matter, for the key is bound to no worker. Act on the job only as long as that
    worker holds it: it may lose it in this very moment.

    Raises:
        JobNotFound: there is no such job.
        ReservationLost: no worker that the key speaks for holds the job.
    """
    if not caller.is_bound:
        return None
    found = Job.objects.filter(pk=job_id).values_list("state", "attempt", "reserved_by").first()
    if found is None:
        raise JobNotFound(job_id)
    state, attempt, holder = found
    is_own = state == State.ACTIVE and holder and caller.worker_id in ("", holder)
    if is_own and caller.label:
        is_own = Worker.objects.filter(JSONArrayHas("labels", caller.label), pk=holder).exists()
    if not is_own:
        raise ReservationLost(
            f"Job '{job_id}' is not held by a worker that this API key speaks for.",
            job_id=str(job_id),
            current_state=str(state),
            attempt=attempt,
        )
    return str(holder)


def own_workers(workers: Any, caller: Caller | None) -> Any:
    """Narrow the queryset `workers` to those a caller may see; None sees them all."""
    if caller is None:
        return workers
    workers = projects.own(workers, caller.project)
    if caller.worker_id:
        workers = workers.filter(pk=caller.worker_id)
    if caller.label:
        workers = workers.filter(JSONArrayHas("labels", caller.label))
    return workers


def own_reservations(jobs: Any, caller: Caller | None) -> Any:
    """Narrow the queryset `jobs` to those whose holders a caller may see; None sees them all."""
    if caller is None:
        return jobs
    jobs = projects.own(jobs, caller.project)
    if caller.worker_id:
        jobs = jobs.filter(reserved_by=caller.worker_id)
    if caller.label:
        labelled = Worker.objects.filter(JSONArrayHas("labels", caller.label))
        jobs = jobs.filter(reserved_by__in=labelled.values("pk"))
    return jobs


def own_jobs(active_job_ids: Collection[str], project: str) -> list[str]:
    """Those that are `project`'s. The others are none of its business, lost or not."""
    ids = {text: parse_uuid(text) for text in active_job_ids}
    foreign = projects.foreign((job_id for job_id in ids.values() if job_id), project)
    return [text for text, job_id in ids.items() if job_id not in foreign]


def settle_own(
    settle: Callable[[Sequence[Any]], list[Outcome]], items: Sequence[Any], project: str
) -> list[Outcome]:
    """Settle what is `project`'s; another project's jobs do not exist for it."""
    foreign = foreign_jobs(items, project)
    outcomes = settle([item for item in items if item.job_id not in foreign])
    return with_foreign(items, outcomes, foreign)


def foreign_jobs(items: Sequence[Any], project: str) -> set[UUID]:
    """Return the ids of the jobs among reports that are not `project`'s."""
    return projects.foreign((item.job_id for item in items), project)


def with_foreign(
    items: Sequence[Any], outcomes: Sequence[Outcome], foreign: Collection[UUID]
) -> list[Outcome]:
    """Put the outcomes of foreign jobs between the others: they do not exist for the project."""
    if not foreign:
        return list(outcomes)
    settled = iter(outcomes)
    return [
        Outcome(item.job_id, error=JobNotFound(item.job_id))
        if item.job_id in foreign
        else next(settled)
        for item in items
    ]

"""Explains why the fleet does not run a job."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Max
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import engine
from jobs.admin.why import Reason, last_served, queue_of, reason
from jobs.models import Event, Job, Pool
from jobs.spec.lifecycle import State
from jobs.spec.pools import pool_of
from jobs.spec.versions import version_text
from jobs.store.expressions import JSONArrayHas

from ..fetching.abilities import able, takes_version
from ..fleet.condition import in_hand, is_given_jobs
from ..lifecycle import WorkerState
from ..models import Worker

RECENT = 1_000
"""Latest events among which is looked for when a worker was given a job."""


@reason
def nobody_serves_it(job: Any) -> Iterator[str]:
    """No live worker, none that is given jobs, none that takes this one, or none with a place.

    In the order in which a fetch is decided, up to the first condition that no worker meets.
    """
    if job.state == State.PENDING:
        return
    found = list(_serving(job).annotate(in_hand=in_hand()).annotate(is_given_jobs=is_given_jobs()))
    if not found:
        yield _about_workers(_nobody(job), job)
        return
    given = [worker for worker in found if worker.is_given_jobs]
    if not given:
        yield _about_workers(_told(found), job)
        return
    suiting = [worker for worker in given if _can_do(worker, job)]
    takes_it = [
        worker
        for worker in suiting
        if takes_version(worker.job_versions, job.type, job.version_number)
    ]
    queue = queue_of(job)
    isolated_by = queue.isolated_by if queue else ""
    inside = [worker for worker in takes_it if isolated_by in ("", _pool_of(worker))]
    if not suiting and job.needs:
        text = ngettext(
            "The only running worker of “%(queue)s” cannot do what it needs: %(needs)s.",
            "None of the %(count)d running workers of “%(queue)s” can do what it needs: %(needs)s.",
            len(given),
        )
        yield _about_workers(text, job, len(given), needs=", ".join(job.needs))
    elif not suiting:
        text = ngettext(
            "The only running worker of “%(queue)s” does not take “%(type)s”.",
            "None of the %(count)d running workers of “%(queue)s” takes “%(type)s”.",
            len(given),
        )
        yield _about_workers(text, job, len(given), type=job.type)
    elif not takes_it:
        text = ngettext(
            "The only running worker of “%(queue)s” does not take version %(version)s of "
            "“%(type)s”.",
            "None of the %(count)d running workers of “%(queue)s” takes version %(version)s of "
            "“%(type)s”.",
            len(given),
        )
        version = version_text(job.version_number)
        yield _about_workers(text, job, len(given), type=job.type, version=version)
    elif not inside:
        text = _(
            "The worker pool “%(pool)s” isolates “%(queue)s”, and no running worker of the queue "
            "belongs to it."
        )
        yield Reason(text % {"pool": isolated_by, "queue": job.queue}, Pool(pk=isolated_by))
    else:
        yield from _without_a_place(inside, job)


def _serving(job: Any) -> Any:
    """The live workers that fetch from the job's queue.

    A worker without a project serves all projects; one with a project serves only that.
    """
    return _of_queue(job).filter(project__in=("", job.project))


def _of_queue(job: Any) -> Any:
    return Worker.objects.live().filter(JSONArrayHas("queues", job.queue))


def _about_workers(text: str, job: Any, count: int = 0, **about: str) -> Reason:
    named = {"queue": job.queue, "project": job.project, "count": count} | about
    return Reason(text % named, Worker, queue=job.queue)


def _nobody(job: Any) -> str:
    if not _of_queue(job).exists():
        return _("No live worker serves the queue “%(queue)s”.")
    if job.project:
        return _(
            "No live worker serves the queue “%(queue)s” for the project “%(project)s”: those "
            "that serve it are for other projects."
        )
    return _(
        "No live worker serves the queue “%(queue)s” for jobs without a project: those that "
        "serve it are for projects."
    )


def _told(workers: Sequence[Any]) -> str:
    """Why none of these workers is given jobs."""
    # They report that they run: only the order keeps jobs from them.
    told = [each for each in workers if each.state == WorkerState.RUNNING and not each.may_fetch]
    if not told:
        return _(
            "No worker that serves “%(queue)s” is running: they are quiet, terminating or silent."
        )
    if len(told) == len(workers):
        return _(
            "No worker that serves “%(queue)s” is given jobs: an operator has told them to be "
            "quiet or to terminate."
        )
    return _(
        "No worker that serves “%(queue)s” is given jobs: an operator has told them to be quiet "
        "or to terminate, or they are quiet, terminating or silent."
    )


def _without_a_place(workers: Sequence[Any], job: Any) -> Iterator[str]:
    """All of these workers are busy, or the limits of their pools are reached."""
    full = _full_pools({_pool_of(worker) for worker in workers})
    others = [worker for worker in workers if _pool_of(worker) not in full]
    if not all(_is_busy(worker) for worker in others):
        return
    for name, (pool, active) in sorted(full.items()):
        text = _(
            "The limit of the worker pool “%(pool)s” is reached: %(active)d of %(limit)d jobs are "
            "active."
        )
        yield Reason(text % {"pool": name, "active": active, "limit": pool.concurrency}, pool)
    if others and full:
        text = ngettext(
            "The other worker that takes it from “%(queue)s” is busy.",
            "The other %(count)d workers that take it from “%(queue)s” are busy.",
            len(others),
        )
        yield _about_workers(text, job, len(others))
    elif others:
        text = ngettext(
            "The only worker that takes it from “%(queue)s” is busy.",
            "All %(count)d workers that take it from “%(queue)s” are busy.",
            len(others),
        )
        yield _about_workers(text, job, len(others))


def _full_pools(names: Collection[str]) -> dict[str, tuple[Pool, int]]:
    """The pools whose limits are reached, and how many jobs are active through each."""
    named = [name for name in names if name]
    pools = list(Pool.objects.filter(pk__in=named, concurrency__isnull=False)) if named else []
    active = engine.pool_rules.active_jobs(pools, {}) if pools else {}
    return {
        pool.pk: (pool, active[pool.pk])
        for pool in pools
        if active[pool.pk] >= (pool.concurrency or 0)
    }


def _can_do(worker: Any, job: Any) -> bool:
    """Whether the worker takes jobs of this type and has the abilities that this one needs."""
    if worker.job_types is not None and job.type not in worker.job_types:
        return False
    if worker.specs is not None and job.type not in engine.matching_types(worker.specs):
        return False
    return set(job.needs or ()) <= set(_able(worker))


def _able(worker: Any) -> Iterable[str]:
    return able(worker.pk, worker.labels, worker.capabilities)


def _pool_of(worker: Any) -> str:
    return pool_of(_able(worker))


def _is_busy(worker: Any) -> bool:
    return worker.concurrency is not None and worker.in_hand >= worker.concurrency


def _last_given(job: Any) -> datetime | None:
    """When a worker that serves the job was last given one: what it still holds says so, and the
    latest events. Fetches that found nothing leave no trace."""
    workers = list(_serving(job).values_list("pk", flat=True))
    held = Job.objects.active().filter(reserved_by__in=workers, reserved_for__isnull=False)
    latest = Event.objects.order_by("-id").values("pk")[:RECENT]
    started = Event.objects.filter(pk__in=latest, type="job.started", worker_id__in=workers)
    moments = (
        held.aggregate(at=Max("started_at"))["at"],
        started.aggregate(at=Max("time"))["at"],
    )
    return max((moment for moment in moments if moment is not None), default=None)


last_served.append(_last_given)

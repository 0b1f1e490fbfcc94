"""Explains why the fleet does not run a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext as _

from jobs import engine
from jobs.admin.why import Reason, reason
from jobs.spec.lifecycle import State
from jobs.spec.versions import version_text
from jobs.store.expressions import JSONArrayHas

from ..fetching.abilities import able, takes_version
from ..fleet.condition import Condition, condition, in_hand
from ..models import Worker


@reason
def nobody_serves_it(job: Any) -> Iterator[str]:
    """No live worker, no running one, or none with a free place."""
    if job.state == State.PENDING:
        return
    serving = Worker.objects.live().filter(JSONArrayHas("queues", job.queue))
    # A worker without a project serves all projects; one with a project serves only that.
    serving = serving.filter(project__in=("", job.project))
    found = list(serving.annotate(in_hand=in_hand()).annotate(condition=condition()))
    about: dict[str, Any] = {"queue": job.queue}
    if not found:
        yield Reason(
            _("No live worker serves the queue “%(queue)s”.") % about, Worker, queue=job.queue
        )
        return
    running = [worker for worker in found if worker.condition == Condition.RUNNING]
    if not running:
        yield Reason(
            _("No worker that serves “%(queue)s” is running: they are quiet or silent.") % about,
            Worker,
            queue=job.queue,
        )
        return
    suiting = [worker for worker in running if _can_do(worker, job)]
    about |= {"count": len(running), "type": job.type, "needs": ", ".join(job.needs or ())}
    takes_it = [
        worker
        for worker in suiting
        if takes_version(worker.job_versions, job.type, job.version_number)
    ]
    if not suiting and job.needs:
        text = _(
            "None of the %(count)d running workers of “%(queue)s” can do what it needs: %(needs)s."
        )
        yield Reason(text % about, Worker, queue=job.queue)
    elif not suiting:
        text = _("None of the %(count)d running workers of “%(queue)s” takes “%(type)s”.")
        yield Reason(text % about, Worker, queue=job.queue)
    elif not takes_it:
        text = _(
            "None of the %(count)d running workers of “%(queue)s” takes version %(version)s of "
            "“%(type)s”."
        )
        yield Reason(
            text % (about | {"version": version_text(job.version_number)}), Worker, queue=job.queue
        )
    elif all(_is_busy(worker) for worker in takes_it):
        text = _("All %(count)d workers that serve “%(queue)s” are busy.")
        yield Reason(text % (about | {"count": len(takes_it)}), Worker, queue=job.queue)


def _can_do(worker: Any, job: Any) -> bool:
    """Whether the worker takes jobs of this type and has the abilities that this one needs."""
    if worker.job_types is not None and job.type not in worker.job_types:
        return False
    if worker.specs is not None and job.type not in engine.matching_types(worker.specs):
        return False
    return set(job.needs or ()) <= set(able(worker.pk, worker.labels, worker.capabilities))


def _is_busy(worker: Any) -> bool:
    return worker.concurrency is not None and worker.in_hand >= worker.concurrency

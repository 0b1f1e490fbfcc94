"""Sends `task_finished` for attempts of Django tasks that ended with their worker or reservation.

Otherwise the worker that ran the task sends it (`workers.runtime.tasks`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any
from uuid import UUID

from django.dispatch import receiver

from jobs.models import Job
from jobs.signals import jobs_reclaimed


@receiver(jobs_reclaimed, dispatch_uid="ojs_finished_tasks")
def tell_of_tasks(
    *, discarded: Collection[UUID], returned: Collection[UUID], **kwargs: Any
) -> None:
    """Send `task_finished` for the jobs that are tasks of this site.

    The status is FAILED after the last attempt, and READY where another one follows, as after an
    attempt that a worker reports as failed.
    """
    try:
        from jobs import backends
    except ImportError:
        return  # The site has no Tasks framework.
    if not list(backends.backends()):
        return
    for result in _results(backends, discarded):
        backends.task_finished.send_robust(result.task.get_backend().__class__, task_result=result)
    for result in _results(backends, returned):
        # Another worker may be running it already.
        object.__setattr__(result, "status", backends.TaskResultStatus.READY)
        backends.task_finished.send_robust(result.task.get_backend().__class__, task_result=result)


def _results(backends: Any, job_ids: Collection[UUID]) -> Iterator[Any]:
    if not job_ids:
        return
    for job_id, type in Job.objects.filter(pk__in=job_ids).values_list("pk", "type"):
        task = backends.find_task(type)
        if task is not None:
            yield task.get_backend().get_result(str(job_id))

"""Sends `task_finished` for Django tasks that are discarded because their worker ended.

Otherwise the worker that ran the task sends it (`workers.runtime.tasks`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

from django.dispatch import receiver

from jobs.models import Job
from jobs.signals import jobs_reclaimed


@receiver(jobs_reclaimed, dispatch_uid="ojs_finished_tasks")
def tell_of_tasks(*, discarded: Collection[UUID], **kwargs: Any) -> None:
    """Send `task_finished` for the jobs that are tasks of this site."""
    if not discarded:
        return
    try:
        from jobs import backends
    except ImportError:
        return  # The site has no Tasks framework.
    if not list(backends.backends()):
        return
    for job_id, type in Job.objects.filter(pk__in=discarded).values_list("pk", "type"):
        task = backends.find_task(type)
        if task is not None:
            backend = task.get_backend()
            result = backend.get_result(str(job_id))
            backends.task_finished.send_robust(backend.__class__, task_result=result)

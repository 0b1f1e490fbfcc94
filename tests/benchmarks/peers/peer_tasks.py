"""The job for django-tasks-db: a task in a module."""

import peer_jobs
from django_tasks import task


@task
def tick_task() -> None:
    peer_jobs.tick()

"""Deletes the oldest finished jobs without reading them first: one statement on PostgreSQL."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from . import cascades
from .choice import is_portable
from .database import atomic, compiled, connection

# A job that another transaction has locked is skipped: it may be about to change.
DELETE = """
    WITH doomed AS MATERIALIZED (
        {oldest}
    ), checkpoint AS (
        DELETE FROM ojs_jobs_checkpoint USING doomed WHERE ojs_jobs_checkpoint.job_id = doomed.id
    ), deleted AS (
        DELETE FROM ojs_jobs_job USING doomed WHERE ojs_jobs_job.id = doomed.id
    )
    SELECT count(*), max(finished_at) FROM doomed
"""


def is_possible(job: Any) -> bool:
    """Whether jobs may be deleted this way: what refers to them cascades, and is none of a site's.

    Args:
        job: the model.
    """
    return not is_portable() and not cascades.references_of_sites(job) and cascades.cascade(job)


def delete_oldest(jobs: QuerySet[Any], most: int) -> tuple[int, datetime | None]:
    """Delete those of the jobs that finished first.

    Returns:
        How many, and when the last one finished; None if there was none.
    """
    oldest = jobs.order_by("finished_at").values("id", "finished_at")[:most]
    with atomic():
        statement, parameters = compiled(oldest.select_for_update(skip_locked=True))
        with connection().cursor() as cursor:
            cursor.execute(DELETE.format(oldest=statement), parameters)
            count, last = cursor.fetchone()
    return count, last

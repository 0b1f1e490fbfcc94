"""Deletes the oldest finished jobs without reading them first: one statement on PostgreSQL.

Those that others may ask for (see `Job.followed`) are only named: whether one does is another row's
business, and a statement sees other rows as they were before it locked the job.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from . import references
from .choice import is_portable
from .database import atomic, compiled, connection

# A job that another transaction has locked is skipped: it may be about to change.
DELETE = """
    WITH doomed AS MATERIALIZED (
        {oldest}
    ), {deletions}
    SELECT count(*) FILTER (WHERE NOT followed),
           max(finished_at),
           coalesce(array_agg(id) FILTER (WHERE followed), '{{}}')
      FROM doomed
"""
DELETION = """{name} AS (
        DELETE FROM {table} USING doomed
         WHERE {table}.{column} = doomed.id AND NOT doomed.followed
    )"""


def is_possible(job: Any) -> bool:
    """Whether jobs may be deleted this way: nothing of a site's refers to them.

    Args:
        job: the model.
    """
    return not is_portable() and not references.references_of_sites(job)


def delete_oldest(jobs: QuerySet[Any], most: int) -> tuple[int, datetime | None, list[UUID]]:
    """Delete those of the jobs that finished first.

    Returns:
        How many; when the last one finished, None if there was none; and which others among the
        first have to be looked at again, as they are followed.
    """
    oldest = jobs.order_by("finished_at").values("id", "finished_at", "followed")[:most]
    with atomic():
        statement, parameters = compiled(oldest.select_for_update(skip_locked=True))
        with connection().cursor() as cursor:
            cursor.execute(
                DELETE.format(oldest=statement, deletions=_deletions(jobs.model)), parameters
            )
            count, last, followed = cursor.fetchone()
    return count, last, followed


def _deletions(job: Any) -> str:
    """What goes with the jobs, and the jobs, as parts of the statement."""
    fields = [*references.going_with(job), job._meta.pk]
    return ", ".join(
        DELETION.format(
            name=f"deletion_{number}", table=field.model._meta.db_table, column=field.column
        )
        for number, field in enumerate(fields)
    )

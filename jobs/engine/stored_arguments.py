"""Deletes large arguments in a storage of the site when their jobs have been deleted.

What a transaction deletes is listed in the storage itself before it commits. A chore reads the
lists when it has surely ended, and deletes what nothing in the database refers to. So nothing is
lost if the transaction is rolled back or if a copy of the job needs the same argument, and after a
crash the lists are still there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import Model, QuerySet, TextField
from django.db.models.functions import Cast

from ..conf import ojs_settings
from ..models import CronJob, Job, Workflow
from ..payloads import external
from ..spec.encoded import REFERENCE
from ..store import clock
from ..store.expressions import Among

GRACE = timedelta(minutes=10)
"""Longer than any transaction that deletes a job, or enqueues a copy of it."""
BATCH = 1_000
"""Lists that are read at once."""
COLUMNS: dict[type[Model], tuple[str, ...]] = {
    Job: ("args",),
    Workflow: ("steps", "callbacks", "compensations"),
    CronJob: ("template",),
}
"""Where a reference may be."""


def release_jobs(ids: Iterable[UUID]) -> None:
    """List the arguments of jobs that this transaction deletes."""
    _release(Job.objects.filter(Among("pk", ids)))


def release_workflows(workflows: QuerySet[Workflow]) -> None:
    """List the arguments of workflows that this transaction deletes, of steps that never ran."""
    _release(workflows)


def _release(rows: QuerySet[Any]) -> None:
    if ojs_settings.PAYLOAD_STORAGE:
        external.release(set(_names_in(rows)))


def _names_in(rows: QuerySet[Any]) -> Iterator[str]:
    for column in COLUMNS[rows.model]:
        referring = rows.annotate(text=Cast(column, TextField())).filter(text__contains=REFERENCE)
        for value in referring.values_list(column, flat=True).iterator():
            yield from external.names_in(value)


def collect() -> int:
    """Delete the stored arguments of one batch of lists; return how many.

    Several processes may do so at once: to delete what is gone is no error.
    """
    if not ojs_settings.PAYLOAD_STORAGE:
        return 0
    lists = external.released(before=clock.now() - GRACE)[:BATCH]
    if not lists:
        return 0
    names = {path: external.read_list(path) for path in lists}
    kept = {name for model in COLUMNS for name in _names_in(model._default_manager.all())}
    deleted = 0
    for path, listed in names.items():
        for name in listed.difference(kept):
            external.delete(name)
            deleted += 1
        external.delete(path)
    return deleted

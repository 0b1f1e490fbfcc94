"""Chooses the name under which a project's worker is stored (`jobs.spec.worker_ids`).

That is the plain id as long as it is free: nothing changes for a server with one project, and
servers of the previous release, which know plain ids only, find the same records. A name is taken
as long as it has a record: a dead worker may come back.

Two projects that take an id at the same moment both find it free. The primary key decides: the
protocol refuses the second (`ForeignWorker`), which looks it up again: see `admission.as_worker`.
"""

from __future__ import annotations

from collections.abc import Collection

from jobs.access.projects import scope_to
from jobs.models import Job
from jobs.spec.fields import refuse
from jobs.spec.worker_ids import longest_in, qualified, spellings
from jobs.store.database import atomic

from ..models import Worker


def stored_names(worker_ids: Collection[str], project: str) -> dict[str, str]:
    """Map each worker id to its stored name; an empty id stays as it is.

    Without a project, no query; with one, a single query, and another for each worker without a
    record.

    Raises:
        InvalidRequest: an id is too long for a new worker of the project.
    """
    names = {worker_id: worker_id for worker_id in worker_ids}
    named = {worker_id for worker_id in names if worker_id} if project else ()
    if named:
        texts = {text for worker_id in named for text in spellings(worker_id, project)}
        owners = dict(Worker.objects.filter(pk__in=texts).values_list("pk", "project"))
        names |= {worker_id: _name(worker_id, project, owners) for worker_id in named}
    return names


def _name(worker_id: str, project: str, owners: dict[str, str]) -> str:
    """
    Args:
        owners: name → project, for the existing records.

    Raises:
        InvalidRequest: the id is too long for a new worker of the project.
    """
    own_name = qualified(worker_id, project)
    owner = owners.get(worker_id)
    room = longest_in(project)
    if len(worker_id) > room and owner != project and own_name not in owners:
        raise refuse(
            "worker_id",
            f"A worker's id may have at most {room} characters in the project '{project}'.",
            validation="max_length",
        )
    if owner == project:
        if own_name in owners:
            # A server of the previous release stored the worker while the plain id was free.
            _bring(own_name, worker_id, project)
        return worker_id
    if own_name in owners:
        return own_name
    # Registration is optional: without a record, a worker may hold jobs under the name that was
    # valid when it fetched them, before another worker took or released the plain id.
    if owner is None:
        _bring(own_name, worker_id, project)
        return worker_id
    if owner:
        # Only this project's worker can hold its jobs under the id of another project's worker.
        _bring(worker_id, own_name, project)
    return own_name


def _bring(earlier: str, name: str, project: str) -> None:
    """Move the project's jobs that a worker holds under `earlier` to `name`."""
    held = scope_to(Job.objects.held_by(earlier), project)
    if not held.exists():
        return
    with atomic():
        ids = list(held.order_by("pk").select_for_update().values_list("pk", flat=True))
        Job.objects.held_by(earlier).filter(pk__in=ids).update(reserved_by=name)

"""Lineage: which job enqueued which (OJS execution history §5, §7.2).

The members are among the job's attributes, where envelopes and claims find them without a column.
A partial index on the parent has an entry for each child, and none for the jobs without a parent:
no statement of theirs pays more than a look at its condition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from ..access.projects import find, scope_to
from ..errors import InvalidRequest
from ..models import Job
from ..models.job import HAS_PARENT, PARENT_KEY
from ..spec.batches import representatives, shared_targets
from ..spec.identifiers import parse_uuid
from ..spec.lineage import PARENT, ROOT
from ..spec.validation import NewJob

MOST = 1000
"""Descendants that one answer lists."""
CHILD = ("pk", "type", "queue", "state", "parent")


def settle(new: Sequence[NewJob], *, lenient: bool = False) -> None:
    """Work out the roots of new jobs with a parent.

    Handlers of a site know both: only other clients send a parent alone. A parent that does not
    exist any more is kept as it was sent, and is the root.

    Args:
        lenient: the jobs were accepted earlier, as steps of a workflow: their parent may be gone.

    Raises:
        InvalidRequest: the job belongs to a project, which has no such parent.
    """
    children = [job for job in representatives(new) if _lacks_root(job)]
    if not children:
        return
    roots: dict[tuple[str, str], str] = {}
    for project in {job.project for job in children}:
        asked = {str(job.attributes[PARENT]) for job in children if job.project == project}
        ids = [found for found in map(parse_uuid, asked) if found is not None]
        rows = scope_to(Job.objects.filter(pk__in=ids), project)
        for job_id, attributes in rows.values_list("pk", "attributes"):
            roots[project, str(job_id)] = (attributes or {}).get(ROOT) or str(job_id)
    # A batch may hold the parent as well.
    beside = {str(job.id): job for job in representatives(new)}
    for job in children:
        parent = str(job.attributes[PARENT])
        is_known = (job.project, parent) in roots or parent in beside
        if job.project and not (is_known or lenient):
            raise InvalidRequest(
                f"There is no job '{parent}' that could be the parent.", field=PARENT
            )
    for job in shared_targets(new):
        if _lacks_root(job):
            root = _root_of(job, roots, beside)
            job.attributes = job.attributes | {ROOT: root}


def _lacks_root(job: NewJob) -> bool:
    return PARENT in job.attributes and ROOT not in job.attributes


def _root_of(job: NewJob, roots: dict[tuple[str, str], str], beside: dict[str, NewJob]) -> str:
    """Follow the parents as far as they are part of the batch."""
    seen = {str(job.id)}
    parent = str(job.attributes[PARENT])
    while (job.project, parent) not in roots and parent in beside and parent not in seen:
        seen.add(parent)
        above = beside[parent].attributes
        if ROOT in above:
            return str(above[ROOT])
        if PARENT not in above:
            return parent
        parent = str(above[PARENT])
    return roots.get((job.project, parent), parent)


def find_lineage(job_id: UUID, project: str = "") -> dict[str, Any]:
    """Return the lineage of a job of `project` (see `lineage_of`).

    Raises:
        JobNotFound: there is no such job, or it is another project's.
    """
    return lineage_of(find(job_id, project), project)


def lineage_of(job: Job, project: str = "") -> dict[str, Any]:
    """Return a job's parent, root, workflow and descendants (§7.2).

    Args:
        project: that of the key that reads it; it sees descendants of its own.
    """
    own = str(job.pk)
    attributes = job.attributes or {}
    found: dict[str, Any] = {
        "job_id": own,
        PARENT: attributes.get(PARENT),
        "workflow_id": None if job.workflow_id is None else str(job.workflow_id),
        ROOT: attributes.get(ROOT) or own,
    }
    children, is_whole = _descendants(job.pk, project)
    found["children"] = children
    return found if is_whole else found | {"truncated": True}


def _descendants(job_id: UUID, project: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the tree below a job, level by level, and whether that is all of it."""
    listed: dict[str, list[dict[str, Any]]] = defaultdict(list)
    level, left = [str(job_id)], MOST
    seen = set(level)
    while level and left:
        rows = scope_to(children_of(level), project).values_list(*CHILD)
        level_below: list[str] = []
        for pk, kind, queue, state, parent in rows[:left]:
            if str(pk) in seen:
                continue
            seen.add(str(pk))
            below = listed[str(pk)]
            child = {"job_id": str(pk), "type": kind, "queue": queue, "state": state}
            listed[parent].append(child | {"children": below})
            level_below.append(str(pk))
        left -= len(level_below)
        level = level_below
    is_whole = bool(left) or not scope_to(children_of(level), project).exists()
    return listed[str(job_id)], is_whole


def children_of(ids: Sequence[str]) -> Any:
    """The jobs whose parent is one of these, the oldest first of each."""
    # With the condition of the index, which a planner need not work out then, and in its order.
    jobs = Job.objects.annotate(parent=PARENT_KEY).filter(HAS_PARENT, parent__in=list(ids))
    return jobs.order_by("parent", "pk")

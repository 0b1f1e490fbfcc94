"""Creates and cancels workflows (OJS workflows §11)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from uuid import UUID

from django.db import IntegrityError

from ..access.audit import Actor
from ..conf import ojs_settings
from ..errors import Conflict, DuplicateJob, WorkflowNotFound
from ..models import Job, Source, Workflow, WorkflowState
from ..record.events import record, workflow_event
from ..signals import send_on_commit, workflow_finished
from ..spec.lifecycle import WAITING
from ..spec.tenants import tenant_of
from ..spec.validation import accepted_job
from ..spec.workflow_plans import Plan, callbacks_of, steps_of
from ..store import awaited, clock
from ..store.database import atomic, connection, on_commit
from ..store.expressions import Among
from . import bulk, bulk_operations, content
from .dependencies import CANCELLED, cancel_strays, cancel_waiting
from .enqueue import enqueueing
from .flow import ending, release_dependents
from .inheritance import subtree
from .workflow_progress import advance
from .workflow_start import WorkflowBuilder

SERVER = Actor("", Source.SERVER)


def create_workflow(plan: Plan, *, project: str = "") -> Workflow:
    """Store and start a workflow (OJS workflows §11.1); all its jobs will belong to `project`.

    Args:
        project: empty: the tenant that its jobs name, if any does (OJS multi-tenancy §15.2).

    Raises:
        InvalidRequest: its jobs name several tenants, or another one than `project`.
        DuplicateJob: a workflow with this id exists.
        InvalidArguments: a job, even of a later step, does not match the schema of its type.
        JobTooLarge: a job, even of a later step, is larger than its tenant's may be.
    """
    now = clock.now()
    project = _tenant_of(plan, project)
    try:
        with enqueueing() as ended:
            builder = WorkflowBuilder(now)
            workflow = builder.add_member(plan, project)
            ended += builder.store()
            _check_later_jobs(plan, project)
            record([workflow_event("workflow.created", workflow, time=now, jobs=plan.job_count)])
    except IntegrityError:
        if plan.id is None:
            raise
        raise DuplicateJob(f"A workflow with id '{plan.id}' already exists.") from None
    return workflow


def _tenant_of(plan: Plan, project: str) -> str:
    """Return the only tenant that the jobs of a workflow may name."""
    mode = ojs_settings.MULTI_TENANCY
    if mode == "off":
        return project
    metas = [step.job.meta for step in steps_of(plan)]
    metas += [call.get("meta") or {} for call in callbacks_of(plan)]
    for meta in metas:
        project = tenant_of(meta, project, required=False) or project
    if mode == "required" and not project:
        tenant_of({}, "", required=True)
    # Of those before the first that named one, none named another.
    return project


def _check_later_jobs(plan: Plan, project: str) -> None:
    """Check the arguments of all jobs of a workflow whose first ones were just stored.

    Later, when a running workflow makes them, it is too late to refuse them.
    """
    if not content.is_checked(project):
        return
    now = clock.now()
    later = [step.job for step in steps_of(plan) if step.job.workflow_id is None]
    later += [accepted_job(each, now) for each in callbacks_of(plan)]
    content.check(later, project, "A later job of type '{type}'")


def cancel_workflow(workflow_id: UUID, *, actor: Actor = SERVER) -> Workflow:
    """Cancel a workflow: jobs not yet started will never run, active ones may finish (§11.3).

    What completed is not undone. A nested workflow that is compensating goes on. The workflow ends
    at once. If more jobs wait than one call changes (`bulk.MOST`), a bulk operation cancels them:
    until it comes to them, they may still be fetched.

    Args:
        actor: who cancels, for the audit of that operation.

    Raises:
        WorkflowNotFound: there is no such workflow.
        Conflict: it has ended, or is compensating.
    """
    while (cancelled := _end_cancelled(workflow_id, actor)) is None:
        pass
    target, inside = cancelled
    if inside:
        _cancel_jobs(inside)
        if connection().features.has_select_for_update:
            on_commit(lambda: _cancel_given_back(inside))
    with ending() as ended:
        ended += advance(Workflow.objects.filter(children=target).only("depth"))
    send_on_commit(workflow_finished, Workflow, workflow_id=workflow_id, state="cancelled")
    return target


def _cancel_jobs(inside: Sequence[UUID]) -> None:
    """Cancel the waiting jobs of these workflows, which have ended, batch after batch.

    Separate transactions: a job is locked before its workflow, so jobs must not be waited for while
    workflows are locked. After a crash in between, `repair` continues.
    """
    waiting = Job.objects.filter(workflow__in=inside, state__in=sorted(WAITING))
    ids = list(waiting.order_by("pk").values_list("pk", flat=True))
    ended: list[UUID] = []
    for first in range(0, len(ids), bulk.BATCH):
        with atomic():
            ended += cancel_waiting(ids[first : first + bulk.BATCH], CANCELLED)
    # A job outside may depend on one of these.
    for first in range(0, len(ended), bulk.BATCH):
        release_dependents(ended[first : first + bulk.BATCH])


def _cancel_given_back(inside: Sequence[UUID]) -> None:
    """Cancel the jobs that transactions gave back meanwhile which could not see it.

    Where rows are not locked, there is one such transaction at a time.
    """
    unfinished = Job.objects.filter(workflow__in=inside, finished_at__isnull=True).order_by("pk")
    ids = list(unfinished.values_list("pk", flat=True))
    for first in range(0, len(ids), bulk.BATCH):
        part = Job.objects.filter(Among("pk", ids[first : first + bulk.BATCH])).order_by("pk")
        with ending() as ended:
            # A transaction that locks such a job later sees that the workflow was cancelled.
            locked = part.select_for_update().values_list("pk", flat=True)
            ended += cancel_strays(list(locked))


class _HasGrown(Exception):
    """A nested workflow began while the others were waited for."""


def _end_cancelled(workflow_id: UUID, actor: Actor) -> tuple[Workflow, list[UUID]] | None:
    """End the workflow and all nested ones; return it, and the ids of those that have ended.

    None of them if a bulk operation is to cancel their jobs. Returns None if a nested workflow
    began meanwhile: nothing is changed or locked then.
    """
    # Not locked after the others: workflows are locked from the inside out.
    with contextlib.suppress(_HasGrown), atomic():
        return _end_locked(_lock_inside(workflow_id), workflow_id, actor)
    return None


def _lock_inside(workflow_id: UUID) -> list[Workflow]:
    """Lock the workflow and all inside it.

    Raises:
        WorkflowNotFound: there is no such workflow.
        _HasGrown: not all of them are locked.
    """
    target = Workflow.objects.filter(pk=workflow_id).first()
    if target is None:
        raise WorkflowNotFound(workflow_id)
    rows = Workflow.objects.filter(pk__in=[item.pk for item in subtree(target)])
    locked = list(rows.order_by("-depth", "pk").select_for_update())
    # One begins only under the lock of the workflow that it is in.
    if {item.pk for item in subtree(target)} - {item.pk for item in locked}:
        raise _HasGrown
    return locked


def _end_locked(
    locked: Sequence[Workflow], workflow_id: UUID, actor: Actor
) -> tuple[Workflow, list[UUID]]:
    now = clock.now()
    target = next((item for item in locked if item.pk == workflow_id), None)
    if target is None:
        raise WorkflowNotFound(workflow_id)
    if target.is_terminal:
        raise Conflict(
            f"Workflow '{workflow_id}' is already in terminal state '{target.state}'.",
            workflow_id=str(workflow_id),
            current_state=target.state,
        )
    if target.state == WorkflowState.COMPENSATING:
        raise Conflict(
            f"Workflow '{workflow_id}' is compensating: it undoes what its steps did.",
            workflow_id=str(workflow_id),
            current_state=target.state,
        )
    # Half undone is worse than failed: what compensates goes on to its end.
    ended = [item for item in locked if item.state != WorkflowState.COMPENSATING]
    open_ones = [item for item in ended if not item.is_terminal]
    Workflow.objects.filter(pk__in=[item.pk for item in open_ones]).update(
        state=WorkflowState.CANCELLED, finished_at=now
    )
    target.state, target.finished_at = WorkflowState.CANCELLED, now
    record(workflow_event("workflow.cancelled", item, time=now) for item in open_ones)
    awaited.tell(awaited.workflow_name(item.pk) for item in open_ones)
    ids = [item.pk for item in ended]
    waiting = Job.objects.filter(workflow__in=ids, state__in=sorted(WAITING))
    if waiting.order_by()[: bulk.MOST + 1].count() > bulk.MOST:
        wanted = {
            "workflow": str(workflow_id),
            "state": [str(state) for state in sorted(WAITING)],
        }
        bulk_operations.start("cancel", wanted, actor=actor, reason=CANCELLED)
        ids = []
    return target, ids

"""Creates and cancels workflows (OJS workflows §11)."""

from __future__ import annotations

from uuid import UUID

from django.db import IntegrityError

from ..conf import ojs_settings
from ..errors import Conflict, DuplicateJob, WorkflowNotFound
from ..models import Job, Workflow, WorkflowState
from ..record.events import record, workflow_event
from ..signals import send_on_commit, workflow_finished
from ..spec.lifecycle import WAITING
from ..spec.tenants import tenant_of
from ..spec.validation import CLASS_PATTERN, new_job
from ..spec.workflow_plans import Plan, callbacks_of, steps_of
from ..store import awaited, clock
from ..store.database import atomic
from . import schemas
from .dependencies import cancel_waiting, release
from .enqueue import enqueueing
from .flow import ending
from .inheritance import subtree
from .workflow_progress import advance
from .workflow_start import WorkflowBuilder

CANCELLED = "Its workflow was cancelled."


def create_workflow(plan: Plan, *, project: str = "") -> Workflow:
    """Store and start a workflow (OJS workflows §11.1); all its jobs will belong to `project`.

    Args:
        project: empty: the tenant that its jobs name, if any does (OJS multi-tenancy §15.2).

    Raises:
        InvalidRequest: its jobs name several tenants, or another one than `project`.
        DuplicateJob: a workflow with this id exists.
        InvalidArguments: a job, even of a later step, does not match the schema of its type.
    """
    now = clock.now()
    project = _tenant_of(plan, project)
    try:
        with enqueueing() as ended:
            builder = WorkflowBuilder(now)
            workflow = builder.add_member(plan, project)
            ended += builder.store()
            _check_later_jobs(plan)
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


def _check_later_jobs(plan: Plan) -> None:
    """Check the arguments of all jobs of a workflow whose first ones were just stored.

    Later, when a running workflow makes them, it is too late to refuse them.
    """
    if schemas.are_registered():
        now = clock.now()
        calls = [new_job(each, now, type_pattern=CLASS_PATTERN) for each in callbacks_of(plan)]
        later = [step.job for step in steps_of(plan) if step.job.workflow_id is None]
        schemas.checked([*later, *calls])


def cancel_workflow(workflow_id: UUID) -> Workflow:
    """Cancel a workflow: jobs not yet started will never run, active ones may finish (§11.3).

    What completed is not undone. A nested workflow that is compensating goes on.

    Raises:
        WorkflowNotFound: there is no such workflow.
        Conflict: it has ended, or is compensating.
    """
    target, inside = _end_cancelled(workflow_id)
    # A separate transaction: a job is locked before its workflow, so jobs must not be waited for
    # while workflows are locked. After a crash in between, `repair` continues.
    with ending() as others:
        waiting = Job.objects.filter(workflow__in=inside, state__in=sorted(WAITING))
        ended = cancel_waiting(waiting.values_list("pk", flat=True), CANCELLED)
        # A job outside may depend on one of these.
        while ended:
            ended = release(Job.objects.filter(pk__in=ended).only("state"))
        others += advance({target.parent_id})
    send_on_commit(workflow_finished, Workflow, workflow_id=workflow_id, state="cancelled")
    return target


def _end_cancelled(workflow_id: UUID) -> tuple[Workflow, list[UUID]]:
    """End the workflow and all nested ones; return it, and the ids of those that have ended."""
    now = clock.now()
    with atomic():
        target = Workflow.objects.filter(pk=workflow_id).first()
        if target is None:
            raise WorkflowNotFound(workflow_id)
        inside = [item.pk for item in subtree(target)]
        locked = list(
            Workflow.objects.filter(pk__in=inside).order_by("-depth", "pk").select_for_update()
        )
        target = next(item for item in locked if item.pk == workflow_id)
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
    return target, [item.pk for item in ended]

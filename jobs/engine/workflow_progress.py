"""Advances workflows whenever a node has settled (OJS workflows §8).

A workflow is a row; its nodes are jobs, or workflows inside it. When a node settles, its workflow
is locked, checked and advanced in the same transaction: if two nodes end at the same instant on
two servers, the second to get the lock sees both. Locks are taken from the inside out, level by
level, so that no cycle of waiting can arise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ..access.projects import assign_project
from ..errors import OJSError
from ..models import Event, Job, Workflow, WorkflowState, WorkflowType
from ..record import tracing
from ..record.events import record, workflow_event
from ..signals import send_on_commit, workflow_finished
from ..spec import traces
from ..spec.lifecycle import State
from ..spec.validation import CLASS_PATTERN, new_job
from ..spec.workflow_plans import Plan, node_of
from ..store import awaited, clock
from ..store.database import atomic
from .bounds import accepted
from .inheritance import ERRORS, errors_of, results_of_workflow
from .insertion import insert_jobs
from .workflow_start import WorkflowBuilder


def mark_started(workflow_ids: Collection[UUID]) -> None:
    """Record that the first job of these workflows began to execute (OJS events §3.5)."""
    fresh = list(
        Workflow.objects.filter(
            pk__in=[pk for pk in workflow_ids if pk is not None], started_at__isnull=True
        ).only("root_id")
    )
    if not fresh:
        return
    now = clock.now()
    with atomic():
        ids = {item.pk for item in fresh} | {item.root_id for item in fresh}
        waiting = Workflow.objects.filter(pk__in=ids, started_at__isnull=True)
        begun = list(waiting.order_by("-depth", "pk").select_for_update())
        Workflow.objects.filter(pk__in=[item.pk for item in begun]).update(started_at=now)
        record(
            workflow_event("workflow.started", item, time=now, total_steps=item.size)
            for item in begun
        )


def tell(jobs: Sequence[Job]) -> None:
    """Record the outcomes of the jobs of workflows (OJS workflows, Appendix B)."""
    members = [job for job in jobs if job.workflow_id is not None]
    if not members:
        return
    of = {job.workflow_id for job in members}
    about = Workflow.objects.only("type", "name", "size", "steps").in_bulk(of)
    mark_started(
        {job.workflow_id for job in members if job.workflow_id and job.started_at is not None}
    )
    done = Job.objects.filter(workflow__in=[pk for pk, item in about.items() if _counts(item)])
    finished: dict[Any, int] = {}
    for workflow_id in done.filter(finished_at__isnull=False).values_list("workflow_id", flat=True):
        finished[workflow_id] = finished.get(workflow_id, 0) + 1
    record(_member_event(job, about[job.workflow_id], finished) for job in members)


def _counts(workflow: Workflow) -> bool:
    return workflow.type in (WorkflowType.CHAIN, WorkflowType.DAG)


def _member_event(job: Job, workflow: Workflow, finished: dict[Any, int]) -> Event:
    assert job.finished_at is not None
    what = "completed" if job.state == State.COMPLETED else "failed"
    data: dict[str, Any] = {"job_id": str(job.pk), "step_type": job.type, "state": job.state}
    if job.started_at is not None:
        data["duration_ms"] = (job.finished_at - job.started_at) // timedelta(milliseconds=1)
    if job.workflow_index is not None:
        data |= {"step_index": job.workflow_index, "step_id": step_name(workflow, job)}
    kind = f"workflow.job_{what}"
    if _counts(workflow):
        kind = f"workflow.step_{what}"
        left = max(0, workflow.size - finished.get(workflow.pk, 0))
        data |= {"steps_remaining": left, "remaining_steps": left}
    return workflow_event(kind, workflow, time=job.finished_at, **data)


def step_name(workflow: Workflow, job: Any) -> str:
    """Return the step's name in a graph; elsewhere its number."""
    if workflow.type == WorkflowType.DAG:
        return str(workflow.steps[job.workflow_index]["id"])
    return str(job.workflow_index)


def advance(workflow_ids: Collection[UUID | None]) -> list[UUID]:
    """Advance these workflows, and the enclosing ones if they end (OJS workflows §8.3).

    Returns jobs that ended to make room for new steps and have dependents or a workflow.
    """
    ended: list[UUID] = []
    levels: dict[int, set[UUID]] = {}
    found = Workflow.objects.filter(pk__in=[pk for pk in workflow_ids if pk is not None])
    for pk, depth in found.values_list("pk", "depth"):
        levels.setdefault(depth, set()).add(pk)
    while levels:
        depth = max(levels)
        unfinished = Workflow.objects.filter(pk__in=levels.pop(depth), finished_at__isnull=True)
        for workflow in unfinished.order_by("pk").select_for_update():
            if _advance(workflow, ended) and workflow.parent_id is not None:
                levels.setdefault(depth - 1, set()).add(workflow.parent_id)
    return ended


def _advance(workflow: Workflow, ended: list[UUID]) -> bool:
    """Advance a locked workflow as far as its nodes allow; return whether it ended."""
    if workflow.type == WorkflowType.CHAIN:
        return _advance_chain(workflow, ended)
    jobs, inside = _nodes(workflow)
    if jobs.filter(finished_at__isnull=True).exists():
        return False
    if inside.filter(finished_at__isnull=True).exists():
        return False
    if workflow.type == WorkflowType.BATCH:
        return _advance_batch(workflow, ended)
    return _finish(workflow, failed=_anything_failed(workflow))


def _nodes(workflow: Workflow) -> tuple[QuerySet[Job], QuerySet[Workflow]]:
    return (
        Job.objects.filter(workflow=workflow.pk),
        Workflow.objects.filter(parent=workflow.pk),
    )


def _anything_failed(workflow: Workflow) -> bool:
    jobs, inside = _nodes(workflow)
    members = jobs.filter(workflow_index__isnull=False)
    return (
        members.exclude(state=State.COMPLETED).exists()
        or inside.exclude(state=WorkflowState.COMPLETED).exists()
    )


def _advance_chain(workflow: Workflow, ended: list[UUID]) -> bool:
    jobs, inside = _nodes(workflow)
    reached: list[tuple[int, str, bool]] = [
        (index or 0, state, finished_at is not None)
        for rows in (jobs.order_by("-workflow_index"), inside.order_by("-index"))
        for index, state, finished_at in rows.values_list(
            "workflow_index" if rows.model is Job else "index", "state", "finished_at"
        )[:1]
    ]
    if not reached:
        return _finish(workflow, failed=True)  # its job was deleted
    index, state, settled = max(reached)
    if not settled:
        return False
    if state != State.COMPLETED:
        return _finish(workflow, failed=True, failed_step_index=index)
    if index + 1 >= workflow.size:
        return _finish(workflow, failed=False)
    try:
        with atomic(), accepted():
            ended += _begin_step(workflow, index + 1)
    except OJSError as refusal:
        problem = {"code": refusal.code, "message": refusal.message}
        return _finish(workflow, failed=True, failed_step_index=index + 1, errors=[problem])
    return False


def _begin_step(workflow: Workflow, index: int) -> list[UUID]:
    now = clock.now()
    node = node_of(workflow.steps[index], now)
    copies = len(node.nodes) if isinstance(node, Plan) else 1
    builder = WorkflowBuilder(now)
    results = results_of_workflow(workflow, copies=copies)
    with tracing.internal("ojs.workflow.advance"):
        builder.add(workflow, index, node, results, _trace_of(workflow, index - 1))
        return builder.store()


def _trace_of(workflow: Workflow, index: int) -> str:
    """Return the trace context of the attempt that ended a step just now; empty if unknown."""
    settled = tracing.previous.get()
    if not settled:
        return ""
    step = Job.objects.filter(workflow=workflow.pk, workflow_index=index, pk__in=[*settled])
    ended = step.values_list("pk", flat=True).first()
    return settled[ended] if ended is not None else ""


def _advance_batch(workflow: Workflow, ended: list[UUID]) -> bool:
    """Once all jobs have settled, fire the callbacks once, then wait for them (§6.4, §6.5)."""
    if workflow.fired is None:
        failed = _anything_failed(workflow)
        due = ("on_complete", "on_failure" if failed else "on_success")
        try:
            with atomic(), accepted():
                names = [name for name in due if name in workflow.callbacks]
                ended += _fire(workflow, names)
        except OJSError as refusal:
            problem = {"code": refusal.code, "message": refusal.message}
            return _finish(workflow, failed=True, errors=[problem])
        return False if names else _finish(workflow, failed=False)
    jobs, _ = _nodes(workflow)
    calls = jobs.filter(workflow_index__isnull=True)
    broken = set(calls.exclude(state=State.COMPLETED).values_list("pk", flat=True))
    names = [name for name, job_id in workflow.fired.items() if UUID(job_id) in broken]
    return _finish(workflow, failed=bool(broken), failed_callbacks=names)


def _fire(workflow: Workflow, names: Sequence[str]) -> list[UUID]:
    now = clock.now()
    jobs = {
        name: new_job(workflow.callbacks[name], now, type_pattern=CLASS_PATTERN) for name in names
    }
    if jobs:
        results = results_of_workflow(workflow, copies=len(jobs))
    for job in jobs.values():
        traces.follow(job.meta, workflow.type, workflow.size, untraced=tracing.recorder is not None)
        job.workflow_id, job.followed, job.parent_results = workflow.pk, True, results
    made = assign_project(list(jobs.values()), workflow.project, lenient=True)
    with tracing.internal("ojs.workflow.advance"), tracing.enqueueing(made):
        ended = insert_jobs(made)
    workflow.fired = {name: str(job.id) for name, job in jobs.items()}
    Workflow.objects.filter(pk=workflow.pk).update(fired=workflow.fired)
    record(
        workflow_event(
            "workflow.callback_fired", workflow, time=now, callback=name, job_id=str(job.id)
        )
        for name, job in jobs.items()
    )
    return ended


def _finish(
    workflow: Workflow, *, failed: bool, errors: Sequence[Any] = (), **details: Any
) -> bool:
    now = clock.now()
    state = WorkflowState.FAILED if failed else WorkflowState.COMPLETED
    problem = _problem(workflow, errors, details) if failed else None
    Workflow.objects.filter(pk=workflow.pk, finished_at__isnull=True).update(
        state=state, finished_at=now, problem=problem
    )
    workflow.state, workflow.finished_at, workflow.problem = state, now, problem
    _tell_finish(workflow, now)
    return True


def _problem(workflow: Workflow, errors: Sequence[Any], details: dict[str, Any]) -> dict[str, Any]:
    """Return what went wrong (OJS workflows §9.6): the first hundred errors at most."""
    jobs, inside = _nodes(workflow)
    ended = jobs.filter(finished_at__isnull=False).exclude(state=State.COMPLETED)
    failed = list(ended.order_by("pk").values_list("pk", flat=True)[:ERRORS])
    problem = {name: value for name, value in details.items() if value not in (None, [])}
    found = [*errors, *errors_of(failed)]
    ids = [str(pk) for pk in failed]
    for nested in inside.filter(state=WorkflowState.FAILED).order_by("pk")[:ERRORS]:
        ids += (nested.problem or {}).get("failed_job_ids", [])
        found += (nested.problem or {}).get("errors", [])
    return problem | {"failed_job_ids": ids[:ERRORS], "errors": found[:ERRORS]}


def _tell_finish(workflow: Workflow, now: datetime) -> None:
    data: dict[str, Any] = {"total_steps": workflow.size}
    data["duration_ms"] = (now - workflow.created_at) // timedelta(milliseconds=1)
    if workflow.problem:
        errors = workflow.problem.get("errors") or [{"code": "unknown", "message": ""}]
        data |= workflow.problem | {"error": errors[0]} | _failed_step(workflow)
    record([workflow_event(f"workflow.{workflow.state}", workflow, time=now, **data)])
    awaited.tell([awaited.workflow_name(workflow.pk)])
    send_on_commit(workflow_finished, Workflow, workflow_id=workflow.pk, state=str(workflow.state))


def _failed_step(workflow: Workflow) -> dict[str, str]:
    ids = (workflow.problem or {}).get("failed_job_ids") or []
    job = Job.objects.filter(pk__in=ids[:1], workflow=workflow.pk).first()
    if job is None or job.workflow_index is None:
        return {}
    return {"failed_step_id": step_name(workflow, job), "failed_step_type": job.type}

"""Advances workflows whenever a node has settled (OJS workflows §8, §14).

A workflow is a row; its nodes are jobs, or workflows inside it. When a node settles, its workflow
is locked, checked and advanced in the same transaction: if two nodes end at the same instant on
two servers, the second to get the lock sees both. Locks are taken from the inside out, level by
level, so that no cycle of waiting can arise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import (
    Case,
    Count,
    F,
    IntegerField,
    JSONField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    When,
)

from ..access.projects import assign_project
from ..errors import OJSError
from ..models import Event, Job, Workflow, WorkflowState, WorkflowType
from ..record import tracing
from ..record.counts import remembered
from ..record.events import record, workflow_event
from ..signals import send_on_commit, workflow_finished
from ..spec import traces
from ..spec.lifecycle import TERMINAL, State
from ..spec.validation import NewJob, accepted_job
from ..spec.workflow_plans import NAMED, Plan, node_of
from ..store import awaited, clock
from ..store.database import atomic
from ..store.expressions import Among, Each, JSONElement
from ..store.queries import compiled_once
from .bounds import accepted
from .dependencies import is_in_vain
from .inheritance import (
    ERRORS,
    MOST,
    TOGETHER,
    errors_of,
    failure,
    results_of_workflow,
    results_of_workflows,
)
from .insertion import insert_jobs
from .workflow_start import WorkflowBuilder

BULKY = ("steps", "parent_results")
"""Columns that are as long as the workflow, or what it inherits."""


def mark_started(workflow_ids: Collection[UUID]) -> None:
    """Record that the first job of these workflows began to execute (OJS events §3.5)."""
    if not workflow_ids:
        return
    fresh = _not_started([pk for pk in workflow_ids if pk is not None])
    if not fresh:
        return
    now = clock.now()
    with atomic():
        ids = {item.pk for item in fresh} | {item.root_id for item in fresh}
        waiting = Workflow.objects.filter(pk__in=ids, started_at__isnull=True)
        begun = list(waiting.defer(*BULKY).order_by("-depth", "pk").select_for_update())
        Workflow.objects.filter(pk__in=[item.pk for item in begun]).update(started_at=now)
        record(
            workflow_event("workflow.started", item, time=now, total_steps=item.size)
            for item in begun
        )


@compiled_once
def _not_started(ids: Any) -> QuerySet[Workflow]:
    return Workflow.objects.filter(Among("pk", ids), started_at__isnull=True).only("root_id")


def tell(jobs: Sequence[Job]) -> Collection[Workflow]:
    """Record the outcomes of the jobs of workflows (OJS workflows, Appendix B).

    Returns these workflows, as `advance()` takes them.
    """
    of = {job.workflow_id for job in jobs if job.workflow_id is not None}
    if not of:
        return ()
    about = {item.pk: item for item in _described(of)}
    # A job whose workflow was deleted is like a job without one.
    members = [job for job in jobs if job.workflow_id in about]
    begun = {job.workflow_id for job in members if job.workflow_id and job.started_at is not None}
    mark_started([pk for pk in begun if about[pk].started_at is None])
    left = _left([item for item in about.values() if item.type == WorkflowType.DAG])
    record(
        _member_event(job, about[job.workflow_id], left)
        for job in members
        if not _is_cancelled_with(job, about[job.workflow_id])
    )
    return about.values()


def _left(graphs: Sequence[Workflow]) -> dict[UUID, int]:
    """Return how many steps of each graph have not ended (OJS events, `steps_remaining`).

    As long as more than `SMALL` are left, counting them all may take a twentieth of the time: the
    number may be as old as that, twenty times as old as it takes to count.
    """
    if not graphs:
        return {}
    # Counted from the index of unfinished ones, without reading a job: the others only become more.
    unfinished = Job.objects.filter(finished_at__isnull=True).order_by()
    small = unfinished.filter(workflow__in=[item.pk for item in graphs if item.size <= SMALL])
    left = dict(small.values_list("workflow").annotate(count=Count("*")))
    for graph in graphs:
        if graph.size > SMALL:
            own = unfinished.filter(workflow=graph.pk)
            left[graph.pk] = own[: SMALL + 1].count()
            if left[graph.pk] > SMALL:
                left[graph.pk] = remembered(("steps left", graph.pk), own.count, slow=0)
    return left


def _is_cancelled_with(job: Job, workflow: Workflow) -> bool:
    """Whether the event of the workflow says it all."""
    return job.state == State.CANCELLED and workflow.state == WorkflowState.CANCELLED


COLUMNS = ("type", "name", "state", "depth", "size", "fired", "created_at", "started_at")
SMALL = 1_000
"""Nodes of a workflow whose steps are read with it, if they have names, and counted. What is known
of larger ones is remembered: else each of a hundred thousand steps would read all of them."""
STEPS_OF_SMALL = Case(
    When(size__lte=SMALL, type__in=NAMED, then=F("steps")), output_field=JSONField()
)


@compiled_once
def _described(ids: Any) -> QuerySet[Workflow]:
    about = Workflow.objects.filter(Among("pk", ids)).only(*COLUMNS)
    return about.annotate(known_steps=STEPS_OF_SMALL)


def _step_name(workflow: Any, index: int) -> str:
    if workflow.type not in NAMED:
        return str(index)
    if workflow.known_steps is None:
        return _names(workflow.pk, workflow.created_at)[index]
    workflow.steps = workflow.known_steps
    return str(workflow.step_name(index))


@lru_cache(maxsize=8)
def _names(workflow_id: UUID, created_at: datetime) -> tuple[str, ...]:
    """Return the names of all steps of a large workflow; they never change."""
    workflow = Workflow.objects.only("type", "steps", "size").get(pk=workflow_id)
    return tuple(workflow.step_name(index) for index in range(workflow.size))


def _member_event(job: Job, workflow: Workflow, unfinished: dict[Any, int]) -> Event:
    assert job.finished_at is not None
    what = "completed" if job.state == State.COMPLETED else "failed"
    data: dict[str, Any] = {"job_id": str(job.pk), "step_type": job.type, "state": job.state}
    if job.started_at is not None:
        data["duration_ms"] = (job.finished_at - job.started_at) // timedelta(milliseconds=1)
    index = job.workflow_index
    kind = f"workflow.job_{what}"
    if index is None and workflow.is_sequence:
        kind = f"workflow.compensation_{what}"
        index = _undone_by(workflow).get(job.pk)
    elif workflow.has_steps:
        kind = f"workflow.step_{what}"
        # The steps of a sequence come one after another.
        left = workflow.size - 1 - (index or 0)
        if workflow.type == WorkflowType.DAG:
            left = unfinished.get(workflow.pk, 0)
        data |= {"steps_remaining": left, "remaining_steps": left}
    if index is not None:
        data |= {"step_index": index, "step_id": _step_name(workflow, index)}
    return workflow_event(kind, workflow, time=job.finished_at, **data)


def _undone_by(workflow: Workflow) -> dict[UUID, int]:
    """Return which step each job undoes that compensates for one."""
    return {UUID(job_id): int(index) for index, job_id in (workflow.fired or {}).items()}


ADVANCES = Q(finished_at__isnull=True) | Q(state=WorkflowState.FAILED, compensations__isnull=False)
"""Workflows in which something may follow when a node has settled."""


def advance(workflows: Iterable[Workflow]) -> list[UUID]:
    """Advance these workflows, and the enclosing ones if they end (OJS workflows §8.3).

    Nothing but their depths is taken from the rows given.

    Returns jobs that ended to make room for new steps and have dependents or a workflow.
    """
    ended: list[UUID] = []
    levels: dict[int, set[UUID]] = {}
    for item in workflows:
        levels.setdefault(item.depth, set()).add(item.pk)
    while levels:
        depth = max(levels)
        locked = _locked(levels.pop(depth))
        reached = _reached([item for item in locked if item.is_sequence])
        settled = _settled([item.pk for item in locked if not item.is_sequence])
        over: list[Workflow] = []
        due: list[tuple[Workflow, int]] = []
        for workflow in locked:
            if workflow.is_terminal:
                _go_on_undoing(workflow, ended)
            elif workflow.is_sequence and workflow.state != WorkflowState.COMPENSATING:
                index, is_over = _advance_sequence(workflow, ended, reached.get(workflow.pk))
                if is_over:
                    over.append(workflow)
                elif index is not None:
                    due.append((workflow, index))
            elif _advance(workflow, ended, has_settled=workflow.pk in settled):
                over.append(workflow)
        over += _begin_steps(due, ended)
        parents = {item.parent_id for item in over if item.parent_id is not None}
        if parents:
            levels.setdefault(depth - 1, set()).update(parents)
    return ended


@compiled_once
def _locked(ids: Any) -> QuerySet[Workflow]:
    # What is bulky is read when a next step begins, but not with each job of a large graph.
    rows = Workflow.objects.filter(ADVANCES, Among("pk", ids)).defer(*BULKY)
    return rows.order_by("pk").select_for_update()


def _settled(ids: Collection[UUID]) -> set[UUID]:
    """Return those of these locked workflows whose nodes have all settled."""
    return {pk for pk, job, inside in _unsettled(ids) if job is None and inside is None}


@compiled_once
def _unsettled(ids: Any) -> QuerySet[Any]:
    """Return each of these workflows with a job and a workflow inside that have not settled."""
    unfinished = {"finished_at__isnull": True}
    job = Job.objects.filter(workflow=OuterRef("pk"), **unfinished).order_by()
    inside = Workflow.objects.filter(parent=OuterRef("pk"), **unfinished).order_by()
    return _with_one_of_each(ids, job, inside)


def _with_one_of_each(ids: Any, jobs: QuerySet[Job], inside: QuerySet[Workflow]) -> QuerySet[Any]:
    """Return the ids of workflows, with those of their first job and the first workflow inside."""
    rows = Workflow.objects.filter(Among("pk", ids)).order_by()
    first = (Subquery(nodes.values("pk")[:1]) for nodes in (jobs, inside))
    return rows.values_list("pk", *first)


def _advance(workflow: Workflow, ended: list[UUID], *, has_settled: bool) -> bool:
    """Advance a locked workflow as far as its nodes allow; return whether it ended.

    Args:
        has_settled: all its nodes have.
    """
    if workflow.state == WorkflowState.COMPENSATING:
        return _advance_compensation(workflow, ended)
    if not has_settled:
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


class _Reached(NamedTuple):
    """The last step of a sequence that has begun."""

    place: int
    """Its index."""
    state: str
    has_settled: bool


def _reached(sequences: Sequence[Workflow]) -> dict[UUID, _Reached]:
    """Return how far each of these has come; one without any job or workflow inside is missing."""
    last = _last_nodes([item.pk for item in sequences])
    nodes: dict[UUID, _Reached] = {}
    for found in (
        _states_of_jobs([job for _, job, _ in last if job]),
        _states_of_workflows([inside for _, _, inside in last if inside]),
    ):
        for pk, place, state, finished_at in found:
            nodes[pk] = _Reached(place or 0, state, finished_at is not None)
    last_of = {pk: [nodes[node] for node in of if node in nodes] for pk, *of in last}
    return {pk: max(steps) for pk, steps in last_of.items() if steps}


@compiled_once
def _last_nodes(ids: Any) -> QuerySet[Any]:
    job = Job.objects.filter(workflow=OuterRef("pk")).order_by("-workflow_index")
    inside = Workflow.objects.filter(parent=OuterRef("pk")).order_by("-index")
    return _with_one_of_each(ids, job, inside)


@compiled_once
def _states_of_jobs(ids: Any) -> QuerySet[Any]:
    jobs = Job.objects.filter(Among("pk", ids))
    return jobs.values_list("pk", "workflow_index", "state", "finished_at")


@compiled_once
def _states_of_workflows(ids: Any) -> QuerySet[Any]:
    workflows = Workflow.objects.filter(Among("pk", ids))
    return workflows.values_list("pk", "index", "state", "finished_at")


def _advance_sequence(
    workflow: Workflow, ended: list[UUID], reached: _Reached | None
) -> tuple[int | None, bool]:
    """Return the index of the step that is to begin now, if any, and whether it ended."""
    if reached is None:
        return None, _finish(workflow, failed=True)  # its job was deleted
    if not reached.has_settled:
        return None, False
    if reached.state != State.COMPLETED:
        return None, _break(workflow, ended, reached.place)
    if reached.place + 1 >= workflow.size:
        return None, _finish(workflow, failed=False)
    return reached.place + 1, False


AT_ONCE = TOGETHER // MOST
"""Sequences whose next steps begin together, so that what these inherit fits into the memory."""


def _begin_steps(due: Sequence[tuple[Workflow, int]], ended: list[UUID]) -> list[Workflow]:
    """Begin these steps of sequences; return those that ended because theirs was refused."""
    over = []
    for start in range(0, len(due), AT_ONCE):
        part = due[start : start + AT_ONCE]
        try:
            with atomic(), accepted():
                ended += _begin(part)
        except OJSError as refusal:
            if len(part) > 1:
                # One by one, to find out whose it was.
                over += [item for each in part for item in _begin_steps([each], ended)]
                continue
            ((workflow, index),) = part
            if _break(workflow, ended, index, [failure(refusal.code, refusal.message)]):
                over.append(workflow)
    return over


def _break(workflow: Workflow, ended: list[UUID], index: int, errors: Sequence[Any] = ()) -> bool:
    """End a chain whose step failed, or begin to undo the steps before it (§14.2)."""
    if not workflow.is_saga:
        return _finish(workflow, failed=True, failed_step_index=index, errors=errors)
    now = clock.now()
    state = WorkflowState.COMPENSATING
    problem = _problem(workflow, errors, {"failed_step_index": index})
    Workflow.objects.filter(pk=workflow.pk, state=WorkflowState.RUNNING).update(
        state=state, fired={}, problem=problem
    )
    workflow.state, workflow.fired, workflow.problem = state, {}, problem
    about = _about_problem(workflow)
    record([workflow_event("workflow.compensating", workflow, time=now, **about)])
    return _compensate(workflow, ended)


def _compensate(workflow: Workflow, ended: list[UUID]) -> bool:
    """Begin to undo the last completed step that has not been undone; return whether it ended."""
    left = _left_to_undo(workflow)
    if not left:
        return _end(workflow, WorkflowState.COMPENSATED, workflow.problem)
    try:
        with atomic(), accepted():
            ended += _fire_compensation(workflow, max(left))
    except OJSError as refusal:
        broken = _not_undone(workflow, max(left), [failure(refusal.code, refusal.message)])
        return _end(workflow, WorkflowState.FAILED, broken)
    return False


def _left_to_undo(workflow: Workflow) -> list[int]:
    """Return the completed steps with a compensation that has not been enqueued yet."""
    # In a sequence, all steps before the one that failed have completed.
    broken = (workflow.problem or {}).get("failed_step_index", workflow.size)
    begun = workflow.fired or {}
    indexes = [int(index) for index in workflow.compensations or {} if index not in begun]
    return [index for index in indexes if index < broken]


def _fire_compensation(workflow: Workflow, index: int) -> list[UUID]:
    now = clock.now()
    document = (workflow.compensations or {})[str(index)]
    job = accepted_job(document, now)
    ended = _call(workflow, [job])
    workflow.fired = {**(workflow.fired or {}), str(index): str(job.id)}
    Workflow.objects.filter(pk=workflow.pk).update(fired=workflow.fired)
    about = {"step_index": index, "step_id": workflow.step_name(index), "job_id": str(job.id)}
    record([workflow_event("workflow.compensation_fired", workflow, time=now, **about)])
    return ended


def _advance_compensation(workflow: Workflow, ended: list[UUID]) -> bool:
    """Go on when the last compensation has settled; without its success, give up (§14.2)."""
    last = _last_compensation(workflow)
    if last is None:
        return _compensate(workflow, ended)
    index, job_id, state = last
    if state not in TERMINAL:
        return False
    if state == State.COMPLETED:
        return _compensate(workflow, ended)
    problem = _not_undone(workflow, index, list(errors_of([job_id])), job_id)
    return _end(workflow, WorkflowState.FAILED, problem)


def _last_compensation(workflow: Workflow) -> tuple[int, UUID, str] | None:
    """Return the step that was undone last, the job that does it, and the job's state."""
    undone_by = _undone_by(workflow)
    last = min(undone_by, key=undone_by.__getitem__, default=None)
    if last is None:
        return None
    jobs, _ = _nodes(workflow)
    # Without its job, nothing says that the step was undone.
    state = jobs.filter(pk=last).values_list("state", flat=True).first() or State.DISCARDED
    return undone_by[last], last, state


def _not_undone(
    workflow: Workflow, index: int, errors: Sequence[Any], job_id: UUID | None = None
) -> dict[str, Any]:
    """Return the problem of a saga whose compensation failed: an operator must act (§14.2)."""
    problem = dict(workflow.problem or {})
    problem["errors"] = [*problem.get("errors", ()), *errors][:ERRORS]
    if job_id is not None:
        problem["failed_job_ids"] = [*problem.get("failed_job_ids", ()), str(job_id)]
    problem["failed_compensation_index"] = index
    problem["uncompensated_steps"] = sorted({index, *_left_to_undo(workflow)}, reverse=True)
    return problem


def _go_on_undoing(workflow: Workflow, ended: list[UUID]) -> None:
    """Undo the rest once an operator has retried the compensation that failed, with success.

    The saga has ended, and stays failed; its problem says what is still to undo.
    """
    last = _last_compensation(workflow)
    if last is None or last[2] not in TERMINAL:
        return
    index, job_id, state = last
    problem = dict(workflow.problem or {})
    if state == State.COMPLETED:
        left = _left_to_undo(workflow)
        problem["uncompensated_steps"] = sorted(left, reverse=True)
        with contextlib.suppress(OJSError), atomic(), accepted():
            if left:
                ended += _fire_compensation(workflow, max(left))
    elif index != problem.get("failed_compensation_index"):
        problem = _not_undone(workflow, index, list(errors_of([job_id])), job_id)
    Workflow.objects.filter(pk=workflow.pk, state=WorkflowState.FAILED).update(problem=problem)


def _begin(due: Sequence[tuple[Workflow, int]]) -> list[UUID]:
    """Store these steps of sequences, all or none; return the jobs that ended to make room."""
    now = clock.now()
    steps = _steps(due)
    nodes = [node_of(steps[workflow.pk], now) for workflow, _ in due]
    heirs: dict[int, list[Workflow]] = {}
    for (workflow, _), node in zip(due, nodes, strict=True):
        heirs.setdefault(len(node.nodes) if isinstance(node, Plan) else 1, []).append(workflow)
    results: dict[UUID, list[Any]] = {}
    for copies, alike in heirs.items():
        results |= results_of_workflows(alike, copies=copies)
    builder = WorkflowBuilder(now)
    with tracing.internal("ojs.workflow.advance"):
        for (workflow, index), node in zip(due, nodes, strict=True):
            previous = _trace_of(workflow, index - 1)
            builder.add(workflow, index, node, results[workflow.pk], previous)
        return builder.store()


def _steps(due: Sequence[tuple[Workflow, int]]) -> dict[UUID, Any]:
    """Return the documents of these steps, without reading the others of a long sequence."""
    indexes = {workflow.pk: index for workflow, index in due}
    return dict(_documents(indexes, indexes))


@compiled_once
def _documents(ids: Any, indexes: Any) -> QuerySet[Any]:
    rows = Workflow.objects.filter(Among("pk", ids)).order_by()
    return rows.values_list("pk", JSONElement("steps", Each(indexes, IntegerField())))


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
        names = [name for name in due if name in workflow.callbacks]
        try:
            with atomic(), accepted():
                ended += _fire(workflow, names)
        except OJSError as refusal:
            problem = failure(refusal.code, refusal.message)
            return _finish(workflow, failed=True, errors=[problem], failed_callbacks=names)
        return False if names else _finish(workflow, failed=False)
    jobs, _ = _nodes(workflow)
    calls = jobs.filter(workflow_index__isnull=True)
    broken = set(calls.exclude(state=State.COMPLETED).values_list("pk", flat=True))
    names = [name for name, job_id in workflow.fired.items() if UUID(job_id) in broken]
    return _finish(workflow, failed=bool(broken), failed_callbacks=names)


def _fire(workflow: Workflow, names: Sequence[str]) -> list[UUID]:
    now = clock.now()
    jobs = {name: accepted_job(workflow.callbacks[name], now) for name in names}
    ended = _call(workflow, list(jobs.values()))
    workflow.fired = {name: str(job.id) for name, job in jobs.items()}
    Workflow.objects.filter(pk=workflow.pk).update(fired=workflow.fired)
    record(
        workflow_event(
            "workflow.callback_fired", workflow, time=now, callback=name, job_id=str(job.id)
        )
        for name, job in jobs.items()
    )
    return ended


def _call(workflow: Workflow, jobs: list[NewJob]) -> list[UUID]:
    """Store jobs that follow the nodes of a workflow, and get their results."""
    if jobs:
        results = results_of_workflow(workflow, copies=len(jobs))
    for job in jobs:
        traces.follow(job.meta, workflow.type, workflow.size, untraced=tracing.recorder is not None)
        job.workflow_id, job.followed, job.parent_results = workflow.pk, True, results
    made = assign_project(jobs, workflow.project, lenient=True)
    with tracing.internal("ojs.workflow.advance"), tracing.enqueueing(made):
        return insert_jobs(made)


def _finish(
    workflow: Workflow, *, failed: bool, errors: Sequence[Any] = (), **details: Any
) -> bool:
    if not failed:
        return _end(workflow, WorkflowState.COMPLETED, None)
    return _end(workflow, WorkflowState.FAILED, _problem(workflow, errors, details))


def _end(workflow: Workflow, state: WorkflowState, problem: dict[str, Any] | None) -> bool:
    now = clock.now()
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
    if workflow.type == WorkflowType.DAG:
        ended = ended.exclude(is_in_vain())
    # A callback first: if it fails, that is why its batch does.
    order = F("workflow_index").asc(nulls_first=True), "pk"
    failed = list(ended.order_by(*order).values_list("pk", flat=True)[:ERRORS])
    problem = {name: value for name, value in details.items() if value not in (None, [])}
    found = [*errors, *errors_of(failed)]
    ids = [str(pk) for pk in failed]
    for nested in _failed_inside(inside)[:ERRORS]:
        if nested.state == WorkflowState.CANCELLED:
            found.append(failure("workflow_cancelled", f"Workflow '{nested.pk}' was cancelled."))
        ids += (nested.problem or {}).get("failed_job_ids", [])
        found += (nested.problem or {}).get("errors", [])
    return problem | {"failed_job_ids": ids[:ERRORS], "errors": found[:ERRORS]}


def _failed_inside(inside: QuerySet[Workflow]) -> QuerySet[Workflow]:
    ended = inside.filter(finished_at__isnull=False).exclude(state=WorkflowState.COMPLETED)
    return ended.defer(*BULKY).order_by("index")


def _tell_finish(workflow: Workflow, now: datetime) -> None:
    data: dict[str, Any] = {"total_steps": workflow.size}
    data["duration_ms"] = (now - workflow.created_at) // timedelta(milliseconds=1)
    data |= _about_problem(workflow)
    record([workflow_event(f"workflow.{workflow.state}", workflow, time=now, **data)])
    awaited.tell([awaited.workflow_name(workflow.pk)])
    send_on_commit(workflow_finished, Workflow, workflow_id=workflow.pk, state=str(workflow.state))


def _about_problem(workflow: Workflow) -> dict[str, Any]:
    if not workflow.problem:
        return {}
    errors = workflow.problem.get("errors") or [{"code": "unknown", "message": ""}]
    return {**workflow.problem, "error": errors[0], **_failed_step(workflow)}


def _failed_step(workflow: Workflow) -> dict[str, str]:
    """Return which job, workflow inside or callback failed a workflow (OJS events §4.4)."""
    problem = workflow.problem or {}
    if called := problem.get("failed_callbacks"):
        return _step(called[0], workflow.callbacks[called[0]]["type"])
    jobs, inside = _nodes(workflow)
    members = jobs.filter(workflow_index__isnull=False)
    job = members.filter(pk__in=problem.get("failed_job_ids", [])[:1]).first()
    if job is not None and job.workflow_index is not None:
        return _step(workflow.step_name(job.workflow_index), job.type)
    nested = _failed_inside(inside).first()
    if nested is not None and nested.index is not None:
        return _step(workflow.step_name(nested.index), nested.type)
    index = problem.get("failed_step_index")
    return {} if index is None else _step(workflow.step_name(index), workflow.steps[index]["type"])


def _step(name: str, kind: str) -> dict[str, str]:
    return {"failed_step_id": name, "failed_step_type": kind}

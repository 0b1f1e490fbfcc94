"""Chains, groups, batches and graphs of jobs, composed in Python (OJS workflows).

    jobs.chain(
        jobs.job("extract", [year]),
        jobs.group(jobs.job("clean"), jobs.job("enrich")),
        load.job(year),
        name="etl",
    ).enqueue()

The result is a plan, which may be nested in another; `enqueue()` stores and starts it in the
caller's transaction. Everything is validated before anything is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, Unpack

from asgiref.sync import sync_to_async

from . import engine
from .errors import InvalidWorkflow
from .handles import WorkflowHandle
from .middleware import enqueue_chain
from .options import StepOptions
from .place import current
from .producer import envelope_of, step_document
from .running import parent
from .spec.identifiers import uuid7
from .spec.lineage import PARENT
from .spec.validation import TYPE_PATTERN
from .spec.workflow_plans import plan_of


class Enqueueable(Protocol):
    """The return value of `@handler`: it has a type and options."""

    def job_document(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Mapping[str, object]: ...


class TaskLike(Protocol):
    """A Django task that our backend runs."""

    @property
    def module_path(self) -> str: ...
    @property
    def func(self) -> Callable[..., Any]: ...


Target: TypeAlias = str | Enqueueable | TaskLike
"""What a job runs: a type, a handler or a Django task."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A job that a workflow or a schedule will enqueue; see `job()`."""

    item: Mapping[str, object]
    """Arguments for `jobs.enqueue()`."""
    step: str = ""
    depends_on: tuple[Step | str, ...] = ()
    compensation: Step | None = None

    def __post_init__(self) -> None:
        _check_dependencies(self.depends_on)
        _check_job(self.compensation, "A compensation")

    def after(self, *others: Step | str) -> Step:
        """Return the same step of a graph, which also waits for these."""
        return replace(self, depends_on=(*self.depends_on, *others))

    def undone_by(self, compensation: Step) -> Step:
        """Return the same step of a chain, with the job that undoes it; see `chain()`."""
        return replace(self, compensation=compensation)


def _check_job(step: object, what: str) -> None:
    if step is not None and not isinstance(step, Step):
        raise TypeError(f"{what} must be jobs.job(…) or handler.job(…), not {step!r}.")


def _check_dependencies(others: Sequence[object]) -> None:
    for other in others:
        if not isinstance(other, Step | str):
            raise TypeError(f"A step waits for steps or their names, not for {other!r}.")


class Composition:
    """A workflow that is not stored yet; `enqueue()` stores it."""

    def __init__(
        self,
        kind: str,
        members: Sequence[Node],
        *,
        name: str = "",
        callbacks: Mapping[str, Step | None] | None = None,
        compensation: Step | None = None,
    ) -> None:
        for member in members:
            if not isinstance(member, Step | Composition):
                raise TypeError(
                    f"{kind}() takes jobs.job(…), handler.job(…) and other workflows, "
                    f"not {member!r}."
                )
        self.kind = kind
        self.members = tuple(members)
        self.name = name
        self.callbacks = {n: step for n, step in (callbacks or {}).items() if step is not None}
        for callback, step in self.callbacks.items():
            _check_job(step, callback)
        _check_job(compensation, "A compensation")
        self.compensation = compensation

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r} of {len(self.members)}>"

    def enqueue(self) -> WorkflowHandle:
        """Store and start the workflow in the caller's transaction; return a handle on it.

        Enqueue middleware sees each of its jobs.

        Raises:
            InvalidWorkflow: something is invalid; `details["validation_errors"]` names the place.
            QueueFull, DuplicateJob: as for `jobs.enqueue()`.
        """
        place = current()
        with place.inside():
            workflow = engine.create_workflow(
                plan_of(self._document(), place.now(), type_pattern=TYPE_PATTERN)
            )
        place.began(workflow)
        handle = WorkflowHandle(workflow, place)
        return handle.refresh() if place.is_memory else handle

    async def aenqueue(self) -> WorkflowHandle:
        """`enqueue()` for async code."""
        return await sync_to_async(self.enqueue)()

    def _document(self) -> dict[str, Any]:
        names = self._names()
        document: dict[str, Any] = {"type": self.kind, "name": self.name}
        document["steps" if self.kind in ("chain", "dag") else "jobs"] = [
            member._document() if isinstance(member, Composition) else _document(member, names)
            for member in self.members
        ]
        if self.callbacks or self.kind == "batch":
            document["callbacks"] = {
                name: _document(step, names) for name, step in self.callbacks.items()
            }
        if self.compensation is not None:
            document["compensate"] = _document(self.compensation, {})
        return document

    def _names(self) -> dict[Step, str]:
        """Return the names of a graph's steps; those without one are numbered."""
        if self.kind != "dag":
            return {}
        steps = [member for member in self.members if isinstance(member, Step)]
        return {step: step.step or f"step-{place}" for place, step in enumerate(steps, 1)}


Node: TypeAlias = Step | Composition
"""A member of a workflow: a job or a nested workflow."""


def job(
    type: Target,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    step: str = "",
    depends_on: Sequence[Step | str] = (),
    compensate: Step | None = None,
    **options: Unpack[StepOptions],
) -> Step:
    """Describe a job for a workflow: `jobs.job("report.build", [2026], queue="slow")`.

    Args:
        type: a job type, a handler or a Django task; the options of the latter two apply.
        kwargs: keyword arguments of a handler or a task.
        step: its name in a graph.
        depends_on: in a graph, the steps it waits for, or their names.
        compensate: in a chain, the job that undoes it if a later step fails.
        options: as for `jobs.enqueue()`. Relative times count from when the step starts.
    """
    if isinstance(depends_on, str):
        raise TypeError(f"depends_on must be a list of steps or their names, not {depends_on!r}.")
    item = {**item_of(type, args, kwargs or {}), **_set(options)}
    return Step(item, step, tuple(depends_on), compensate)


def chain(*steps: Node, name: str = "", compensate: Step | None = None) -> Composition:
    """Run the steps in sequence; each gets the results of those before it (OJS workflows §4).

    The first failure ends the chain. If a step names a compensation, the chain is a saga: after a
    failure it runs the compensations of the completed steps, the last step's first, and ends
    `compensated`, or `failed` if a compensation fails (§14).

    Args:
        compensate: in another chain, the job that undoes this one.
    """
    return Composition("chain", steps, name=name, compensation=compensate)


def group(*members: Node, name: str = "", compensate: Step | None = None) -> Composition:
    """Run all members in parallel; it ends when all have ended, and fails if one did (§5).

    Args:
        compensate: in a chain, the job that undoes it.
    """
    return Composition("group", members, name=name, compensation=compensate)


def batch(
    *members: Node,
    on_complete: Step | None = None,
    on_success: Step | None = None,
    on_failure: Step | None = None,
    name: str = "",
    compensate: Step | None = None,
) -> Composition:
    """Run all members in parallel, then the callbacks, which get the results (§6).

    Args:
        on_complete: always runs; `on_success` runs if all completed, else `on_failure`.
        compensate: in a chain, the job that undoes it.
    """
    callbacks = {"on_complete": on_complete, "on_success": on_success, "on_failure": on_failure}
    return Composition("batch", members, name=name, callbacks=callbacks, compensation=compensate)


def graph(*steps: Step, name: str = "") -> Composition:
    """Run each step when all in its `depends_on` have completed, with their results (HTTP §14).

    Raises:
        InvalidWorkflow: when it is enqueued, if a step depends on one that is not in the graph, or
            the dependencies form a cycle.
    """
    return Composition("dag", steps, name=name)


def item_of(target: Target, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, object]:
    """Return the arguments of `jobs.enqueue()` for a call of the target.

    Raises:
        TypeError: the target cannot be called with these arguments.
    """
    if isinstance(target, str):
        if kwargs:
            raise TypeError(f"A job has no keyword arguments ({target}): pass a list.")
        return {"type": target, "args": args}
    document = getattr(target, "job_document", None)
    if document is not None:
        return dict(document(args, kwargs))
    if hasattr(target, "module_path"):
        from .backends import item_of_task

        return item_of_task(target, list(args), dict(kwargs))
    raise TypeError(f"A job runs a type, a handler or a task of OJSBackend, not {target!r}.")


def _set(options: Mapping[str, Any]) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}


def _document(step: Step, names: Mapping[Step, str]) -> dict[str, Any]:
    document = step_document(_passed_on(step.item) if enqueue_chain else step.item)
    # Its root is worked out when the step begins.
    document |= {name: job_id for name, job_id in parent().items() if name == PARENT}
    if step in names:
        document["id"] = names[step]
    waits_for = [
        names.get(other, "") if isinstance(other, Step) else other for other in step.depends_on
    ]
    if "" in waits_for:
        raise InvalidWorkflow("A step depends on one that is not in the same graph.")
    if waits_for:
        document["depends_on"] = waits_for
    if step.compensation is not None:
        document["compensate"] = _document(step.compensation, {})
    return document


def _passed_on(item: Mapping[str, Any]) -> dict[str, Any]:
    """Pass a job of a workflow through the enqueue middleware."""
    # Middleware needs an id; the job's own id is chosen when the job is created.
    passed = enqueue_chain.run(envelope_of(item) | {"id": str(uuid7())})
    if passed is None:
        raise InvalidWorkflow(
            f"An enqueue middleware dropped a job of type {item.get('type')!r}, which its workflow "
            "would wait for."
        )
    return {name: value for name, value in passed.items() if name != "id"}

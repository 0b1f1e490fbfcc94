"""Validates workflows: from a JSON document to a `Plan`, or a refusal.

Everything is validated before anything is stored, including later steps (OJS workflows §11.1). A
step is a job, or a chain, group, batch or saga (§10). A step of a chain or saga may name the job
that undoes it, its compensation (§14).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..conf import ojs_settings
from ..errors import InvalidRequest, InvalidWorkflow, Unsupported
from . import traces
from .identifiers import UUID7_PATTERN
from .members import Array, Choice, Members, Object, Schema, Text, Texts, words
from .validation import (
    OPTION_NAMES,
    TAKEN,
    WIRE_TYPE_PATTERN,
    Envelope,
    NestedOptions,
    NewJob,
    accepted_job,
    new_job,
)


class WorkflowType(models.TextChoices):
    """The order of the members (OJS workflows §1.1, §14; HTTP §14 for `dag`)."""

    CHAIN = "chain", _("Chain")
    GROUP = "group", _("Group")
    BATCH = "batch", _("Batch")
    DAG = "dag", _("Dag")
    SAGA = "saga", _("Saga")


SEQUENCES = (WorkflowType.CHAIN, WorkflowType.SAGA)
"""Their nodes run one after another. Only these can name compensations."""
NAMED = (WorkflowType.DAG, WorkflowType.SAGA)
"""Their steps have names; others are numbered."""
NOT_SUPPORTED = ("workflow_timeout",)
"""Members of the documents that this server does not have: what ignores them breaks a promise."""
OF_SAGAS = ("failure_policy",)
COMPENSATION = ("compensate_type", "compensate_args", "compensate")
Node = TypeVar("Node", UUID, str)
Check = Callable[[dict[str, Any]], NewJob]
"""Reads a step that is a job."""

DEEPEST = 10
"""Levels of nesting, including the outermost (OJS workflows §10.2)."""
LONGEST_STEP_ID = 255
EDGES_PER_JOB = 5
"""How many edges a graph may have, as a multiple of the jobs it may have."""


class CompensationRequest(Members, component="Compensation"):
    type = Text("A job type.").required()
    args = Array()
    meta = Envelope.meta
    options = Object(of=NestedOptions)


class StepOptions(NestedOptions, component="StepOptions"):
    callback_type = Choice(
        words("on_complete", "on_success", "on_failure"),
        "Of a step of a graph: makes the graph a batch, and the step, which depends on all of its "
        "jobs, this callback. Elsewhere it means nothing.",
    )


class StepRequest(Members, component="Step"):
    # Validated as a job's type, or as a workflow's.
    type = Text(
        "A job type; or `chain`, `group`, `batch`, `saga`, with `steps` or `jobs` inside. "
        "Required; only a step of a saga may have `job_type` instead.",
    )
    args = Array()
    meta = Envelope.meta
    options = Object(of=StepOptions)
    # A step's id names it within its workflow; the server chooses its job's id.
    id = Text("Names the step for `depends_on`.", longest=LONGEST_STEP_ID)
    depends_on = Texts(
        f"In a graph, {EDGES_PER_JOB} times as many as there may be jobs.", longest=LONGEST_STEP_ID
    )
    name = Text("Of a step of a saga: names it. Required there.", longest=LONGEST_STEP_ID)
    job_type = Text("Of a step of a saga: its `type`.")
    compensate_type = Text(
        "Of a step of a chain or saga: the type of the job that undoes it if a later step fails. "
        "It waits in the queue of its step."
    )
    compensate_args = Array("The arguments of that job; none if they are left out.")
    compensate = Object(
        "The same as a whole job, instead of the two members above.", of=CompensationRequest
    )


class Nodes(Array):
    """The jobs of a workflow. Refusals give their places from the top of the document."""

    def check(self, value: Any, place: str) -> list[Any]:
        if type(value) is not list:
            raise refuse(place, f"The {self.name} must be an array.")
        if not value:
            raise refuse(place, f"{self.name} array must contain at least one element")
        if len(value) > ojs_settings.MAX_BATCH:
            raise refuse(place, f"At most {ojs_settings.MAX_BATCH} elements are allowed.")
        return value

    def rules(self) -> Schema:
        return super().rules() | {"minItems": 1}


class Callbacks(Members, closed=True):
    on_complete = Object(of=StepRequest)
    on_success = Object(of=StepRequest)
    on_failure = Object(of=StepRequest)


class WorkflowRequest(
    Members,
    component="NewWorkflow",
    closed=True,
    about="A chain, saga or graph has `steps`, a group or batch `jobs`. A chain may have `jobs` in "
    "their place.",
):
    type = Text(schema={"enum": WorkflowType.values}).default(WorkflowType.DAG.value)
    name = Text()
    id = Text(hidden=True)
    options = Object("Defaults of every step.", of=NestedOptions)
    steps = Nodes(of=StepRequest)
    jobs = Nodes(of=StepRequest)
    callbacks = Object(of=Callbacks)
    failure_policy = Choice(
        words("compensate", "retry"),
        "Of a saga. Both mean the same: a step fails when its own retries are used up, and then "
        "the completed steps are undone.",
    )


NODES = {
    "chain": WorkflowRequest.steps,
    "group": WorkflowRequest.jobs,
    "batch": WorkflowRequest.jobs,
    "dag": WorkflowRequest.steps,
    "saga": WorkflowRequest.steps,
}
"""Type of a workflow → the member with its jobs; of a chain see `_nodes_of`."""
ONLY_OF = {
    WorkflowRequest.steps.name: ("chain", "dag", "saga"),
    WorkflowRequest.jobs.name: ("group", "batch"),
    WorkflowRequest.callbacks.name: ("batch",),
}
"""Member → the types of workflows that have it."""
OF_GRAPHS = StepRequest.depends_on.name
"""Member of a step that would be ignored elsewhere."""
SET_BY_SYSTEM = frozenset({"state", "metadata"})
"""Members of a workflow that are ignored if a client sends them (OJS workflows §3.1)."""
NAMESPACED = re.compile(r"(x|ext)[_-]|[^.:]+[.:]")
"""How a member begins that belongs to a client or an extension."""


class Default(NamedTuple):
    """An option of a workflow, for its steps."""

    value: Any
    place: str
    """The options it is among."""


Defaults = Mapping[str, Default]
NO_DEFAULTS: Defaults = MappingProxyType({})


@dataclass(slots=True)
class Step:
    """A job of a workflow, as sent and as validated."""

    document: dict[str, Any]
    job: NewJob
    name: str = ""
    depends_on: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Plan:
    """A valid workflow that is not stored yet."""

    type: WorkflowType
    document: dict[str, Any]
    name: str = ""
    id: UUID | None = None
    nodes: list[Step | Plan] = field(default_factory=list)
    callbacks: dict[str, Any] = field(default_factory=dict)
    compensations: dict[str, Any] = field(default_factory=dict)
    """Index of a node → the job that undoes it."""
    drawn: list[dict[str, Any]] = field(default_factory=list)
    """The names and edges of a graph; of a batch that was sent as one, those of its jobs, then of
    its callbacks."""

    @property
    def job_count(self) -> int:
        return sum(node.job_count if isinstance(node, Plan) else 1 for node in self.nodes)


def plan_of(
    document: Mapping[str, Any],
    now: datetime,
    *,
    type_pattern: re.Pattern[str] = WIRE_TYPE_PATTERN,
) -> Plan:
    """Check a workflow (OJS workflows §3 to §6, §10; HTTP §14.1 for graphs).

    Args:
        type_pattern: wider for a document that does not come from a client of OJS HTTP.

    Raises:
        InvalidWorkflow: something is invalid; `details["validation_errors"]` names the place.
    """
    check = partial(new_job, now=now, type_pattern=type_pattern)
    plan = _plan(document, "$", check, {}, depth=1)
    _refuse_others(document, "$")
    limit = ojs_settings.MAX_BATCH
    if plan.job_count > limit:
        raise refuse("$", f"A workflow may have at most {limit} jobs, not {plan.job_count}.")
    given = WorkflowRequest.id.read(document)
    if given and UUID7_PATTERN.fullmatch(given.lower()):
        plan.id = UUID(given.lower())
    return plan


def _refuse_others(document: Mapping[str, Any], path: str, *, also: Collection[str] = ()) -> None:
    """Refuse members of a valid workflow that would be ignored, such as misspelt ones.

    Stored workflows are read without this: earlier versions accepted such members.
    """
    kind = document.get("type") or WorkflowRequest.type.absent
    with _place(path):
        WorkflowRequest.refuse_others(document, also=SET_BY_SYSTEM.union(also))
    nodes = _nodes_of(kind, document).name
    for name, kinds in ONLY_OF.items():
        if document.get(name) and kind not in kinds and name != nodes:
            beside = f" beside '{nodes}'" if kind == WorkflowType.CHAIN else ""
            raise refuse(f"{path}.{name}", f"A {kind} has no '{name}'{beside}.")
    for index, node in enumerate(document[nodes]):
        place = f"{path}.{nodes}[{index}]"
        if node.get("compensate") is not None:
            _refuse_others_of_step(node["compensate"], f"{place}.compensate")
        inner = {"type": node["job_type"], **node} if node.get("job_type") else node
        if _is_workflow(inner):
            _refuse_others(inner, place, also=(*COMPENSATION, "job_type"))
        else:
            _refuse_others_of_step(node, place, is_in_graph=kind == WorkflowType.DAG)
    for name, callback in (document.get("callbacks") or {}).items():
        if callback is not None:
            _refuse_others_of_step(callback, f"{path}.callbacks.{name}")


def _refuse_others_of_step(
    document: Mapping[str, Any], path: str, *, is_in_graph: bool = False
) -> None:
    """Refuse members of a step or callback that are unknown, or would be ignored.

    Those of a job are stored and returned with it (OJS core §5.5.4); but a step whose `depends_on`
    is misspelt would run too early. So here they need a prefix (core §11.10).
    """
    foreign = [name for name in document if NAMESPACED.match(name)]
    with _place(path):
        StepRequest.refuse_others(document, also=TAKEN.union(foreign))
    if document.get(OF_GRAPHS) and not is_in_graph:
        raise refuse(f"{path}.{OF_GRAPHS}", f"Only a step of a graph has '{OF_GRAPHS}'.")


def node_of(document: Mapping[str, Any], now: datetime) -> Step | Plan:
    """Read a step that was checked when its workflow was made."""
    check = partial(accepted_job, now=now)
    return _node(document, "$", check, {}, depth=1)


def refuse(path: str, message: str, **details: Any) -> InvalidWorkflow:
    error = {"path": path, "message": message}
    where = path.removeprefix("$").removeprefix(".")
    return InvalidWorkflow(
        f"Workflow validation failed: {path}: {message}",
        field=where,
        validation_errors=[error],
        **details,
    )


def _plan(
    document: Mapping[str, Any], path: str, check: Check, defaults: Defaults, *, depth: int
) -> Plan:
    if depth > DEEPEST:
        raise refuse(path, f"Workflows may be nested at most {DEEPEST} levels deep.")
    with _place(path):
        kind = WorkflowRequest.type.read(document)
        name = WorkflowRequest.name.read(document) or ""
        options = WorkflowRequest.options.read(document) or {}
    own = {option: Default(value, f"{path}.options") for option, value in options.items()}
    defaults = {**defaults, **own}
    _refuse_unsupported(document, NOT_SUPPORTED, path)
    if kind != "saga":
        for where, member in _named(document, OF_SAGAS, path):
            raise Unsupported(f"This server supports '{member}' only in sagas.", field=where)
    _refuse_compensation(document, path)
    if kind not in NODES or (kind == "dag" and depth > 1):
        known = ", ".join(sorted(set(NODES) - {"dag"}))
        raise refuse(f"{path}.type", f"The type must be one of {known}, not {kind!r}.")
    if kind == "saga":
        _check_policy(document, path)
    sent = _nodes_of(kind, document)
    place = f"{path}.{sent.name}"
    members = sent.check(document.get(sent.name), place)
    plan = Plan(WorkflowType(kind), dict(document), name=name)
    documents = _add_nodes(plan, members, place, check, defaults, depth)
    if kind == "batch":
        plan.callbacks = _callbacks(document, path, check, defaults)
    if kind == "dag":
        _check_graph(plan, place)
        _take_callbacks(plan, place)
    plan.document = {"type": kind, "name": name, "callbacks": plan.callbacks} | {
        NODES[kind].name: documents
    }
    return plan


def _nodes_of(kind: str, document: Mapping[str, Any]) -> Nodes:
    """Return the member with the jobs of a workflow. A chain may call them either."""
    nodes = NODES[kind]
    if kind == WorkflowType.CHAIN and document.get(nodes.name) is None:
        return WorkflowRequest.jobs if document.get("jobs") is not None else nodes
    return nodes


def _add_nodes(
    plan: Plan,
    members: Sequence[Any],
    place: str,
    check: Check,
    defaults: Defaults,
    depth: int,
) -> list[dict[str, Any]]:
    """Read the nodes of a workflow into its plan; return them in the form to be read again."""
    documents = []
    names: set[str] = set()
    for index, member in enumerate(members):
        path = f"{place}[{index}]"
        if plan.type not in SEQUENCES or type(member) is not dict:
            node = _node(member, path, check, defaults, depth=depth)
            documents.append(node.document)
            plan.nodes.append(node)
            continue
        name = ""
        if plan.type == WorkflowType.SAGA:
            name, member = _saga_step(member, path, names)
        forward = {key: value for key, value in member.items() if key not in COMPENSATION}
        with _spelled(path, "job_type" if "job_type" in members[index] else "type"):
            node = _node(forward, path, check, defaults, depth=depth)
        if name and isinstance(node, Step):
            node.document = {"id": name} | node.document
        plan.nodes.append(node)
        undo = _compensation(member, node, path, check, defaults)
        if undo is None:
            documents.append(node.document)
        else:
            plan.compensations[str(index)] = undo
            documents.append(node.document | {"compensate": undo})
    return documents


def _check_policy(document: Mapping[str, Any], path: str) -> None:
    """Check what a saga wants to happen when a step fails (OJS workflows §14.3)."""
    if document.get("failure_policy") == "skip":
        raise Unsupported(
            "This server does not support the failure policy 'skip'. A step that may fail can be "
            "a batch with the callback 'on_complete'.",
            field=f"{path}.failure_policy".removeprefix("$."),
        )
    with _place(path):
        WorkflowRequest.failure_policy.read(document)


def _saga_step(document: dict[str, Any], path: str, names: set[str]) -> tuple[str, dict[str, Any]]:
    """Return the name of a saga's step, and the step in the words of a chain (§14.2)."""
    with _place(path):
        # A step that was stored has its name as its id, as those of a graph.
        name = StepRequest.name.read(document) or StepRequest.id.read(document)
        kind = StepRequest.job_type.read(document)
    if not name:
        raise refuse(f"{path}.name", "Each step of a saga must have a name.")
    if name in names:
        raise refuse(f"{path}.name", f"The name {name!r} is used twice.")
    names.add(name)
    step = {key: value for key, value in document.items() if key != "job_type"}
    if kind is not None:
        if step.get("type") not in (None, kind):
            raise refuse(f"{path}.job_type", "The step has a 'type' that is different.")
        step["type"] = kind
    if _is_workflow(step):
        return name, step | {"name": name}
    step.pop("name", None)
    return name, step


def _compensation(
    member: Mapping[str, Any],
    node: Step | Plan,
    path: str,
    check: Check,
    defaults: Defaults,
) -> dict[str, Any] | None:
    """Read the job that undoes a step, in either form (OJS workflows §14.2)."""
    with _place(path):
        kind = StepRequest.compensate_type.read(member)
        args = StepRequest.compensate_args.read(member)
        whole = StepRequest.compensate.read(member)
    if whole is not None:
        if kind is not None or args is not None:
            raise refuse(f"{path}.compensate", "It takes the place of 'compensate_type', not both.")
        undo = _step(whole, f"{path}.compensate", check, defaults)
    elif kind is not None:
        short: dict[str, Any] = {"type": kind, "args": args or []}
        if isinstance(node, Step):
            # The workers of the step's queue most likely have the handler that undoes it.
            short["options"] = {"queue": node.job.queue}
        with _spelled(path, "compensate_type"):
            undo = _step(short, path, check, defaults)
    elif args is not None:
        raise Unsupported(
            "This server supports 'compensate_args' only together with 'compensate_type'.",
            field=f"{path}.compensate_args".removeprefix("$."),
        )
    else:
        return None
    if isinstance(node, Step):
        meta = dict(undo.document.get("meta") or {})
        traces.give(traces.context_of(node.job.meta.get), [meta])
        if meta:
            undo.document["meta"] = meta
    return undo.document


def _is_workflow(document: Mapping[str, Any]) -> bool:
    kind = document.get("type")
    return isinstance(kind, str) and kind in NESTED and "args" not in document


NESTED = tuple(kind for kind in NODES if kind != "dag")


def _node(document: Any, path: str, check: Check, defaults: Defaults, *, depth: int) -> Step | Plan:
    if type(document) is not dict:
        raise refuse(path, "A step must be a JSON object.")
    if _is_workflow(document):
        return _plan(document, path, check, defaults, depth=depth + 1)
    return _step(document, path, check, defaults)


def _step(document: Mapping[str, Any], path: str, check: Check, defaults: Defaults) -> Step:
    _refuse_compensation(document, path)
    with _place(path):
        name = StepRequest.id.read(document) or ""
        depends_on = StepRequest.depends_on.read(document) or []
        own = StepRequest.options.read(document) or {}
    # The step's own options, in either form, override the defaults.
    own = {name: value for name, value in own.items() if value is not None}
    inherited = {
        name: default
        for name, default in defaults.items()
        if not (name in own or (name in OPTION_NAMES and document.get(name) is not None))
    }
    options = {name: default.value for name, default in inherited.items()} | own
    with _place(path, inherited):
        whole = {
            name: value
            for name, value in document.items()
            if name not in ("id", "depends_on", "options")
        }
        if options:
            whole["options"] = options
        job = check(whole)
        if job.pending:
            raise refuse(path, "A job of a workflow cannot be pending: nothing would activate it.")
    return Step(whole, job, name, depends_on)


def _refuse_unsupported(document: Mapping[str, Any], names: Sequence[str], path: str) -> None:
    for where, name in _named(document, names, path):
        raise Unsupported(f"This server does not support '{name}' in workflows.", field=where)


def _refuse_compensation(document: Mapping[str, Any], path: str) -> None:
    """Refuse a compensation where nothing would run it."""
    for where, name in _named(document, COMPENSATION, path):
        raise Unsupported(
            f"This server supports '{name}' only in a step of a chain or saga, beside its 'type'.",
            field=where,
        )


def _named(
    document: Mapping[str, Any], names: Sequence[str], path: str
) -> Iterator[tuple[str, str]]:
    """Yield the place and name of those that a document or its options have."""
    options = document.get("options")
    nested = options if isinstance(options, Mapping) else {}
    for place, part in ((path, document), (f"{path}.options", nested)):
        for name in names:
            if part.get(name) is not None:
                yield f"{place}.{name}".removeprefix("$."), name


def _callbacks(
    document: Mapping[str, Any], path: str, check: Check, defaults: Defaults
) -> dict[str, Any]:
    place = f"{path}.callbacks"
    given = document.get("callbacks")
    if type(given) is not dict:
        raise refuse(place, "A batch must have callbacks.")
    with _place(place):
        Callbacks.refuse_others(given)
    wanted = {name: given[name] for name in Callbacks.members if given.get(name) is not None}
    if not wanted:
        raise refuse(place, "A batch must have at least one callback; without any, use a group.")
    for name, callback in wanted.items():
        if type(callback) is not dict:
            raise refuse(f"{place}.{name}", "A callback must be a job.")
    return {
        name: _step(callback, f"{place}.{name}", check, defaults).document
        for name, callback in wanted.items()
    }


def _check_graph(plan: Plan, place: str) -> None:
    steps: dict[str, list[str]] = {}
    for index, node in enumerate(plan.nodes):
        if isinstance(node, Plan):
            raise refuse(f"{place}[{index}]", "A step of a graph must be a job.")
        if not node.name:
            raise refuse(f"{place}[{index}].id", "Each step must have an id.")
        if node.name in steps:
            raise refuse(f"{place}[{index}].id", f"The id {node.name!r} is used twice.")
        steps[node.name] = list(dict.fromkeys(node.depends_on))
    for index, (name, others) in enumerate(steps.items()):
        for other in others:
            if other not in steps:
                raise refuse(
                    f"{place}[{index}].depends_on",
                    f"Step {name!r} depends on {other!r}, which does not exist.",
                )
    edges, most = sum(map(len, steps.values())), EDGES_PER_JOB * ojs_settings.MAX_BATCH
    if edges > most:
        raise refuse(
            place,
            f"The steps of a graph may depend on each other at most {most} times, not {edges}.",
            validation="max_items",
            limit=most,
        )
    circle = find_cycle(steps)
    if circle:
        raise refuse(
            place,
            "The steps depend on each other in a circle.",
            steps=[str(s) for s in circle[:20]],
        )


def _take_callbacks(plan: Plan, place: str) -> None:
    """Make a graph with callbacks among its steps the batch that it describes (§6).

    Public SDKs send a batch as its jobs, followed by its callbacks as steps after all of them.
    """
    steps = [node for node in plan.nodes if isinstance(node, Step)]
    called: dict[str, Step] = {}
    for index, step in enumerate(steps):
        options = step.document.get("options") or {}
        with _place(f"{place}[{index}].options"):
            name = StepOptions.callback_type.read(options)
        if name in called:
            raise refuse(
                f"{place}[{index}].options.{StepOptions.callback_type.name}",
                f"Step {called[name].name!r} is the callback '{name}' already.",
            )
        if name:
            called[name] = step
    callbacks = {step.name for step in called.values()}
    jobs = [step for step in steps if step.name not in callbacks]
    if callbacks:
        _check_batch(steps, callbacks, place)
        plan.type = WorkflowType.BATCH
        plan.nodes = list(jobs)
    plan.drawn = [_drawn(step) for step in jobs]
    for name, step in called.items():
        options = {**step.document["options"]}
        del options[StepOptions.callback_type.name]
        plan.callbacks[name] = step.document | {"options": options}
        plan.drawn.append(_drawn(step) | {"callback": name})


def _check_batch(steps: Sequence[Step], callbacks: Collection[str], place: str) -> None:
    jobs = {step.name for step in steps}.difference(callbacks)
    if not jobs:
        raise refuse(place, "A batch must have at least one job besides its callbacks.")
    for index, step in enumerate(steps):
        where = f"{place}[{index}].{OF_GRAPHS}"
        if step.name in callbacks and set(step.depends_on) != jobs:
            raise refuse(
                where,
                f"Step {step.name!r} is a callback of a batch: it must depend on all of its jobs, "
                "and on no other callback.",
            )
        if step.name in jobs and step.depends_on:
            raise refuse(where, f"Step {step.name!r} is a job of a batch: it waits for no other.")


def _drawn(step: Step) -> dict[str, Any]:
    return {"id": step.name, "type": step.job.type, OF_GRAPHS: step.depends_on}


def find_cycle(waiting: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """Return a cycle of nodes that wait for each other, or an empty list."""
    edges = {node: [other for other in ids if other in waiting] for node, ids in waiting.items()}
    free = [node for node, ids in edges.items() if not ids]
    followers: dict[Node, list[Node]] = {}
    missing = {node: len(ids) for node, ids in edges.items()}
    for node, ids in edges.items():
        for other in ids:
            followers.setdefault(other, []).append(node)
    while free:
        node = free.pop()
        del missing[node]
        for follower in followers.get(node, ()):
            missing[follower] -= 1
            if not missing[follower]:
                free.append(follower)
    return list(missing)


@contextlib.contextmanager
def _place(path: str, inherited: Defaults = NO_DEFAULTS) -> Iterator[None]:
    """Turn the refusal of a field into one that names its place in the workflow.

    Args:
        inherited: options that are not the step's own.
    """
    try:
        yield
    except InvalidWorkflow:
        raise
    except InvalidRequest as problem:
        errors = problem.details.get("validation_errors")
        field = errors[0]["path"] if errors else f"$.{problem.details.get('field', '')}"
        where = path + field.removeprefix("$").rstrip(".")
        if option := re.match(r"\$\.options\.(\w+)", field):
            default = inherited.get(option[1])
            where = where if default is None else default.place + field.removeprefix("$.options")
        raise refuse(where, problem.message) from None


@contextlib.contextmanager
def _spelled(path: str, name: str) -> Iterator[None]:
    """Turn the refusal of a step's `type` into one of the member that the client sent."""
    try:
        yield
    except InvalidWorkflow as refusal:
        (error,) = refusal.details["validation_errors"]
        if name == "type" or error["path"] != f"{path}.type":
            raise
        message = error["message"].replace("'type'", f"'{name}'", 1)
        raise refuse(f"{path}.{name}", message) from None


def steps_of(plan: Plan) -> Iterator[Step]:
    """Yield the jobs of a plan, including nested ones."""
    for node in plan.nodes:
        if isinstance(node, Plan):
            yield from steps_of(node)
        else:
            yield node


def callbacks_of(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield the requests of a plan's callbacks and compensations, including nested ones."""
    yield from plan.callbacks.values()
    yield from plan.compensations.values()
    for node in plan.nodes:
        if isinstance(node, Plan):
            yield from callbacks_of(node)

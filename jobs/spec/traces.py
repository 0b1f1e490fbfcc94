"""Which trace a job belongs to, by what its client put into `meta` (OJS events §8.2), and how the
trace context of a request gets there (OJS distributed tracing §6)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

TRACE_ID, TRACEPARENT, TRACESTATE, BAGGAGE = "trace_id", "traceparent", "tracestate", "baggage"
CONTEXT = (TRACEPARENT, TRACESTATE, BAGGAGE)
"""Members of `meta` that carry a trace context, named like the headers (OJS distributed tracing
§6.1, §9.1)."""
ORIGIN = "ojs.workflow.trace_origin"
"""The context of the request that started a job's workflow (§6.3)."""
WORKFLOW_TYPE, WORKFLOW_STEP = "ojs.workflow.type", "ojs.workflow.step"
"""Attributes that a worker's span needs and the envelope does not have (§5.3)."""
LONGEST = 255
LONGEST_STATE, LONGEST_BAGGAGE = 512, 8192
"""What is longer is dropped (W3C Trace Context §3.3.1.5; OJS distributed tracing §9.3)."""
LEGIBLE = re.compile(r"[\x20-\x7e]+")
PARENT = re.compile(
    r"(?!ff|00.{53}-)[0-9a-f]{2}"
    r"-(?!0{32})(?P<trace_id>[0-9a-f]{32})-(?!0{16})(?P<span_id>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(-.*)?"
)
"""W3C Trace Context §3.2: no id is all zeros, ff is no version, and 00 has nothing after the flags;
later ones may."""
MEMBER = re.compile(
    r"([a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
"""W3C Trace Context §3.3.1.3."""
MOST_MEMBERS = 32


def trace_id_of(trace_id: Any, traceparent: Any) -> str:
    """The trace that two members of `meta` name, the first before the second; empty if neither."""
    if type(trace_id) is str and 0 < len(trace_id) <= LONGEST:
        return trace_id
    found = parent_of(traceparent)
    return found["trace_id"] if found else ""


def parent_of(traceparent: Any) -> re.Match[str] | None:
    """Return the parts of a valid `traceparent`: `trace_id`, `span_id` and `flags`."""
    if type(traceparent) is not str or len(traceparent) > LONGEST:
        return None
    return PARENT.fullmatch(traceparent)


def context_of(carried: Callable[[str], Any]) -> dict[str, str]:
    """Return the usable part of a trace context; empty without a valid `traceparent`.

    Args:
        carried: returns the value of a header or member, or None.
    """
    parent = carried(TRACEPARENT)
    if parent_of(parent) is None:
        return {}
    found = {TRACEPARENT: parent}
    state, baggage = carried(TRACESTATE), carried(BAGGAGE)
    if type(state) is str and len(state) <= LONGEST_STATE and _is_state(state):
        found[TRACESTATE] = state
    if type(baggage) is str and len(baggage) <= LONGEST_BAGGAGE and LEGIBLE.fullmatch(baggage):
        found[BAGGAGE] = baggage
    return found


def _is_state(text: str) -> bool:
    """Whether it is a list of members, some of which may be empty (W3C Trace Context §3.3.1)."""
    members = [member.strip(" \t") for member in text.split(",")]
    return (
        len(members) <= MOST_MEMBERS
        and any(members)
        and all(not member or MEMBER.fullmatch(member) for member in members)
    )


def of_headers(environ: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace context in a request's headers, from its WSGI environment."""
    if "HTTP_TRACEPARENT" not in environ:
        return {}
    return context_of(lambda name: environ.get(f"HTTP_{name.upper()}"))


def give(context: Mapping[str, str], metas: Iterable[dict[str, Any]]) -> None:
    """Put a trace context into each `meta` that has none of its own."""
    for meta in metas:
        if TRACEPARENT not in meta:
            for name, value in context.items():
                meta.setdefault(name, value)


def give_to_workflow(context: Mapping[str, str], document: Any) -> None:
    """Put a trace context into each job of a workflow that is not validated yet."""
    if not context or type(document) is not dict:
        return
    for name in ("steps", "jobs"):
        if type(document.get(name)) is list:
            for node in document[name]:
                give_to_workflow(context, node)
    if type(document.get("callbacks")) is dict:
        for node in document["callbacks"].values():
            give_to_workflow(context, node)
    if document.keys().isdisjoint(("steps", "jobs")):
        meta = document.setdefault("meta", {})
        if type(meta) is dict:
            give(context, [meta])


def follow(
    meta: dict[str, Any],
    workflow_type: str,
    step: int,
    previous: str = "",
    *,
    untraced: bool = False,
) -> None:
    """Note in the `meta` of a workflow's traced job where its trace began, and its place (§5.3,
    §6.3). Other jobs stay as they are.

    Args:
        step: its index; the callbacks of a batch follow its last job.
        previous: the context of the attempt that ended the step before it; empty if unknown.
        untraced: note the place of a job without a trace too.
    """
    origin = meta.get(TRACEPARENT)
    if type(origin) is str:
        meta.setdefault(ORIGIN, origin)
    elif not untraced:
        return
    meta[WORKFLOW_TYPE], meta[WORKFLOW_STEP] = str(workflow_type), step
    if previous:
        meta[TRACEPARENT] = previous
        meta.pop(TRACESTATE, None)

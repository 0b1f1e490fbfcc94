"""Totals of the worker list: one line for each host or label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Sum
from django.http import HttpRequest

from jobs.admin.confirm import in_order
from jobs.store.expressions import Parsed, as_text

from ..lifecycle import WorkerState, desired
from ..models import places
from .filters import GroupFilter

MOST = 200
SAME = ("state", "directive", "concurrency")
"""What workers that are alike have in common, besides their host or labels."""


@dataclass
class Group:
    name: str
    query: str
    """Query string of the list of just these workers."""
    workers: int = 0
    running: int = 0
    capacity: int = 0
    busy: int = 0
    done: int = 0
    failed: int = 0


def whole_list(changes: Any, request: HttpRequest, model_admin: Any) -> dict[str, Any]:
    """The part of the page above the list: groups, and buttons for all matching workers."""
    may, buttons = model_admin.get_actions(request), model_admin.buttons
    # An order to the whole fleet must not be one click away.
    narrowing = set(changes.get_filters_params()) - {GroupFilter.parameter_name}
    is_narrowed = changes.result_count and (changes.query or narrowing)
    live = changes.queryset.live().order_by().count() if is_narrowed else 0
    return {
        "live": live,
        "dead": changes.result_count - live,
        "groups": grouped(changes, request.GET.get(GroupFilter.parameter_name, "")),
        "verbs": in_order(buttons, may),
        "is_narrowed": is_narrowed,
        "map_query": changes.get_query_string(remove=["p", "o"]),
    }


def grouped(changes: Any, by: str) -> list[Group]:
    """Add up everything the list matches, by `host` or by `label`."""
    if by not in ("host", "label"):
        return []
    found: dict[str, Group] = {}
    labels = Parsed()
    column = as_text("labels") if by == "label" else "hostname"
    alike = changes.queryset.order_by().values_list(column, *SAME)
    for text, *figures in alike.annotate(
        count=Count("pk"), held=Sum("in_hand"), done=Sum("jobs_done"), failed=Sum("jobs_failed")
    ):
        for name in labels[text] if by == "label" else [text]:
            if name not in found:
                found[name] = Group(name, changes.get_query_string({by: name}, ["group", "p"]))
            _add(found[name], *figures)
    return sorted(found.values(), key=lambda group: group.name)[:MOST]


def _add(
    group: Group,
    state: str,
    directive: str,
    concurrency: int | None,
    count: int,
    held: int,
    done: int,
    failed: int,
) -> None:
    """Add `count` workers that are alike."""
    group.workers += count
    group.running += count * (desired(state, directive) == WorkerState.RUNNING)
    group.capacity += count * places(concurrency)
    group.busy += held
    group.done += done
    group.failed += failed

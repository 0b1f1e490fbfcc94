"""The marks of a page with charts: lines in each chart, and a list beneath them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.admin import display
from jobs.admin.charts import ChartMark
from jobs.models import OperatorAction, Queue

from ..fleet.marks import Entry, entries
from ..models import FleetOperation, Mark, OperationState

SHOWN = 20
"""Marks in the list, the newest; the charts have more."""
NAMED = 3
"""Queues that a mark names."""


@dataclass(frozen=True)
class Row:
    """A mark in the list beneath the charts."""

    entry: Entry
    words: str
    symbol: str
    url: str
    """The page of what was marked; empty if the reader may not open it."""


@dataclass(frozen=True)
class Marked:
    rows: Sequence[Row]
    of_chart: Sequence[ChartMark]
    more: int
    """How many the list leaves out."""
    add_url: str
    """The form for another one; empty if the reader may not add any."""


def marked(site: Any, request: HttpRequest, since: datetime, queue: str = "") -> Marked:
    """The marks since a moment; on the page of a queue without those of other queues."""
    found = entries(since, queue=queue)
    lines = [ChartMark(entry.at, entry.kind, words(entry)) for entry in found]
    rows = [
        Row(entry, line.words, line.symbol, _url(site, request, entry))
        for entry, line in zip(found[:SHOWN], lines, strict=False)
    ]
    pages = site._registry.get(Mark)
    may_add = pages is not None and pages.has_add_permission(request)
    add = display.admin_url(site.name, "ojs_workers_mark", "add") if may_add else ""
    return Marked(rows, lines, max(0, len(found) - SHOWN), add)


def words(entry: Entry) -> str:
    """What was done, in a few words."""
    if not entry.verb:
        text = entry.text
        if entry.kind == "deployment":
            text = _("Deployed: %(version)s") % {"version": text}
        return f"{text} ({entry.project})" if entry.project else text
    done = _done(entry)
    return f"{done}: {entry.text}" if entry.text else done


def _done(entry: Entry) -> str:
    names = ", ".join(entry.targets[:NAMED]) + (", …" if entry.count > NAMED else "")
    if entry.verb == "pause_queue":
        return _("Paused %(queues)s") % {"queues": names}
    if entry.verb == "resume_queue":
        return _("Resumed %(queues)s") % {"queues": names}
    if entry.verb == "drain_queue":
        return _("Drained %(queues)s") % {"queues": names}
    if entry.verb == "maintenance":
        return _("Maintenance ended") if entry.change == "off" else _("Maintenance begun")
    if entry.change == OperationState.PAUSED:
        return _("Drain paused")
    if entry.change == OperationState.RUNNING:
        return _("Drain continued")
    if entry.change == OperationState.ABORTED:
        return _("Drain aborted")
    return ngettext(
        "Drain of %(count)d worker begun", "Drain of %(count)d workers begun", entry.count
    ) % {"count": entry.count}


def _url(site: Any, request: HttpRequest, entry: Entry) -> str:
    def page(model: Any, key: Any) -> str:
        return display.page_url(site, request, model, "change", key)

    found = ""
    if entry.mark_id is not None:
        found = page(Mark, entry.mark_id)
    elif entry.operation_id is not None:
        found = page(FleetOperation, entry.operation_id)
    elif entry.verb.endswith("_queue") and len(entry.targets) == 1:
        found = page(Queue, entry.targets[0])
    return found or (page(OperatorAction, entry.action_id) if entry.action_id else "")

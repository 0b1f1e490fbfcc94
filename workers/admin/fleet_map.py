"""The fleet on one screen: a cell for each worker, to see what it does and to act on some.

Drawn by the server: a cell is a box to tick with a picture as its label, so that workers are
chosen and sent to the list's own actions without script.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.admin import display
from jobs.admin.confirm import in_order
from jobs.store import clock

from ..alerts.situation import RECENT
from ..fleet.condition import Condition
from ..models import places
from .filters import ConditionFilter, GroupFilter

MOST = 2000
"""Most workers that are drawn; the others are counted."""
ROOM = 110_000
"""Square pixels for all cells together: a thousand workers fit one screen."""
SMALLEST, LARGEST = 10, 64
"""Sides of a cell, in pixels."""
GROUPS = (("host", _("by host")), ("label", _("by label")))
CHOSEN = "chosen"
"""The field in which the map's script sends the ids of the selected workers."""
OTHER_FIELDS = 10
"""More than the map's form has beside its cells."""
GONE = (Condition.DEAD, Condition.LEFT, Condition.DRAINED)


@dataclass(frozen=True)
class Cell:
    worker_id: str
    words: str
    """All that the picture says, for a tooltip and a screen reader."""
    picture: SafeString
    url: str


@dataclass(frozen=True)
class Group:
    name: str
    cells: list[Cell]
    busy: int
    capacity: int


def page(model_admin: Any, request: HttpRequest) -> HttpResponse:
    """The workers that the list's filters match; without a filter by state, those that are live
    or have gone lately."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    site = model_admin.admin_site
    try:
        changes = model_admin.get_changelist_instance(request)
    except IncorrectLookupParameters:
        return HttpResponseRedirect(request.path)
    workers = changes.queryset.order_by("hostname", "pk")
    if ConditionFilter.parameter_name not in changes.params:
        long_gone = {"condition__in": GONE, "last_heartbeat_at__lt": clock.now() - RECENT}
        workers = workers.exclude(**long_gone)
    found = list(workers.only("hostname", "labels", "concurrency")[: MOST + 1])
    by = request.GET.get(GroupFilter.parameter_name, "host")
    list_url = reverse("admin:ojs_workers_worker_changelist", current_app=site.name)
    counts: dict[str, int] = defaultdict(int)
    for worker in found[:MOST]:
        counts[worker.condition] += 1
    may = set(model_admin.get_actions(request)) - {"unflag"}
    context = {
        **site.each_context(request),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "title": gettext("Fleet map"),
        "groups": _grouped(found[:MOST], by, site.name),
        "count": len(found[:MOST]),
        "is_partial": len(found) > MOST,
        "most_by_hand": _most_by_hand(len(found[:MOST])),
        "states": [(state, state.label, counts[state]) for state in Condition if counts[state]],
        "by": by,
        "ways": [(key, label, changes.get_query_string({"group": key})) for key, label in GROUPS],
        "list_url": list_url,
        "query": changes.get_query_string(remove=["group"]),
        "is_narrowed": bool(changes.get_filters_params()),
        "verbs": in_order(model_admin.buttons, may),
    }
    request.current_app = site.name
    return TemplateResponse(request, "admin/ojs/map.html", context)


def unfold(request: HttpRequest) -> None:
    """Put workers that the map's script sent in one field where Django looks for them."""
    if CHOSEN not in request.POST:
        return
    try:
        names = json.loads(request.POST[CHOSEN])
        is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    except (ValueError, RecursionError):
        is_list = False
    if not is_list:
        raise BadRequest("`chosen` is a JSON array of worker ids.")
    data: Any = request.POST.copy()
    data.setlist(ACTION_CHECKBOX_NAME, names[:MOST])
    request.POST = data


def _most_by_hand(count: int) -> int | None:
    """How many of `count` cells can be sent without script, one field each; None if all can."""
    limit: int | None = settings.DATA_UPLOAD_MAX_NUMBER_FIELDS
    most = None if limit is None else max(limit - OTHER_FIELDS, 0)
    return most if most is not None and count > most else None


def _grouped(workers: list[Any], by: str, site_name: str) -> list[Group]:
    """Each worker once: under its host, or under all of its labels together."""
    rooms = [places(worker.concurrency) for worker in workers]
    pen = _Pen(min(ROOM / max(sum(rooms), 1), LARGEST**2 / max([*rooms, 1])), site_name)
    parts: dict[str, list[Any]] = defaultdict(list)
    for worker in workers:
        name = ", ".join(sorted(worker.labels)) if by == "label" else worker.hostname
        parts[name].append(worker)
    return [
        Group(
            name or display.NOTHING,
            [pen.cell(worker) for worker in part],
            sum(worker.in_hand for worker in part),
            sum(places(worker.concurrency) for worker in part),
        )
        for name, part in sorted(parts.items())
    ]


class _Pen:
    """Draws thousands of cells: what they have in common is looked up once.

    Args:
        area: of one place, in square pixels.
    """

    def __init__(self, area: float, site_name: str) -> None:
        self._area = area
        self._words = gettext("%(worker)s: %(state)s, %(busy)d of %(room)d jobs")
        self._states = {state.value: str(state.label) for state in Condition}
        self._url = display.admin_urls(site_name, "ojs_workers_worker", "change")

    def cell(self, worker: Any) -> Cell:
        room = places(worker.concurrency)
        side = max(round(math.sqrt(self._area * room)), SMALLEST)
        filled = round(side * min(worker.in_hand / max(room, 1), 1))
        words = self._words % {
            "worker": worker.pk,
            "state": self._states[worker.condition],
            "busy": worker.in_hand,
            "room": room,
        }
        picture = _picture(worker.condition, side, filled)
        return Cell(worker.pk, words, picture, self._url(worker.pk))


@lru_cache(maxsize=10_000)
def _picture(condition: str, side: int, filled: int) -> SafeString:
    return format_html(
        '<svg class="ojs-cell ojs-cell-{}" width="{}" height="{}" aria-hidden="true">'
        '<rect class="ojs-cell-room" width="{}" height="{}"/>'
        '<rect class="ojs-cell-load" y="{}" width="{}" height="{}"/></svg>',
        condition,
        side,
        side,
        side,
        side,
        side - filled,
        side,
        filled,
    )

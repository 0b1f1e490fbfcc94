"""Filters of the job lists. None reads the whole table to find out what there is to choose."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import SimpleListFilter
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..lifecycle import TERMINAL, State
from ..models import Queue

CHOICES = 50
"""Longest list of choices; what is not in it can be searched for."""
SAMPLE = 1000


def with_chosen(choices: list[str], chosen: str | None) -> list[tuple[str, str]]:
    """Return the first choices, and the chosen one whether it is among them or not."""
    shown = choices[:CHOICES]
    if chosen and chosen not in shown:
        shown.append(chosen)
    return [(choice, choice) for choice in shown]


class StateFilter(SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return State.choices

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        state = self.value()
        if state is None:
            return queryset
        # The second condition follows from the first; it tells PostgreSQL which partial index
        # holds the rows.
        if state == State.ACTIVE:
            queryset = queryset.filter(reserved_until__isnull=False)
        elif state in TERMINAL:
            queryset = queryset.filter(finished_at__isnull=False)
        return queryset.filter(state=state)


class QueueFilter(SimpleListFilter):
    title = _("queue")
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        names = Queue.objects.order_by("name").values_list("name", flat=True)
        return with_chosen(list(names[:CHOICES]), self.value())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(queue=self.value()) if self.value() else queryset


class TypeFilter(SimpleListFilter):
    """Types of the newest jobs: nothing lists all types there ever were."""

    title = _("type")
    parameter_name = "type"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        newest = model_admin.get_queryset(request).order_by(*model_admin.ordering)
        types = set(newest.values_list("type", flat=True)[:SAMPLE])
        return with_chosen(sorted(types), self.value())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(type=self.value()) if self.value() else queryset

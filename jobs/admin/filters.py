"""Filters of the job lists. None reads the whole table to find its choices."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..models import JobError, Queue
from ..spec.identifiers import first_id
from ..spec.lifecycle import TERMINAL, State
from ..store import clock

CHOICES = 50
"""Longest list of choices; values beyond it can be searched for."""
SAMPLE = 1000


def with_chosen(choices: list[str], chosen: str | None) -> list[tuple[str, str]]:
    """Return the first choices, and the chosen one even if it is not among them."""
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
            queryset = queryset.filter(reserved_for__isnull=False)
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
    """Types of the newest jobs: nothing lists all types that ever existed."""

    title = _("type")
    parameter_name = "type"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        newest = model_admin.get_queryset(request).order_by(*model_admin.ordering)
        types = set(newest.values_list("type", flat=True)[:SAMPLE])
        return with_chosen(sorted(types), self.value())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(type=self.value()) if self.value() else queryset


WINDOWS = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7)}


class WindowFilter(SimpleListFilter):
    """Filters by maximum age."""

    parameter_name = "since"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return (("1h", _("last hour")), ("24h", _("last 24 hours")), ("7d", _("last 7 days")))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        window = WINDOWS.get(self.value() or "")
        return queryset if window is None else self.after(queryset, clock.now() - window)

    def after(self, jobs: QuerySet[Any], moment: datetime) -> QuerySet[Any]:
        raise NotImplementedError


class CreatedFilter(WindowFilter):
    title = _("created")

    def after(self, jobs: QuerySet[Any], moment: datetime) -> QuerySet[Any]:
        return jobs.filter(pk__gte=first_id(moment))


class DiscardedFilter(WindowFilter):
    title = _("discarded")

    def after(self, jobs: QuerySet[Any], moment: datetime) -> QuerySet[Any]:
        return jobs.filter(finished_at__gte=moment)


def last_error() -> Any:
    """The type of a job's newest error."""
    errors = JobError.objects.filter(job=OuterRef("pk")).order_by("-pk")
    return Subquery(errors.values("type")[:1])


class LastErrorFilter(SimpleListFilter):
    title = _("last error")
    parameter_name = "error"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        newest = JobError.objects.order_by("-pk").values_list("type", flat=True)
        return with_chosen(sorted(set(newest[:SAMPLE])), self.value())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if not self.value():
            return queryset
        return queryset.alias(last_type=last_error()).filter(last_type=self.value())

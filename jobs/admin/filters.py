"""Filters of the job lists. None reads the whole table to find its choices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..models import DeadJob, JobError, Queue, TypeRollup
from ..record import parts
from ..spec.identifiers import first_id
from ..spec.lifecycle import TERMINAL, State
from ..store import clock

FEW = 20
"""Choices that are listed; of more, one is typed, and the browser completes it."""
CHOICES = 500
"""Longest list of choices; a value beyond it can be typed all the same."""
SAMPLE = 1000


def with_chosen(choices: list[str], chosen: str | None) -> list[tuple[str, str]]:
    """Return the first choices, and the chosen one even if it is not among them."""
    shown = choices[:CHOICES]
    if chosen and chosen not in shown:
        shown.append(chosen)
    return [(choice, choice) for choice in shown]


class NameFilter(SimpleListFilter):
    """Filters by a name: few are listed, of many one is typed."""

    template = "admin/ojs/filter.html"
    others: Sequence[tuple[str, str]] = ()
    """The list's other parameters, which a typed name keeps."""

    def names(self, request: HttpRequest, model_admin: Any) -> Iterable[str]:
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return with_chosen(sorted(self.names(request, model_admin)), self.value())

    def choices(self, changelist: Any) -> Any:
        own = (self.parameter_name, "p", "older", "newer")
        self.others = [pair for pair in changelist.params.items() if pair[0] not in own]
        return super().choices(changelist)

    @property
    def is_long(self) -> bool:
        return len(self.lookup_choices) > FEW


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


class QueueFilter(NameFilter):
    title = _("queue")
    parameter_name = "queue"

    def names(self, request: HttpRequest, model_admin: Any) -> Iterable[str]:
        return Queue.objects.order_by("name").values_list("name", flat=True)[:CHOICES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(queue=self.value()) if self.value() else queryset


class TypeFilter(NameFilter):
    """Every type of the last weeks, from the roll-ups, and those of the newest jobs."""

    title = _("type")
    parameter_name = "type"

    def names(self, request: HttpRequest, model_admin: Any) -> Iterable[str]:
        newest = model_admin.get_queryset(request).order_by(*model_admin.ordering)
        return {*parts.names(TypeRollup), *newest.values_list("type", flat=True)[:SAMPLE]}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(type=self.value()) if self.value() else queryset


WINDOWS = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7)}


class WindowFilter(SimpleListFilter):
    """Filters by maximum age."""

    parameter_name = "since"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return (("1h", _("last hour")), ("24h", _("last 24 hours")), ("7d", _("last 7 days")))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        window = WINDOWS.get(self.value() or "")
        # Not all jobs: what an unknown word matches may be selected and acted on.
        return queryset.none() if window is None else self.after(queryset, clock.now() - window)

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


DEAD = 3_000
"""Newest dead jobs that are counted, as the page says: each takes a lookup of its last error."""


def newest_dead(request: Any) -> list[Any]:
    """Type, last error and end of the newest dead jobs: one query for a page.

    One more than `DEAD` where there are more.
    """
    if not hasattr(request, "ojs_newest_dead"):
        newest = DeadJob.objects.order_by("-finished_at").annotate(error=last_error())
        rows = newest.values_list("type", "error", "finished_at")
        request.ojs_newest_dead = list(rows[: DEAD + 1])
    found: list[Any] = request.ojs_newest_dead
    return found


class DeadTypeFilter(TypeFilter):
    """Types of dead jobs."""

    def names(self, request: HttpRequest, model_admin: Any) -> Iterable[str]:
        return {kind for kind, _error, _moment in newest_dead(request)}


class LastErrorFilter(NameFilter):
    """Errors of which jobs have died."""

    title = _("last error")
    parameter_name = "error"

    def names(self, request: HttpRequest, model_admin: Any) -> Iterable[str]:
        return {error for _kind, error, _moment in newest_dead(request) if error}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if not self.value():
            return queryset
        return queryset.alias(last_type=last_error()).filter(last_type=self.value())

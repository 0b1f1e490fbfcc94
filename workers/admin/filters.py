"""Filters of the worker list. Labels, queues and hosts come from the workers themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, ClassVar

from django.contrib.admin import SimpleListFilter
from django.db.models import JSONField, Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from jobs.admin.filters import NameFilter
from jobs.conf import protocol_of
from jobs.store.expressions import JSONArrayHas, as_text

from ..fleet.condition import Condition
from ..lifecycle import WorkerState
from ..models import Worker
from ..models.querysets import is_late

NONE = "none"


class ConditionFilter(SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return Condition.choices

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(condition=self.value()) if self.value() else queryset


class DirectiveFilter(SimpleListFilter):
    """The directive of an operator, received or not."""

    title = _("directive")
    parameter_name = "directive"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return (
            (WorkerState.QUIET.value, _("quiet")),
            (WorkerState.TERMINATE.value, _("terminate")),
            (WorkerState.RUNNING.value, _("resume")),
            (NONE, _("none")),
        )

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        return queryset.filter(directive="" if self.value() == NONE else self.value())


class DescriptionFilter(NameFilter):
    """Filters by one column of workers' descriptions."""

    column: ClassVar[str]
    parameter_name: Any

    def names(self, request: HttpRequest, model_admin: Any) -> Iterable[str]:
        return descriptions(request)[self.column] - {""}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        text = self.value()
        if not text:
            return queryset
        is_list = isinstance(Worker._meta.get_field(self.column), JSONField)
        chosen = JSONArrayHas(self.column, text) if is_list else Q(**{self.column: text})
        return queryset.filter(chosen)


def described(column: str, title: Any, parameter: str) -> type[DescriptionFilter]:
    """Create the filter of a column that holds a text, or a list of texts to choose one from."""
    members = {"title": title, "parameter_name": parameter, "column": column}
    return type(f"{column.title()}Filter", (DescriptionFilter,), members)


LabelFilter = described("labels", _("label"), "label")
QueueFilter = described("queues", _("queue"), "queue")
HostFilter = described("hostname", _("host"), "host")
VersionFilter = described("version", _("version"), "version")
ProjectFilter = described("project", _("project"), "project")


class ProtocolFilter(DescriptionFilter):
    """Filters by the protocol's name, and shows its title."""

    title = _("protocol")
    parameter_name = column = "protocol"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        found = super().lookups(request, model_admin)
        return [(name, protocol_of(name).title) for name, _shown in found]


class DesiredFilter(SimpleListFilter):
    """Filters by the state in the next heartbeat's reply (§4.4)."""

    title = _("desired state")
    parameter_name = "desired"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [
            (WorkerState.RUNNING.value, _("running")),
            (WorkerState.QUIET.value, _("quiet")),
            (WorkerState.TERMINATE.value, _("terminate")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        terminating = Q(state=WorkerState.TERMINATE) | Q(directive=WorkerState.TERMINATE)
        quiet = ~terminating & (
            Q(directive=WorkerState.QUIET) | Q(state=WorkerState.QUIET, directive="")
        )
        found = {
            WorkerState.RUNNING.value: ~terminating & ~quiet,
            WorkerState.QUIET.value: quiet,
            WorkerState.TERMINATE.value: terminating,
        }.get(self.value() or "")
        if found is None:
            return queryset
        return queryset.filter(found).exclude(state=WorkerState.TERMINATED)


class StaleFilter(SimpleListFilter):
    """Live workers that were not heard for two of the heartbeat intervals they were given."""

    title = _("heartbeat")
    parameter_name = "stale"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return (("yes", _("late")), ("no", _("on time")))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        live = queryset.exclude(state=WorkerState.TERMINATED)
        if self.value() == "yes":
            return live.filter(is_late())
        return live.exclude(is_late()) if self.value() == "no" else queryset


class GroupFilter(SimpleListFilter):
    """Not a filter: shows a table of groups above the list."""

    title = _("group")
    parameter_name = "group"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return (("host", _("by host")), ("label", _("by label")))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


LISTS = ("labels", "queues")
TEXTS = ("hostname", "version", "protocol", "project")


def descriptions(request: Any) -> dict[str, set[str]]:
    """What workers have in each column of their descriptions, read once for all filters of a page.

    Of thousands of workers, most have the same labels and queues as others.
    """
    if not hasattr(request, "ojs_descriptions"):
        found: dict[str, set[str]] = {column: set() for column in (*LISTS, *TEXTS)}
        workers = Worker.objects.order_by()
        for row in workers.values_list(*map(as_text, LISTS), *TEXTS).distinct():
            for column, text in zip(found, row, strict=True):
                found[column].add(text)
        for column in LISTS:
            found[column] = {word for text in found[column] for word in json.loads(text)}
        request.ojs_descriptions = found
    return request.ojs_descriptions

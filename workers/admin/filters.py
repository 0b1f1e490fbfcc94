"""Filters of the worker list. Labels, queues and hosts come from the workers themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from django.contrib.admin import SimpleListFilter
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from jobs.admin.filters import with_chosen
from jobs.expressions import JSONArrayHas

from ..condition import Condition
from ..lifecycle import WorkerState
from ..models import Worker

NONE = "none"


class ConditionFilter(SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return Condition.choices

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(condition=self.value()) if self.value() else queryset


class DirectiveFilter(SimpleListFilter):
    """What an operator asked for, heard or not."""

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


class DescriptionFilter(SimpleListFilter):
    """One thing that workers say of themselves."""

    column: ClassVar[str]
    parameter_name: Any

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        found = {text for row in descriptions(request) for text in self.texts(row)}
        return with_chosen(sorted(found), self.value())

    def texts(self, row: dict[str, Any]) -> Iterable[str]:
        value = row[self.column]
        return value if isinstance(value, list) else [value] if value else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        text = self.value()
        return queryset.filter(JSONArrayHas(self.column, text)) if text else queryset


class LabelFilter(DescriptionFilter):
    title = _("label")
    parameter_name = "label"
    column = "labels"


class QueueFilter(DescriptionFilter):
    title = _("queue")
    parameter_name = "queue"
    column = "queues"


class HostFilter(DescriptionFilter):
    title = _("host")
    parameter_name = "host"
    column = "hostname"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(hostname=self.value()) if self.value() else queryset


def descriptions(request: Any) -> list[dict[str, Any]]:
    """What all workers say of themselves: read once for a page, whatever the number of filters."""
    if not hasattr(request, "ojs_descriptions"):
        request.ojs_descriptions = list(Worker.objects.values("labels", "queues", "hostname"))
    return request.ojs_descriptions

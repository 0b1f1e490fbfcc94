"""Job specs in the admin: what counts as the status quo, and which workers match it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobs import engine
from jobs.admin import display
from jobs.admin.base import OJSModelAdmin
from jobs.models import JobSpec
from workers.models import Worker

MOST = 1_000
"""Workers looked at; a larger fleet is better read by its versions."""


@admin.register(JobSpec)
class JobSpecAdmin(OJSModelAdmin):
    """One row a type; the last two columns are the matrix of types and workers."""

    list_display = ("type", "checksum", "registered", "matching", "mismatching")
    search_fields = ("type",)
    fields = ("type", "checksum")
    sortable_by = ("type",)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return admin.ModelAdmin.has_add_permission(self, request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return admin.ModelAdmin.has_delete_permission(self, request, obj)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("type",) if obj is not None else ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        reported = Worker.objects.live().filter(specs__isnull=False)
        self._reported = list(reported.order_by("pk").values_list("pk", "specs")[:MOST])
        return super().get_queryset(request)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        engine.register_specs({obj.type: obj.checksum})

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        engine.forget_specs([obj.pk])

    @admin.display(description=_("registered"), ordering="registered_at")
    def registered(self, spec: JobSpec) -> str | SafeString:
        return display.when(spec.registered_at)

    @admin.display(description=_("workers that match"))
    def matching(self, spec: JobSpec) -> str | SafeString:
        return self._links(
            name for name, specs in self._reported if specs.get(spec.type) == spec.checksum
        )

    @admin.display(description=_("workers with another checksum"))
    def mismatching(self, spec: JobSpec) -> str | SafeString:
        return self._links(
            name
            for name, specs in self._reported
            if spec.type in specs and specs[spec.type] != spec.checksum
        )

    def _links(self, names: Iterable[str]) -> str | SafeString:
        site = self.admin_site.name
        links = ((display.worker_link(site, name),) for name in names)
        return format_html_join(", ", "{}", links) or display.NOTHING

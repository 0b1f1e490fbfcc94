"""Marks in the admin: a list, and a form to add one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobs.access.audit import of_request
from jobs.admin import display
from jobs.admin.base import ReadOnlyModelAdmin, may
from jobs.admin.filters import WindowFilter

from ..fleet import marks
from ..models import Mark


class AtFilter(WindowFilter):
    title = _("time")

    def after(self, rows: QuerySet[Any], moment: datetime) -> QuerySet[Any]:
        return rows.filter(at__gte=moment)


class MarkForm(forms.ModelForm):
    class Meta:
        model = Mark
        fields = ("kind", "text", "project")
        help_texts = {
            "text": _("The version, or what happened. Charts show it as a line at this moment."),
            "project": _("Empty for all projects."),
        }


@admin.register(Mark)
class MarkAdmin(ReadOnlyModelAdmin):
    """Added here, by the Admin API, and by workers with a new version; never changed."""

    form = MarkForm
    list_display = ("happened", "kind", "text", "project", "by", "source")
    list_display_links = ("happened",)
    list_filter = (AtFilter, "kind", "source")
    search_fields = ("text", "by", "project")
    sortable_by = ()
    readonly_fields = ("exactly",)
    fields = ("exactly", "kind", "text", "project", "by", "source")

    has_add_permission = may("ojs_workers.add_mark")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return MarkForm.Meta.fields if obj is None else self.fields

    @admin.display(description=_("time"))
    def happened(self, mark: Mark) -> str | SafeString:
        return display.when(mark.at)

    @admin.display(description=_("time"))
    def exactly(self, mark: Mark) -> str | SafeString:
        return display.moment(mark.at)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        made = marks.add(of_request(request), obj.kind, obj.text, project=obj.project)
        # Django's history and its message are about what was stored.
        obj.pk, obj.at = made.pk, made.at

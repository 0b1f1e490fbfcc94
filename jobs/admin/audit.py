"""The audit of operators' actions, to read and search; read only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ..models import OperatorAction
from . import display
from .base import ReadOnlyModelAdmin
from .verbs import VerbFilter, kind, verb


@admin.register(OperatorAction)
class OperatorActionAdmin(ReadOnlyModelAdmin):
    """Newest first."""

    list_display = (
        "happened",
        "actor",
        "source",
        "did",
        "kind",
        "count",
        "chosen",
        "reason",
    )
    list_display_links = ("happened",)
    list_filter = ("source", VerbFilter)
    search_fields = ("actor", "reason")
    search_help_text = _("Part of a name or a reason")
    ordering = ("-id",)
    sortable_by = ()
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "exactly",
                    ("actor", "source", "address"),
                    ("did", "kind", "count"),
                    "reason",
                    "whole_selection",
                )
            },
        ),
    )

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @admin.display(description=_("time"))
    def happened(self, action: OperatorAction) -> str | SafeString:
        return display.when(action.done_at)

    @admin.display(description=_("time"))
    def exactly(self, action: OperatorAction) -> str | SafeString:
        return display.moment(action.done_at)

    @admin.display(description=_("verb"))
    def did(self, action: OperatorAction) -> str:
        return verb(action.verb)

    @admin.display(description=_("target kind"))
    def kind(self, action: OperatorAction) -> str:
        return kind(action.target_kind)

    @admin.display(description=_("selection"))
    def chosen(self, action: OperatorAction) -> str | SafeString:
        """How the targets were chosen; their names where nothing else is recorded."""
        told = {key: value for key, value in action.selection.items() if key != "ids"}
        words = [f"{key}: {_told(value)}" for key, value in told.items()]
        return display.code("; ".join(words) or ", ".join(action.selection.get("ids", ())))

    @admin.display(description=_("selection"))
    def whole_selection(self, action: OperatorAction) -> str | SafeString:
        return display.json_block(action.selection)


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_told(inner)}" for key, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

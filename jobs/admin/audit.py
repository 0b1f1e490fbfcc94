"""Audit of operators' actions, to read and search.

Other apps can extend it: `found_by` adds search criteria, `leads_to` links to pages about an
action's outcome.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.db.models import CharField, Q, QuerySet
from django.db.models.functions import Cast
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..models import OperatorAction
from . import display
from .base import ReadOnlyModelAdmin
from .filters import WindowFilter
from .verbs import VerbFilter, kind, model_of, verb

Search = Callable[[str], Q]
Leads = Callable[[OperatorAction, str], Iterable[tuple[str, str]]]
_searches: list[Search] = []
_leads: list[Leads] = []
NAMED = 3
"""Targets that a row of the list names."""


def found_by(search: Search) -> Search:
    """Find actions by what `search` returns for a word, too."""
    _searches.append(search)
    return search


def leads_to(leads: Leads) -> Leads:
    """Show the pages that `leads` yields for an action and a site: the text and the address."""
    _leads.append(leads)
    return leads


class DoneFilter(WindowFilter):
    title = _("time")

    def after(self, jobs: QuerySet[Any], moment: datetime) -> QuerySet[Any]:
        return jobs.filter(done_at__gte=moment)


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
    list_filter = (DoneFilter, "source", VerbFilter)
    date_hierarchy = "done_at"
    search_fields = ("actor", "reason")
    search_help_text = _(
        "Part of a name or a reason, or what was acted on: a job, a worker, a queue, a label"
    )
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
                    "targets",
                    "pages",
                    "whole_selection",
                )
            },
        ),
    )

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        queryset = queryset.alias(selected=Cast("selection", CharField()))
        for part in search_term.split():
            # SQLite keeps JSON as it was written, PostgreSQL as it means.
            written = json.dumps(part)[1:-1]
            found = Q(selected__icontains=part) | Q(selected__icontains=written)
            for search in _searches:
                found |= search(part)
            queryset = queryset.filter(found | Q(actor__icontains=part) | Q(reason__icontains=part))
        return queryset, False

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
        """How the targets were chosen; the first of them if nothing else is recorded."""
        members = {key: value for key, value in action.selection.items() if key != "ids"}
        words = "; ".join(f"{key}: {_shown(value)}" for key, value in members.items())
        return display.code(words) if words else self._links(action, NAMED) or display.NOTHING

    @admin.display(description=_("targets"))
    def targets(self, action: OperatorAction) -> str | SafeString:
        return self._links(action, len(action.selection.get("ids", ()))) or display.NOTHING

    def _links(self, action: OperatorAction, most: int) -> str | SafeString:
        """The first targets, each linked to its page, and how many more there were."""
        keys = action.selection.get("ids", ())
        model = model_of(action.target_kind)
        site = self.admin_site.name
        name = model._meta.label_lower.replace(".", "_") if model else ""
        shown = [
            (display.ident(key, name and display.admin_url(site, name, "change", key)),)
            for key in keys[:most]
        ]
        named = format_html_join(" ", "{}", shown)
        if shown and action.count > len(shown):
            more = gettext("and %(count)d more") % {"count": action.count - len(shown)}
            return format_html_join(" ", "{}", ((named,), (more,)))
        return named

    @admin.display(description=_("what became of it"))
    def pages(self, action: OperatorAction) -> str | SafeString:
        found = [page for leads in _leads for page in leads(action, self.admin_site.name)]
        links = ((display.link(url, text),) for text, url in found)
        return format_html_join(", ", "{}", links) or display.NOTHING

    @admin.display(description=_("selection"))
    def whole_selection(self, action: OperatorAction) -> str | SafeString:
        return display.json_block(action.selection)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_shown(inner)}" for key, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

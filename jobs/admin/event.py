"""Record of events, and the ACKs and FAILs that were refused."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ..engine.queue_policy import DEFAULT
from ..models import Event, RefusedFinish
from ..record.vocabulary import TYPES
from ..spec.identifiers import parse_uuid
from . import display
from .base import ReadOnlyModelAdmin

PAGES = {
    "queue": "ojs_jobs_queue",
    "backpressure": "ojs_jobs_queue",
    "dead_letter": "ojs_jobs_queue",
    "workflow": "ojs_jobs_workflow",
    "cron": "ojs_jobs_cronjob",
    "tenant": "ojs_jobs_tenant",
    "scheduling": "ojs_jobs_pool",
    "rate_limit": "ojs_jobs_ratelimit",
}
"""The model of which the subject of an event is a key, by the first word of its type."""
WEBHOOK_PAGES = {"sub": "ojs_workers_webhooksubscription", "del": "ojs_workers_webhookdelivery"}
"""The same by the first word of the subject."""


class EventTypeFilter(admin.SimpleListFilter):
    title = _("type")
    parameter_name = "type"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [(kind, kind) for kind in sorted(TYPES)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(type=self.value()) if self.value() else queryset


@admin.register(Event)
class EventAdmin(ReadOnlyModelAdmin):
    sensitive = ("data",)
    list_display = ("happened", "type", "about", "queue", "job_type", "worker", "attempt")
    list_display_links = ("type",)
    list_filter = (EventTypeFilter,)
    search_fields = ("subject",)
    search_help_text = _("A whole job id, worker id or queue name")
    ordering = ("-id",)
    sortable_by = ()
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "exactly",
                    "type",
                    "about",
                    "queue",
                    "job_type",
                    "worker",
                    "attempt",
                    "pretty_data",
                )
            },
        ),
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if search_term:
            queryset = queryset.filter(subject=search_term.strip())
        return queryset, False

    @admin.display(description=_("time"))
    def happened(self, event: Event) -> str | SafeString:
        return display.when(event.time)

    @admin.display(description=_("time"))
    def exactly(self, event: Event) -> str | SafeString:
        return display.moment(event.time)

    @admin.display(description=_("about"))
    def about(self, event: Event) -> str | SafeString:
        site, subject = self.admin_site.name, event.subject
        kind = event.type.partition(".")[0]
        if kind == "job" or event.job_type:
            return display.job_link(site, subject)
        if kind == "worker":
            return display.worker_link(site, subject)
        model, key = PAGES.get(kind, ""), subject
        if kind == "webhook":
            prefix, _underscore, key = subject.partition("_")
            model = WEBHOOK_PAGES.get(prefix, "")
        elif event.type == "queue.deleted" or subject == DEFAULT:
            model = ""
        if event.queue:
            model, key = "ojs_jobs_queue", event.queue
        return display.link(model and display.admin_url(site, model, "change", key), subject)

    @admin.display(description=_("worker"))
    def worker(self, event: Event) -> str | SafeString:
        return display.worker_link(self.admin_site.name, event.worker_id)

    @admin.display(description=_("data"))
    def pretty_data(self, event: Event) -> str | SafeString:
        return display.json_block(event.data)


@admin.register(RefusedFinish)
class RefusedFinishAdmin(ReadOnlyModelAdmin):
    list_display = (
        "refused",
        "shown_operation",
        "job",
        "worker",
        "attempt",
        "job_state",
        "holder",
    )
    list_display_links = ("shown_operation",)
    search_fields = ("worker_id",)
    search_help_text = _("A whole worker id or job id")
    ordering = ("-id",)
    sortable_by = ()
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "exactly",
                    "shown_operation",
                    "job",
                    "worker",
                    "attempt",
                    "job_state",
                    "holder",
                )
            },
        ),
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if term:
            job_id = parse_uuid(term)
            queryset = queryset.filter(Q(worker_id=term) | Q(job_id__in=[job_id] if job_id else []))
        return queryset, False

    @admin.display(description=_("refused"))
    def refused(self, refusal: RefusedFinish) -> str | SafeString:
        return display.when(refusal.refused_at)

    @admin.display(description=_("refused"))
    def exactly(self, refusal: RefusedFinish) -> str | SafeString:
        return display.moment(refusal.refused_at)

    @admin.display(description=_("operation"))
    def shown_operation(self, refusal: RefusedFinish) -> str:
        return refusal.operation.upper()

    @admin.display(description=_("job"))
    def job(self, refusal: RefusedFinish) -> str | SafeString:
        return display.job_link(self.admin_site.name, refusal.job_id)

    @admin.display(description=_("sent by"))
    def worker(self, refusal: RefusedFinish) -> str | SafeString:
        return display.worker_link(self.admin_site.name, refusal.worker_id)

    @admin.display(description=_("state of the job then"))
    def job_state(self, refusal: RefusedFinish) -> SafeString:
        return display.chip(refusal.state)

    @admin.display(description=_("held by"))
    def holder(self, refusal: RefusedFinish) -> str | SafeString:
        return display.worker_link(self.admin_site.name, refusal.held_by)

"""Workers: who is there, what each was asked, what it holds, what it lost."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import CharField, Q, QuerySet
from django.db.models.functions import Cast, Concat
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs import dashboard
from jobs.admin import display
from jobs.admin.base import ReadOnlyModelAdmin
from jobs.models import RefusedFinish

from ..condition import Condition, condition, in_hand
from ..lifecycle import WorkerState
from ..models import Worker
from . import actions
from .filters import ConditionFilter, DirectiveFilter, HostFilter, LabelFilter, QueueFilter

HEARS = {
    "ojs": _("In the answer to its next heartbeat."),
    "flare": _("Never: its protocol has no word for it. Quiet is enforced at fetch."),
}
"""How a worker learns what an operator asked of it, by protocol."""
SHOWN = 50
"""Rows of each table on a worker's page."""


@admin.register(Worker)
class WorkerAdmin(ReadOnlyModelAdmin):
    """The fleet, whoever was heard last first."""

    change_form_template = "admin/ojs/worker.html"
    list_display = (
        "who",
        "condition",
        "desired",
        "busy",
        "heartbeat",
        "label_list",
        "queue_list",
        "client",
    )
    list_filter = (ConditionFilter, DirectiveFilter, LabelFilter, QueueFilter, HostFilter)
    search_fields = ("worker_id", "hostname", "labels")
    search_help_text = _("Part of a worker id, a host or a label")
    ordering = ("-last_heartbeat_at", "worker_id")
    sortable_by = ("who", "condition", "busy", "heartbeat", "client")
    actions = ("quiet", "terminate", "resume")
    buttons: ClassVar[dict[str, Any]] = {
        "quiet": _("Quiet"),
        "terminate": _("Terminate"),
        "resume": _("Resume"),
    }
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "worker_id",
                    ("condition", "busy"),
                    ("reported", "desired"),
                    "asked",
                    ("label_list", "queue_list"),
                    ("type_list", "project"),
                )
            },
        ),
        (
            _("Process"),
            {"fields": (("hostname", "pid"), ("protocol", "version"), ("started", "incarnation"))},
        ),
        (
            _("Signs of life"),
            {
                "fields": (
                    "exact_heartbeat",
                    "silence_allowed",
                    "hears",
                    "registered",
                    "left",
                    "died",
                )
            },
        ),
        (_("As it described itself"), {"classes": ("collapse",), "fields": ("raw",)}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        workers = super().get_queryset(request)
        return workers.annotate(in_hand=in_hand()).annotate(condition=condition())

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        queryset = queryset.alias(label_text=Cast("labels", CharField()))
        for word in search_term.split():
            queryset = queryset.filter(
                Q(worker_id__icontains=word)
                | Q(hostname__icontains=word)
                | Q(label_text__icontains=word)
            )
        return queryset, False

    def allowed(self, obj: Any) -> Collection[str]:
        if obj.state == WorkerState.TERMINATED:
            return ()
        found = [
            directive
            for directive in (WorkerState.QUIET, WorkerState.TERMINATE)
            if obj.desired_state.rank < directive.rank
        ]
        if obj.directive == WorkerState.QUIET and obj.desired_state == WorkerState.QUIET:
            return [*found, "resume"]
        return found

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        worker = kwargs["obj"]
        context |= {
            "held": dashboard.held([worker.pk])[:SHOWN],
            "refused": RefusedFinish.objects.filter(worker_id=worker.pk)[:SHOWN],
            "unfenced": dashboard.unfenced_by(worker.pk)[:SHOWN],
            "recent": f"{dashboard.RECENT:,}",
        }
        return super().render_change_form(request, context, *args, **kwargs)

    # Columns and fields

    @admin.display(description=_("worker"), ordering="worker_id")
    def who(self, worker: Worker) -> SafeString:
        place = [str(part) for part in (worker.hostname, worker.pid) if part not in ("", None)]
        return format_html(
            '{}<br><span class="ojs-quiet">{}</span>', worker.worker_id, ":".join(place)
        )

    @admin.display(description=_("state"), ordering="condition")
    def condition(self, worker: Any) -> SafeString:
        found = Condition(worker.condition)
        return display.chip(found.value, str(found.label))

    @admin.display(description=_("reported state"))
    def reported(self, worker: Worker) -> str:
        return worker.state

    @admin.display(description=_("asked"))
    def asked(self, worker: Worker) -> str | SafeString:
        """The directive, and when; who and why is in the history."""
        if not worker.directive:
            return gettext("nothing")
        return format_html("{}, {}", worker.directive, display.moment(worker.directed_at))

    @admin.display(description=_("desired state"))
    def desired(self, worker: Worker) -> str | SafeString:
        """What the worker shall be; marked until it says that it is."""
        if worker.state == WorkerState.TERMINATED:
            return display.NOTHING
        if worker.desired_state == worker.state:
            return str(worker.desired_state)
        return format_html(
            '<span class="ojs-nowrap">{} → {}</span>',
            worker.state,
            display.chip(worker.desired_state),
        )

    @admin.display(description=_("labels"))
    def label_list(self, worker: Worker) -> str | SafeString:
        return display.chips(worker.labels)

    @admin.display(description=_("queues"))
    def queue_list(self, worker: Worker) -> str | SafeString:
        return display.chips(worker.queues)

    @admin.display(description=_("busy"), ordering="in_hand")
    def busy(self, worker: Any) -> SafeString:
        """Jobs in hand, of how many it runs at once."""
        if worker.concurrency is None:
            return format_html("{} / ?", worker.in_hand)
        return format_html(
            '<span class="ojs-nowrap">{} / {}</span> <meter class="ojs-meter" max="{}" value="{}">'
            "</meter>",
            worker.in_hand,
            worker.concurrency,
            worker.concurrency,
            worker.in_hand,
        )

    @admin.display(description=_("heartbeat"), ordering="last_heartbeat_at")
    def heartbeat(self, worker: Any) -> str | SafeString:
        return display.when(worker.last_heartbeat_at)

    @admin.display(description=_("protocol"), ordering=Concat("protocol", "version"))
    def client(self, worker: Worker) -> SafeString:
        """The protocol it speaks, and what it calls itself."""
        return format_html("{}<br>{}", worker.protocol, display.code(worker.version, 40))

    @admin.display(description=_("last heartbeat"))
    def exact_heartbeat(self, worker: Worker) -> str | SafeString:
        return display.moment(worker.last_heartbeat_at)

    @admin.display(description=_("declared dead after"))
    def silence_allowed(self, worker: Worker) -> str:
        return display.length(worker.heartbeat_timeout)

    @admin.display(description=_("hears a directive"))
    def hears(self, worker: Worker) -> str:
        return str(HEARS.get(worker.protocol, HEARS["ojs"]))

    @admin.display(description=_("job types"))
    def type_list(self, worker: Worker) -> str | SafeString:
        if worker.job_types is None:
            return gettext("any")
        return display.chips(worker.job_types)

    @admin.display(description=_("started"))
    def started(self, worker: Worker) -> str | SafeString:
        if worker.started_at is None:
            return display.NOTHING
        ahead = worker.started_at - timezone.now()
        if ahead > timedelta(seconds=1):
            note = gettext("its clock is ahead by %(span)s") % {"span": display.span(ahead)}
            return format_html("{}, {}", display.absolute(worker.started_at), note)
        return display.moment(worker.started_at)

    @admin.display(description=_("registered"))
    def registered(self, worker: Worker) -> str | SafeString:
        if worker.registered_at is None:
            return gettext("never: known by its heartbeats alone")
        return display.moment(worker.registered_at)

    @admin.display(description=_("left"))
    def left(self, worker: Worker) -> str | SafeString:
        return display.moment(worker.left_at)

    @admin.display(description=_("declared dead"))
    def died(self, worker: Worker) -> str | SafeString:
        if worker.died_at and worker.state != WorkerState.TERMINATED:
            came_back = gettext("it has come back since")
            return format_html("{}, {}", display.moment(worker.died_at), came_back)
        return display.moment(worker.died_at)

    @admin.display(description=_("registration"))
    def raw(self, worker: Worker) -> str | SafeString:
        told = (
            "worker_id",
            "hostname",
            "pid",
            "queues",
            "concurrency",
            "labels",
            "started_at",
            "protocol",
            "version",
            "state",
            "sequence",
            "active_job_ids",
        )
        return display.json_block({name: getattr(worker, name) for name in told})

    # Actions

    @admin.action(description=_("Quiet selected workers"), permissions=["change"])
    def quiet(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        return actions.direct(self, request, queryset, WorkerState.QUIET)

    @admin.action(description=_("Terminate selected workers"), permissions=["change"])
    def terminate(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        return actions.direct(self, request, queryset, WorkerState.TERMINATE)

    @admin.action(description=_("Resume selected workers"), permissions=["change"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        return actions.resume(self, request, queryset)

"""Workers in the admin: their state, directives, and the jobs they hold or lost."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any, ClassVar

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import CharField, Q, QuerySet
from django.db.models.functions import Cast
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.admin import display
from jobs.admin.base import ReadOnlyModelAdmin, may
from jobs.admin.words import word
from jobs.conf import protocol_of
from jobs.engine import WORKER_DEATH
from jobs.models import Job, RefusedFinish
from jobs.record import dashboard
from jobs.store import clock

from ..fleet.condition import Condition, condition, in_hand
from ..lifecycle import WorkerState
from ..liveness.heartbeats import Description
from ..models import Directive, Worker
from . import actions, convergence, fleet_map, operation
from .abilities import AbilityFields
from .filters import (
    ConditionFilter,
    DesiredFilter,
    DirectiveFilter,
    GroupFilter,
    HostFilter,
    LabelFilter,
    ProjectFilter,
    ProtocolFilter,
    QueueFilter,
    StaleFilter,
    VersionFilter,
)
from .groups import whole_list

REPORTED = ("worker_id", *Description.__slots__, "state", "sequence", "active_job_ids")
SHOWN = 50
"""Rows of each table on a worker's page."""
HOST_SHOWN = 40
"""Characters of a host's name in the list; the whole is on hover."""


@admin.register(Worker)
class WorkerAdmin(AbilityFields, ReadOnlyModelAdmin):
    """The fleet, most recently heard first."""

    change_form_template = "admin/ojs/worker.html"
    change_list_template = "admin/ojs/workers.html"
    list_display = (
        "who",
        "condition",
        "desired",
        "busy",
        "heartbeat",
        "outcomes",
        "label_list",
        "queue_list",
    )
    list_filter = (
        ConditionFilter,
        DesiredFilter,
        DirectiveFilter,
        LabelFilter,
        QueueFilter,
        HostFilter,
        VersionFilter,
        ProtocolFilter,
        ProjectFilter,
        StaleFilter,
        GroupFilter,
    )
    search_fields = ("worker_id", "hostname", "labels")
    search_help_text = _("Part of a worker id, a host or a label")
    ordering = ("-last_heartbeat_at", "worker_id")
    sortable_by = ("who", "condition", "busy", "heartbeat")
    actions = ("quiet", "resume", "unflag", "drain", "terminate")
    buttons: ClassVar[dict[str, Any]] = {
        "quiet": _("Quiet"),
        "resume": _("Resume"),
        "unflag": _("Clear flag"),
        "drain": _("Drain"),
        "terminate": _("Terminate"),
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
                    "project",
                )
            },
        ),
        (
            _("Process"),
            {"fields": (("hostname", "pid"), ("speaks", "version"), ("started", "incarnation"))},
        ),
        (
            _("What it can do"),
            {
                "fields": (
                    ("capability_list", "type_list"),
                    "version_list",
                    "spec_list",
                    "hears",
                    "measured",
                    "flagged",
                )
            },
        ),
        (
            _("Signs of life"),
            {"fields": ("exact_heartbeat", "silence_allowed", "registered", "left", "died")},
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
        for part in search_term.split():
            queryset = queryset.filter(
                Q(worker_id__icontains=part)
                | Q(hostname__icontains=part)
                | Q(label_text__icontains=part)
            )
        return queryset, False

    def allowed(self, obj: Any) -> Collection[str]:
        found: list[str] = ["unflag"] if obj.flagged_at else []
        if obj.state == WorkerState.TERMINATED:
            return found
        found += [
            directive
            for directive in (WorkerState.QUIET, WorkerState.TERMINATE)
            if obj.desired_state.rank < directive.rank
        ]
        if obj.desired_state != WorkerState.TERMINATE:
            found.append("drain")
        if obj.directive == WorkerState.QUIET and obj.desired_state == WorkerState.QUIET:
            return [*found, "resume"]
        return found

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        worker = kwargs["obj"]
        context |= {
            "held": dashboard.held([worker.pk])[:SHOWN],
            "may_cancel": self._may_cancel(request),
            "refused": RefusedFinish.objects.filter(worker_id=worker.pk)[:SHOWN],
            "unfenced": dashboard.unfenced_by(worker.pk)[:SHOWN],
            "lost": dashboard.lost_with(worker.pk, WORKER_DEATH.type)[:SHOWN],
            "recent": dashboard.grouped(dashboard.RECENT),
            "directives": Directive.objects.filter(worker_id=worker.pk)[:SHOWN],
        }
        return super().render_change_form(request, context, *args, **kwargs)

    def _may_cancel(self, request: HttpRequest) -> bool:
        jobs = self.admin_site._registry.get(Job)
        return jobs is not None and "cancel" in jobs.get_actions(request)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        fleet_map.unfold(request)
        answer = super().changelist_view(request, extra_context)
        context = getattr(answer, "context_data", None) or {}
        if "cl" in context:
            context |= whole_list(context["cl"], request, self)
        return answer

    # Columns and fields

    @admin.display(description=_("worker"), ordering="worker_id")
    def who(self, worker: Worker) -> SafeString:
        place = [worker.hostname] if worker.hostname else []
        place += [] if worker.pid is None else [str(worker.pid)]
        short = [Truncator(part).chars(HOST_SHOWN) for part in place]
        project = " ".join((gettext("project"), worker.project)) if worker.project else ""
        title = protocol_of(worker.protocol).title
        client = [part for part in (project, title, worker.version[:40]) if part]
        return format_html(
            '{}<br><span class="ojs-quiet"><span class="ojs-nowrap" title="{}">{}</span><br>{}'
            "</span>",
            display.ident(worker.worker_id),
            ":".join(place),
            ":".join(short),
            ", ".join(client),
        )

    @admin.display(description=_("state"), ordering="condition")
    def condition(self, worker: Any) -> SafeString:
        found = Condition(worker.condition)
        chip = display.chip(found.value, str(found.label))
        if worker.flagged_at is None:
            return chip
        return format_html("{} {}", chip, display.chip("silent", gettext("flagged")))

    @admin.display(description=_("reported state"))
    def reported(self, worker: Worker) -> str:
        return word(worker.state)

    @admin.display(description=_("asked"))
    def asked(self, worker: Worker) -> str | SafeString:
        """The directive and its time; the history has the operator and the reason."""
        if not worker.directive:
            return gettext("nothing")
        return format_html("{}, {}", word(worker.directive), display.moment(worker.directed_at))

    @admin.display(description=_("desired state"))
    def desired(self, worker: Worker) -> str | SafeString:
        """The desired state, marked until the worker reports it."""
        if worker.state == WorkerState.TERMINATED:
            return display.NOTHING
        if worker.desired_state == worker.state:
            return word(worker.desired_state)
        return format_html(
            '<span class="ojs-nowrap">{} → {}</span>',
            word(worker.state),
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
        """Jobs it holds, and how many it runs at once."""
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
        """The last heartbeat, and below it the start time of the process."""
        if worker.started_at is None or worker.state == WorkerState.TERMINATED:
            return display.when(worker.last_heartbeat_at)
        up = gettext("up %(span)s") % {"span": display.span(clock.now() - worker.started_at)}
        return format_html(
            '{}<br><span class="ojs-quiet ojs-nowrap" title="{}">{}</span>',
            display.when(worker.last_heartbeat_at),
            display.absolute(worker.started_at),
            up,
        )

    @admin.display(description=_("done / failed"), ordering="jobs_done")
    def outcomes(self, worker: Worker) -> SafeString:
        """Jobs done and failed, counted from the record of events with a delay of seconds."""
        return format_html(
            '<span class="ojs-nowrap">{} / {}</span>', worker.jobs_done, worker.jobs_failed
        )

    @admin.display(description=_("last heartbeat"))
    def exact_heartbeat(self, worker: Worker) -> str | SafeString:
        return display.moment(worker.last_heartbeat_at)

    @admin.display(description=_("declared dead after"))
    def silence_allowed(self, worker: Worker) -> str:
        return display.length(worker.heartbeat_timeout)

    @admin.display(description=_("started"))
    def started(self, worker: Worker) -> str | SafeString:
        if worker.started_at is None:
            return display.NOTHING
        # A process cannot have started after it was first heard of.
        ahead = worker.started_at - (worker.registered_at or clock.now())
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
        return display.json_block({name: getattr(worker, name) for name in REPORTED})

    # Actions

    has_quiet_permission = may("ojs_workers.quiet_worker")
    has_terminate_permission = may("ojs_workers.terminate_worker")
    has_resume_permission = may("ojs_workers.resume_worker")
    has_drain_permission = may("ojs_workers.drain_fleet")
    has_unflag_permission = may("ojs_workers.unflag_worker")

    @admin.action(description=_("Quiet selected workers"), permissions=["quiet"])
    def quiet(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        return actions.direct(self, request, queryset, WorkerState.QUIET)

    @admin.action(description=_("Terminate selected workers"), permissions=["terminate"])
    def terminate(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        return actions.direct(self, request, queryset, WorkerState.TERMINATE)

    @admin.action(description=_("Resume selected workers"), permissions=["resume"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        return actions.direct(self, request, queryset, WorkerState.RUNNING)

    @admin.action(description=_("Drain selected workers, a few at a time"), permissions=["drain"])
    def drain(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        return operation.begin(self, request, queryset)

    @admin.action(description=_("Clear the flag of selected workers"), permissions=["unflag"])
    def unflag(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        return actions.unflag(self, request, queryset)

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.order_view)
        return [
            path("order/<int:action_id>/", view, name="ojs_workers_worker_order"),
            path("map/", self.admin_site.admin_view(self.map_view), name="ojs_workers_worker_map"),
            *super().get_urls(),
        ]

    def map_view(self, request: HttpRequest) -> HttpResponse:
        """The fleet on one screen."""
        return fleet_map.page(self, request)

    def order_view(self, request: HttpRequest, action_id: int) -> HttpResponse:
        """The progress of an order: "12 of 14 report quiet"."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return convergence.page(self, request, action_id)

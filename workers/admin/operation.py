"""Rolling drains: started from the worker list, monitored and controlled on their own page."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponseRedirect
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.access.audit import of_request
from jobs.admin import display
from jobs.admin.base import ReadOnlyModelAdmin, may
from jobs.admin.confirm import Answer, Question, ReasonForm, ask, back, switch
from jobs.errors import Conflict, InvalidRequest

from ..fleet import drain
from ..fleet.condition import in_hand
from ..fleet.orders import capacity, serving
from ..fleet.rolling import FLOOR, REPLACEMENTS
from ..models import IN_WORK, FleetOperation, OperationState, OperationStep, Phase, Worker
from .actions import about_live_workers, before_they_stop

EVERY = 2
SHOWN = 1000


def waits_for(operation: FleetOperation) -> str:
    """Why the operation waits, in the reader's language."""
    for recorded in (FLOOR, REPLACEMENTS):
        pattern = re.sub(r"%\\\((\w+)\\\)[ds]", r"(?P<\1>.*)", re.escape(recorded))
        if found := re.fullmatch(pattern, operation.waits_for):
            return gettext(recorded).replace(")d", ")s") % found.groupdict()
    return operation.waits_for


class DrainForm(ReasonForm):
    max_unavailable = forms.CharField(
        label=_("At once"),
        initial="1",
        max_length=8,
        help_text=_("How many workers are drained at a time: a number, or a percentage of them."),
    )
    floor = forms.CharField(
        label=_("Never under"),
        required=False,
        max_length=1000,
        help_text=_(
            "Running capacity that each queue keeps: jobs at once (“4”), a part of what runs now "
            "(“50%”), or by queue (“mail=2 default=50%”)."
        ),
    )
    idle_minutes = forms.IntegerField(
        label=_("Wait for jobs"),
        required=False,
        min_value=0,
        max_value=10_080,
        help_text=_("Minutes a worker has to finish its jobs; empty means as long as it takes."),
    )
    terminates = forms.TypedChoiceField(
        label=_("Then"),
        coerce=lambda text: text == "terminate",
        choices=(("terminate", _("terminate it")), ("hold", _("hold it quiet"))),
    )
    replacement_label = forms.CharField(
        label=_("Wait for replacements"),
        required=False,
        max_length=255,
        help_text=_("Go on only while as many new workers with this label run as were taken away."),
    )
    field_order = (
        "max_unavailable",
        "floor",
        "idle_minutes",
        "terminates",
        "replacement_label",
        "reason",
    )

    def clean(self) -> Any:
        for name in ("max_unavailable", "floor"):
            text = self.cleaned_data.get(name) or ""
            try:
                for word in text.replace(",", " ").split():
                    drain.amount(word.rpartition("=")[2], 0, name, up=True)
            except InvalidRequest:
                self.add_error(name, gettext("It must be a number or a percentage: “2” or “20%”."))
        return self.cleaned_data


DRAIN = about_live_workers(
    action="drain",
    title=_("Drain workers"),
    consequence=_(
        "These workers are quieted a few at a time, finish the jobs they hold, and are then "
        "told to stop. The reaper does it; it can be paused and aborted."
    ),
    button=_("Start to drain"),
    is_destructive=True,
    form_class=DrainForm,
    details=before_they_stop,
)


def begin(model_admin: Any, request: HttpRequest, workers: Any) -> Any:
    """Ask for confirmation, then start an operation and show it."""
    answer = ask(model_admin, request, workers, DRAIN)
    if not isinstance(answer, Answer):
        return answer
    data = answer.data
    minutes = data["idle_minutes"]
    try:
        operation = drain.start(
            answer.ids,
            actor=of_request(request),
            max_unavailable=data["max_unavailable"],
            floor=data["floor"],
            idle_limit=None if minutes is None else timedelta(minutes=minutes),
            terminates=data["terminates"],
            replacement_label=data["replacement_label"],
            reason=answer.reason,
            selection=answer.selection,
        )
    except Conflict as problem:
        names = ", ".join(problem.details["workers"][:5])
        text = gettext("Another operation has these workers: %(names)s") % {"names": names}
        model_admin.message_user(request, text, messages.ERROR)
        return back(request)
    except InvalidRequest as problem:
        model_admin.message_user(request, problem.message, messages.ERROR)
        return back(request)
    url = display.admin_url(
        model_admin.admin_site.name, "ojs_workers_fleetoperation", "change", operation.pk
    )
    return HttpResponseRedirect(url) if url else back(request)


@admin.register(FleetOperation)
class FleetOperationAdmin(ReadOnlyModelAdmin):
    change_form_template = "admin/ojs/operation.html"
    list_display = ("name", "shown_state", "progress", "waits", "started_by", "since", "reason")
    list_filter = ("state",)
    ordering = ("-id",)
    sortable_by = ()
    actions = ("pause", "go_on", "abort")
    buttons: ClassVar[dict[str, Any]] = {
        "pause": _("Pause"),
        "go_on": _("Continue"),
        "abort": _("Abort"),
    }
    # The page has its own template.
    fieldsets = ((None, {"fields": ()}),)

    has_drain_permission = may("ojs_workers.drain_fleet")

    @admin.display(description=_("waits for"))
    def waits(self, operation: FleetOperation) -> str:
        return waits_for(operation)

    def add_figures(self, operations: Any) -> None:
        found: dict[int, list[str]] = {operation.pk: [] for operation in operations}
        steps = OperationStep.objects.filter(operation__in=found)
        for pk, phase in steps.values_list("operation_id", "phase"):
            found[pk].append(phase)
        for operation in operations:
            operation.phases = found[operation.pk]

    def allowed(self, obj: Any) -> Collection[str]:
        return {
            OperationState.RUNNING: ("pause", "abort"),
            OperationState.PAUSED: ("go_on", "abort"),
        }.get(obj.state, ())

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        operation = kwargs["obj"]
        steps = list(operation.steps.order_by("position")[:SHOWN])
        names = [step.worker_id for step in steps]
        workers = Worker.objects.annotate(in_hand=in_hand()).in_bulk(names)
        running = capacity(serving())
        context |= {
            "steps": [
                (step, Phase(step.phase).label, workers.get(step.worker_id)) for step in steps
            ],
            "finished": sum(not step.is_open for step in steps),
            "floors": [
                (queue, floor, running.get(queue, 0))
                for queue, floor in sorted(operation.floors.items())
            ],
            "waits_for": waits_for(operation),
            "refresh": 0 if operation.is_finished else EVERY,
        }
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description=_("operation"))
    def name(self, operation: FleetOperation) -> str:
        return str(operation)

    @admin.display(description=_("state"))
    def shown_state(self, operation: FleetOperation) -> SafeString:
        return display.chip(operation.state, str(OperationState(operation.state).label))

    @admin.display(description=_("workers"))
    def progress(self, operation: Any) -> str:
        left = sum(phase in (Phase.WAITING, *IN_WORK) for phase in operation.phases)
        return gettext("%(done)d of %(all)d") % {
            "done": len(operation.phases) - left,
            "all": len(operation.phases),
        }

    @admin.display(description=_("started"))
    def since(self, operation: FleetOperation) -> str | SafeString:
        return display.when(operation.started_at)

    @admin.action(description=_("Pause selected operations"), permissions=["drain"])
    def pause(self, request: HttpRequest, queryset: Any) -> Any:
        return switch(self, request, queryset, PAUSE, drain.pause)

    @admin.action(description=_("Continue selected operations"), permissions=["drain"])
    def go_on(self, request: HttpRequest, queryset: Any) -> Any:
        return switch(self, request, queryset, CONTINUE, drain.go_on)

    @admin.action(description=_("Abort selected operations"), permissions=["drain"])
    def abort(self, request: HttpRequest, queryset: Any) -> Any:
        return switch(self, request, queryset, ABORT, drain.abort)


PAUSE = Question(
    action="pause",
    title=_("Pause operations"),
    consequence=_("No more workers are quieted or told to stop. Those that are quiet stay quiet."),
    button=_("Pause"),
)
CONTINUE = Question(
    action="go_on",
    title=_("Continue operations"),
    consequence=_("The operation goes on where it was paused."),
    button=_("Continue"),
)
ABORT = Question(
    action="abort",
    title=_("Abort operations"),
    consequence=_(
        "The operation ends, and the workers that it quieted are given jobs again. Those that were "
        "told to stop do so: that cannot be undone."
    ),
    button=_("Abort"),
    is_destructive=True,
)

"""Bulk operations: started from a form, watched, stopped and continued on their own page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from datetime import datetime
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import engine
from ..access.audit import of_request
from ..errors import Conflict, OJSError
from ..models import BulkOperation, BulkState, BulkVerb
from ..spec.lifecycle import State
from ..spec.timestamps import format_timestamp
from . import display
from .base import ReadOnlyModelAdmin, chosen_moment, may
from .confirm import Question, switch
from .job_form import WIDE, Suggesting, suggest
from .made_once import FIELD, form_id, new_form_id, show_made

EVERY = 2
FILTERS = ("type", "queue", "project", "error_type", "state")
MOMENTS = ("enqueued_after", "enqueued_before", "finished_after", "finished_before")
DESTRUCTIVE = (BulkVerb.CANCEL, BulkVerb.DELETE)


class MomentField(forms.DateTimeField):
    def __init__(self, label: Any) -> None:
        shown = {"type": "datetime-local", "step": "1"}
        widget = forms.DateTimeInput(attrs=shown, format="%Y-%m-%dT%H:%M:%S")
        super().__init__(label=label, required=False, widget=widget)

    def to_python(self, value: Any) -> datetime | None:
        found = super().to_python(value)
        return None if found is None else chosen_moment(found)


class NewBulkOperationForm(forms.Form):
    required_css_class = "required"
    verb = forms.ChoiceField(label=_("Verb"), choices=BulkVerb)
    type = forms.CharField(
        label=_("Type"), required=False, max_length=255, widget=Suggesting(attrs=WIDE)
    )
    queue = forms.CharField(
        label=_("Queue"), required=False, max_length=128, widget=Suggesting(attrs=WIDE)
    )
    project = forms.CharField(
        label=_("Project"), required=False, max_length=100, widget=Suggesting(attrs=WIDE)
    )
    workflow = forms.UUIDField(
        label=capfirst(_("workflow")), required=False, widget=forms.TextInput(attrs=WIDE)
    )
    state = forms.MultipleChoiceField(
        label=_("States"),
        required=False,
        choices=[(value, label) for value, label in State.choices if value != State.ACTIVE],
        help_text=_(
            "None: discarded jobs are retried, available and scheduled ones cancelled, and all "
            "finished ones deleted."
        ),
        widget=forms.CheckboxSelectMultiple,
    )
    priority = forms.IntegerField(label=_("Priority"), required=False, localize=False)
    enqueued_after = MomentField(_("Enqueued after"))
    enqueued_before = MomentField(_("Enqueued before"))
    finished_after = MomentField(_("Finished after"))
    finished_before = MomentField(_("Finished before"))
    error_type = forms.CharField(
        label=_("Type of the last error"),
        required=False,
        max_length=255,
        widget=forms.TextInput(attrs=WIDE),
    )
    reason = forms.CharField(
        label=_("Reason"), required=False, max_length=500, widget=forms.TextInput(attrs=WIDE)
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        text = gettext("In the time zone %(zone)s.")
        for name in MOMENTS:
            self.fields[name].help_text = text % {"zone": timezone.get_current_timezone_name()}

    def wanted(self) -> dict[str, Any]:
        """The filter that was filled in, as in bulk requests."""
        data = self.cleaned_data
        found = {name: data[name] for name in FILTERS if data[name]}
        if data["workflow"]:
            found["workflow"] = str(data["workflow"])
        if data["priority"] is not None:
            found["priority"] = data["priority"]
        for name in MOMENTS:
            if data[name]:
                found[name] = format_timestamp(data[name])
        return found

    @property
    def fingerprint(self) -> str:
        """Of what was counted: an edited form is counted again."""
        text = json.dumps([self.cleaned_data["verb"], self.wanted()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def count(self) -> tuple[int, bool] | None:
        """Count the jobs that match; None if it is refused: the form says why."""
        try:
            return engine.bulk_operations.preview(self.cleaned_data["verb"], self.wanted())
        except OJSError as refusal:
            field = str(refusal.details.get("field", "")).removeprefix("filter.")
            # The form has no field of that name.
            text = gettext("Give at least one condition.") if field == "filter" else refusal.message
            self.add_error(field if field in self.fields else None, text)
            return None


@admin.register(BulkOperation)
class BulkOperationAdmin(ReadOnlyModelAdmin):
    change_form_template = "admin/ojs/bulk_operation.html"
    list_display = (
        "name",
        "verb",
        "jobs",
        "shown_state",
        "progress",
        "started_by",
        "since",
        "reason",
    )
    list_filter = ("state", "verb")
    ordering = ("-id",)
    sortable_by = ()
    actions = ("stop", "go_on")
    buttons: ClassVar[dict[str, Any]] = {"stop": _("Stop"), "go_on": _("Continue")}
    # The page has its own template.
    fieldsets = ((None, {"fields": ()}),)

    has_run_permission = may("ojs_jobs.run_bulkoperation")
    has_add_permission = may("ojs_jobs.run_bulkoperation")

    def allowed(self, obj: Any) -> Collection[str]:
        return {BulkState.RUNNING: ("stop",), BulkState.STOPPED: ("go_on",)}.get(obj.state, ())

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> Any:
        """Ask for a verb and a filter, count what matches, then start."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        names = NewBulkOperationForm.base_fields
        asked: dict[str, Any] = {name: request.GET[name] for name in names if name in request.GET}
        if "state" in asked:
            asked["state"] = request.GET.getlist("state")
        form = NewBulkOperationForm(request.POST or None, initial=asked)
        suggest(form, request)
        found = form.count() if form.is_valid() else None
        if found is not None and request.POST.get("counted") == form.fingerprint:
            return self._started(request, form)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": gettext("New bulk operation"),
            "form": form,
            FIELD: new_form_id(request),
            "found": found,
            "fingerprint": form.fingerprint if found is not None else "",
            "is_destructive": form.data.get("verb") in DESTRUCTIVE,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/ojs/new_bulk_operation.html", context)

    def _started(self, request: HttpRequest, form: NewBulkOperationForm) -> HttpResponse:
        data = form.cleaned_data
        try:
            operation = engine.bulk_operations.start(
                data["verb"],
                form.wanted(),
                actor=of_request(request),
                reason=data["reason"],
                form=form_id(request),
            )
        except Conflict as again:
            made = BulkOperation(pk=again.details["operation"])
            return show_made(self, request, made, MADE_ALREADY)
        text = gettext("The bulk operation is started: the reaper carries it out.")
        self.message_user(request, text, messages.SUCCESS)
        site = self.admin_site
        return HttpResponseRedirect(
            display.page_url(site, request, BulkOperation, "change", operation.pk)
        )

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        operation = kwargs["obj"]
        context["refresh"] = EVERY if operation.state == BulkState.RUNNING else 0
        context["chosen"] = words(operation)
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description=_("operation"))
    def name(self, operation: BulkOperation) -> str:
        return str(operation)

    @admin.display(description=_("jobs"))
    def jobs(self, operation: BulkOperation) -> str:
        return "; ".join(f"{name}: {value}" for name, value in words(operation))

    @admin.display(description=_("state"))
    def shown_state(self, operation: BulkOperation) -> SafeString:
        return display.chip(operation.state, str(BulkState(operation.state).label))

    @admin.display(description=_("changed"))
    def progress(self, operation: BulkOperation) -> str:
        if operation.total is None:
            return str(operation.done)
        return gettext("%(done)d of %(all)d") % {"done": operation.done, "all": operation.total}

    @admin.display(description=_("started"))
    def since(self, operation: BulkOperation) -> str | SafeString:
        return display.when(operation.started_at)

    @admin.action(description=_("Stop selected operations"), permissions=["run"])
    def stop(self, request: HttpRequest, queryset: Any) -> Any:
        return switch(self, request, queryset, STOP, engine.bulk_operations.stop)

    @admin.action(description=_("Continue selected operations"), permissions=["run"])
    def go_on(self, request: HttpRequest, queryset: Any) -> Any:
        return switch(self, request, queryset, CONTINUE, engine.bulk_operations.go_on)


MADE_ALREADY = _("This form was sent before: the operation is started already.")


def words(operation: BulkOperation) -> list[tuple[str, str]]:
    """Label and value of each condition of the filter."""
    fields: Any = NewBulkOperationForm.base_fields
    states = dict(State.choices)
    found = []
    for name, value in operation.filter.items():
        label = str(fields[name].label) if name in fields else name
        values = value if isinstance(value, list) else [value]
        found.append((label, ", ".join(str(states.get(each, each)) for each in values)))
    return found


STOP = Question(
    action="stop",
    title=_("Stop bulk operations"),
    consequence=_(
        "No more jobs are changed. What was done stays done; the operation can be continued."
    ),
    button=_("Stop"),
)
CONTINUE = Question(
    action="go_on",
    title=_("Continue bulk operations"),
    consequence=_("The operation goes on where it was stopped."),
    button=_("Continue"),
)

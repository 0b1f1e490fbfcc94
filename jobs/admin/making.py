"""A form for a new job, and what is known about a type while it is filled in."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..errors import DuplicateJob, OJSError
from ..models import Job
from ..spec.validation import OPTION_NAMES
from ..store.database import atomic
from . import display
from .job_form import (
    ENQUEUED_ALREADY,
    JobForm,
    check_options,
    enqueue,
    offer_projects,
    other_options,
    project_field,
    suggest,
)
from .made_once import FIELD, MadeAlready, new_form_id, show_made
from .schema_inputs import SchemaInputs, parts

UNIQUE = (
    ("", _("no")),
    ("type args", _("by type and arguments")),
    ("type args queue", _("by type, arguments and queue")),
    ("type", _("by type")),
)
CONFLICTS = (
    ("reject", _("refuse this one")),
    ("ignore", _("keep the one there is")),
    ("replace", _("cancel the one there is")),
)
HAVE_A_FIELD = {"queue", "priority", "tags", "delay_until", "scheduled_at", "unique", "meta"}
SHOW_INPUTS = "_inputs"
"""The button that asks for the inputs of a type, where no script does."""


class NewJobForm(JobForm):
    unique = forms.ChoiceField(
        label=_("Unique"),
        required=False,
        choices=UNIQUE,
        help_text=_("Whether there may be another job like it that has not finished."),
    )
    on_conflict = forms.ChoiceField(
        label=_("If there is one"), required=False, choices=CONFLICTS, initial="reject"
    )
    options = other_options()
    project = project_field()
    field_order = (
        "type",
        "args",
        "queue",
        "project",
        "delay_until",
        "priority",
        "unique",
        "on_conflict",
        "meta",
        "tags",
        "options",
        "reason",
    )

    def clean_options(self) -> dict[str, Any]:
        return check_options(self.cleaned_data["options"], have_a_field=HAVE_A_FIELD)

    def refuse(self, refusal: OJSError) -> None:
        named = str(refusal.details.get("field", "")).removeprefix("options.").partition(".")[0]
        if named in OPTION_NAMES and named not in self.fields:
            self.add_error("options", refusal.message)
        else:
            super().refuse(refusal)

    def document(self) -> dict[str, Any]:
        document = super().document()
        if self.cleaned_data["unique"]:
            document["unique"] = {
                "keys": self.cleaned_data["unique"].split(),
                "on_conflict": self.cleaned_data["on_conflict"] or "reject",
            }
        return document | self.cleaned_data["options"]


NEW: dict[str, Any] = {"queue": "default", "priority": 0, "args": [], "meta": {}, "tags": []}


def add_view(model_admin: Any, request: HttpRequest) -> HttpResponse:
    """Show an empty form, or one filled in from the address; enqueue the job and show it."""
    if not model_admin.has_add_permission(request):
        raise PermissionDenied
    sent = request.POST if request.method == "POST" and SHOW_INPUTS not in request.POST else None
    filled = request.GET if request.method == "GET" else request.POST
    asked = {name: value for name, value in filled.items() if name in NewJobForm.base_fields}
    form = NewJobForm(sent, initial=NEW | asked)
    inputs = SchemaInputs(str(asked.get("type", "")).strip(), sent, request.POST)
    suggest(form, request)
    offer_projects(form)
    if form.is_valid() and inputs.is_valid() and _fill(form, inputs):
        try:
            made = _enqueue(request, form)
        except MadeAlready as again:
            return show_made(model_admin, request, again.made, ENQUEUED_ALREADY)
        if made is not None:
            return _show(model_admin, request, made)
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "title": gettext("New job"),
        "form": form,
        FIELD: new_form_id(request),
        "inputs": inputs,
        "about_url": reverse("admin:ojs_jobs_job_about", current_app=model_admin.admin_site.name),
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/ojs/new_job.html", context)


def _fill(form: NewJobForm, inputs: SchemaInputs) -> bool:
    """Put what stands in the inputs into the arguments; False if they cannot take it."""
    args = form.cleaned_data["args"]
    if not isinstance(args, list):
        return True  # refused with the job
    try:
        filled = inputs.fill(args)
        # An input checks less than the field does: the size of a number, for example.
        form.cleaned_data["args"] = form.fields["args"].clean(json.dumps(filled))
    except forms.ValidationError as problem:
        form.add_error("args", problem)
        return False
    return True


def _enqueue(request: HttpRequest, form: NewJobForm) -> Any:
    """Enqueue the job; None if it was refused, with the reason in the form."""
    try:
        with atomic():
            return enqueue(
                request,
                form.document(),
                form.cleaned_data["reason"],
                gettext("Enqueued by hand."),
                project=form.cleaned_data.get("project", ""),
            )
    except DuplicateJob as refusal:
        text = gettext("There is such a job already: %(id)s.")
        form.add_error("unique", text % {"id": refusal.details.get("existing_job_id", "")})
    except OJSError as refusal:
        form.refuse(refusal)
    return None


def _show(model_admin: Any, request: HttpRequest, made: Any) -> HttpResponse:
    """Say what became of it; show the job to a user who may see jobs."""
    site = model_admin.admin_site
    if made.existing is not None:
        text = gettext("There is such a job already, and it was kept: %(id)s.")
        level, key = messages.WARNING, made.existing.id
    else:
        text, level, key = gettext("The job was enqueued as %(id)s."), messages.SUCCESS, made.id
    model_admin.message_user(request, text % {"id": key}, level)
    url = display.page_url(site, request, Job, "change", key)
    return HttpResponseRedirect(url or reverse("admin:index", current_app=site.name))


def about_view(model_admin: Any, request: HttpRequest) -> HttpResponse:
    """What is known of the type that is typed.

    `{"schema": title, "fields": [text, …], "inputs": HTML}`, all empty without a schema.
    """
    if not model_admin.has_add_permission(request):
        raise PermissionDenied
    inputs = SchemaInputs(request.GET.get("type", "").strip())
    described = parts(inputs.schema.schema) if inputs.schema else ()
    return JsonResponse(
        {
            "schema": inputs.title,
            "fields": [part.described() for part in described],
            "inputs": render_to_string("admin/ojs/inputs.html", {"inputs": inputs}, request),
        }
    )

"""The form for a job: what the form for a new one and the form for an edited copy share."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import orjson
from django import forms
from django.contrib.admin.models import ADDITION
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import engine
from ..access.audit import of_request, record_action
from ..access.projects import assign_project
from ..conf import ojs_settings
from ..errors import DuplicateJob, InvalidPayload, OJSError
from ..http.body import parse_json
from ..models import ApiKey, Job, JobSchema, JobSpec, Queue, Scope, TypeRollup
from ..record import parts
from ..spec.validation import OPTION_NAMES, NewJob, accepted_job
from ..store import clock
from ..store.database import atomic
from .made_once import MadeAlready, form_id

ENQUEUED_ALREADY = _("This form was sent before: its job is enqueued already.")
WIDE = {"class": "vTextField", "autocomplete": "off"}
FIELDS = ("type", "queue", "priority", "args", "meta", "tags")
SAMPLE = 1000
"""Newest jobs whose types are suggested, beside those of the roll-ups."""
WORKS = {Scope.WORK, Scope.DATA_WRITE}
"""Scopes with which a worker fetches."""
CHOICES = 500
"""Most names that are suggested; any other can be typed all the same."""


class JSONText(forms.CharField):
    """A JSON document in a text area, indented; `forms.js` checks it while it is typed.

    What the API does not take in the body of a request is refused here too.

    Args:
        kind: `array` or `object`, what the document must be.
    """

    def __init__(self, *, rows: int, kind: str, **options: Any) -> None:
        looks = {
            "class": "vLargeTextField ojs-document",
            "spellcheck": "false",
            "rows": rows,
            "data-ojs-json": kind,
            "data-ojs-wrong": _("This is not valid JSON: %(problem)s"),
            "data-ojs-kind": _("A JSON array is needed here.")
            if kind == "array"
            else _("A JSON object is needed here."),
        }
        super().__init__(widget=forms.Textarea(attrs=looks), **options)

    def prepare_value(self, value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        return json.dumps(value, indent=2, ensure_ascii=False)

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text and not self.required:
            return None
        try:
            orjson.loads(text)
        except orjson.JSONDecodeError as problem:
            text = gettext("This is not valid JSON: %(problem)s") % {"problem": problem}
            raise ValidationError(text) from None
        try:
            return parse_json(text.encode())
        except InvalidPayload as refusal:
            raise ValidationError(refusal.message) from None


class Suggesting(forms.TextInput):
    """A text that the browser completes from `suggestions`; others may be typed."""

    suggestions: Sequence[str] = ()

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        if not self.suggestions:
            return super().render(name, value, attrs, renderer)
        key = f"suggested-{name}"
        return format_html(
            '{}<datalist id="{}">{}</datalist>',
            super().render(name, value, {**(attrs or {}), "list": key}, renderer),
            key,
            format_html_join("", '<option value="{}"></option>', ((n,) for n in self.suggestions)),
        )


class JobForm(forms.Form):
    required_css_class = "required"
    type = forms.CharField(label=_("Type"), max_length=255, widget=Suggesting(attrs=WIDE))
    queue = forms.CharField(label=_("Queue"), max_length=128, widget=Suggesting(attrs=WIDE))
    priority = forms.IntegerField(label=_("Priority"), localize=False)
    args = JSONText(label=_("Arguments"), rows=12, kind="array", help_text=_("A JSON array."))
    meta = JSONText(label=_("Meta"), rows=5, kind="object", help_text=_("A JSON object."))
    tags = JSONText(label=_("Tags"), rows=2, kind="array", help_text=_("A JSON array of texts."))
    delay_until = forms.CharField(
        label=_("Run at"),
        required=False,
        max_length=64,
        widget=forms.TextInput(attrs=WIDE),
        help_text=_("Empty for now; a moment, 2026-01-31T12:00:00Z; or in a while, +PT5M."),
    )
    reason = forms.CharField(
        label=_("Reason"), required=False, max_length=500, widget=forms.TextInput(attrs=WIDE)
    )

    def document(self) -> dict[str, Any]:
        """The enqueue request that was filled in."""
        document: dict[str, Any] = {name: self.cleaned_data[name] for name in FIELDS}
        if self.cleaned_data["delay_until"]:
            document["delay_until"] = self.cleaned_data["delay_until"].strip()
        return document

    def refuse(self, refusal: OJSError) -> None:
        """Show a refusal at the field that it names, or above all of them."""
        named = str(refusal.details.get("field", "")).removeprefix("options.")
        field = named.partition(".")[0].partition("[")[0]
        self.add_error(field if field in self.fields else None, refusal.message)


def other_options() -> JSONText:
    """The field for the options of a job that have no field of their own."""
    return JSONText(
        label=_("Other options"),
        rows=3,
        kind="object",
        required=False,
        help_text=_('As producers send them: {"max_attempts": 5, "timeout": 60000}. Empty: none.'),
    )


def check_options(
    options: Any, *, have_a_field: Collection[str], kept: Collection[str] = ()
) -> dict[str, Any]:
    """Return the other options of a job; a misspelt one is refused rather than stored.

    Args:
        have_a_field: options that the form asks for elsewhere.
        kept: names that the job had before, and may keep.

    Raises:
        ValidationError: they are no object, or one of them is not for this field.
    """
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise ValidationError(gettext("A JSON object is needed here."))
    for name in options:
        if name in have_a_field:
            text = gettext("“%(name)s” has a field of its own on this page.")
            raise ValidationError(text % {"name": name})
        if name not in OPTION_NAMES and name not in kept:
            text = gettext("There is no option “%(name)s”.")
            raise ValidationError(text % {"name": name[:64]})
    return options


def project_field() -> forms.ChoiceField:
    """The field for a job's project; `offer_projects` gives it its choices."""
    return forms.ChoiceField(
        label=_("Project"),
        required=False,
        help_text=_("Which keys see the job, and whose workers run it."),
    )


def offer_projects(form: forms.Form | forms.ModelForm) -> None:
    """Offer the projects of the API keys; without any there is nothing to choose."""
    if "project" not in form.fields:
        return
    found = projects()
    if not found:
        del form.fields["project"]
        return
    field: Any = form.fields["project"]
    field.choices = [("", _("none: for workers of no project")), *((one, one) for one in found)]
    form.initial.setdefault("project", _only_project())


def projects() -> list[str]:
    """The projects of the API keys that work."""
    keys = ApiKey.objects.usable().exclude(project="").order_by("project")
    return list(keys.values_list("project", flat=True).distinct()[:CHOICES])


def _only_project() -> str:
    """The project all of whose workers have keys; empty if some worker has none.

    A job without a project would then run nowhere.
    """
    if ojs_settings.ALLOW_ANONYMOUS:
        return ""
    keys = ApiKey.objects.usable().values_list("project", "scopes")
    working = {project for project, scopes in keys if WORKS.intersection(scopes)}
    return working.pop() if len(working) == 1 else ""


def suggest(form: forms.Form, request: HttpRequest) -> None:
    """Complete the names of types, queues and projects, for a user who may see them."""
    known = {
        "type": ("ojs_jobs.view_job", types),
        "queue": ("ojs_jobs.view_queue", queues),
        "project": ("ojs_jobs.view_apikey", projects),
    }
    for name, (permission, names) in known.items():
        if name in form.fields and request.user.has_perm(permission):
            widget: Any = form.fields[name].widget
            widget.suggestions = sorted(names())[:CHOICES]


def types() -> Iterable[str]:
    """Types that were registered, or that did anything lately."""
    newest = Job.objects.order_by("-pk").values_list("type", flat=True)[:SAMPLE]
    registered = JobSpec.objects.values_list("type", flat=True)[:CHOICES]
    described = JobSchema.objects.values_list("type", flat=True)[:CHOICES]
    return {*parts.names(TypeRollup), *registered, *described, *newest}


def queues() -> Iterable[str]:
    return Queue.objects.order_by("name").values_list("name", flat=True)[:CHOICES]


def enqueue(
    request: HttpRequest,
    document: dict[str, Any],
    reason: str,
    message: str,
    *,
    selection: dict[str, Any] | None = None,
    project: str = "",
    parent_results: Any = None,
) -> NewJob:
    """Enqueue the job of a form, and record it; call it inside of a transaction.

    Returns:
        The job; its `existing` is the one there was already, if a unique policy found it.

    Raises:
        OJSError: it was refused; nothing was enqueued.
        MadeAlready: the form has made its job.
    """
    key = form_id(request)
    if key is not None:
        document = document | {"id": str(key)}
    made = accepted_job(document, clock.now())
    made.parent_results = parent_results
    assign_project([made], project)
    with atomic():
        try:
            engine.enqueue([made])
        except DuplicateJob as refusal:
            if key is None or refusal.details.get("existing_job_id") != str(key):
                raise
            raise MadeAlready(Job(pk=key)) from None
        if made.existing is None:
            record_action(
                of_request(request),
                "enqueue_job",
                [Job(pk=made.id, type=made.type)],
                selection=selection,
                reason=reason,
                message=message,
                flag=ADDITION,
            )
    return made

"""Edit a copy of a job and enqueue it: to run a finished job again, or to correct a wrong one."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import ADDITION
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import engine
from ..access.audit import of_request, record_action
from ..access.projects import assign_project
from ..access.redaction import may_see, redact
from ..errors import OJSError
from ..models import Job
from ..spec.envelope import envelope
from ..spec.identifiers import parse_uuid
from ..spec.validation import CLASS_PATTERN, SYSTEM_MANAGED, NewJob, new_job
from ..store import clock
from ..store.database import atomic
from . import display

LEFT_OUT = SYSTEM_MANAGED | {"id", "scheduled_at", "expires_at", "unique"}
"""Fields of the original that a copy lacks. A unique policy would find the original."""
FIELDS = ("type", "queue", "priority", "args", "meta", "tags")
WIDE = {"class": "vTextField", "autocomplete": "off"}


class JSONText(forms.CharField):
    """A JSON document in a text area, indented."""

    def __init__(self, *, rows: int, **options: Any) -> None:
        looks = {"class": "vLargeTextField ojs-document", "spellcheck": "false", "rows": rows}
        super().__init__(widget=forms.Textarea(attrs=looks), **options)

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)

    def clean(self, value: Any) -> Any:
        try:
            return json.loads(super().clean(value), parse_constant=_no_number)
        except (ValueError, RecursionError) as problem:
            text = gettext("This is no JSON: %(problem)s") % {"problem": problem}
            raise ValidationError(text) from None


def _no_number(name: str) -> None:
    raise ValueError(name)


class CopyForm(forms.Form):
    type = forms.CharField(label=_("Type"), max_length=255, widget=forms.TextInput(attrs=WIDE))
    queue = forms.CharField(label=_("Queue"), max_length=128, widget=forms.TextInput(attrs=WIDE))
    priority = forms.IntegerField(label=_("Priority"), localize=False)
    args = JSONText(label=_("Arguments"), rows=12, help_text=_("A JSON array."))
    meta = JSONText(label=_("Meta"), rows=5, help_text=_("A JSON object."))
    tags = JSONText(label=_("Tags"), rows=2, help_text=_("A JSON array of texts."))
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


def may_copy(request: HttpRequest, job: Any) -> bool:
    """Whether this user may enqueue, and sees everything that the copy would contain."""
    user: Any = request.user
    if not user.has_perm("ojs_jobs.enqueue_job"):
        return False
    secret = (job.args, job.meta, job.attributes, job.parent_results)
    return may_see(user) or all(redact(value) == value for value in secret)


def copy_view(model_admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    """Show the form for the changes; enqueue the copy and show it."""
    job = model_admin.get_queryset(request).filter(pk=parse_uuid(object_id)).first()
    if job is None:
        raise Http404
    if not model_admin.has_view_permission(request, job) or not may_copy(request, job):
        raise PermissionDenied
    original = envelope(job)
    form = CopyForm(request.POST or None, initial={name: original[name] for name in FIELDS})
    if form.is_valid():
        made = _enqueue(request, job, original, form)
        if made is not None:
            text = gettext("The copy was enqueued as %(id)s.") % {"id": made.id}
            model_admin.message_user(request, text, messages.SUCCESS)
            site = model_admin.admin_site.name
            return HttpResponseRedirect(display.admin_url(site, "ojs_jobs_job", "change", made.id))
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "title": gettext("Edit a copy"),
        "original": job,
        "form": form,
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/ojs/copy.html", context)


def _enqueue(request: HttpRequest, job: Job, original: Any, form: CopyForm) -> NewJob | None:
    """Enqueue the copy; None if it was refused, with the reason in the form."""
    document = {name: value for name, value in original.items() if name not in LEFT_OUT}
    document |= {name: form.cleaned_data[name] for name in FIELDS}
    if form.cleaned_data["delay_until"]:
        document["delay_until"] = form.cleaned_data["delay_until"].strip()
    try:
        made = new_job(document, clock.now(), type_pattern=CLASS_PATTERN)
        made.parent_results = job.parent_results
        assign_project([made], job.project)
        with atomic():
            engine.enqueue([made])
            record_action(
                of_request(request),
                "enqueue_job",
                [Job(pk=made.id, type=made.type)],
                selection={"copy_of": str(job.pk)},
                reason=form.cleaned_data["reason"],
                message=gettext("Enqueued as an edited copy of %(id)s.") % {"id": job.pk},
                flag=ADDITION,
            )
    except OJSError as refusal:
        field = str(refusal.details.get("field", "")).partition(".")[0].partition("[")[0]
        form.add_error(field if field in form.fields else None, refusal.message)
        return None
    return made

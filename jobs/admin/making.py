"""A form for a new job, and what is known about a type while it is filled in."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..errors import DuplicateJob, OJSError
from ..models import Job, JobSchema
from ..spec.validation import OPTION_NAMES
from ..store.database import atomic
from . import display
from .job_form import JobForm, JSONText, enqueue, suggest

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
MOST_FIELDS = 50


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
    options = JSONText(
        label=_("Other options"),
        rows=3,
        kind="object",
        required=False,
        help_text=_('As producers send them: {"max_attempts": 5, "timeout": 60000}. Empty: none.'),
    )
    field_order = (
        "type",
        "args",
        "queue",
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
        options: Any = self.cleaned_data["options"]
        if options is None:
            return {}
        if not isinstance(options, dict):
            raise forms.ValidationError(gettext("A JSON object is needed here."))
        for name in options:
            if name in HAVE_A_FIELD:
                text = gettext("“%(name)s” has a field of its own on this page.")
                raise forms.ValidationError(text % {"name": name})
            if name not in OPTION_NAMES:
                text = gettext("There is no option “%(name)s”.")
                raise forms.ValidationError(text % {"name": name[:64]})
        return options

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
    asked = {name: value for name, value in request.GET.items() if name in NewJobForm.base_fields}
    form = NewJobForm(request.POST or None, initial=NEW | asked)
    suggest(form, request)
    if form.is_valid():
        made = _enqueue(request, form)
        if made is not None:
            return _show(model_admin, request, made)
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "title": gettext("New job"),
        "form": form,
        "about_url": reverse("admin:ojs_jobs_job_about", current_app=model_admin.admin_site.name),
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/ojs/new_job.html", context)


def _enqueue(request: HttpRequest, form: NewJobForm) -> Any:
    """Enqueue the job; None if it was refused, with the reason in the form."""
    try:
        with atomic():
            return enqueue(
                request, form.document(), form.cleaned_data["reason"], gettext("Enqueued by hand.")
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
    """What is known of the type that is typed: `{"schema": version, "fields": [text, …]}`."""
    if not model_admin.has_add_permission(request):
        raise PermissionDenied
    schema = JobSchema.objects.filter(type=request.GET.get("type", "")).first()
    if schema is None:
        return JsonResponse({"schema": "", "fields": []})
    title = gettext("Arguments of version %(version)s") % {"version": schema.version}
    return JsonResponse({"schema": title, "fields": list(_fields(schema.schema))[:MOST_FIELDS]})


def _fields(schema: Any) -> Any:
    """One line for each field that a JSON Schema of arguments describes."""
    if not isinstance(schema, dict):
        return
    items = schema.get("prefixItems") or schema.get("items")
    parts = items if isinstance(items, list) else [items if isinstance(items, dict) else schema]
    for place, part in enumerate(parts):
        if not isinstance(part, dict):
            continue
        members = part.get("properties")
        if not isinstance(members, dict):
            if part is not schema:
                yield _line(f"[{place}]", part, False)
            continue
        required = part.get("required")
        required = required if isinstance(required, list) else []
        before = f"[{place}]." if part is not schema else ""
        for name, member in members.items():
            yield _line(f"{before}{name}", member, name in required)


def _line(name: str, member: Any, is_required: bool) -> str:
    member = member if isinstance(member, dict) else {}
    kind = member.get("type") or ("enum" if "enum" in member else "")
    kind = " | ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
    choices = member.get("enum")
    said = [kind, gettext("required") if is_required else ""]
    said.append(", ".join(map(str, choices)) if isinstance(choices, list) else "")
    said.append(str(member.get("description", "")))
    return f"{name}: {'; '.join(part for part in said if part)}"[:300]

"""Job schemas: their versions, what each changed, who uses it; register, delete, set the mode."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..access.audit import of_request, record_action
from ..engine import schemas
from ..errors import OJSError
from ..models import Job, JobSchema, ValidationMode
from ..spec.json_schema import check_schema
from ..spec.operator_requests import NewSchema, SetValidation
from ..store.database import atomic
from . import display
from .base import ReadOnlyModelAdmin, may
from .confirm import Answer, Question, ReasonForm, ask, back, say, trace
from .job_form import WIDE, JSONText, Suggesting, suggest

NEWEST = 10_000
"""Newest jobs among which the users of a schema are counted."""
MOST_WORKERS = 50
MOST_LINES = 400
"""Lines of a difference that are shown."""
MOST_VERSIONS = 50


def fingerprint(*compared: Any) -> str:
    """Of a type, a version and a schema whose report was shown: only these are registered."""
    return hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()


class NewSchemaForm(forms.Form):
    required_css_class = "required"
    type = forms.CharField(label=_("Type"), max_length=255, widget=Suggesting(attrs=WIDE))
    version = forms.CharField(
        label=_("Version"),
        max_length=64,
        widget=forms.TextInput(attrs=WIDE),
        help_text=_(
            "Major, minor and patch: 2.1.0. Only a new major version may break the others."
        ),
    )
    schema = JSONText(
        label=_("Schema"),
        rows=20,
        kind="object",
        help_text=_(
            "JSON Schema 2020-12 of the arguments, which are an array. A schema of an object is "
            "about the only argument."
        ),
    )
    reason = forms.CharField(
        label=_("Reason"), required=False, max_length=500, widget=forms.TextInput(attrs=WIDE)
    )

    def refuse(self, refusal: OJSError) -> None:
        field = str(refusal.details.get("field", "")).partition(".")[0]
        self.add_error(field if field in self.fields else None, refusal.message)

    @property
    def fingerprint(self) -> str:
        return fingerprint(*(self.cleaned_data[name] for name in ("type", "version", "schema")))

    def compare(self) -> Report | None:
        """Compare it with the version before; None if it is refused: the form says why."""
        data = self.cleaned_data
        try:
            NewSchema.type.check(data["type"], "type")
            schemas.read_version(data["version"])
            check_schema(data["schema"])
            return report(data["type"], data["version"], data["schema"])
        except OJSError as refusal:
            self.refuse(refusal)
            return None


class ModeForm(ReasonForm):
    mode = forms.ChoiceField(
        label=_("Validation"),
        choices=[*ValidationMode.choices, ("", _("as for all others"))],
        required=False,
        initial=ValidationMode.WARN,
    )
    queue = forms.CharField(
        label=_("Only in the queue"),
        required=False,
        max_length=128,
        widget=forms.TextInput(attrs=WIDE),
        help_text=_("Empty: in all queues."),
    )
    field_order = ("mode", "queue", "reason")

    def clean_queue(self) -> str:
        try:
            return SetValidation.queue.check(self.cleaned_data["queue"], "queue")
        except OJSError as refusal:
            raise forms.ValidationError(refusal.message) from None


@dataclass
class Report:
    """A schema compared with the version before it."""

    found: schemas.Comparison
    difference: list[str]

    @property
    def previous(self) -> str:
        return self.found.previous.version if self.found.previous else ""

    @property
    def changes(self) -> list[str]:
        return [str(change) for change in self.found.changes]

    @property
    def is_allowed(self) -> bool:
        return self.found.is_allowed


def report(type: str, version: str | int, schema: dict[str, Any]) -> Report:
    found = schemas.compare(type, version, schema)
    lines = difference(found.previous.schema, schema) if found.previous else []
    return Report(found, lines)


def difference(old: Any, new: Any) -> list[str]:
    """The lines of two schemas that differ, with some around them."""
    before, after = (
        json.dumps(each, indent=2, ensure_ascii=False).splitlines() for each in (old, new)
    )
    lines = difflib.unified_diff(before, after, n=3, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++"))][:MOST_LINES]


@dataclass
class Users:
    """Who uses a version, among the newest jobs."""

    jobs: int
    unversioned: int
    others: int
    warned: int
    projects: list[str]


@admin.register(JobSchema)
class JobSchemaAdmin(ReadOnlyModelAdmin):
    list_display = ("type", "shown_version", "mode", "workers_declaring", "registered", "uri")
    search_fields = ("type", "uri")
    sortable_by = ("type", "registered")
    actions = ("set_mode", "remove")
    buttons: ClassVar[dict[str, Any]] = {
        "set_mode": _("Set validation"),
        "remove": _("Delete the schema"),
    }
    fieldsets = (
        (None, {"fields": ("type", "shown_version", "uri", "mode", "registered", "compatible")}),
        (_("Schema"), {"fields": ("shown_schema",)}),
        (_("Changes"), {"fields": ("compared_with", "breaking", "shown_difference")}),
        (
            _("Who uses it"),
            {"fields": ("workers_named", "newest_jobs", "projects", "other_versions")},
        ),
    )

    has_manage_permission = may("ojs_jobs.manage_schema")
    has_add_permission = may("ojs_jobs.manage_schema")

    def allowed(self, obj: Any) -> Collection[str]:
        return ("set_mode", "remove")

    def get_queryset(self, request: HttpRequest) -> Any:
        rows = super().get_queryset(request)
        match = request.resolver_match
        is_list = match is not None and (match.url_name or "").endswith("changelist")
        return rows.defer("schema", "compatible_with") if is_list else rows

    def add_figures(self, rows: Sequence[Any]) -> None:
        modes = schemas.modes()
        newest: dict[str, tuple[int, int]] = {}
        types = {row.type for row in rows}
        known = JobSchema.objects.filter(type__in=types).order_by("version_number", "patch")
        for type, *order in known.values_list("type", "version_number", "patch"):
            newest[type] = (order[0], order[1])
        for row in rows:
            row.is_latest = newest.get(row.type) == row.order
            row.mode = schemas.mode_of(modes, row.type, "")
            row.workers = schemas.users_of(row.type, row.version_number)
            row.queue_modes = [
                (queue, mode) for (type, queue), mode in modes.items() if type == row.type and queue
            ]

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            self.add_figures([row])
            row.report = report(row.type, row.version, row.schema)
            row.users = users(row)
        return row

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> Any:
        if not self.has_add_permission(request):
            raise PermissionDenied
        asked = {name: request.GET[name] for name in ("type", "version") if name in request.GET}
        form = NewSchemaForm(request.POST or None, initial=asked)
        suggest(form, request)
        found = form.compare() if form.is_valid() else None
        if found is not None and found.is_allowed:
            compared = request.POST.get("compared")
            if compared == form.fingerprint and self._register(request, form):
                return self._shown(request, form)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": gettext("Register a schema"),
            "form": form,
            "report": found if form.is_valid() else None,
            "fingerprint": form.fingerprint if form.is_valid() else "",
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/ojs/new_schema.html", context)

    def _register(self, request: HttpRequest, form: NewSchemaForm) -> bool:
        data = form.cleaned_data
        try:
            with atomic():
                row, _ = schemas.register(data["type"], data["version"], data["schema"])
                record_action(
                    of_request(request),
                    "manage_schema",
                    [row],
                    selection={"registered": str(row)},
                    reason=data["reason"],
                    message=gettext("Registered."),
                    flag=ADDITION,
                )
        except OJSError as refusal:
            form.refuse(refusal)
            return False
        return True

    def _shown(self, request: HttpRequest, form: NewSchemaForm) -> HttpResponse:
        row = schemas.find(form.cleaned_data["type"], form.cleaned_data["version"])
        text = gettext("The schema of %(name)s is registered.") % {"name": row}
        self.message_user(request, text, messages.SUCCESS)
        site = self.admin_site
        url = display.page_url(site, request, JobSchema, "change", row.pk)
        return HttpResponseRedirect(url or reverse("admin:index", current_app=site.name))

    @admin.display(description=_("version"), ordering="version_number")
    def shown_version(self, row: Any) -> str | SafeString:
        if not row.is_latest:
            return str(row.version)
        return format_html("{} {}", row.version, display.chip("active", gettext("latest")))

    @admin.display(description=_("validation"))
    def mode(self, row: Any) -> str | SafeString:
        kinds = {"strict": "dead", "warn": "paused", "off": "scheduled"}
        shown = display.chip(kinds.get(row.mode, ""), row.mode)
        others = ", ".join(f"{queue}: {mode}" for queue, mode in row.queue_modes)
        return format_html('{} <span class="ojs-quiet">{}</span>', shown, others)

    @admin.display(description=_("workers"))
    def workers_declaring(self, row: Any) -> int:
        return len(row.workers)

    @admin.display(description=_("registered"), ordering="created_at")
    def registered(self, row: JobSchema) -> str | SafeString:
        return display.when(row.created_at)

    @admin.display(description=_("compatible with"))
    def compatible(self, row: JobSchema) -> str | SafeString:
        return display.chips(row.compatible_with)

    @admin.display(description=_("JSON Schema"))
    def shown_schema(self, row: JobSchema) -> str | SafeString:
        return display.json_block(row.schema)

    @admin.display(description=_("compared with"))
    def compared_with(self, row: Any) -> str | SafeString:
        previous = row.report.found.previous
        return self._link(previous) if previous else gettext("nothing: it is the first version")

    @admin.display(description=_("breaking changes"))
    def breaking(self, row: Any) -> str | SafeString:
        changes = ((change,) for change in row.report.changes)
        return format_html_join("", "<div>{}</div>", changes) or gettext("none")

    @admin.display(description=_("difference"))
    def shown_difference(self, row: Any) -> str | SafeString:
        lines = row.report.difference
        if not lines:
            return display.NOTHING
        return display.block("\n".join(lines))

    @admin.display(description=_("workers that declare it"))
    def workers_named(self, row: Any) -> str | SafeString:
        shown = format_html_join(
            " ",
            "{}",
            (
                (display.worker_link(self.admin_site.name, name),)
                for name in row.workers[:MOST_WORKERS]
            ),
        )
        rest = len(row.workers) - MOST_WORKERS
        if rest > 0:
            more = gettext("and %(count)d more") % {"count": rest}
            return format_html("{} {}", shown, more)
        return shown or gettext("none; workers without a range take every version")

    @admin.display(description=_("among the newest jobs"))
    def newest_jobs(self, row: Any) -> str:
        found = row.users
        return gettext(
            "%(jobs)d of this version, %(unversioned)d without a version, %(others)d of other "
            "versions; %(warned)d do not match their schema."
        ) % {
            "jobs": found.jobs,
            "unversioned": found.unversioned,
            "others": found.others,
            "warned": found.warned,
        }

    @admin.display(description=_("projects that enqueue it"))
    def projects(self, row: Any) -> str | SafeString:
        return display.chips(row.users.projects)

    @admin.display(description=_("other versions"))
    def other_versions(self, row: JobSchema) -> str | SafeString:
        others = JobSchema.objects.filter(type=row.type).exclude(pk=row.pk)
        links = ((self._link(other),) for other in others.only("type", "version")[:MOST_VERSIONS])
        return format_html_join(" ", "{}", links) or display.NOTHING

    def _link(self, row: JobSchema) -> str | SafeString:
        url = display.admin_url(self.admin_site.name, "ojs_jobs_jobschema", "change", row.pk)
        return display.link(url, row.version)

    @admin.action(description=_("Set validation of selected types"), permissions=["manage"])
    def set_mode(self, request: HttpRequest, queryset: Any) -> Any:
        answer = ask(self, request, queryset, SET_MODE)
        if not isinstance(answer, Answer):
            return answer
        types = sorted({row.type for row in answer.objects})
        mode, queue = answer.data["mode"] or None, answer.data["queue"]
        with atomic():
            for type in types:
                schemas.set_mode(mode, type=type, queue=queue)
            trace(
                request,
                "manage_schema",
                answer.objects,
                answer,
                selection=answer.selection | {"mode": mode, "queue": queue},
                message=gettext("Validation set."),
            )
        done = len(types)
        text = ngettext(
            "The validation of %(count)d job type is set.",
            "The validation of %(count)d job types is set.",
            done,
        )
        return say(self, request, done, text % {"count": done}, done)

    @admin.action(description=_("Delete selected schemas"), permissions=["manage"])
    def remove(self, request: HttpRequest, queryset: Any) -> Any:
        answer = ask(self, request, queryset, REMOVE)
        if not isinstance(answer, Answer):
            return answer
        done = []
        for row in answer.objects:
            try:
                with atomic():
                    schemas.delete(row.type, row.version)
                    trace(request, "manage_schema", [row], answer, message=gettext("Deleted."))
                    done.append(row)
            except OJSError as refusal:
                self.message_user(request, refusal.message, messages.WARNING)
        count = len(done)
        text = ngettext("%(count)d schema was deleted.", "%(count)d schemas were deleted.", count)
        self.message_user(
            request, text % {"count": count}, messages.SUCCESS if count else messages.WARNING
        )
        # The page of a deleted one is gone.
        if done and len(answer.objects) == 1:
            return HttpResponseRedirect(
                reverse("admin:ojs_jobs_jobschema_changelist", current_app=self.admin_site.name)
            )
        return back(request)


def users(row: JobSchema) -> Users:
    """Count the newest jobs of the type by version."""
    # One range of the primary key: looking up each of them takes ten times as long.
    newest = Job.objects.order_by("-pk").values_list("pk", flat=True)
    found = Job.objects.filter(type=row.type).order_by()
    for oldest in newest[NEWEST - 1 : NEWEST]:
        found = found.filter(pk__gte=oldest)
    counts = found.aggregate(
        jobs=Count("pk", filter=Q(version_number=row.version_number)),
        unversioned=Count("pk", filter=Q(version_number=None)),
        every=Count("pk"),
        warned=Count("pk", filter=Q(attributes__has_key="warnings")),
    )
    others = counts.pop("every") - counts["jobs"] - counts["unversioned"]
    projects = found.filter(version_number=row.version_number).exclude(project="")
    names = list(projects.values_list("project", flat=True).distinct()[:MOST_WORKERS])
    return Users(**counts, others=others, projects=sorted(names))


SET_MODE = Question(
    action="set_mode",
    title=_("Set validation"),
    consequence=_(
        "From now on jobs of these types are checked in this way when they are enqueued. Jobs that "
        "were enqueued before are not affected."
    ),
    button=_("Set the validation of these types"),
    form_class=ModeForm,
)
REMOVE = Question(
    action="remove",
    title=_("Delete schemas"),
    consequence=_(
        "Jobs of these versions are no longer checked. Jobs that were enqueued before are not "
        "affected. A version that live workers declare is kept."
    ),
    button=_("Delete these schemas"),
    is_destructive=True,
)

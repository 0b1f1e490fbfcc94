"""Pages of a job, in whichever list it was found: columns, search, and the job's own page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.contrib import admin
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..access.redaction import may_see, redact_prose, redact_quotes
from ..engine import progress_of
from ..models import Job
from ..spec.envelope import ERROR_FIELDS, due_at, envelope
from ..spec.lifecycle import State
from ..spec.versions import version_text
from . import display
from .base import ReadOnlyModelAdmin
from .clear_text import clear_view, closed_values, may_decode
from .copying import copy_view, may_copy, related
from .export import as_csv
from .job_list import (
    PREVIEW,
    LongestRunning,
    NewestDead,
    NewestJobs,
    SoonestDue,
    is_by_due,
    is_running,
)
from .lineage import lineage
from .notices import maintenance_now
from .search import HELP
from .timeline import bar, timeline
from .why import in_words, why

OPTIONAL = {
    "project": "project",
    "shown_version": "version_number",
    "tag_list": "tags",
    "shown_progress": "progress_report",
    "shown_workflow": "workflow_id",
    "pretty_parents": "parent_results",
    "pretty_meta": "meta",
    "scheduled": "scheduled_at",
    "started": "started_at",
    "reserved": "reserved_until",
    "finished": "finished_at",
    "expires": "expires_at",
    "holder": "reserved_until",
    "finisher": "finished_by",
    "shown_unfenced": "unfenced",
    "pretty_retry": "retry",
}
"""Fields of the page that are shown only if this attribute of the job has a value."""
LINES_SHOWN = 200


class JobPages(ReadOnlyModelAdmin):
    """Shared by the two lists of jobs: a job's page, search and columns."""

    change_form_template = "admin/ojs/job.html"
    change_list_template = "admin/ojs/jobs.html"
    sensitive = ("args", "meta", "result", "attributes", "parent_results")
    is_searched_by_id = True
    """The list is in the order of ids, so that the newest can be searched first."""
    search_fields = ("id", "type")
    search_help_text = HELP
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "identity",
                    ("type", "queue"),
                    "shown_version",
                    ("shown_state", "attempts", "priority"),
                    "project",
                    "tag_list",
                    "shown_progress",
                    "shown_workflow",
                )
            },
        ),
        (
            _("Arguments"),
            {"fields": ("pretty_args", "pretty_meta", "pretty_parents", "pretty_result")},
        ),
        (
            _("Times"),
            {
                "fields": (
                    "created",
                    "scheduled",
                    "enqueued",
                    "started",
                    "reserved",
                    "finished",
                    "expires",
                )
            },
        ),
        (_("Worker"), {"fields": ("holder", "finisher", "shown_unfenced")}),
        (
            _("Limits"),
            {
                "classes": ("collapse",),
                "fields": (
                    ("shown_timeout", "shown_visibility_timeout"),
                    "pretty_retry",
                    ("backoff", "dead_letter"),
                ),
            },
        ),
        (_("Envelope"), {"classes": ("collapse",), "fields": ("raw",)}),
    )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Leave out fields and sections without a value."""
        if obj is None:
            return self.fieldsets
        empty = {name for name, column in OPTIONAL.items() if not getattr(obj, column, None)}
        return [
            (title, options | {"fields": [name for name in options["fields"] if name not in empty]})
            for title, options in self.fieldsets
            if not empty.issuperset(options["fields"])
        ]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return queryset, False  # `JobChangeList` searches, once it knows among which jobs

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        if not self.is_searched_by_id:
            return NewestDead
        if is_running(request):
            return LongestRunning
        return SoonestDue if is_by_due(request) else NewestJobs

    def get_urls(self) -> Any:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        ours = [
            path(route, self.admin_site.admin_view(view), name=f"{name}_{page}")
            for page, route, view in self.own_views()
        ]
        return ours + super().get_urls()

    def own_views(self) -> list[tuple[str, str, Any]]:
        """Name, route and view of each page that Django's admin lacks."""
        return [
            ("csv", "csv/", self.csv_view),
            ("copy", "<str:object_id>/copy/", self.copy_view),
            ("clear", "<str:object_id>/clear/", self.clear_view),
        ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        jobs: QuerySet[Any] = super().get_queryset(request)
        address = request.resolver_match
        is_page = bool(address and str(address.url_name).endswith("_change"))
        return jobs.select_related("progress_report") if is_page else jobs

    def clear_view(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        return clear_view(self, request, object_id)

    def copy_view(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        return copy_view(self, request, object_id)

    def csv_view(self, request: HttpRequest) -> HttpResponseBase:
        """Export everything that the list shows with these filters."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        changes: Any = self.get_changelist_instance(request)
        if changes.problem:
            raise BadRequest(changes.problem)
        jobs = changes.get_queryset(request)
        return as_csv(jobs, str(self.opts.model_name), is_redacted=not may_see(request.user))

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        job = kwargs["obj"]
        errors = list(job.errors.order_by("-pk"))
        # For the envelope, which is hidden as a whole.
        job.error_rows = [
            {name: getattr(error, name) for name in ERROR_FIELDS} for error in reversed(errors)
        ]
        for error in errors if job.is_redacted else ():
            for name, shown in redact_quotes(_quoting(error)).items():
                setattr(error, name, shown)
        context["errors_of_job"] = [
            (error, display.worker_link(self.admin_site.name, error.worker_id)) for error in errors
        ]
        lines = list(job.logs.order_by("-pk")[:LINES_SHOWN])
        for line in lines if job.is_redacted else ():
            line.message = redact_prose(line.message)
        context["lines_of_job"] = lines
        context["timeline"] = timeline(job, self.admin_site.name)
        context["bar"] = bar(context["timeline"])
        context["original_of_job"], context["copies_of_job"] = related(job, self.admin_site.name)
        context["lineage"] = lineage(job, self.admin_site.name)
        job.maintenance = maintenance_now(request)
        context["why"] = why(job)
        context["reasons"] = in_words(context["why"], self.admin_site, request)
        if may_copy(request, job):
            context["copy_url"] = display.admin_url(
                self.admin_site.name, "ojs_jobs_job", "copy", job.pk
            )
        if may_decode(request) and closed_values(job):
            model = f"ojs_jobs_{self.opts.model_name}"
            context["clear_url"] = display.admin_url(self.admin_site.name, model, "clear", job.pk)
        return super().render_change_form(request, context, *args, **kwargs)

    # Columns

    @admin.display(description=_("job"), ordering="id")
    def short_id(self, job: Job) -> SafeString:
        return display.ident(str(job.pk))

    @admin.display(description=_("state"), ordering="state")
    def shown_state(self, job: Job) -> SafeString:
        return display.chip(job.state)

    @admin.display(description=_("attempts"), ordering="attempt")
    def attempts(self, job: Job) -> str:
        return f"{job.attempt} / {job.max_attempts}"

    @admin.display(description=_("arguments"))
    def short_args(self, job: Any) -> SafeString:
        return display.code(job.args_preview, PREVIEW)

    @admin.display(description=_("worker"))
    def worker(self, job: Job) -> str | SafeString:
        return display.worker_link(self.admin_site.name, job.reserved_by or job.finished_by)

    # Fields of the page

    @admin.display(description=_("id"))
    def identity(self, job: Job) -> SafeString:
        return format_html('<code data-ojs-copy="{}">{}</code>', job.pk, job.pk)

    @admin.display(description=_("version"))
    def shown_version(self, job: Job) -> str:
        return version_text(job.version_number) if job.version_number is not None else ""

    @admin.display(description=_("tags"))
    def tag_list(self, job: Job) -> str | SafeString:
        return display.chips(str(tag) for tag in job.tags or ())

    @admin.display(description=_("arguments"))
    def pretty_args(self, job: Job) -> str | SafeString:
        return display.json_block(job.args)

    @admin.display(description=_("meta"))
    def pretty_meta(self, job: Job) -> str | SafeString:
        return display.json_block(job.meta or None)

    @admin.display(description=_("result"))
    def pretty_result(self, job: Job) -> str | SafeString:
        return display.json_block(job.result)

    @admin.display(description=_("results before it"))
    def pretty_parents(self, job: Job) -> str | SafeString:
        return display.json_block(job.parent_results)

    @admin.display(description=_("progress"))
    def shown_progress(self, job: Any) -> str | SafeString:
        reported = progress_of(job.pk)
        if job.is_redacted:
            redacted = redact_quotes({"message": reported.message, "data": reported.data})
            reported = replace(reported, **redacted)
        return display.progress(reported)

    @admin.display(description=_("workflow"))
    def shown_workflow(self, job: Job) -> str | SafeString:
        model = "ojs_jobs_workflow"
        url = display.admin_url(self.admin_site.name, model, "change", job.workflow_id)
        return display.link(url, str(job.workflow_id))

    @admin.display(description=_("retry policy"))
    def pretty_retry(self, job: Job) -> str | SafeString:
        return display.json_block(job.retry)

    @admin.display(description=_("timeout"))
    def shown_timeout(self, job: Job) -> str:
        return display.length(job.timeout)

    @admin.display(description=_("visibility timeout"))
    def shown_visibility_timeout(self, job: Job) -> str:
        return display.length(job.visibility_timeout)

    @admin.display(description=_("last backoff"))
    def backoff(self, job: Job) -> str:
        return display.length(job.retry_delay)

    @admin.display(description=_("created"))
    def created(self, job: Job) -> str | SafeString:
        return display.moment(job.created_at)

    @admin.display(description=_("due"))
    def scheduled(self, job: Job) -> str | SafeString:
        return display.moment(due_at(job))

    @admin.display(description=_("enqueued"), ordering="enqueued_at")
    def enqueued(self, job: Job) -> str | SafeString:
        return display.moment(job.enqueued_at)

    @admin.display(description=_("started"))
    def started(self, job: Job) -> str | SafeString:
        return display.moment(job.started_at)

    @admin.display(description=_("reserved until"))
    def reserved(self, job: Job) -> str | SafeString:
        return display.moment(job.reserved_until)

    @admin.display(description=_("finished"))
    def finished(self, job: Job) -> str | SafeString:
        if job.finished_at and job.started_at:
            lasted = display.lasted(job.finished_at - job.started_at)
            after = gettext("%(span)s after it was started") % {"span": lasted}
            return format_html("{}, {}", display.moment(job.finished_at), after)
        return display.moment(job.finished_at)

    @admin.display(description=_("expires"))
    def expires(self, job: Job) -> str | SafeString:
        return display.moment(job.expires_at)

    @admin.display(description=_("held by"))
    def holder(self, job: Job) -> str | SafeString:
        if job.state == State.ACTIVE and not job.reserved_by:
            return gettext("a worker that did not say its name")
        return display.worker_link(self.admin_site.name, job.reserved_by)

    @admin.display(description=_("finished by"))
    def finisher(self, job: Job) -> str | SafeString:
        return display.worker_link(self.admin_site.name, job.finished_by)

    @admin.display(description=_("unfenced"))
    def shown_unfenced(self, job: Job) -> str:
        if not job.unfenced:
            return display.NOTHING
        return gettext("The request that settled it did not say which worker sent it.")

    @admin.display(description=_("envelope"))
    def raw(self, job: Any) -> str | SafeString:
        document = envelope(job, job.error_rows)
        return display.json_block(redact_quotes(document) if job.is_redacted else document)


def _quoting(error: Any) -> dict[str, Any]:
    """Return the parts of an error that may quote hidden values."""
    return {name: getattr(error, name) for name in ("message", "backtrace", "details")}

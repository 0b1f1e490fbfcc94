"""Dead letter: jobs that failed for good, to retry or discard (OJS dead letter §6)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.db.models import QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..access.redaction import redact_prose
from ..models import DeadJob, Job, JobError
from ..spec.identifiers import parse_uuid
from . import display
from .base import may
from .confirm import Answer, ask
from .filters import DeadTypeFilter, DiscardedFilter, LastErrorFilter, QueueFilter
from .job import DISCARD, RETRY, JobAdmin, discard, retry
from .job_page import JobPages
from .matrix import matrix

MESSAGE = 120


@admin.register(DeadJob)
class DeadJobAdmin(JobPages):
    list_display = ("short_id", "type", "queue", "attempts", "since", "last_error", "short_args")
    list_filter = (QueueFilter, DeadTypeFilter, LastErrorFilter, DiscardedFilter)
    ordering = ("-finished_at", "-id")
    is_searched_by_id = False
    sortable_by = ()
    actions = ("retry", "discard")
    buttons: ClassVar[dict[str, Any]] = {"retry": _("Retry"), "discard": _("Discard")}

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        # In “Select all 17 dead jobs”: the name of the model is that of the list.
        figures: dict[str, Any] = {"module_name": gettext("dead jobs")}
        if request.method != "POST":
            figures["matrix"] = matrix(request)
            figures["may_retry"] = self.has_retry_permission(request)
        return super().changelist_view(request, figures | (extra_context or {}))

    has_retry_permission = may("ojs_jobs.retry_job")
    has_discard_permission = may("ojs_jobs.discard_job")

    def allowed(self, obj: Any) -> Collection[str]:
        return self.buttons

    def add_figures(self, jobs: Sequence[Any]) -> None:
        errors = (
            JobError.objects.filter(job__in=[job.pk for job in jobs])
            .order_by("pk")
            .values_list("job_id", "type", Left("message", MESSAGE + 1))
        )
        last = {job_id: (kind, message) for job_id, kind, message in errors}
        for job in jobs:
            job.error = last.get(job.pk)

    @admin.display(description=_("last error"))
    def last_error(self, job: Any) -> str | SafeString:
        if job.error is None:
            return display.NOTHING
        kind, message = job.error
        if job.is_redacted:
            message = redact_prose(message)
        return format_html(
            '<strong>{}</strong> <span class="ojs-quiet">{}</span>',
            kind,
            Truncator(message).chars(MESSAGE),
        )

    @admin.display(description=_("discarded"))
    def since(self, job: Job) -> str | SafeString:
        return display.when(job.finished_at)

    def _get_obj_does_not_exist_redirect(
        self, request: HttpRequest, opts: Any, object_id: str
    ) -> HttpResponse:
        """Lead to where the job is now: it may have been retried, from this page or elsewhere."""
        key = parse_uuid(unquote(object_id))
        if key is None or not Job.objects.filter(pk=key).exists():
            pages: Any = super()
            response: HttpResponse = pages._get_obj_does_not_exist_redirect(
                request, opts, object_id
            )
            return response
        site = self.admin_site
        jobs = site._registry.get(Job)
        if jobs is not None and jobs.has_view_permission(request):
            return HttpResponseRedirect(display.admin_url(site.name, "ojs_jobs_job", "change", key))
        self.message_user(request, gettext("This job is no longer dead."), messages.WARNING)
        return HttpResponseRedirect(display.admin_url(site.name, "ojs_jobs_deadjob", "changelist"))

    def history_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> Any:
        """Show the same history in both lists: a job has only one."""
        pages: Any = JobAdmin(Job, self.admin_site)
        dead = self.get_queryset(request).filter(pk=parse_uuid(unquote(object_id)))
        if self.has_view_or_change_permission(request) and dead.exists():
            # A user who sees the job in the dead letter sees its history there.
            pages.has_view_permission = lambda request, obj=None: True
        return pages.history_view(request, object_id, *args, **kwargs)

    @admin.action(description=_("Retry selected jobs"), permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        answer = ask(self, request, queryset, RETRY)
        return retry(self, request, answer) if isinstance(answer, Answer) else answer

    @admin.action(description=_("Discard selected jobs for good"), permissions=["discard"])
    def discard(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        answer = ask(self, request, queryset, DISCARD)
        return discard(self, request, answer) if isinstance(answer, Answer) else answer

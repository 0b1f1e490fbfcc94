"""Jobs: find them, read them, cancel them, retry them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from .. import engine
from ..database import atomic
from ..errors import InvalidTransition, JobNotFound
from ..lifecycle import Event, State, sources
from ..models import Job
from . import display
from .base import may
from .confirm import Answer, Question, ask, say, trace
from .filters import QueueFilter, StateFilter, TypeFilter
from .job_page import JobPages


def summary(jobs: Sequence[Job]) -> dict[str, Any]:
    """How many jobs of which type are in which queue and state: for a confirmation page."""
    groups: dict[tuple[str, str, str], int] = {}
    for job in jobs:
        key = (job.type, job.queue, job.state)
        groups[key] = groups.get(key, 0) + 1
    rows = [(*key, count) for key, count in groups.items()]
    return {"groups": sorted(rows, key=lambda row: -row[3])}


@admin.register(Job)
class JobAdmin(JobPages):
    """Every job, newest first."""

    list_display = (
        "short_id",
        "type",
        "queue",
        "shown_state",
        "attempts",
        "waiting_since",
        "worker",
        "short_args",
    )
    list_filter = (StateFilter, QueueFilter, TypeFilter)
    # The primary key is a UUIDv7: newest first costs no sort, and a keyset can go on from any row.
    ordering = ("-id",)
    sortable_by = ()
    actions = ("cancel", "retry")
    buttons: ClassVar[dict[str, Any]] = {"cancel": _("Cancel"), "retry": _("Retry")}

    @admin.display(description=_("enqueued"))
    def waiting_since(self, job: Job) -> str | SafeString:
        return display.when(job.enqueued_at)

    def allowed(self, obj: Any) -> Collection[str]:
        rules = {
            "cancel": sources(Event.CANCEL, State.CANCELLED),
            "retry": sources(Event.RETRY, State.AVAILABLE),
        }
        return [verb for verb, states in rules.items() if obj.state in states]

    has_cancel_permission = may("ojs_jobs.cancel_job")
    has_retry_permission = may("ojs_jobs.retry_job")

    @admin.action(description=_("Cancel selected jobs"), permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Job]) -> Any:
        answer = ask(self, request, queryset, CANCEL)
        if not isinstance(answer, Answer):
            return answer
        # In the order in which every batch locks jobs.
        chosen = sorted(answer.objects, key=lambda job: job.pk)
        with atomic():
            cancelled = [job for job in chosen if self._cancel(request, job, answer.reason)]
            trace(request, "cancel_job", cancelled, answer, message=gettext("Cancelled."))
        done = len(cancelled)
        text = ngettext("%(count)d job was cancelled.", "%(count)d jobs were cancelled.", done)
        return say(self, request, done, text % {"count": done}, len(answer.objects))

    def _cancel(self, request: HttpRequest, job: Job, reason: str) -> bool:
        with atomic():
            try:
                engine.cancel(job.pk, cancelled_by=request.user.get_username(), reason=reason)
            except (InvalidTransition, JobNotFound):
                return False  # it finished, or was deleted, while the operator was asked
        return True

    @admin.action(description=_("Retry selected discarded jobs"), permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: QuerySet[Job]) -> Any:
        answer = ask(self, request, queryset, RETRY)
        return retry(self, request, answer) if isinstance(answer, Answer) else answer


def retry(model_admin: Any, request: HttpRequest, answer: Answer) -> Any:
    """Retry what was asked about, and write it into the history of those that could be."""
    with atomic():
        jobs = discarded(answer.ids)
        done = engine.retry([job.pk for job in jobs])
        trace(request, "retry_job", jobs, answer, message=gettext("Retried."))
    text = ngettext(
        "%(count)d job is available again, with fresh attempts.",
        "%(count)d jobs are available again, with fresh attempts.",
        done,
    )
    return say(model_admin, request, done, text % {"count": done}, len(answer.objects))


def discarded(ids: Collection[Any]) -> list[Job]:
    """Lock those of `ids` that are discarded.

    As jobs, wherever they were listed: a job has one history.
    """
    jobs = Job.objects.filter(pk__in=ids, state=State.DISCARDED).only("type")
    return list(jobs.select_for_update().order_by("pk"))


CANCEL = Question(
    action="cancel",
    title=_("Cancel jobs"),
    consequence=_(
        "Jobs that wait will never run. The worker of an active job is told at its next heartbeat "
        "that it no longer holds it; what it has done by then is done. Finished jobs are left "
        "alone. There is no way back."
    ),
    button=_("Cancel these jobs"),
    is_destructive=True,
    template="admin/ojs/confirm_jobs.html",
    details=summary,
)
RETRY = Question(
    action="retry",
    title=_("Retry jobs"),
    consequence=_(
        "Discarded jobs become available at once, with all their attempts. Their errors stay in "
        "their history. Jobs that are not discarded are left alone."
    ),
    button=_("Retry these jobs"),
    template="admin/ojs/confirm_jobs.html",
    details=summary,
)

"""Jobs: find, read, cancel and retry them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.db.models import QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from .. import engine
from ..access.audit import Tally, of_request
from ..models import Job
from ..record import dashboard
from ..spec.lifecycle import TERMINAL, Event, State, sources
from . import display
from .base import may
from .confirm import Answer, Question, ask, back_to_list, in_batches, say
from .filters import CreatedFilter, QueueFilter, StateFilter, TypeFilter
from .job_list import is_by_due, is_running
from .job_page import JobPages
from .making import about_view, add_view

SUMMARY = ("type", "queue", "state")


def summary(jobs: Sequence[Job]) -> dict[str, Any]:
    """Count jobs by type, queue and state: for a confirmation page."""
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
    list_filter = (StateFilter, QueueFilter, TypeFilter, CreatedFilter)
    lookups = ("workflow",)
    # The primary key is a UUIDv7: newest first needs no sort, and a keyset can start at any row.
    ordering = ("-id",)
    sortable_by = ()
    actions = ("retry", "run_now", "cancel", "discard", "erase")
    buttons: ClassVar[dict[str, Any]] = {
        "cancel": _("Cancel"),
        "retry": _("Retry"),
        "run_now": _("Run now"),
        "discard": _("Discard"),
        "erase": _("Erase"),
    }

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        counts = {} if request.method == "POST" else {"state_counts": dashboard.state_counts()}
        return super().changelist_view(request, counts | (extra_context or {}))

    def get_list_display(self, request: HttpRequest) -> Any:
        moment = "waiting_since"
        if is_by_due(request):
            moment = "due"
        elif is_running(request):
            moment = "running_since"
        return [moment if name == "waiting_since" else name for name in self.list_display]

    @admin.display(description=_("started"))
    def running_since(self, job: Job) -> str | SafeString:
        return display.when(job.started_at)

    @admin.display(description=_("due"))
    def due(self, job: Job) -> str | SafeString:
        return display.when(job.scheduled_at)

    @admin.display(description=_("enqueued"))
    def waiting_since(self, job: Job) -> str | SafeString:
        return display.when(job.enqueued_at)

    def allowed(self, obj: Any) -> Collection[str]:
        return [verb for verb, states in STATES.items() if obj.state in states]

    has_add_permission = may("ojs_jobs.enqueue_job")

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> Any:
        return add_view(self, request)

    def about_view(self, request: HttpRequest) -> HttpResponseBase:
        return about_view(self, request)

    def own_views(self) -> list[tuple[str, str, Any]]:
        return [("about", "about/", self.about_view), *super().own_views()]

    has_cancel_permission = may("ojs_jobs.cancel_job")
    has_retry_permission = may("ojs_jobs.retry_job")
    has_run_permission = may("ojs_jobs.run_job")
    has_discard_permission = may("ojs_jobs.discard_job")
    has_erase_permission = may("ojs_jobs.erase_job")

    @admin.action(description=_("Cancel selected jobs"), permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Job]) -> Any:
        answer = ask(self, request, queryset, CANCEL)
        if not isinstance(answer, Answer):
            return answer
        who = {"cancelled_by": request.user.get_username(), "reason": answer.reason}
        done = in_batches(
            request,
            "cancel_job",
            answer,
            lambda ids: engine.cancel_jobs(ids, **who),
            message=gettext("Cancelled."),
        )
        text = ngettext("%(count)d job was cancelled.", "%(count)d jobs were cancelled.", done)
        return say(self, request, done, text % {"count": done}, len(answer.objects))

    @admin.action(description=_("Run selected waiting jobs now"), permissions=["run"])
    def run_now(self, request: HttpRequest, queryset: QuerySet[Job]) -> Any:
        answer = ask(self, request, queryset, RUN_NOW)
        if not isinstance(answer, Answer):
            return answer
        message = gettext("Made available.")
        done = in_batches(request, "run_job", answer, engine.run_now, message=message)
        text = ngettext(
            "%(count)d job is available now.", "%(count)d jobs are available now.", done
        )
        return say(self, request, done, text % {"count": done}, len(answer.objects))

    @admin.action(description=_("Retry selected discarded jobs"), permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: QuerySet[Job]) -> Any:
        answer = ask(self, request, queryset, RETRY)
        return retry(self, request, answer) if isinstance(answer, Answer) else answer

    @admin.action(description=_("Discard selected dead jobs for good"), permissions=["discard"])
    def discard(self, request: HttpRequest, queryset: QuerySet[Job]) -> Any:
        answer = ask(self, request, queryset, DISCARD)
        return discard(self, request, answer) if isinstance(answer, Answer) else answer

    @admin.action(description=_("Erase selected finished jobs"), permissions=["erase"])
    def erase(self, request: HttpRequest, queryset: QuerySet[Job]) -> Any:
        answer = ask(self, request, queryset, ERASE)
        return erase(self, request, answer) if isinstance(answer, Answer) else answer


def retry(model_admin: Any, request: HttpRequest, answer: Answer) -> Any:
    """Retry the confirmed jobs, and record it in the history of those that were retried."""

    def run(ids: list[Any]) -> list[Any]:
        jobs = engine.lock_retriable(Job.objects.filter(pk__in=ids))
        engine.retry_locked(jobs)
        return [job.pk for job in jobs]

    done = in_batches(request, "retry_job", as_jobs(answer), run, message=gettext("Retried."))
    text = ngettext(
        "%(count)d job is available again, with fresh attempts.",
        "%(count)d jobs are available again, with fresh attempts.",
        done,
    )
    return say(model_admin, request, done, text % {"count": done}, len(answer.objects))


def discard(model_admin: Any, request: HttpRequest, answer: Answer) -> Any:
    """Delete those of the confirmed jobs that are still discarded, and may be deleted."""

    def run(ids: list[Any]) -> list[Any]:
        chosen = engine.lock_deletable(Job.objects.filter(pk__in=ids, state=State.DISCARDED))
        engine.delete_dead(chosen)
        return chosen

    message = gettext("Deleted from the dead letter.")
    done = in_batches(request, "discard_job", as_jobs(answer), run, message=message, flag=DELETION)
    text = ngettext(
        "%(count)d job was deleted from the dead letter.",
        "%(count)d jobs were deleted from the dead letter.",
        done,
    )
    say(model_admin, request, done, text % {"count": done}, len(answer.objects))
    return back_to_list(request)


def erase(model_admin: Any, request: HttpRequest, answer: Answer) -> Any:
    """Erase those of the confirmed jobs that have finished; the audit has their number only."""
    tally = Tally(of_request(request), "erase_job", kind="job", reason=answer.reason)

    def record(count: int) -> None:
        if count:
            tally.add(count)

    done = engine.erasure.erase(Job.objects.filter(pk__in=answer.ids), record=record).jobs
    text = ngettext(
        "%(count)d job was erased with every trace.",
        "%(count)d jobs were erased with every trace.",
        done,
    )
    say(model_admin, request, done, text % {"count": done}, len(answer.objects))
    return back_to_list(request)


def as_jobs(answer: Answer) -> Answer:
    """Turn the answer's objects into `Job`s, wherever they were listed: a job has one history."""
    jobs = [Job(pk=job.pk, type=job.type) for job in answer.objects]
    return replace(answer, objects=jobs)


STATES = {
    "cancel": sources(Event.CANCEL, State.CANCELLED),
    # Not cancelled ones, which were stopped on purpose: the Admin API retries those.
    "retry": (State.DISCARDED,),
    "run_now": sources(Event.TIMER, State.AVAILABLE) + sources(Event.ACTIVATE, State.AVAILABLE),
    "discard": (State.DISCARDED,),
    "erase": tuple(sorted(TERMINAL)),
}
"""The states in which each verb has an effect."""
MOST_JOBS = 50_000
"""Jobs that one confirmation covers: their keys are part of the page, so that the action applies
to exactly what was shown."""

about_jobs = partial(
    Question,
    template="admin/ojs/confirm_jobs.html",
    details=summary,
    most=MOST_JOBS,
    columns=SUMMARY,
)
CANCEL = about_jobs(
    action="cancel",
    title=_("Cancel jobs"),
    consequence=_(
        "Jobs that wait will never run. The worker of an active job is told at its next heartbeat "
        "that it no longer holds it; what it has done by then is done. Finished jobs are left "
        "alone. This cannot be undone."
    ),
    button=_("Cancel these jobs"),
    is_destructive=True,
    states=STATES["cancel"],
)
RETRY = about_jobs(
    action="retry",
    title=_("Retry jobs"),
    consequence=_(
        "Discarded jobs become available at once, with all their attempts. Their errors stay in "
        "their history. Jobs that are not discarded are left alone."
    ),
    button=_("Retry these jobs"),
    states=STATES["retry"],
)
RUN_NOW = about_jobs(
    action="run_now",
    title=_("Run jobs now"),
    consequence=_(
        "Scheduled jobs, jobs that wait for their next attempt and pending jobs become available "
        "at once. Attempts are counted as usual."
    ),
    button=_("Run these jobs now"),
    states=STATES["run_now"],
)
DISCARD = about_jobs(
    action="discard",
    title=_("Discard dead letter jobs"),
    consequence=_(
        "These jobs and their errors are deleted, except those of workflows that have not ended. "
        "This cannot be undone."
    ),
    button=_("Delete these jobs"),
    is_destructive=True,
    states=STATES["discard"],
)
ERASE = about_jobs(
    action="erase",
    title=_("Erase jobs"),
    consequence=_(
        "These jobs are deleted with every trace of what they were about: results, errors, their "
        "history, and selections in the audit. A job of a finished workflow is erased with the "
        "workflow. Jobs that have not finished, or whose results are waited for, are left alone. "
        "This cannot be undone."
    ),
    button=_("Erase these jobs"),
    is_destructive=True,
    states=STATES["erase"],
)

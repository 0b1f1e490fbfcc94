"""Queues: how deep they are, whether they are paused and by whom, how many jobs may run at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from .. import engine
from ..access.audit import of_request, record_action
from ..models import Job, Queue
from ..record import dashboard
from ..spec import queue_config
from ..spec.lifecycle import WAITING, State
from ..store import clock
from ..store.database import atomic
from . import display
from .base import OJSModelAdmin, may
from .confirm import Answer, Question, ReasonForm, ask, back, say, trace
from .notices import maintenance_now
from .why import in_words, why


class PauseForm(ReasonForm):
    minutes = forms.TypedChoiceField(
        label=_("For"),
        required=False,
        coerce=int,
        empty_value=None,
        choices=(
            ("", _("until it is resumed")),
            (15, _("15 minutes")),
            (60, _("1 hour")),
            (240, _("4 hours")),
            (1440, _("1 day")),
        ),
    )


class PurgeForm(ReasonForm):
    typed = forms.CharField(
        label=_("Names"),
        help_text=_("Type the names of the queues above, separated by spaces, to confirm."),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )


PURGED_AT_ONCE = 50_000
"""Most jobs of one purge; a larger queue takes several."""


class PausedFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return (("active", pgettext_lazy("state", "active")), ("paused", _("paused")))

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() == "paused":
            return queryset.paused()
        if self.value() == "active":
            return queryset.exclude(pk__in=queryset.model.objects.paused().values("pk"))
        return queryset


def depth_column(state: State) -> Callable[[Any, Any], str]:
    @admin.display(description=state.label)
    def column(self: Any, queue: Any) -> str:
        return queue.depth.shown(state)

    return column


@admin.register(Queue)
class QueueAdmin(OJSModelAdmin):
    list_display = (
        "name",
        "shown_state",
        "available",
        "active",
        "scheduled",
        "retryable",
        "oldest_wait",
        "limit",
    )
    list_filter = (PausedFilter,)
    search_fields = ("name",)
    ordering = ("name",)
    sortable_by = ("name",)
    change_form_template = "admin/ojs/queue.html"
    actions = ("pause", "resume", "purge")
    buttons: ClassVar[dict[str, Any]] = {
        "pause": _("Pause"),
        "resume": _("Resume"),
        "purge": _("Purge"),
    }
    fieldsets = (
        (
            None,
            {"fields": ("name", "shown_state", "paused", "until", "concurrency", "shown_config")},
        ),
        (
            _("Jobs"),
            {
                "fields": (
                    "available",
                    "active",
                    "scheduled",
                    "retryable",
                    "pending",
                    "oldest_wait",
                    "jobs",
                )
            },
        ),
    )
    readonly_fields = (
        "name",
        "shown_state",
        "paused",
        "until",
        "shown_config",
        "available",
        "active",
        "scheduled",
        "retryable",
        "pending",
        "oldest_wait",
        "jobs",
    )

    available = depth_column(State.AVAILABLE)
    active = depth_column(State.ACTIVE)
    scheduled = depth_column(State.SCHEDULED)
    retryable = depth_column(State.RETRYABLE)

    def add_figures(self, queues: Sequence[Any]) -> None:
        depths = dashboard.depths([queue.pk for queue in queues])
        for queue in queues:
            queue.depth = depths[queue.pk]

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        queue = super().get_object(request, object_id, from_field)
        if queue is not None:
            self.add_figures([queue])
        return queue

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        queue: Any = kwargs.get("obj")
        job: Any = dashboard.next_of(queue.pk) if queue is not None else None
        # The reasons name its type and its limits.
        if job is not None and display.page_url(self.admin_site, request, Job, "changelist"):
            job.in_queue, job.maintenance = queue, maintenance_now(request)
            context["reasons"] = in_words(why(job), self.admin_site, request)
            context["next_job"] = display.job_link(
                self.admin_site.name, job.pk, f"{job.type} {display.short(str(job.pk))}"
            )
            context["workers_url"] = self._workers_url(request, queue)
        return super().render_change_form(request, context, *args, **kwargs)

    def _workers_url(self, request: HttpRequest, queue: Queue) -> str:
        """The list of the workers that serve it, if there is one that this user may view."""
        url = display.admin_url(self.admin_site.name, "ojs_workers_worker", "changelist")
        return f"{url}?{urlencode({'queue': queue.pk})}" if url else ""

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        # Only what was edited: the queue may have been paused since the form was shown.
        changed = {name: form.cleaned_data[name] for name in form.changed_data}
        with atomic():
            Queue.objects.filter(pk=obj.pk).update(**changed)
            # The form's own history entry records the rest.
            record_action(
                of_request(request),
                "change_queue",
                kind="queue",
                count=1,
                selection={"ids": [obj.pk]} | changed,
                history=False,
            )

    has_pause_permission = may("ojs_jobs.pause_queue")
    has_purge_permission = may("ojs_jobs.purge_queue")

    def allowed(self, obj: Any) -> Collection[str]:
        return ("resume" if obj.is_paused else "pause", "purge")

    @admin.display(description=_("state"))
    def shown_state(self, queue: Queue) -> SafeString:
        if not queue.is_paused:
            chip = display.chip("active")
            if queue.is_draining:
                chip = display.chip("paused", gettext("draining"))
            if queue.concurrency != 0:
                return chip
            nothing = gettext("its limit is 0: nothing is fetched")
            return format_html('{} <span class="ojs-quiet">{}</span>', chip, nothing)
        return format_html(
            '{} <span class="ojs-quiet">{}</span>',
            display.chip("paused", gettext("paused")),
            pause_of(queue),
        )

    @admin.display(description=_("paused"))
    def paused(self, queue: Queue) -> str | SafeString:
        return display.moment(queue.paused_at if queue.is_paused else None)

    @admin.display(description=_("paused until"))
    def until(self, queue: Queue) -> str | SafeString:
        if queue.is_paused and queue.paused_until is None:
            return gettext("it is resumed")
        return display.moment(queue.paused_until if queue.is_paused else None)

    @admin.display(description=_("oldest wait"))
    def oldest_wait(self, queue: Any) -> str:
        since = queue.depth.waiting_since
        return display.span(clock.now() - since) if since else display.NOTHING

    @admin.display(description=_("limit"), ordering="concurrency")
    def limit(self, queue: Queue) -> str:
        policy = queue.config.get("rate_limit", {}) | {"concurrency": queue.concurrency}
        found = display.limits(policy)
        if queue.max_depth:
            found.append(gettext("%(most)d waiting") % {"most": queue.max_depth})
        return "; ".join(found) or display.NOTHING

    @admin.display(description=_("configuration"))
    def shown_config(self, queue: Queue) -> str | SafeString:
        return display.json_block(queue_config.public(queue.config) or None)

    @admin.display(description=State.PENDING.label)
    def pending(self, queue: Queue) -> int:
        return dashboard.pending(queue.pk)

    @admin.display(description=_("all of them"))
    def jobs(self, queue: Queue) -> str | SafeString:
        url = display.admin_url(self.admin_site.name, "ojs_jobs_job", "changelist")
        address = url and f"{url}?{urlencode({'queue': queue.pk})}"
        return display.link(address, gettext("Jobs of this queue"))

    @admin.action(description=_("Pause selected queues"), permissions=["pause"])
    def pause(self, request: HttpRequest, queryset: Any) -> Any:
        answer = ask(self, request, queryset, PAUSE)
        if not isinstance(answer, Answer):
            return answer
        minutes = answer.data.get("minutes")
        until = clock.now() + timedelta(minutes=minutes) if minutes else None
        with atomic():
            for queue in answer.objects:
                engine.pause(
                    queue.pk,
                    paused_by=request.user.get_username(),
                    reason=answer.reason,
                    until=until,
                )
            trace(request, "pause_queue", answer.objects, answer, message=gettext("Paused."))
        done = len(answer.objects)
        text = ngettext(
            "%(count)d queue is paused: its jobs wait.",
            "%(count)d queues are paused: their jobs wait.",
            done,
        )
        return say(self, request, done, text % {"count": done}, done)

    @admin.action(description=_("Resume selected queues"), permissions=["pause"])
    def resume(self, request: HttpRequest, queryset: Any) -> Any:
        answer = ask(self, request, queryset, RESUME)
        if not isinstance(answer, Answer):
            return answer
        paused = [queue for queue in answer.objects if queue.is_paused]
        if not paused:
            text = ngettext(
                "Nothing changed: the queue was not paused.",
                "Nothing changed: none of the queues was paused.",
                len(answer.objects),
            )
            self.message_user(request, text, messages.WARNING)
            return back(request)
        with atomic():
            for queue in paused:
                engine.resume(queue.pk, resumed_by=request.user.get_username())
            trace(request, "resume_queue", paused, answer, message=gettext("Resumed."))
        done = len(paused)
        text = ngettext(
            "%(count)d queue hands out jobs again.", "%(count)d queues hand out jobs again.", done
        )
        return say(self, request, done, text % {"count": done}, len(answer.objects))

    @admin.action(description=_("Purge selected queues"), permissions=["purge"])
    def purge(self, request: HttpRequest, queryset: Any) -> Any:
        answer = ask(self, request, queryset, PURGE)
        if not isinstance(answer, Answer):
            return answer
        names = [queue.pk for queue in answer.objects]
        if sorted(answer.data["typed"].split()) != sorted(names):
            text = gettext("Nothing was purged: these are not the names of the queues.")
            self.message_user(request, text, messages.ERROR)
            return back(request)
        # Before the first batch, so that after a crash the completed part is attributed.
        action = trace(request, "purge_queue", answer.objects, answer, message=gettext("Purged."))
        waiting = Job.objects.filter(queue__in=names, state__in=sorted(WAITING))
        deleted = len(engine.bulk.purge(waiting, WAITING, most=PURGED_AT_ONCE))
        # Jobs that a workflow or another job waits for must end, not vanish.
        who = {"cancelled_by": request.user.get_username(), "reason": answer.reason}
        cancelled = len(engine.bulk.cancel(waiting, **who, most=PURGED_AT_ONCE))
        action.selection |= {"deleted": deleted, "cancelled": cancelled}
        action.save(update_fields=["selection"])
        text = ngettext("%(count)s job was deleted.", "%(count)s jobs were deleted.", deleted)
        text %= {"count": dashboard.grouped(deleted)}
        if cancelled:
            more = ngettext(
                "%(count)s job of a workflow was cancelled.",
                "%(count)s jobs of workflows were cancelled.",
                cancelled,
            )
            text = f"{text} {more % {'count': dashboard.grouped(cancelled)}}"
        if waiting.exists():
            text = f"{text} " + gettext("There are more: purge again.")
        self.message_user(request, text, messages.SUCCESS)
        return back(request)


def pause_of(queue: Queue) -> str:
    """Who paused it, and why."""
    who = gettext("by %(who)s") % {"who": queue.paused_by} if queue.paused_by else ""
    return ": ".join(part for part in (who, queue.pause_reason) if part)


def depths(queues: Sequence[Queue]) -> dict[str, Any]:
    """How deep each queue is: for a confirmation page."""
    found = dashboard.depths([queue.pk for queue in queues])
    states = (State.AVAILABLE, State.ACTIVE)
    return {
        "headings": [state.label for state in states],
        "queues": [
            (queue, pause_of(queue), _by_state(found[queue.pk], states)) for queue in queues
        ],
    }


def about_pause(queues: Sequence[Queue]) -> dict[str, Any]:
    """How deep each queue is, and which pauses end with the new one."""
    return depths(queues) | {"replaced": [_replaced(queue) for queue in queues if queue.is_paused]}


def _replaced(queue: Queue) -> str:
    if queue.paused_until is None:
        text = gettext("“%(queue)s” is paused already, until it is resumed. This replaces that.")
        return text % {"queue": queue.pk}
    text = gettext("“%(queue)s” is paused already, until %(until)s. This replaces that.")
    return text % {"queue": queue.pk, "until": display.absolute(queue.paused_until)}


def purged(queues: Sequence[Queue]) -> dict[str, Any]:
    """What would be deleted of each queue: all of it first, which a narrow window shows too."""
    found = dashboard.waiting([queue.pk for queue in queues], most=PURGED_AT_ONCE)
    states = [state for state in State if state in WAITING]
    return {
        "headings": [gettext("Jobs"), *(state.label for state in states)],
        "queues": [
            (
                queue,
                pause_of(queue),
                [found[queue.pk].total, *_by_state(found[queue.pk], states)],
            )
            for queue in queues
        ],
    }


def _by_state(depth: dashboard.Depth, states: Iterable[State]) -> list[str]:
    return [depth.shown(state) for state in states]


PAUSE = Question(
    action="pause",
    title=_("Pause queues"),
    consequence=_(
        "No job of these queues is handed out until they are resumed. Jobs can still be enqueued, "
        "and wait. Jobs that are running go on."
    ),
    button=_("Pause these queues"),
    form_class=PauseForm,
    template="admin/ojs/confirm_queues.html",
    details=about_pause,
)
RESUME = Question(
    action="resume",
    title=_("Resume queues"),
    consequence=_("Jobs of these queues are handed out again at once."),
    button=_("Resume these queues"),
    template="admin/ojs/confirm_queues.html",
    details=depths,
)
PURGE = Question(
    action="purge",
    title=_("Purge queues"),
    consequence=_(
        "Every job that waits in these queues is deleted: available, scheduled, retryable and "
        "pending ones. Those of workflows are cancelled instead. Jobs that are running go on. "
        "This cannot be undone."
    ),
    button=_("Purge these queues"),
    is_destructive=True,
    form_class=PurgeForm,
    template="admin/ojs/confirm_queues.html",
    details=purged,
)

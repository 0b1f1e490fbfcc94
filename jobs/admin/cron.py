"""Cron jobs: when they run and with what outcome; run now, enable, disable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Max
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from .. import engine
from ..models import CronJob, CronRun
from ..spec.schedules import InvalidSchedule, read_schedule, upcoming
from ..store.database import atomic
from . import display
from .base import ReadOnlyModelAdmin, may
from .confirm import Answer, Question, ask, say, trace
from .cron_words import in_words

RUNS = 10


@admin.register(CronJob)
class CronJobAdmin(ReadOnlyModelAdmin):
    list_display = (
        "name",
        "shown_state",
        "schedule",
        "type",
        "next_run",
        "last_run",
        "last_outcome",
        "run_count",
    )
    list_filter = ("enabled", "overlap_policy")
    search_fields = ("name", "description")
    ordering = ("name",)
    sortable_by = ("name", "next_run", "last_run", "run_count")
    actions = ("run_now", "enable", "disable")
    sensitive = ("template",)
    buttons: ClassVar[dict[str, Any]] = {
        "run_now": _("Run now"),
        "enable": _("Enable"),
        "disable": _("Disable"),
    }
    fieldsets = (
        (None, {"fields": ("name", "shown_state", "description", "overlap_policy")}),
        (
            _("Schedule"),
            {"fields": ("shown_expression", "meaning", "timezone", "next_runs", "last_run")},
        ),
        (_("Runs"), {"fields": ("run_count", "runs")}),
        (_("Job"), {"fields": ("type", "shown_template")}),
    )
    readonly_fields = (
        "shown_state",
        "shown_expression",
        "meaning",
        "next_runs",
        "last_run",
        "runs",
        "type",
        "shown_template",
    )

    has_operate_permission = may("ojs_jobs.operate_cron")

    def add_figures(self, crons: Sequence[Any]) -> None:
        names = [cron.pk for cron in crons]
        newest = (
            CronRun.objects.filter(cron_name__in=names)
            .order_by()
            .values("cron_name")
            .annotate(newest=Max("pk"))
            .values("newest")
        )
        last = {run.cron_name: run for run in CronRun.objects.filter(pk__in=newest)}
        for cron in crons:
            cron.last = last.get(cron.pk)

    def allowed(self, obj: Any) -> Collection[str]:
        return ("run_now", "disable") if obj.enabled else ("run_now", "enable")

    @admin.display(description=_("state"))
    def shown_state(self, cron: CronJob) -> SafeString:
        if cron.enabled:
            return display.chip("active", gettext("enabled"))
        return display.chip("paused", gettext("disabled"))

    @admin.display(description=_("expression"))
    def shown_expression(self, cron: CronJob) -> SafeString:
        return display.code(cron.expression)

    @admin.display(description=_("expression"))
    def schedule(self, cron: CronJob) -> SafeString:
        return format_html(
            '{}<br><span class="ojs-quiet">{}</span>',
            self.shown_expression(cron),
            cron.timezone,
        )

    @admin.display(description=_("type"))
    def type(self, cron: CronJob) -> str:
        return str(cron.template["type"])

    @admin.display(description=_("next run"), ordering="next_run_at")
    def next_run(self, cron: CronJob) -> str | SafeString:
        return display.when(cron.next_run_at)

    @admin.display(description=_("last run"), ordering="last_run_at")
    def last_run(self, cron: CronJob) -> str | SafeString:
        return display.when(cron.last_run_at)

    @admin.display(description=_("last outcome"))
    def last_outcome(self, cron: Any) -> str | SafeString:
        return display.NOTHING if cron.last is None else self._outcome(cron.last)

    def _outcome(self, run: CronRun) -> SafeString:
        label = run.get_outcome_display()
        shown: str | SafeString = label
        if run.job_id:
            shown = display.job_link(self.admin_site.name, run.job_id, label)
        return format_html('{} <span class="ojs-quiet">{}</span>', shown, _reason(run))

    @admin.display(description=_("in words"))
    def meaning(self, cron: CronJob) -> str:
        try:
            return in_words(read_schedule(cron.expression, cron.timezone))
        except InvalidSchedule as problem:
            return str(problem)

    @admin.display(description=_("next five runs"))
    def next_runs(self, cron: CronJob) -> str | SafeString:
        if not cron.enabled or cron.next_run_at is None:
            return display.NOTHING
        try:
            schedule = read_schedule(cron.expression, cron.timezone)
        except InvalidSchedule:
            return display.NOTHING
        times = [cron.next_run_at, *upcoming(schedule, cron.next_run_at, 4)]
        return format_html_join(
            "", "<div>{}</div>", ((display.moment(moment),) for moment in times)
        )

    @admin.display(description=_("latest"))
    def runs(self, cron: CronJob) -> str | SafeString:
        rows = CronRun.objects.filter(cron_name=cron.pk).order_by("-id")[:RUNS]
        lines = ((display.moment(run.scheduled_for), self._outcome(run)) for run in rows)
        return format_html_join("", "<div>{} {}</div>", lines) or display.NOTHING

    @admin.display(description=_("each job"))
    def shown_template(self, cron: CronJob) -> str | SafeString:
        return display.json_block(cron.template)

    def _do(
        self,
        request: HttpRequest,
        queryset: Any,
        question: Question,
        verb: Callable[[str], object],
        text: str,
    ) -> Any:
        """Ask, then apply `verb` to those that still exist; until then, return the page to show."""
        answer = ask(self, request, queryset, question)
        if not isinstance(answer, Answer):
            return answer
        with atomic():
            for cron in answer.objects:
                verb(cron.pk)
            trace(request, f"{question.action}_cron", answer.objects, answer, message=text)
        return answer

    @admin.action(description=_("Run selected cron jobs now"), permissions=["operate"])
    def run_now(self, request: HttpRequest, queryset: Any) -> Any:
        ran: list[CronRun] = []
        answer = self._do(
            request,
            queryset,
            RUN_NOW,
            lambda name: ran.append(engine.run_cron_now(name)),
            gettext("Run by hand."),
        )
        if not isinstance(answer, Answer):
            return answer
        done = sum(run.job_id is not None for run in ran)
        text = ngettext("%(count)d job was enqueued.", "%(count)d jobs were enqueued.", done)
        reasons = sorted({_reason(run) for run in ran if run.job_id is None})
        message = " ".join([text % {"count": done}, *(f"({reason})" for reason in reasons)])
        return say(self, request, done, message, len(ran))

    @admin.action(description=_("Enable selected cron jobs"), permissions=["operate"])
    def enable(self, request: HttpRequest, queryset: Any) -> Any:
        return self._switch(request, queryset, ENABLE, True)

    @admin.action(description=_("Disable selected cron jobs"), permissions=["operate"])
    def disable(self, request: HttpRequest, queryset: Any) -> Any:
        return self._switch(request, queryset, DISABLE, False)

    def _switch(
        self, request: HttpRequest, queryset: Any, question: Question, enabled: bool
    ) -> Any:
        text = gettext("Enabled.") if enabled else gettext("Disabled.")
        answer = self._do(
            request,
            queryset,
            question,
            lambda name: engine.set_cron_enabled(name, enabled=enabled),
            text,
        )
        if not isinstance(answer, Answer):
            return answer
        done = len(answer.objects)
        text = (
            ngettext("%(count)d cron job is enabled.", "%(count)d cron jobs are enabled.", done)
            if enabled
            else ngettext(
                "%(count)d cron job is disabled.", "%(count)d cron jobs are disabled.", done
            )
        )
        return say(self, request, done, text % {"count": done}, done)


REASONS = {
    "manual": _("by hand"),
    "overlap_skip": _("an earlier run has not finished"),
}


def _reason(run: CronRun) -> str:
    """Why a run happened or did not; a refusal brings its own text."""
    return str(REASONS.get(run.reason, run.reason))


RUN_NOW = Question(
    action="run_now",
    title=_("Run cron jobs now"),
    consequence=_(
        "Each of them enqueues its job at once, besides its schedule. Its overlap policy holds: "
        "with “skip” nothing is enqueued while an earlier run has not finished."
    ),
    button=_("Run them now"),
    template="admin/ojs/confirm_crons.html",
)
ENABLE = Question(
    action="enable",
    title=_("Enable cron jobs"),
    consequence=_("They run again from now on. What was missed meanwhile is not caught up."),
    button=_("Enable these cron jobs"),
    template="admin/ojs/confirm_crons.html",
)
DISABLE = Question(
    action="disable",
    title=_("Disable cron jobs"),
    consequence=_("They do not run until they are enabled. Jobs they have made are not affected."),
    button=_("Disable these cron jobs"),
    template="admin/ojs/confirm_crons.html",
)

"""Cron jobs: when they run and with what outcome; make, change, run now, enable, disable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.models import DELETION
from django.core.exceptions import PermissionDenied
from django.db.models import Max
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import path
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from .. import engine
from ..access.audit import of_request, record_action
from ..errors import Conflict, InvalidRequest, NotFound, OJSError
from ..models import CronJob, CronRun
from ..spec.schedules import InvalidSchedule, read_schedule, upcoming
from ..store.database import atomic
from . import display
from .base import OJSModelAdmin, may
from .confirm import Answer, Question, ask, back_to_list, say, trace
from .cron_form import CronForm, drawn, preview
from .cron_words import in_words
from .job_form import offer_projects, projects, suggest

RUNS = 10


@admin.register(CronJob)
class CronJobAdmin(OJSModelAdmin):
    change_form_template = "admin/ojs/cron.html"
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
    actions = ("run_now", "enable", "disable", "delete")
    sensitive = ("template",)
    buttons: ClassVar[dict[str, Any]] = {
        "run_now": _("Run now"),
        "enable": _("Enable"),
        "disable": _("Disable"),
        "delete": _("Delete"),
    }
    fieldsets = (
        (None, {"fields": ("name", "shown_state", "project", "description", "overlap_policy")}),
        (
            _("Schedule"),
            {"fields": ("shown_expression", "meaning", "timezone", "next_runs", "last_run")},
        ),
        (_("Runs"), {"fields": ("run_count", "runs")}),
        (_("Job"), {"fields": ("type", "shown_template")}),
    )
    readonly_fields = (
        "shown_state",
        "project",
        "shown_expression",
        "meaning",
        "next_runs",
        "last_run",
        "runs",
        "type",
        "shown_template",
    )

    made_of: ClassVar[Any] = (
        (_("Schedule"), {"fields": ("expression", "timezone", "shown_preview", "overlap_policy")}),
        (_("Each job"), {"fields": ("type", "queue", "args", "meta", "options")}),
        (None, {"fields": ("reason",)}),
    )
    """What a user who may make or change it fills in, beside its name and description."""

    has_operate_permission = may("ojs_jobs.operate_cron")
    has_add_permission = may("ojs_jobs.add_cronjob")
    # Not Django's own page, which would delete past the engine.
    has_remove_permission = may("ojs_jobs.delete_cronjob")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        user: Any = request.user
        # To save what one does not see would overwrite it.
        return user.has_perm("ojs_jobs.change_cronjob") and not getattr(obj, "withheld", ())

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            about = ("name", "description", "enabled", *(("project",) if projects() else ()))
            return ((None, {"fields": about}), *self.made_of)
        if not self.has_change_permission(request, obj):
            return self.fieldsets
        known = (*(("project",) * bool(obj.project)), *(("declared",) * bool(obj.declared_by)))
        about = ("name", "shown_state", *known, "description")
        runs = (_("Runs"), {"fields": ("last_run", "run_count", "runs")})
        return ((None, {"fields": about}), *self.made_of, runs)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ("shown_preview",)
        if not self.has_change_permission(request, obj):
            return self.readonly_fields
        return (
            "name",
            "shown_state",
            "project",
            "declared",
            "shown_preview",
            "last_run",
            "run_count",
            "runs",
        )

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kw: Any
    ) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            return super().get_form(request, obj, change, **kw)
        made = super().get_form(request, obj, change, form=CronForm, **kw)

        class Suggesting(made):  # type: ignore[misc, valid-type]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                suggest(self, request)
                offer_projects(self)

        return Suggesting

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        with atomic():
            if change and not CronJob.objects.select_for_update().filter(pk=obj.pk).exists():
                raise Conflict(gettext("It has been deleted meanwhile."))
            cron, created = engine.upsert_cron(form.new)
            if not change and not created:
                raise Conflict(gettext("A cron job of this name was made meanwhile."))
            # The form's own history entry has the rest.
            record_action(
                of_request(request),
                "change_cron" if change else "add_cron",
                [cron],
                selection={"expression": cron.expression, "timezone": cron.timezone},
                reason=form.cleaned_data["reason"],
                history=False,
            )

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().changeform_view(request, *args, **kwargs)
        except OJSError as refusal:
            self.message_user(request, refusal.message, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def get_urls(self) -> Any:
        view = self.admin_site.admin_view(self.preview_view)
        return [path("preview/", view, name="ojs_jobs_cronjob_preview"), *super().get_urls()]

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """What the schedule that is typed means, and when it runs next."""
        if not (self.has_add_permission(request) or self.has_change_permission(request)):
            raise PermissionDenied
        asked = (request.GET.get(name, "").strip() for name in ("expression", "timezone"))
        return JsonResponse(preview(*asked))

    @admin.display(description=_("next five runs"))
    def shown_preview(self, cron: CronJob) -> SafeString:
        url = display.admin_url(self.admin_site.name, "ojs_jobs_cronjob", "preview")
        return drawn(preview(cron.expression, cron.timezone) if cron.expression else {}, url)

    @admin.display(description=_("declared by"))
    def declared(self, cron: CronJob) -> str:
        text = gettext("The code of %(site)s; saving it here takes it over from the code.")
        return text % {"site": cron.declared_by}

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
        switch = "disable" if obj.enabled else "enable"
        return ("run_now", switch) if obj.declared_by else ("run_now", switch, "delete")

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
        """Ask, then apply `verb` to those that still exist; until then, return the page to show.

        The answer returned has those for which that was not refused; `verb` returns False for
        one that it leaves as it is.
        """
        answer = ask(self, request, queryset, question)
        if not isinstance(answer, Answer):
            return answer
        done: list[CronJob] = []
        left: list[CronJob] = []
        with atomic():
            for cron in answer.objects:
                try:
                    is_done = verb(cron.pk) is not False
                except InvalidRequest as refusal:
                    self.message_user(request, f"“{cron.pk}”: {refusal.message}", messages.ERROR)
                else:
                    (done if is_done else left).append(cron)
            trace(request, f"{question.action}_cron", done, answer, message=text)
        return replace(answer, objects=done, left=left)

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
        lines = [text % {"count": done}] if done else []
        for reason, runs in groupby(
            sorted((run for run in ran if run.job_id is None), key=_reason), key=_reason
        ):
            names = [f"“{run.cron_name}”" for run in runs]
            shown = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
            nothing = gettext("Nothing was enqueued for %(names)s: %(reason)s.")
            lines.append(nothing % {"names": shown, "reason": reason.removesuffix(".")})
        return say(self, request, done, " ".join(lines), done)

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
            lambda name: engine.switch_cron(name, enabled=enabled)[1],
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
        return say(self, request, done, text % {"count": done}, done + len(answer.left))

    @admin.action(description=_("Delete selected cron jobs"), permissions=["remove"])
    def delete(self, request: HttpRequest, queryset: Any) -> Any:
        if "confirmed" not in request.POST:
            self._leave(request, queryset.exclude(declared_by=""))
        answer = ask(self, request, queryset, DELETE)
        if not isinstance(answer, Answer):
            return answer
        deleted, declared = [], []
        with atomic():
            for cron in answer.objects:
                try:
                    engine.delete_cron(cron.pk)
                except Conflict:
                    declared.append(cron.pk)
                except NotFound:
                    continue  # deleted meanwhile
                else:
                    deleted.append(cron)
            message = gettext("Deleted.")
            trace(request, "delete_cron", deleted, answer, message=message, flag=DELETION)
        self._leave(request, CronJob.objects.filter(pk__in=declared))
        done = len(deleted)
        text = ngettext(
            "%(count)d cron job was deleted.", "%(count)d cron jobs were deleted.", done
        )
        level = messages.SUCCESS if done else messages.WARNING
        self.message_user(request, text % {"count": done}, level)
        return back_to_list(request)

    def _leave(self, request: HttpRequest, crons: Any) -> None:
        """Say of cron jobs that the code declares why they are not deleted."""
        for cron in crons.exclude(declared_by="")[:NAMED]:
            text = gettext(
                "“%(name)s” is not deleted: the code of %(site)s declares it, and would register "
                "it again. Remove it there, or disable it here."
            )
            about = {"name": cron.pk, "site": cron.declared_by}
            self.message_user(request, text % about, messages.WARNING)


NAMED = 5
"""Cron jobs that messages name."""
REASONS = {
    "manual": _("by hand"),
    "overlap_skip": _("an earlier run has not finished"),
}


NAMED = 5
"""Most cron jobs that a message names."""


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
DELETE = Question(
    action="delete",
    title=_("Delete cron jobs"),
    consequence=_(
        "They never run again. Jobs they have made are not affected, nor is the record of what was "
        "done with them. This cannot be undone."
    ),
    button=_("Delete these cron jobs"),
    is_destructive=True,
    template="admin/ojs/confirm_crons.html",
    concerns=lambda crons: crons.filter(declared_by=""),
)

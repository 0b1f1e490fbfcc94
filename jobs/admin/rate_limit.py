"""Rate limits: what each key allows, which of its jobs run and wait, and until when it is held."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import F, Q
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..engine import limits
from ..models import Job, RateLimit
from ..record import dashboard
from ..spec.rate_policy import Room
from ..store import clock
from ..store.database import atomic
from . import display
from .base import ReadOnlyModelAdmin, may
from .confirm import Answer, Question, ask, say, trace

SHOWN = 20
"""Active jobs of a key that its page names."""


def held(now: Any) -> Q:
    return Q(held_until__gt=now)


def overridden(now: Any) -> Q:
    return ~Q(override={}) & (Q(override_until__isnull=True) | Q(override_until__gt=now))


class StateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [
            ("waiting", _("jobs wait for it")),
            ("held", _("held")),
            ("overridden", _("overridden")),
        ]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        conditions = {
            "waiting": Q(exceeded_at__isnull=False),
            "held": held(clock.now()),
            "overridden": overridden(clock.now()),
        }
        wanted = conditions.get(self.value() or "")
        return queryset if wanted is None else queryset.filter(wanted)


@admin.register(RateLimit)
class RateLimitAdmin(ReadOnlyModelAdmin):
    list_display = ("name", "shown_limits", "running", "waiting", "next_start", "since")
    list_filter = (StateFilter,)
    search_fields = ("key__startswith",)
    search_help_text = _("The beginning of a key")
    ordering = ("key",)
    sortable_by = ()
    actions = ("release", "restore")
    buttons: ClassVar[dict[str, Any]] = {
        "release": _("End the hold"),
        "restore": _("End the override"),
    }
    fieldsets = (
        (None, {"fields": ("name", "shown_limits", "shown_override", "next_start", "since")}),
        (_("Jobs"), {"fields": ("running", "holders", "waiting")}),
    )

    has_operate_permission = may("ojs_jobs.change_ratelimit")

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            self.add_figures([row])
        return row

    def add_figures(self, rows: Sequence[Any]) -> None:
        keys = [row.pk for row in rows]
        rooms, now = limits.rooms(keys), clock.now()
        active, waiting = limits.running_jobs(keys), limits.waiting_jobs(keys)
        for row in rows:
            row.room, row.limits = rooms.get(row.pk, Room(jobs=0)), row.effective(now)
            row.active, row.waiting = active[row.pk], waiting[row.pk]

    def allowed(self, obj: Any) -> Collection[str]:
        now = clock.now()
        found = RateLimit.objects.filter(pk=obj.pk)
        conditions = {"release": held(now), "restore": overridden(now)}
        return {name for name, wanted in conditions.items() if found.filter(wanted).exists()}

    # Columns

    @admin.display(description=_("rate limit"))
    def name(self, row: RateLimit) -> str:
        return row.key

    @admin.display(description=_("limits"))
    def shown_limits(self, row: Any) -> str:
        return "; ".join(display.limits(row.limits)) or display.NOTHING

    @admin.display(description=_("override"))
    def shown_override(self, row: RateLimit) -> str:
        if not row.override or row.effective(clock.now()) is row.policy:
            return display.NOTHING
        text = gettext("%(limits)s, instead of %(own)s")
        own = "; ".join(display.limits(row.policy)) or gettext("none")
        about = {"limits": "; ".join(display.limits(row.override)), "own": own}
        if row.override_until is not None:
            text = gettext("%(limits)s, instead of %(own)s, until %(moment)s")
            about["moment"] = display.absolute(row.override_until)
        return text % about

    @admin.display(description=_("active jobs"))
    def running(self, row: Any) -> str:
        if row.pk.startswith(limits.QUEUE_KEY):  # those of the whole queue, which has no key
            return display.NOTHING
        most = row.limits.get("concurrency")
        return dashboard.grouped(row.active) if most is None else f"{row.active} / {most}"

    @admin.display(description=_("waiting jobs"))
    def waiting(self, row: Any) -> str:
        if row.pk.startswith(limits.QUEUE_KEY):
            return display.NOTHING
        return dashboard.grouped(row.waiting)

    @admin.display(description=_("next start"))
    def next_start(self, row: Any) -> str | SafeString:
        room: Room = row.room
        if room.jobs > 0:
            return gettext("now")
        if room.strategy == "held" and room.again_at is not None:
            text = gettext("held until %(moment)s")
            return text % {"moment": display.absolute(room.again_at)}
        if room.again_at is not None:
            return display.absolute(room.again_at)
        return gettext("when one of its jobs ends") if room.limit else gettext("never: it is 0")

    @admin.display(description=_("jobs wait since"), ordering="exceeded_at")
    def since(self, row: RateLimit) -> Any:
        return display.when(row.exceeded_at)

    @admin.display(description=_("taken by"))
    def holders(self, row: RateLimit) -> str | SafeString:
        """The jobs that take its places, the longest running first."""
        found = Job.objects.active().filter(rate_key=row.pk, rate_key__gt="")
        jobs = found.order_by(F("started_at").asc(nulls_last=True), "pk").only(
            "type", "reserved_by"
        )[:SHOWN]
        site = self.admin_site.name
        lines = (
            (job.type, display.job_link(site, job.pk), display.worker_link(site, job.reserved_by))
            for job in jobs
        )
        return format_html_join("", "<div>{} {} {}</div>", lines) or display.NOTHING

    # Actions

    @admin.action(description=_("End the hold of selected rate limits"), permissions=["operate"])
    def release(self, request: HttpRequest, queryset: Any) -> Any:
        return self._change(request, queryset, RELEASE, held(clock.now()), {"held_until": None})

    @admin.action(
        description=_("End the override of selected rate limits"), permissions=["operate"]
    )
    def restore(self, request: HttpRequest, queryset: Any) -> Any:
        changes: dict[str, Any] = {"override": {}, "override_until": None}
        return self._change(request, queryset, RESTORE, overridden(clock.now()), changes)

    def _change(
        self,
        request: HttpRequest,
        queryset: Any,
        question: Question,
        wanted: Q,
        changes: dict[str, Any],
    ) -> Any:
        answer = ask(self, request, queryset, question)
        if not isinstance(answer, Answer):
            return answer
        with atomic():
            rows = RateLimit.objects.filter(wanted, pk__in=answer.ids)
            changed = list(rows.order_by("pk").select_for_update())
            limits.change([row.pk for row in changed], **changes)
            trace(request, "change_ratelimit", changed, answer, message=str(question.title))
        done = len(changed)
        text = ngettext(
            "%(count)d rate limit was changed.", "%(count)d rate limits were changed.", done
        )
        return say(self, request, done, text % {"count": done}, len(answer.objects))


RELEASE = Question(
    action="release",
    title=_("End the hold"),
    consequence=_(
        "Their jobs start again at once, within their limits, although a handler has asked to "
        "wait. If the other side still refuses, a handler may hold them again."
    ),
    button=_("End the hold"),
)
RESTORE = Question(
    action="restore",
    title=_("End the override"),
    consequence=_("The limits of their jobs, or of their queue, hold again from the next fetch."),
    button=_("End the override"),
)

"""Worker pools: which queues their workers search, and in which order."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import mark_safe
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from .. import engine
from ..access.audit import of_request, record_action
from ..errors import OJSError
from ..models import Pool
from ..record import scheduling
from ..spec.pools import read_pool
from ..store.database import atomic
from .base import OJSModelAdmin, may
from .confirm import Answer, Question, ask, say, trace
from .job_form import JSONText


class PoolForm(forms.ModelForm):
    queues = JSONText(
        label=_("Queues"), rows=3, kind="array", help_text=_("A JSON array of texts.")
    )
    weights = JSONText(
        label=_("Weights"),
        rows=3,
        kind="object",
        required=False,
        help_text=_("A JSON object: queue and weight. Other queues have the weight 1."),
    )
    starvation_prevention = JSONText(
        label=_("Starvation prevention"),
        rows=3,
        kind="object",
        required=False,
        help_text=_("A JSON object: enabled, rotation_interval, min_dispatch_ratio."),
    )

    class Meta:
        model = Pool
        fields = (
            "name",
            "queues",
            "strategy",
            "weights",
            "concurrency",
            "is_isolated",
            "starvation_prevention",
        )

    def clean(self) -> dict[str, Any]:
        """Check the values by the rules of the Admin API."""
        data: dict[str, Any] = super().clean() or {}
        if self.errors:
            return data
        document = {name: data[name] for name in ("queues", "strategy", "weights", "concurrency")}
        document["isolated"] = data["is_isolated"]
        document["starvation_prevention"] = data["starvation_prevention"] or None
        try:
            self.columns = read_pool(document, data.get("name") or self.instance.pk)
        except OJSError as refusal:
            field = str(refusal.details.get("field", "")).partition(".")[0]
            self.add_error(field if field in self.fields else None, refusal.message)
        return data


@admin.register(Pool)
class PoolAdmin(OJSModelAdmin):
    form = PoolForm
    list_display = ("name", "shown_queues", "strategy", "concurrency", "is_isolated")
    search_fields = ("name",)
    ordering = ("name",)
    sortable_by = ("name",)
    actions = ("remove",)
    buttons: ClassVar[dict[str, Any]] = {"remove": _("Delete the pool")}

    has_manage_permission = may("ojs_jobs.manage_pool")
    has_add_permission = may("ojs_jobs.manage_pool")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_manage_permission(request)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("name", "running", "lately") if obj is not None else ()

    def allowed(self, obj: Any) -> Collection[str]:
        return ("remove",)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        with atomic():
            engine.pools.configure(obj.pk, form.columns)
            # The form's own history entry has the rest.
            record_action(
                of_request(request),
                "manage_pool",
                [obj],
                selection={"pool": form.columns},
                history=False,
            )

    @admin.display(description=_("queues"))
    def shown_queues(self, pool: Pool) -> str:
        return ", ".join(
            f"{name} ({pool.weights[name]})" if name in pool.weights else name
            for name in pool.queues
        )

    @admin.display(description=_("active jobs"))
    def running(self, pool: Pool) -> str:
        rules = engine.pool_rules
        active = rules.active_jobs([pool], rules.members())[pool.pk]
        return str(active) if pool.concurrency is None else f"{active} / {pool.concurrency}"

    @admin.display(description=_("handed out in the last minute"))
    def lately(self, pool: Pool) -> str:
        found = scheduling.lately()
        return format_html_join(
            mark_safe("<br>"),
            "{}",
            (
                (
                    gettext("%(queue)s: %(count)d jobs, %(share)d %% of all, mean wait %(wait)d ms")
                    % {
                        "queue": queue,
                        "count": given.jobs,
                        "share": round(100 * found.ratio(given)),
                        "wait": given.wait_ms,
                    },
                )
                for queue in pool.queues
                for given in [found.pairs.get((queue, pool.pk), scheduling.Dispatches())]
            ),
        )

    @admin.action(description=_("Delete selected worker pools"), permissions=["manage"])
    def remove(self, request: HttpRequest, queryset: Any) -> Any:
        answer = ask(self, request, queryset, REMOVE)
        if not isinstance(answer, Answer):
            return answer
        with atomic():
            for pool in answer.objects:
                engine.pools.delete(pool.pk)
            trace(request, "manage_pool", answer.objects, answer, message=gettext("Deleted."))
        done = len(answer.objects)
        text = ngettext("%(count)d pool is deleted.", "%(count)d pools are deleted.", done)
        return say(self, request, done, text % {"count": done}, done)


REMOVE = Question(
    action="remove",
    title=_("Delete worker pools"),
    consequence=_(
        "Fetches that name one of these pools are refused from now on. Active jobs are "
        "not affected."
    ),
    button=_("Delete these pools"),
    is_destructive=True,
)

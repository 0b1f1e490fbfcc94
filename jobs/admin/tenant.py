"""Tenants: what each has waiting and running, its limits and its share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from .. import engine
from ..access.audit import of_request, record_action
from ..errors import OJSError
from ..models import Tenant
from ..record import dashboard, tenants
from ..spec.lifecycle import State
from ..spec.tenants import LIMITS, check_name, read_tenant
from ..store.database import atomic
from . import display
from .base import OJSModelAdmin, may
from .confirm import Answer, Question, ask, say, trace
from .job_form import JSONText


class TenantForm(forms.ModelForm):
    max_enqueue_rate = JSONText(
        label=_("Rate of enqueues"),
        rows=2,
        kind="object",
        required=False,
        help_text=_("A JSON object with a limit and a period, as in the Admin API."),
    )

    class Meta:
        model = Tenant
        fields = (
            "name",
            "max_concurrency",
            "max_queue_depth",
            "max_scheduled",
            "max_job_size",
            "max_enqueue_rate",
            "is_soft",
            "fairness_weight",
            "priority_boost",
        )

    def clean(self) -> dict[str, Any]:
        """Check the values by the rules of the Admin API."""
        data: dict[str, Any] = super().clean() or {}
        if self.errors:
            return data
        name = data.get("name") or self.instance.pk
        document = {
            "limits": {limit: data[limit] for limit in LIMITS},
            "fairness_weight": data["fairness_weight"],
            "priority_boost": data["priority_boost"],
            "quota": "soft" if data["is_soft"] else "hard",
        }
        try:
            check_name(name, "name")
            self.changes = read_tenant(document, name)
        except OJSError as refusal:
            field = str(refusal.details.get("field", "")).split(".")
            found = next((part for part in field if part in self.fields), None)
            self.add_error(found, refusal.message)
        return data


def jobs_column(state: State) -> Any:
    @admin.display(description=state.label)
    def column(self: Any, tenant: Any) -> str:
        return dashboard.grouped(tenant.jobs[state])

    return column


@admin.register(Tenant)
class TenantAdmin(OJSModelAdmin):
    form = TenantForm
    list_display = ("name", "available", "active", "scheduled", "shown_limits", "share")
    search_fields = ("name",)
    ordering = ("name",)
    sortable_by = ("name",)
    actions = ("remove",)
    buttons: ClassVar[dict[str, Any]] = {"remove": _("Delete the limits")}
    fieldsets = (
        (None, {"fields": ("name", "fairness_weight", "priority_boost")}),
        (
            _("Limits"),
            {
                "fields": (
                    "max_concurrency",
                    "max_queue_depth",
                    "max_scheduled",
                    "max_job_size",
                    "max_enqueue_rate",
                    "is_soft",
                )
            },
        ),
        (_("Jobs"), {"fields": ("available", "active", "scheduled", "its_queues")}),
    )

    available = jobs_column(State.AVAILABLE)
    active = jobs_column(State.ACTIVE)
    scheduled = jobs_column(State.SCHEDULED)

    has_manage_permission = may("ojs_jobs.manage_tenant")
    has_add_permission = may("ojs_jobs.manage_tenant")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_manage_permission(request)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        figures = ("available", "active", "scheduled", "its_queues")
        return figures if obj is None else ("name", *figures)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fieldsets if obj is not None else self.fieldsets[:2]

    def allowed(self, obj: Any) -> Collection[str]:
        return ("remove",)

    def add_figures(self, rows: Sequence[Any]) -> None:
        counts = tenants.by_state()
        for row in rows:
            row.jobs = counts.get(row.pk, tenants.NO_JOBS)

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        tenant = super().get_object(request, object_id, from_field)
        if tenant is not None:
            self.add_figures([tenant])
        return tenant

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        with atomic():
            engine.tenants.configure(obj.pk, form.changes)
            # The form's own history entry has the rest.
            record_action(
                of_request(request),
                "manage_tenant",
                [obj],
                selection={"changes": form.changes},
                history=False,
            )

    @admin.display(description=_("limits"))
    def shown_limits(self, tenant: Tenant) -> str:
        found = []
        if tenant.max_concurrency is not None:
            found.append(gettext("%(most)d at once") % {"most": tenant.max_concurrency})
        if tenant.max_queue_depth is not None:
            found.append(gettext("%(most)d waiting") % {"most": tenant.max_queue_depth})
        if rate := tenant.max_enqueue_rate:
            about = {"most": rate["limit"], "period": rate["period"]}
            found.append(gettext("%(most)d in %(period)s") % about)
        return "; ".join(found) or display.NOTHING

    @admin.display(description=_("share"))
    def share(self, tenant: Tenant) -> str:
        return f"{tenant.fairness_weight:g}"

    @admin.display(description=_("queues"))
    def its_queues(self, tenant: Tenant) -> str | SafeString:
        """The unfinished jobs of the tenant by queue."""
        found = {
            f"{queue}: {state}": jobs
            for (name, queue, state), jobs in tenants.by_queue().items()
            if name == tenant.pk
        }
        return display.json_block(dict(sorted(found.items())) or None)

    @admin.action(description=_("Delete the limits of selected tenants"), permissions=["manage"])
    def remove(self, request: HttpRequest, queryset: Any) -> Any:
        answer = ask(self, request, queryset, REMOVE)
        if not isinstance(answer, Answer):
            return answer
        with atomic():
            for tenant in answer.objects:
                engine.tenants.delete(tenant.pk)
            trace(request, "manage_tenant", answer.objects, answer, message=gettext("Deleted."))
        done = len(answer.objects)
        text = ngettext(
            "%(count)d tenant no longer has limits.",
            "%(count)d tenants no longer have limits.",
            done,
        )
        return say(self, request, done, text % {"count": done}, done)


REMOVE = Question(
    action="remove",
    title=_("Delete the limits of tenants"),
    consequence=_(
        "These tenants have no limits from now on, and as many turns as any other. Their jobs are "
        "not affected."
    ),
    button=_("Delete these limits"),
    is_destructive=True,
)

"""Job specs in the admin: the registered versions, and the workers that match them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobs import engine
from jobs.access.audit import of_request, record_action
from jobs.admin import display
from jobs.admin.base import OJSModelAdmin, may
from jobs.admin.confirm import Answer, Question, ask, say, trace
from jobs.models import JobSpec
from jobs.store.database import atomic

from . import matrix


@admin.register(JobSpec)
class JobSpecAdmin(OJSModelAdmin):
    change_list_template = "admin/ojs/specs.html"
    list_display = ("type", "checksum", "registered", "matching", "mismatching")
    search_fields = ("type",)
    fields = ("type", "checksum")
    ordering = ("type",)
    sortable_by = ("type", "registered")
    actions = ("withdraw",)
    buttons: ClassVar[dict[str, Any]] = {"withdraw": _("Withdraw")}

    has_register_permission = may("ojs_jobs.register_spec")
    has_add_permission = may("ojs_jobs.register_spec")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_register_permission(request)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("type",) if obj is not None else ()

    def allowed(self, obj: Any) -> Collection[str]:
        return ("withdraw",)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        with atomic():
            engine.register_specs({obj.type: obj.checksum})
            # The form's own history entry has the rest.
            record_action(
                of_request(request),
                "register_spec",
                [obj],
                selection={"checksum": obj.checksum},
                history=False,
            )

    def add_figures(self, specs: Sequence[Any]) -> None:
        """Count the workers that implement each spec, and those of another version."""
        workers = matrix.reported()
        for spec in specs:
            checksums = [theirs[spec.type] for _, theirs in workers if spec.type in theirs]
            spec.matching = checksums.count(spec.checksum)
            spec.mismatching = len(checksums) - spec.matching

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        shown = {} if request.method == "POST" else {"matrix": matrix.matrix()}
        return super().changelist_view(request, shown | (extra_context or {}))

    @admin.display(description=_("registered"), ordering="registered_at")
    def registered(self, spec: JobSpec) -> str | SafeString:
        return display.when(spec.registered_at)

    @admin.display(description=_("workers that match"))
    def matching(self, spec: Any) -> str:
        return str(spec.matching)

    @admin.display(description=_("workers with another checksum"))
    def mismatching(self, spec: Any) -> str | SafeString:
        return display.chip("dead", str(spec.mismatching)) if spec.mismatching else "0"

    @admin.action(description=_("Withdraw selected job specs"), permissions=["register"])
    def withdraw(self, request: HttpRequest, queryset: Any) -> Any:
        answer = ask(self, request, queryset, WITHDRAW)
        if not isinstance(answer, Answer):
            return answer
        with atomic():
            specs = list(JobSpec.objects.filter(pk__in=answer.ids).select_for_update())
            done = engine.forget_specs([spec.pk for spec in specs])
            trace(request, "register_spec", specs, answer, message=gettext("Withdrawn."))
        text = ngettext("%(count)d spec is withdrawn.", "%(count)d specs are withdrawn.", done)
        return say(self, request, done, text % {"count": done}, len(answer.objects))


WITHDRAW = Question(
    action="withdraw",
    title=_("Withdraw job specs"),
    consequence=_(
        "From now on no worker whose protocol compares specs is given jobs of these types, until "
        "they are registered again. Active jobs are not affected."
    ),
    button=_("Withdraw these specs"),
    is_destructive=True,
)

"""Alert rules: make, change, test, enable, disable and delete them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Max, Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobs.access.audit import of_request, record_action
from jobs.admin import display
from jobs.admin.base import OJSModelAdmin, may
from jobs.admin.confirm import Answer, Question, ask, say, trace
from jobs.store.database import atomic

from ..alerts import evaluation
from ..alerts.problems import KINDS, Kind
from ..models import Alert, AlertNotification, AlertRule
from .alert_form import SCOPE, fields_of, form_for

SHOWN = (
    "shown_kind",
    "state",
    "terms",
    "lasting",
    "quiet",
    "receivers",
    "checked",
    "last_failure",
)


def label_of(kind: str) -> str:
    """A kind of problem, as people read it."""
    return str(KINDS[kind].label) if kind in KINDS else kind


class KindFilter(admin.SimpleListFilter):
    title = _("problem")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        used = AlertRule.objects.order_by().values_list("kind", flat=True).distinct()
        return sorted(((kind, label_of(kind)) for kind in used), key=lambda choice: choice[1])

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.filter(kind=self.value()) if self.value() else queryset


@admin.register(AlertRule)
class AlertRuleAdmin(OJSModelAdmin):
    list_display = ("name", "shown_kind", "terms", "state", "receivers", "checked", "last_failure")
    list_filter = ("enabled", KindFilter)
    search_fields = ("name", "queue", "type", "project", "emails")
    ordering = ("name",)
    sortable_by = ("name",)
    actions = ("test", "enable", "disable", "delete")
    buttons: ClassVar[dict[str, Any]] = {
        "test": _("Send a test"),
        "enable": _("Enable"),
        "disable": _("Disable"),
        "delete": _("Delete"),
    }
    readonly_fields = SHOWN

    has_manage_permission = may("ojs_workers.manage_alerts")
    has_add_permission = may("ojs_workers.manage_alerts")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_manage_permission(request) and (obj is None or obj.kind in KINDS)

    def allowed(self, obj: Any) -> Collection[str]:
        return ("test", "disable" if obj.enabled else "enable", "delete")

    def _kind(self, request: HttpRequest, obj: Any) -> Kind | None:
        asked = request.POST.get("kind") or request.GET.get("kind", "")
        return KINDS.get(obj.kind if obj is not None else asked)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        kind = self._kind(request, obj)
        if kind is None or (obj is not None and not self.has_change_permission(request, obj)):
            return [(None, {"fields": ("name", *SHOWN)})]
        sections = fields_of(kind, changes=bool(obj and obj.webhook_secret))
        if obj is not None:
            sections.append((_("At present"), {"fields": ("state", "checked", "last_failure")}))
        return sections

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kw: Any
    ) -> Any:
        kind = self._kind(request, obj)
        if kind is None or (obj is not None and not self.has_change_permission(request, obj)):
            return super().get_form(request, obj, change, **kw)
        return super().get_form(request, obj, change, form=form_for(kind), **kw)

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        if self._kind(request, None) is not None:
            return super().add_view(request, form_url, extra_context)
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": gettext("New alert rule"),
            "kinds": [(kind.name, kind.label) for kind in KINDS.values()],
        }
        return TemplateResponse(request, "admin/ojs/alert_kinds.html", context)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        # Never the secret itself.
        saved = {name: str(form.cleaned_data[name]) for name in form.changed_data}
        saved = {name: "…" if "secret" in name else text for name, text in saved.items() if text}
        with atomic():
            if change and not obj.enabled:
                evaluation.switch([obj], on=False)
            obj.save()
            # The form's own history entry has the rest.
            record_action(
                of_request(request),
                "manage_alerts",
                [obj],
                selection={"saved": obj.name, "kind": obj.kind} | saved,
                reason=form.cleaned_data["reason"],
                history=False,
            )

    def add_figures(self, rules: Sequence[Any]) -> None:
        keys = [rule.pk for rule in rules]
        opened = Alert.objects.begun().filter(rule__in=keys).order_by("pk")
        first = {rule: alert for alert, rule in opened.values_list("pk", "rule")[::-1]}
        newest = (
            AlertNotification.objects.filter(rule__in=keys)
            .filter(Q(sent_at__isnull=False) | ~Q(last_error=""))
            .order_by()
            .values("rule", "channel")
            .annotate(newest=Max("pk"))
            .values("newest")
        )
        failed = AlertNotification.objects.filter(pk__in=newest).exclude(last_error="")
        problems = {each.rule_id: each for each in failed}
        for rule in rules:
            rule.open_alert, rule.failure = first.get(rule.pk), problems.get(rule.pk)

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        rule = super().get_object(request, object_id, from_field)
        if rule is not None:
            self.add_figures([rule])
        return rule

    @admin.display(description=_("problem"))
    def shown_kind(self, rule: AlertRule) -> str:
        return label_of(rule.kind)

    @admin.display(description=_("state"))
    def state(self, rule: Any) -> str | SafeString:
        if not rule.enabled:
            return display.chip("paused", gettext("disabled"))
        if rule.open_alert is None:
            return display.chip("active", gettext("no alert"))
        site = self.admin_site.name
        url = display.admin_url(site, "ojs_workers_alert", "change", rule.open_alert)
        return display.link(url, display.chip("discarded", gettext("alert")))

    @admin.display(description=_("when"))
    def terms(self, rule: AlertRule) -> str:
        kind = KINDS.get(rule.kind)
        if kind is None:
            return display.NOTHING
        limits = kind.terms(rule.limits).limits
        parts = [each.in_words(limits[each.name]) for each in kind.parameters]
        for name in SCOPE:
            if value := getattr(rule, name):
                scope: Any = rule._meta.get_field(name)
                parts.append(f"{scope.verbose_name}: {value}")
        return "; ".join(parts) or display.NOTHING

    @admin.display(description=_("lasting"))
    def lasting(self, rule: AlertRule) -> str:
        text = gettext("begins after %(begins)s s, ends after %(ends)s s")
        return text % {"begins": rule.begins_after, "ends": rule.ends_after}

    @admin.display(description=_("quiet hours"))
    def quiet(self, rule: AlertRule) -> str:
        if rule.is_critical:
            return gettext("none: it is critical")
        if rule.quiet_from is None or rule.quiet_until is None:
            return display.NOTHING
        return f"{rule.quiet_from:%H:%M} – {rule.quiet_until:%H:%M} {rule.timezone}".strip()

    @admin.display(description=_("notifies"))
    def receivers(self, rule: AlertRule) -> str:
        """The path of a webhook is left out: it may be its password."""
        given = rule.emails.split()
        given += [urlsplit(rule.webhook_url).hostname or ""] if rule.webhook_url else []
        given += [rule.job_type] if rule.job_type else []
        return ", ".join(given) or gettext("no receiver; alerts are shown on the dashboard")

    @admin.display(description=_("last checked"))
    def checked(self, rule: AlertRule) -> str | SafeString:
        return display.when(rule.checked_at) if rule.checked_at else gettext("never")

    @admin.display(description=_("last failure"))
    def last_failure(self, rule: Any) -> str | SafeString:
        failure = rule.failure
        if failure is None:
            return display.NOTHING
        site = self.admin_site.name
        url = display.admin_url(site, "ojs_workers_alertnotification", "change", failure.pk)
        return display.link(url, failure.last_error[:100])

    @admin.action(description=_("Send a test of the selected rules"), permissions=["manage"])
    def test(self, request: HttpRequest, queryset: Any) -> Any:
        answer = ask(self, request, queryset, TEST)
        if not isinstance(answer, Answer):
            return answer
        with atomic():
            counts = {rule: evaluation.test(rule) for rule in answer.objects}
            tested = [rule for rule, count in counts.items() if count]
            text = gettext("A test was sent.")
            self._trace(request, answer, "tested", tested, text)
        count = sum(counts.values())
        text = ngettext(
            "%(count)d notification is sent within seconds; the list of notifications shows what "
            "became of it.",
            "%(count)d notifications are sent within seconds; the list of notifications shows what "
            "became of them.",
            count,
        )
        said = [text % {"count": count}] if count else []
        if silent := len(counts) - len(tested):
            text = ngettext(
                "%(count)d rule has no receivers: no test of it was sent.",
                "%(count)d rules have no receivers: no test of them was sent.",
                silent,
            )
            said.append(text % {"count": silent})
        return say(self, request, count, " ".join(said), count)

    @admin.action(description=_("Enable selected rules"), permissions=["manage"])
    def enable(self, request: HttpRequest, queryset: Any) -> Any:
        return self._switch(request, queryset, ENABLE, True)

    @admin.action(description=_("Disable selected rules"), permissions=["manage"])
    def disable(self, request: HttpRequest, queryset: Any) -> Any:
        return self._switch(request, queryset, DISABLE, False)

    def _switch(self, request: HttpRequest, queryset: Any, question: Question, on: bool) -> Any:
        answer = ask(self, request, queryset, question)
        if not isinstance(answer, Answer):
            return answer
        with atomic():
            changed = evaluation.switch(answer.objects, on=on)
            text = gettext("Enabled.") if on else gettext("Disabled.")
            self._trace(request, answer, "enabled" if on else "disabled", changed, text)
        done = len(changed)
        text = (
            ngettext("%(count)d rule was enabled.", "%(count)d rules were enabled.", done)
            if on
            else ngettext("%(count)d rule was disabled.", "%(count)d rules were disabled.", done)
        )
        return say(self, request, done, text % {"count": done}, len(answer.objects))

    @admin.action(description=_("Delete selected rules"), permissions=["manage"])
    def delete(self, request: HttpRequest, queryset: Any) -> Any:
        answer = ask(self, request, queryset, DELETE)
        if not isinstance(answer, Answer):
            return answer
        with atomic():
            rules = list(AlertRule.objects.filter(pk__in=answer.ids).select_for_update())
            self._trace(request, answer, "deleted", rules, gettext("Deleted."))
            AlertRule.objects.filter(pk__in=[rule.pk for rule in rules]).delete()
        done = len(rules)
        text = ngettext("%(count)d rule was deleted.", "%(count)d rules were deleted.", done)
        self.message_user(request, text % {"count": done})
        url = display.admin_url(self.admin_site.name, "ojs_workers_alertrule", "changelist")
        return HttpResponseRedirect(url)

    def _trace(
        self,
        request: HttpRequest,
        answer: Answer,
        what: str,
        rules: Sequence[AlertRule],
        message: str,
    ) -> None:
        selection = answer.selection | {what: [rule.name for rule in rules[:NAMED]]}
        trace(request, "manage_alerts", rules, answer, selection=selection, message=message)


NAMED = 20
"""Rules that the audit names."""
TEST = Question(
    action="test",
    title=_("Send a test"),
    consequence=_(
        "Every receiver of these rules gets a notification that says it is a test. No alert begins."
    ),
    button=_("Send a test"),
)
ENABLE = Question(
    action="enable",
    title=_("Enable alert rules"),
    consequence=_("They are checked again within seconds."),
    button=_("Enable these rules"),
)
DISABLE = Question(
    action="disable",
    title=_("Disable alert rules"),
    consequence=_(
        "They are not checked until they are enabled. Their open alerts end, and their receivers "
        "are notified of that."
    ),
    button=_("Disable these rules"),
)
DELETE = Question(
    action="delete",
    title=_("Delete alert rules"),
    consequence=_(
        "Their alerts and notifications are deleted with them, and the end of open alerts is not "
        "announced. To keep them, disable the rules."
    ),
    button=_("Delete these rules"),
    is_destructive=True,
)

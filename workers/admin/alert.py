"""Alerts, open and past, and the notifications that were sent about them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobs.admin import display
from jobs.admin.base import ReadOnlyModelAdmin, may
from jobs.admin.confirm import Answer, Question, ReasonForm, ask, say, trace
from jobs.store import clock
from jobs.store.database import atomic

from ..alerts import evaluation
from ..alerts.delivery import TRIES
from ..models import Alert, AlertNotification
from .alert_rule import KindFilter, label_of
from .attention import url_of
from .figures import Figures

SHOWN = 20
"""Notifications that the page of an alert lists."""


class AcknowledgeForm(ReasonForm):
    hours = forms.TypedChoiceField(
        label=_("For how long"),
        choices=[
            ("", _("until it ends")),
            ("1", _("1 hour")),
            ("4", _("4 hours")),
            ("24", _("24 hours")),
            ("168", _("7 days")),
        ],
        required=False,
        coerce=int,
        empty_value=None,
        help_text=_("If it is still open then, it is announced again."),
    )
    field_order = ("hours", "reason")


class StateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return (
            ("open", _("open")),
            ("acknowledged", _("acknowledged")),
            ("pending", _("has not lasted long enough")),
            ("ended", _("ended")),
        )

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() == "open":
            return queryset.begun()
        if self.value() == "acknowledged":
            return queryset.begun().filter(acknowledged_at__isnull=False)
        if self.value() == "pending":
            return queryset.unended().filter(began_at__isnull=True)
        return queryset.ended() if self.value() == "ended" else queryset


@admin.register(Alert)
class AlertAdmin(ReadOnlyModelAdmin):
    list_display = ("shown_text", "state", "rule_link", "began", "lasted", "acknowledged")
    list_display_links = ("shown_text",)
    list_filter = (StateFilter, KindFilter, ("rule", admin.RelatedOnlyFieldListFilter))
    search_fields = ("subject", "text", "rule__name")
    list_select_related = ("rule",)
    ordering = ("-id",)
    sortable_by = ()
    actions = ("acknowledge",)
    buttons: ClassVar[dict[str, Any]] = {"acknowledge": _("Acknowledge")}
    fieldsets = (
        (None, {"fields": ("shown_text", "state", "rule_link", "shown_kind", "leads_to")}),
        (_("Time"), {"fields": ("first_seen", "began", "last_seen", "ended", "lasted")}),
        (_("Acknowledged"), {"fields": ("acknowledged", "acknowledged_until", "reason")}),
        (_("Notifications"), {"fields": ("announced", "sent")}),
    )

    has_acknowledge_permission = may("ojs_workers.acknowledge_alert")

    def allowed(self, obj: Any) -> Collection[str]:
        return ("acknowledge",) if obj.is_open else ()

    @admin.display(description=_("alert"))
    def shown_text(self, alert: Alert) -> str:
        return alert.text

    @admin.display(description=_("state"))
    def state(self, alert: Alert) -> SafeString:
        if alert.ended_at is not None:
            return display.chip("completed", gettext("ended"))
        if alert.began_at is None:
            return display.chip("pending", gettext("has not lasted long enough"))
        if alert.is_acknowledged:
            return display.chip("retryable", gettext("acknowledged"))
        return display.chip("discarded", gettext("open"))

    @admin.display(description=_("rule"))
    def rule_link(self, alert: Alert) -> str | SafeString:
        site = self.admin_site.name
        url = display.admin_url(site, "ojs_workers_alertrule", "change", alert.rule_id)
        return display.link(url, alert.rule.name)

    @admin.display(description=_("problem"))
    def shown_kind(self, alert: Alert) -> str:
        return label_of(alert.kind)

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        alert = super().get_object(request, object_id, from_field)
        if alert is not None:
            link = evaluation.link_of(alert)
            alert.about = link, url_of(link, Figures(self.admin_site, request))
        return alert

    @admin.display(description=_("where"))
    def leads_to(self, alert: Any) -> str | SafeString:
        """The page that it is about; only its name for a user who may not view it."""
        link, url = alert.about
        if link is None:
            return display.NOTHING
        if link.key is not None:
            return display.link(url, alert.subject or str(link.key))
        return display.link(
            url, link.query.get("name") or str(link.model._meta.verbose_name_plural)
        )

    @admin.display(description=_("first seen"))
    def first_seen(self, alert: Alert) -> str | SafeString:
        return display.moment(alert.since)

    @admin.display(description=_("last seen"))
    def last_seen(self, alert: Alert) -> str | SafeString:
        return display.moment(alert.seen_at)

    @admin.display(description=_("began"))
    def began(self, alert: Alert) -> str | SafeString:
        return display.when(alert.began_at)

    @admin.display(description=_("ended"))
    def ended(self, alert: Alert) -> str | SafeString:
        return display.moment(alert.ended_at)

    @admin.display(description=_("lasted"))
    def lasted(self, alert: Alert) -> str:
        if alert.began_at is None:
            return display.NOTHING
        return display.span((alert.ended_at or clock.now()) - alert.began_at)

    @admin.display(description=_("acknowledged"))
    def acknowledged(self, alert: Alert) -> str | SafeString:
        if alert.acknowledged_at is None:
            return display.NOTHING
        when = display.when(alert.acknowledged_at)
        return format_html("{} {}", alert.acknowledged_by, when)

    @admin.display(description=_("notifications"))
    def sent(self, alert: Alert) -> str | SafeString:
        site = self.admin_site.name
        lines = []
        for each in alert.notifications.order_by("pk")[:SHOWN]:
            url = display.admin_url(site, "ojs_workers_alertnotification", "change", each.pk)
            title = display.link(url, f"{each.get_channel_display()}: {each.document['title']}")
            lines.append((title, outcome(each), each.last_error))
        return format_html_join("", "<div>{} {} {}</div>", lines) or display.NOTHING

    @admin.action(description=_("Acknowledge selected alerts"), permissions=["acknowledge"])
    def acknowledge(self, request: HttpRequest, queryset: Any) -> Any:
        answer = ask(self, request, queryset.select_related("rule"), ACKNOWLEDGE)
        if not isinstance(answer, Answer):
            return answer
        hours = answer.data["hours"]
        until = clock.now() + timedelta(hours=hours) if hours else None
        with atomic():
            begun = Alert.objects.begun().filter(pk__in=answer.ids).select_for_update()
            alerts = list(begun.order_by("pk"))
            done = evaluation.acknowledge(
                [alert.pk for alert in alerts],
                who=request.user.get_username(),
                until=until,
                reason=answer.reason,
            )
            how = {"until": until.isoformat()} if until else {}
            trace(
                request,
                "acknowledge_alert",
                alerts,
                answer,
                selection=answer.selection | how,
                message=gettext("Acknowledged."),
            )
        text = ngettext(
            "%(count)d alert was acknowledged.", "%(count)d alerts were acknowledged.", done
        )
        return say(self, request, done, text % {"count": done}, len(answer.objects))


def without_others(count: int) -> str:
    text = ngettext(
        "%(count)d of them is not open, and is left out.",
        "%(count)d of them are not open, and are left out.",
        count,
    )
    return text % {"count": count}


ACKNOWLEDGE = Question(
    action="acknowledge",
    title=_("Acknowledge alerts"),
    consequence=_(
        "The dashboard no longer shows them as errors. Those that have not been announced yet are "
        "not announced. Their end is announced all the same."
    ),
    button=_("Acknowledge these alerts"),
    form_class=AcknowledgeForm,
    describe=lambda alert: alert.text,
    concerns=lambda alerts: alerts.begun(),
    left_out=lambda count, rest: without_others(rest),
)


def outcome(notification: AlertNotification) -> SafeString:
    """What became of a notification."""
    if notification.sent_at is not None:
        return display.chip("completed", gettext("sent"))
    if notification.gave_up_at is not None:
        return display.chip("discarded", gettext("given up"))
    if notification.last_error:
        return display.chip("retryable", gettext("will be tried again"))
    return display.chip("pending", gettext("waits"))


class OutcomeFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return (
            ("sent", _("sent")),
            ("waiting", _("not sent yet")),
            ("failed", _("given up")),
        )

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() == "sent":
            return queryset.filter(sent_at__isnull=False)
        if self.value() == "failed":
            return queryset.filter(gave_up_at__isnull=False)
        return queryset.unfinished() if self.value() == "waiting" else queryset


@admin.register(AlertNotification)
class AlertNotificationAdmin(ReadOnlyModelAdmin):
    list_display = ("title", "rule_link", "channel", "state", "created", "shown_tries", "error")
    list_display_links = ("title",)
    list_filter = (OutcomeFilter, "channel", ("rule", admin.RelatedOnlyFieldListFilter))
    search_fields = ("rule__name", "last_error")
    list_select_related = ("rule",)
    ordering = ("-id",)
    sortable_by = ()
    fieldsets = (
        (None, {"fields": ("title", "rule_link", "channel", "state")}),
        (_("Time"), {"fields": ("created", "sent", "next_try", "shown_tries", "last_error")}),
        (_("Contents"), {"fields": ("shown_document",)}),
    )

    @admin.display(description=_("notification"))
    def title(self, notification: AlertNotification) -> str:
        return str(notification.document["title"])

    @admin.display(description=_("rule"))
    def rule_link(self, notification: AlertNotification) -> str | SafeString:
        site = self.admin_site.name
        url = display.admin_url(site, "ojs_workers_alertrule", "change", notification.rule_id)
        return display.link(url, notification.rule.name)

    @admin.display(description=_("state"))
    def state(self, notification: AlertNotification) -> SafeString:
        return outcome(notification)

    @admin.display(description=_("made"))
    def created(self, notification: AlertNotification) -> str | SafeString:
        return display.when(notification.created_at)

    @admin.display(description=_("sent"))
    def sent(self, notification: AlertNotification) -> str | SafeString:
        return display.moment(notification.sent_at)

    @admin.display(description=_("next try"))
    def next_try(self, notification: AlertNotification) -> str | SafeString:
        return display.moment(notification.waits_until)

    @admin.display(description=_("tries"))
    def shown_tries(self, notification: AlertNotification) -> str:
        text = gettext("%(tries)s of at most %(most)s")
        return text % {"tries": notification.tries, "most": TRIES}

    @admin.display(description=_("last error"))
    def error(self, notification: AlertNotification) -> str:
        return Truncator(notification.last_error).chars(100) or display.NOTHING

    @admin.display(description=_("document"))
    def shown_document(self, notification: AlertNotification) -> str | SafeString:
        return display.json_block(notification.document)

"""Webhook subscriptions and their deliveries: make, test, pause, rotate, replay."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.db import IntegrityError
from django.db.models import Count
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobs.access.audit import of_request
from jobs.admin import display
from jobs.admin.base import OJSModelAdmin, ReadOnlyModelAdmin, may
from jobs.admin.confirm import Answer, Question, ReasonForm, ask, back, back_to_list, say
from jobs.admin.job_form import WIDE, projects
from jobs.admin.made_once import MadeAlready, MadeOnce, form_id, is_renewed, marked
from jobs.errors import Conflict, OJSError, TooManyConnections
from jobs.models import Job
from jobs.store.database import atomic

from ..models import DeliveryState, WebhookDelivery, WebhookFormat, WebhookSubscription
from ..webhooks import delivery, subscriptions
from ..webhooks.requests import TIMEOUTS, read_changes

LINES = {"rows": 3, "class": "vLargeTextField"}
LISTS = ("events", "queues", "job_types")
MANAGE = f"ojs_workers.{subscriptions.VERB}"


class SubscriptionForm(forms.ModelForm):
    url = forms.CharField(label=_("URL"), max_length=2000, widget=forms.TextInput(attrs=WIDE))
    events = forms.CharField(
        label=_("Events"),
        widget=forms.Textarea(attrs=LINES),
        help_text=_("One type a line; “job.*” matches what begins with “job.”, “*” everything."),
    )
    queues = forms.CharField(
        label=_("Only of these queues"),
        required=False,
        widget=forms.Textarea(attrs=LINES),
        help_text=_("One a line; empty: all."),
    )
    job_types = forms.CharField(
        label=_("Only of these types of jobs"),
        required=False,
        widget=forms.Textarea(attrs=LINES),
        help_text=_("One a line; empty: all."),
    )
    format = forms.ChoiceField(
        label=_("Format"),
        choices=WebhookFormat.choices,
        required=False,
        help_text=_("How events are written."),
    )
    timeout = forms.IntegerField(
        label=_("Seconds that an attempt may take"),
        min_value=TIMEOUTS[0],
        max_value=TIMEOUTS[1],
        initial=30,
    )
    project = forms.ChoiceField(
        label=_("Project"),
        required=False,
        help_text=_("It gets the events of this project’s jobs and workflows only."),
    )
    reason = forms.CharField(
        label=_("Reason"),
        required=False,
        max_length=500,
        help_text=_("Kept in the audit."),
        widget=forms.TextInput(attrs=WIDE),
    )

    class Meta:
        model = WebhookSubscription
        fields: ClassVar[list[str]] = ["url", "format", "timeout"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance._state.adding:
            field: Any = self.fields["project"]
            field.choices = [("", _("all")), *((name, name) for name in projects())]
            return
        # The project of what exists never changes.
        self.fields.pop("project", None)
        for name in LISTS:
            self.initial[name] = "\n".join(getattr(self.instance, name))

    def clean(self) -> Any:
        data = super().clean() or self.cleaned_data
        if self.errors:
            return data
        lists = {name: data[name].split() for name in LISTS}
        body = {
            "url": data["url"].strip(),
            "events": lists["events"],
            "format": data["format"] or None,
            "timeout": data["timeout"],
            "filter": {name: lists[name] for name in LISTS[1:] if lists[name]},
        }
        try:
            if self.instance._state.adding:
                subscriptions.require_room(data.get("project", ""))
            self.columns = read_changes(body)
        except OJSError as refusal:
            place = str(refusal.details.get("field", "")).partition("[")[0]
            name = place.removeprefix("filter.")
            self.add_error(name if name in self.fields else None, refusal.message)
        return data

    def _post_clean(self) -> None:
        """Nothing is written by the form itself."""


class RotationForm(ReasonForm):
    overlap = forms.TypedChoiceField(
        label=_("Deliveries are signed with the present secret as well for"),
        choices=[
            ("0", _("no longer, because it has leaked")),
            ("1", _("1 hour")),
            ("24", _("24 hours")),
            ("168", _("7 days")),
        ],
        initial="24",
        coerce=lambda hours: timedelta(hours=int(hours)),
    )
    field_order = ("overlap", "reason")


class StateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return (
            ("active", _("active")),
            ("failing", _("failing")),
            ("inactive", _("paused or disabled")),
        )

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() == "active":
            return queryset.active()
        if self.value() == "failing":
            return queryset.failing()
        return queryset.filter(active=False) if self.value() == "inactive" else queryset


@admin.register(WebhookSubscription)
class WebhookSubscriptionAdmin(MadeOnce, OJSModelAdmin):
    form = SubscriptionForm
    made_already = _(
        "This subscription was made already, and its secret is shown only once. If you do not have "
        "it, give it a new secret."
    )
    list_display = ("host", "wants", "state", "project", "waiting", "last_success", "made")
    list_display_links = ("host",)
    list_filter = (StateFilter,)
    search_fields = ("url", "project")
    ordering = ("-id",)
    sortable_by = ()
    actions = ("test", "pause", "resume", "rotate", "delete")
    buttons: ClassVar[dict[str, Any]] = {
        "test": _("Send a test"),
        "pause": _("Pause"),
        "resume": _("Resume"),
        "rotate": _("New secret"),
        "delete": _("Delete"),
    }
    readonly_fields = (
        "name",
        "host",
        "wants",
        "state",
        "shown_metadata",
        "made",
        "made_by",
        "last_success",
        "failing",
        "secrets",
        "waiting",
        "dead",
        "latest",
    )
    has_manage_permission = may(MANAGE)
    has_add_permission = may(MANAGE)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_manage_permission(request)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        asked = ("url", *LISTS, "format", "timeout")
        if obj is None:
            return [(None, {"fields": (*asked, "project", "reason")})]
        now = ("state", "last_success", "failing", "waiting", "dead", "latest")
        about = ("shown_metadata", "made", "made_by", "secrets")
        # The path of a URL may be a password.
        may_change = self.has_change_permission(request, obj)
        form = (*asked, "reason") if may_change else ("host", "wants")
        return [
            (None, {"fields": ("name", *form)}),
            (_("At present"), {"fields": now}),
            (_("About it"), {"fields": about}),
        ]

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kw: Any
    ) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            return super().get_form(request, obj, change, form=forms.ModelForm, **kw)
        return super().get_form(request, obj, change, **kw)

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        # Searching for the beginning of a path would let a user guess it.
        if not self.has_manage_permission(request):
            return queryset.filter(project=search_term) if search_term else queryset, False
        return super().get_search_results(request, queryset, search_term)

    def allowed(self, obj: Any) -> Collection[str]:
        may_pause = ("pause",) if obj.active or obj.disabled_reason else ()
        may_resume = () if obj.active else ("resume",)
        return ("test", *may_pause, *may_resume, "rotate", "delete")

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        # After a subscription is made, the page shows nothing but its secret.
        context |= {"show_save_and_add_another": False, "show_save_and_continue": False}
        return super().render_change_form(request, context, *args, **kwargs)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        actor, columns = of_request(request), form.columns
        if change:
            subscriptions.change(actor, obj, columns, reason=form.cleaned_data["reason"])
            return
        project = form.cleaned_data.get("project", "")
        if key := form_id(request):
            columns = columns | {"id": key}
        try:
            made = subscriptions.create(
                actor, columns, project=project, reason=form.cleaned_data["reason"]
            )
        except IntegrityError:
            already = WebhookSubscription.objects.filter(pk=key).first()
            if already is None:
                raise
            raise MadeAlready(already) from None
        obj.pk, obj.secret = made.pk, made.secret

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: Any = None) -> Any:
        return self._show(request, obj, gettext("The subscription was made"))

    def _show(self, request: HttpRequest, obj: Any, title: str, note: str = "") -> Any:
        """Show a secret: only in this response, never in a message, which a cookie would carry."""
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": title,
            "note": note,
            "secret": obj.secret,
            "original": obj,
        }
        return TemplateResponse(request, "admin/ojs/webhook_secret.html", context)

    def add_figures(self, rows: Sequence[Any]) -> None:
        pending = WebhookDelivery.objects.pending().filter(subscription__in=rows).order_by()
        counts = dict(pending.values_list("subscription").annotate(count=Count("pk")))
        lost = WebhookDelivery.objects.lost_lately().filter(subscription__in=rows).order_by()
        losing = set(lost.values_list("subscription", flat=True))
        for row in rows:
            row.pending = counts.get(row.pk, 0)
            row.is_losing = row.pk in losing

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            self.add_figures([row])
        return row

    @admin.display(description=_("id"))
    def name(self, row: WebhookSubscription) -> str:
        return row.name

    @admin.display(description=_("receiver"))
    def host(self, row: WebhookSubscription) -> str:
        """The path of a URL is left out: it may be its password."""
        return row.host

    @admin.display(description=_("events"))
    def wants(self, row: WebhookSubscription) -> SafeString:
        of = [*row.queues, *row.job_types]
        only = gettext("only of %(names)s") % {"names": ", ".join(of)} if of else ""
        return format_html("{} {}", display.chips(row.events), only)

    @admin.display(description=_("state"))
    def state(self, row: Any) -> SafeString:
        if not row.active and row.disabled_reason:
            chip = display.chip("discarded", gettext("disabled"))
            return format_html("{} {}", chip, row.disabled_reason)
        if not row.active:
            return display.chip("paused", gettext("paused"))
        if row.failing_since is not None:
            return display.chip("retryable", gettext("failing"))
        if row.is_losing:
            return display.chip("retryable", gettext("losing deliveries"))
        return display.chip("active", gettext("active"))

    @admin.display(description=_("deliveries that wait"))
    def waiting(self, row: Any) -> str | SafeString:
        url = display.admin_url(self.admin_site.name, "ojs_workers_webhookdelivery", "changelist")
        query = f"?subscription__id__exact={row.pk}&state__exact={DeliveryState.PENDING}"
        return display.link(url and url + query, str(row.pending)) if row.pending else "0"

    @admin.display(description=_("dead deliveries"))
    def dead(self, row: WebhookSubscription) -> str | SafeString:
        """The receiver refused them, or nothing reached it: the state alone tells of the latter."""
        latest = list(row.deliveries.order_by("-pk").values_list("state", flat=True)[:LOOKED_AT])
        number = latest.count(DeliveryState.DEAD)
        if not number:
            return "0"
        text = gettext("%(dead)d of the latest %(count)d") % {"dead": number, "count": len(latest)}
        url = display.admin_url(self.admin_site.name, "ojs_workers_webhookdelivery", "changelist")
        query = f"?subscription__id__exact={row.pk}&state__exact={DeliveryState.DEAD}"
        return display.link(url and url + query, text)

    @admin.display(description=_("last success"))
    def last_success(self, row: WebhookSubscription) -> str | SafeString:
        return display.when(row.delivered_at) if row.delivered_at else gettext("never")

    @admin.display(description=_("failing since"))
    def failing(self, row: WebhookSubscription) -> str | SafeString:
        return display.moment(row.failing_since)

    @admin.display(description=_("metadata"))
    def shown_metadata(self, row: WebhookSubscription) -> str | SafeString:
        return display.json_block(row.metadata or None)

    @admin.display(description=_("made"))
    def made(self, row: WebhookSubscription) -> str | SafeString:
        return display.when(row.created_at)

    @admin.display(description=_("by"))
    def made_by(self, row: WebhookSubscription) -> str:
        return row.created_by or display.NOTHING

    @admin.display(description=_("signed with"))
    def secrets(self, row: WebhookSubscription) -> str | SafeString:
        if not row.has_two_secrets:
            return gettext("one secret")
        until = display.moment(row.previous_until)
        return format_html("{} {}", gettext("two secrets until"), until)

    @admin.display(description=_("latest deliveries"))
    def latest(self, row: WebhookSubscription) -> str | SafeString:
        found = row.deliveries.order_by("-pk").defer("body")[:SHOWN]
        lines = [
            (delivery_link(self.admin_site.name, each), chip_of(each), each.last_error)
            for each in found
        ]
        return format_html_join("", "<div>{} {} {}</div>", lines) or display.NOTHING

    @admin.action(description=_("Send a test to the selected subscription"), permissions=["manage"])
    def test(self, request: HttpRequest, queryset: Any) -> Any:
        answer = ask(self, request, queryset, TEST)
        if not isinstance(answer, Answer):
            return answer
        (row, *_others) = answer.objects
        try:
            outcome = delivery.test(row)
        except TooManyConnections as problem:
            self.message_user(request, problem.message, messages.ERROR)
            return back(request)
        subscriptions.record_change(
            of_request(request), row, {"tested": outcome.is_success}, reason=answer.reason
        )
        if outcome.is_success:
            text = gettext("The receiver answered with status %(status)s.")
            self.message_user(request, text % {"status": outcome.status}, messages.SUCCESS)
        else:
            text = gettext("It failed: %(error)s")
            error = {"error": outcome.entry["error"]}
            self.message_user(request, text % error, messages.ERROR)
        return back(request)

    @admin.action(description=_("Pause selected subscriptions"), permissions=["manage"])
    def pause(self, request: HttpRequest, queryset: Any) -> Any:
        return self._switch(request, queryset, PAUSE, False)

    @admin.action(description=_("Resume selected subscriptions"), permissions=["manage"])
    def resume(self, request: HttpRequest, queryset: Any) -> Any:
        return self._switch(request, queryset, RESUME, True)

    def _switch(self, request: HttpRequest, queryset: Any, question: Question, on: bool) -> Any:
        if "confirmed" not in request.POST:
            queryset = queryset.filter(subscriptions.switchable(on))
        return self._each(
            request,
            queryset,
            question,
            lambda row, reason: subscriptions.switch(
                of_request(request), row, on=on, reason=reason
            ),
            changed,
        )

    @admin.action(description=_("Delete selected subscriptions"), permissions=["manage"])
    def delete(self, request: HttpRequest, queryset: Any) -> Any:
        response = self._each(
            request,
            queryset,
            DELETE,
            lambda row, reason: subscriptions.delete(of_request(request), row, reason=reason),
            deleted,
        )
        return back_to_list(request) if isinstance(response, HttpResponseRedirect) else response

    def _each(
        self,
        request: HttpRequest,
        queryset: Any,
        question: Question,
        do: Callable[[WebhookSubscription, str], bool],
        report: Callable[[int], str],
    ) -> HttpResponse:
        answer = ask(self, request, queryset, question)
        if not isinstance(answer, Answer):
            return answer
        with atomic():
            done = sum(do(row, answer.reason) for row in answer.objects)
        return say(self, request, done, report(done), len(answer.objects))

    @admin.action(
        description=_("Give the selected subscription a new secret"), permissions=["manage"]
    )
    def rotate(self, request: HttpRequest, queryset: Any) -> Any:
        answer = ask(self, request, queryset, ROTATE)
        if not isinstance(answer, Answer):
            return answer
        with atomic():
            locked = WebhookSubscription.objects.select_for_update()
            row = get_object_or_404(locked, pk=answer.ids[0])
            if is_renewed(request, row.secret):
                return self._show_made(request, row, self.renewed_already)
            rotated = subscriptions.rotate(
                of_request(request), row, overlap=answer.data["overlap"], reason=answer.reason
            )
        note, until = "", rotated.previous_until
        if until is not None and rotated.has_two_secrets:
            note = gettext("Deliveries are signed with the previous one as well until %(until)s.")
            note %= {"until": display.absolute(until)}
        return self._show(request, rotated, gettext("The subscription has a new secret"), note)


def changed(count: int) -> str:
    text = ngettext(
        "%(count)d subscription was changed.", "%(count)d subscriptions were changed.", count
    )
    return text % {"count": count}


def deleted(count: int) -> str:
    text = ngettext(
        "%(count)d subscription was deleted.", "%(count)d subscriptions were deleted.", count
    )
    return text % {"count": count}


SHOWN = 20
"""Deliveries that the page of a subscription lists."""
LOOKED_AT = 100
"""Latest deliveries of a subscription among which the dead ones are counted."""
CHIPS = {
    DeliveryState.PENDING: "pending",
    DeliveryState.DELIVERED: "completed",
    DeliveryState.DEAD: "discarded",
}


def chip_of(row: WebhookDelivery) -> SafeString:
    return display.chip(CHIPS[DeliveryState(row.state)], row.get_state_display())


def delivery_link(site: str, row: WebhookDelivery) -> str | SafeString:
    url = display.admin_url(site, "ojs_workers_webhookdelivery", "change", row.pk)
    return display.link(url, row.event_type)


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(ReadOnlyModelAdmin):
    list_display = ("event", "receiver", "chip", "shown_tries", "created", "next_try", "error")
    list_display_links = ("event",)
    list_filter = ("state", "subscription")
    search_fields = ("event_id__exact", "subject__exact")
    list_select_related = ("subscription",)
    ordering = ("-id",)
    sortable_by = ()
    actions = ("replay",)
    buttons: ClassVar[dict[str, Any]] = {"replay": _("Send again")}
    fieldsets = (
        (None, {"fields": ("name", "event", "event_id", "subject", "receiver", "chip", "job")}),
        (_("Time"), {"fields": ("created", "next_try", "finished", "shown_tries")}),
        (_("Attempts"), {"fields": ("shown_attempts",)}),
        (_("Contents"), {"fields": ("shown_body",)}),
    )
    has_replay_permission = may(MANAGE)

    def allowed(self, obj: Any) -> Collection[str]:
        return ("replay",)

    @admin.display(description=_("id"))
    def name(self, row: WebhookDelivery) -> str:
        return row.name

    @admin.display(description=_("event"))
    def event(self, row: WebhookDelivery) -> str:
        return row.event_type

    @admin.display(description=_("receiver"))
    def receiver(self, row: WebhookDelivery) -> str | SafeString:
        site, owner = self.admin_site.name, row.subscription
        url = display.admin_url(site, "ojs_workers_webhooksubscription", "change", owner.pk)
        return display.link(url, owner.host)

    @admin.display(description=_("state"))
    def chip(self, row: WebhookDelivery) -> SafeString:
        return chip_of(row)

    @admin.display(description=_("job"))
    def job(self, row: WebhookDelivery) -> str | SafeString:
        """The job that carries it, as long as that is kept."""
        if row.job_id is None or not Job.objects.filter(pk=row.job_id).exists():
            return display.NOTHING
        return display.job_link(self.admin_site.name, row.job_id)

    @admin.display(description=_("made"))
    def created(self, row: WebhookDelivery) -> str | SafeString:
        return display.when(row.created_at)

    @admin.display(description=_("next try"))
    def next_try(self, row: WebhookDelivery) -> str | SafeString:
        return display.when(row.waits_until)

    @admin.display(description=_("finished"))
    def finished(self, row: WebhookDelivery) -> str | SafeString:
        return display.moment(row.finished_at)

    @admin.display(description=_("tries"))
    def shown_tries(self, row: WebhookDelivery) -> str:
        text = gettext("%(tries)s of at most %(most)s")
        return text % {"tries": row.tries, "most": delivery.TRIES}

    @admin.display(description=_("last error"))
    def error(self, row: WebhookDelivery) -> str:
        return Truncator(row.last_error).chars(100) or display.NOTHING

    @admin.display(description=_("attempts"))
    def shown_attempts(self, row: WebhookDelivery) -> str | SafeString:
        lines = [
            (
                display.moment(datetime.fromisoformat(each["at"])),
                display.lasted(timedelta(milliseconds=each["duration_ms"])),
                each.get("error") or f"HTTP {each.get('status')}",
            )
            for each in row.attempts
        ]
        return format_html_join("", "<div>{} · {} · {}</div>", lines) or display.NOTHING

    @admin.display(description=_("body"))
    def shown_body(self, row: WebhookDelivery) -> str | SafeString:
        return display.json_block(json.loads(row.body))

    @admin.action(description=_("Send selected deliveries again"), permissions=["replay"])
    def replay(self, request: HttpRequest, queryset: Any) -> Any:
        answer = ask(self, request, queryset.select_related("subscription"), REPLAY)
        if not isinstance(answer, Answer):
            return answer
        done = 0
        with atomic():
            for row in answer.objects:
                try:
                    subscriptions.replay(of_request(request), row, reason=answer.reason)
                except Conflict:
                    continue
                done += 1
        text = ngettext(
            "%(count)d delivery will be sent within seconds.",
            "%(count)d deliveries will be sent within seconds.",
            done,
        )
        return say(self, request, done, text % {"count": done}, len(answer.objects))


TEST = Question(
    action="test",
    title=_("Send a test"),
    consequence=_(
        "The receiver gets an event that says it is a test, at once, and has ten seconds to answer."
    ),
    button=_("Send a test"),
    most=1,
)
PAUSE = Question(
    action="pause",
    title=_("Pause webhook subscriptions"),
    consequence=_(
        "Nothing is sent to them. What waits is sent when they are resumed; events until then are "
        "not sent."
    ),
    button=_("Pause these subscriptions"),
)
RESUME = Question(
    action="resume",
    title=_("Resume webhook subscriptions"),
    consequence=_("They get what waited for them, and the events from now on."),
    button=_("Resume these subscriptions"),
)
ROTATE = Question(
    action="rotate",
    title=_("New secret of a webhook subscription"),
    consequence=_(
        "The new secret is shown once, on the next page. Deliveries are signed with both secrets "
        "for as long as you say, so that the receiver can change over."
    ),
    button=_("Make a new secret"),
    form_class=RotationForm,
    details=marked(lambda row: row.secret),
    most=1,
)
DELETE = Question(
    action="delete",
    title=_("Delete webhook subscriptions"),
    consequence=_("Their deliveries are deleted with them, also those that have not been sent."),
    button=_("Delete these subscriptions"),
    is_destructive=True,
)


def in_words(row: WebhookDelivery) -> str:
    return f"{row.event_type} → {row.subscription.host} ({row.name})"


def how_many(rows: Sequence[WebhookDelivery]) -> dict[str, Any]:
    text = ngettext("%(count)d delivery", "%(count)d deliveries", len(rows))
    return {"heading": text % {"count": len(rows)}}


REPLAY = Question(
    action="replay",
    title=_("Send deliveries again"),
    consequence=_(
        "Each is sent with the same id as before, and tried as often as a new one. Deliveries of "
        "paused subscriptions are left as they are."
    ),
    button=_("Send these deliveries again"),
    describe=in_words,
    details=how_many,
)

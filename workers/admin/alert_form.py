"""The form for an alert rule: the fields that fit the kind of problem, and the receivers."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.http import outbound
from jobs.spec.schedules import InvalidSchedule, read_zone
from jobs.spec.validation import QUEUE_PATTERN, WIRE_TYPE_PATTERN

from ..alerts.problems import Kind, Parameter
from ..models import AlertRule

PREFIX = "limit_"
WIDE = {"class": "vTextField", "autocomplete": "off"}
MOST_EMAILS = 50
SCOPE = {
    "queue": _("Only this queue; empty: every queue."),
    "type": _("Only this type of job; empty: all."),
    "project": _("Only this project; empty: all."),
}
ABOUT = ("name", "enabled")
LASTING = ("begins_after", "ends_after")
QUIET = ("quiet_from", "quiet_until", "timezone", "is_critical")
RECEIVERS = (
    "emails",
    "webhook_url",
    "webhook_secret",
    "forget_secret",
    "job_type",
    "job_queue",
)


class AlertRuleForm(forms.ModelForm):
    """Base of the forms that `form_for()` makes."""

    kind: ClassVar[Kind]

    webhook_secret = forms.CharField(
        label=_("Secret of the webhook"),
        required=False,
        max_length=255,
        widget=forms.PasswordInput(attrs={**WIDE, "autocomplete": "new-password"}),
        help_text=_(
            "Signs each request, in the header X-OJS-Signature. It is not shown again; empty "
            "keeps the present one."
        ),
    )
    forget_secret = forms.BooleanField(
        label=_("Remove the secret of the webhook"),
        required=False,
    )
    reason = forms.CharField(
        label=_("Reason"),
        required=False,
        max_length=500,
        help_text=_("Kept in the audit."),
        widget=forms.TextInput(attrs=WIDE),
    )

    class Meta:
        model = AlertRule
        fields: ClassVar[list[str]] = [
            *ABOUT,
            *SCOPE,
            *LASTING,
            *QUIET,
            "emails",
            "webhook_url",
            "job_type",
            "job_queue",
        ]
        labels: ClassVar[dict[str, Any]] = {
            "begins_after": _("Begins after"),
            "ends_after": _("Ends after"),
            "is_critical": _("Critical"),
            "quiet_from": _("Quiet from"),
            "quiet_until": _("Quiet until"),
            "emails": _("E-mail to"),
            "webhook_url": _("URL of a webhook"),
            "job_type": _("Enqueue a job of type"),
            "job_queue": _("In the queue"),
        }
        help_texts: ClassVar[dict[str, Any]] = {
            "begins_after": _("Seconds that the problem must last before anyone is notified."),
            "ends_after": _("Seconds that it must be over before it counts as ended."),
            "is_critical": _("Notifies in quiet hours, too."),
            "quiet_from": _(
                "What begins in quiet hours is reported when they end, if it still lasts."
            ),
            "quiet_until": _("Earlier than the beginning: on the next day."),
            "emails": _("One address a line."),
            "webhook_url": _("Receives a POST request with JSON."),
            "job_type": _("Its argument is what a webhook receives."),
            "job_queue": _("Empty: “default”."),
        }
        widgets: ClassVar[dict[str, Any]] = {
            "emails": forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"}),
            "webhook_url": forms.TextInput(attrs=WIDE),
            "job_type": forms.TextInput(attrs=WIDE),
            "job_queue": forms.TextInput(attrs=WIDE),
            "timezone": forms.TextInput(attrs=WIDE),
            "quiet_from": forms.TimeInput(format="%H:%M", attrs={"type": "time"}),
            "quiet_until": forms.TimeInput(format="%H:%M", attrs={"type": "time"}),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._secret = self.instance.webhook_secret
        self.instance.kind = self.kind.name
        for name in self.fields.keys() & SCOPE.keys():
            self.fields[name].help_text = SCOPE[name]
        for parameter in self.kind.parameters:
            self.initial.setdefault(
                PREFIX + parameter.name,
                self.instance.limits.get(parameter.name, parameter.proposed),
            )
        # What is stored is never sent to a browser.
        self.initial["webhook_secret"] = ""
        if "timezone" in self.fields:
            text = gettext("Of the quiet hours, such as Europe/Berlin; empty: %(zone)s.")
            zone = timezone.get_default_timezone_name()
            self.fields["timezone"].help_text = text % {"zone": zone}

    def clean_timezone(self) -> str:
        name: str = self.cleaned_data["timezone"]
        try:
            if name:
                read_zone(name)
        except InvalidSchedule:
            raise ValidationError(gettext("There is no such time zone.")) from None
        return name

    def clean_queue(self) -> str:
        return self._queue("queue")

    def clean_job_queue(self) -> str:
        return self._queue("job_queue")

    def clean_job_type(self) -> str:
        text = gettext("This is not a valid job type. An example is “alert.raised”.")
        return self._matching("job_type", WIRE_TYPE_PATTERN, text)

    def _queue(self, name: str) -> str:
        return self._matching(name, QUEUE_PATTERN, gettext("This is not a valid queue name."))

    def _matching(self, name: str, pattern: Any, problem: str) -> str:
        value: str = self.cleaned_data[name]
        if value and not pattern.fullmatch(value):
            raise ValidationError(problem)
        return value

    def clean_emails(self) -> str:
        addresses = self.cleaned_data["emails"].replace(",", " ").split()
        for address in addresses:
            try:
                validate_email(address)
            except ValidationError:
                text = gettext("“%(address)s” is not an e-mail address.")
                raise ValidationError(text % {"address": address[:100]}) from None
        if len(addresses) > MOST_EMAILS:
            text = gettext("At most %(count)s addresses: use a mailing list for more.")
            raise ValidationError(text % {"count": MOST_EMAILS})
        return "\n".join(dict.fromkeys(addresses))

    def clean_webhook_url(self) -> str:
        url: str = self.cleaned_data["webhook_url"].strip()
        if url:
            try:
                outbound.read_url(url)
            except outbound.OutboundError as problem:
                raise ValidationError(str(problem)) from problem
        return url

    def clean(self) -> Any:
        data = super().clean() or self.cleaned_data
        if (data.get("quiet_from") is None) != (data.get("quiet_until") is None):
            self.add_error("quiet_until", gettext("Quiet hours need a beginning and an end."))
        if self.kind.name == "error_rate" and data.get("queue") and data.get("type"):
            self.add_error("type", gettext("Choose a queue or a type, not both."))
        return data

    def save(self, commit: bool = True) -> Any:
        rule: AlertRule = super().save(commit=False)
        data = self.cleaned_data
        rule.limits = {each.name: data[PREFIX + each.name] for each in self.kind.parameters}
        if not data.get("webhook_secret") and not data.get("forget_secret"):
            rule.webhook_secret = self._secret
        if commit:
            rule.save()
        return rule


def form_for(kind: Kind) -> type[AlertRuleForm]:
    """The form for rules about one kind of problem."""
    limits = {PREFIX + each.name: _field(each) for each in kind.parameters}
    return type("AlertRuleForm", (AlertRuleForm,), {**limits, "kind": kind})


def _field(parameter: Parameter) -> forms.IntegerField:
    unit = f" ({parameter.unit})" if parameter.unit else ""
    return forms.IntegerField(
        label=f"{capfirst(str(parameter.label))}{unit}",
        min_value=parameter.least,
        max_value=parameter.most,
    )


def fields_of(kind: Kind, *, changes: bool) -> list[Any]:
    """The sections of the form for a kind."""
    limits = tuple(PREFIX + each.name for each in kind.parameters)
    secret = RECEIVERS if changes else tuple(name for name in RECEIVERS if name != "forget_secret")
    return [
        (None, {"fields": ("shown_kind", *ABOUT)}),
        (_("When"), {"fields": (*limits, *kind.scope, *LASTING)}),
        (_("Who is notified"), {"fields": secret}),
        (_("Quiet hours"), {"fields": QUIET}),
        (None, {"fields": ("reason",)}),
    ]

"""What a notification says: one JSON document, of which an e-mail is made as well."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.conf import ojs_settings
from jobs.spec.timestamps import format_timestamp

from ..models import Alert, AlertRule, Channel
from .problems import KINDS
from .quiet_hours import zone_of

BEGIN, END, TEST = "begin", "end", "test"


def channels(rule: AlertRule) -> list[Channel]:
    """How the rule notifies."""
    given = {
        Channel.EMAIL: rule.emails,
        Channel.WEBHOOK: rule.webhook_url,
        Channel.JOB: rule.job_type,
    }
    return [channel for channel, receiver in given.items() if receiver]


def of_alerts(
    rule: AlertRule, begun: Sequence[Alert], ended: Sequence[Alert], now: datetime
) -> dict[str, Any]:
    """The document about alerts that began and ended."""
    events = [(BEGIN, alert) for alert in begun] + [(END, alert) for alert in ended]
    if len(events) == 1:
        title = _title(*events[0])
    else:
        parts = []
        if begun:
            text = ngettext("%(count)d began", "%(count)d began", len(begun))
            parts.append(text % {"count": len(begun)})
        if ended:
            text = ngettext("%(count)d ended", "%(count)d ended", len(ended))
            parts.append(text % {"count": len(ended)})
        title = f"{rule.name}: {', '.join(parts)}"
    alerts = [_alert(event, alert) for event, alert in events]
    return _document(rule, title, alerts, now)


def of_test(rule: AlertRule, now: datetime) -> dict[str, Any]:
    """The document of a test."""
    text = _("This is a test of the rule “%(rule)s”. Nothing is wrong.") % {"rule": rule.name}
    alert = {"event": TEST, "subject": rule.queue or rule.type, "text": text}
    return _document(rule, _("Test: %(text)s") % {"text": rule.name}, [alert], now)


def _document(
    rule: AlertRule, title: str, alerts: list[dict[str, Any]], now: datetime
) -> dict[str, Any]:
    kind = KINDS.get(rule.kind)
    return {
        "version": 1,
        "title": title,
        "created_at": format_timestamp(now),
        "rule": {
            "id": rule.pk,
            "name": rule.name,
            "kind": rule.kind,
            "description": str(kind.label) if kind else rule.kind,
            "critical": rule.is_critical,
            "url": url_of("ojs_workers_alertrule", rule.pk),
        },
        "alerts": alerts,
    }


def _title(event: str, alert: Alert) -> str:
    text = _("Began: %(text)s") if event == BEGIN else _("Ended: %(text)s")
    return text % {"text": alert.text}


def _alert(event: str, alert: Alert) -> dict[str, Any]:
    return {
        "id": alert.pk,
        "event": event,
        "subject": alert.subject,
        "text": alert.text,
        "since": format_timestamp(alert.since),
        "began_at": alert.began_at and format_timestamp(alert.began_at),
        "ended_at": alert.ended_at and format_timestamp(alert.ended_at),
        "url": url_of("ojs_workers_alert", alert.pk),
    }


def url_of(model: str, key: Any) -> str:
    """The address of an admin page; empty if the site has not said where it is."""
    if not ojs_settings.SITE_URL:
        return ""
    try:
        path = reverse(f"admin:{model}_change", args=[key])
    except NoReverseMatch:
        return ""
    return ojs_settings.SITE_URL.rstrip("/") + path


def in_words(rule: AlertRule, document: dict[str, Any]) -> str:
    """The text of an e-mail."""
    lines = []
    for alert in document["alerts"]:
        if alert["event"] == TEST:
            lines.append(alert["text"])
            continue
        text = _("Began: %(text)s") if alert["event"] == BEGIN else _("Ended: %(text)s")
        lines.append(text % {"text": alert["text"]})
        times = [(_("Began"), alert["began_at"]), (_("Ended"), alert["ended_at"])]
        lines += [f"  {label}: {_local(rule, moment)}" for label, moment in times if moment]
        if alert["url"]:
            lines.append(f"  {alert['url']}")
    about = document["rule"]
    lines += ["", _("Rule: %(name)s") % {"name": about["name"]}]
    if about["url"]:
        lines.append(about["url"])
    return "\n".join(lines) + "\n"


def _local(rule: AlertRule, moment: str) -> str:
    return f"{datetime.fromisoformat(moment).astimezone(zone_of(rule)):%Y-%m-%d %H:%M:%S %Z}"

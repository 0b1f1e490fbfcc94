"""Sends a notification: as an e-mail, as a request to a webhook, or as a job."""

from __future__ import annotations

from typing import Any

import orjson
from django.core import mail
from django.utils.translation import gettext as _

import jobs
from jobs import engine
from jobs.http import outbound
from jobs.spec.validation import new_job
from jobs.store import clock

from ..models import AlertNotification, AlertRule, Channel

TIMEOUT = 10.0
"""Seconds for each step of sending an e-mail, and for a whole request to a webhook."""
SIGNATURE = "X-OJS-Signature"
"""Header with `t=SECONDS,v1=HEX`: the HMAC-SHA256 of `SECONDS.BODY` with the rule's secret."""
ID = "X-OJS-Notification"
"""Header with the number of the notification: the same for each try."""
SHOWN = 200
"""Characters of a response in an error."""


class NotSent(Exception):
    """A receiver did not take a notification; the text says why."""


def send(notification: AlertNotification) -> None:
    """Send a notification to the receivers that its rule has now.

    Raises:
        Exception: it was not sent; anything that an e-mail backend or the engine may raise.
    """
    SENDERS[Channel(notification.channel)](notification.rule, notification)


def _email(rule: AlertRule, notification: AlertNotification) -> None:
    from . import documents

    to = rule.emails.split()
    if not to:
        raise NotSent(_("The rule no longer has this receiver."))
    # Since Django 6.1, from MAILERS if there are any.
    connection: Any = mail.mailers.default if hasattr(mail, "mailers") else mail.get_connection()
    # Without a timeout in the settings, Django waits for ever.
    if getattr(connection, "timeout", TIMEOUT) is None:
        connection.timeout = TIMEOUT
    document = notification.document
    message = mail.EmailMessage(
        subject=" ".join(f"[OJS] {document['title']}".split())[:200],
        body=documents.in_words(rule, document),
        to=to,
        headers={"Auto-Submitted": "auto-generated", ID: str(notification.pk)},
    )
    connection.send_messages([message])


def _webhook(rule: AlertRule, notification: AlertNotification) -> None:
    if not rule.webhook_url:
        raise NotSent(_("The rule no longer has this receiver."))
    body = orjson.dumps({"id": notification.pk, **notification.document})
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"django-ojs/{jobs.__version__}",
        ID: str(notification.pk),
    }
    if rule.webhook_secret:
        headers[SIGNATURE] = signature(rule.webhook_secret, body, int(clock.now().timestamp()))
    reply = outbound.post(rule.webhook_url, body, headers, timeout=TIMEOUT)
    if not reply.is_success:
        raise NotSent(f"HTTP {reply.status}: {reply.text[:SHOWN]}".rstrip(": "))


def signature(secret: str, body: bytes, moment: int) -> str:
    """Sign a request: `t=SECONDS,v1=HEX`.

    Args:
        moment: seconds since 1970, so that a receiver can refuse an old request that is sent again.
    """
    return f"t={moment},v1={outbound.sign(secret, body, moment)}"


def _job(rule: AlertRule, notification: AlertNotification) -> None:
    if not rule.job_type:
        raise NotSent(_("The rule no longer has this receiver."))
    document = {
        "type": rule.job_type,
        "args": [{"id": notification.pk, **notification.document}],
        "options": {"queue": rule.job_queue or "default"},
    }
    engine.enqueue([new_job(document, clock.now())])


SENDERS = {Channel.EMAIL: _email, Channel.WEBHOOK: _webhook, Channel.JOB: _job}

"""Sends the notifications that evaluations have written, each until it succeeds or is given up.

They are sent by threads of the reaper's process (`workers.outbox`): a slow receiver holds up
neither the recovery of jobs nor other receivers. A notification is sent at least once: a process
that dies between sending it and noting that leaves it to another one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, InterfaceError
from django.db.models import F
from django.db.models.functions import Now

from jobs.store import clock
from jobs.store.database import atomic, borrowed

from ..models import AlertNotification
from ..outbox import LEASE, Outbox
from . import receivers

logger = logging.getLogger("workers.alerts")

TRIES = 10
"""With the pauses, an hour and a half."""
FIRST_PAUSE = timedelta(seconds=10)
LONGEST_PAUSE = timedelta(hours=1)
AT_ONCE = 8
BATCH = 100


def claim(key: int) -> AlertNotification | None:
    """Reserve a notification that is due for this process; None if another one was faster."""
    due = AlertNotification.objects.due().filter(pk=key)
    if not due.update(tries=F("tries") + 1, next_try_at=Now() + LEASE):
        return None
    found: AlertNotification | None = (
        AlertNotification.objects.select_related("rule").filter(pk=key).first()
    )
    return found


def deliver(notification: AlertNotification) -> bool:
    """Send a claimed notification, and note what became of it; return whether it was sent."""
    mine = AlertNotification.objects.unfinished().filter(
        pk=notification.pk, tries=notification.tries
    )
    try:
        # A job is enqueued in the same transaction, so exactly once.
        with atomic() if notification.channel == "job" else contextlib.nullcontext():
            receivers.send(notification)
            mine.update(sent_at=Now(), last_error="")
    except Exception as problem:  # whatever an e-mail backend of the site raises
        _note(notification, mine, problem)
        return False
    return True


def _note(notification: AlertNotification, mine: Any, problem: Exception) -> None:
    text = str(problem).strip() or type(problem).__name__
    error = text if isinstance(problem, receivers.NotSent) else f"{type(problem).__name__}: {text}"
    logger.warning(
        "Notification %s of the alert rule %r was not sent (try %s): %s",
        notification.pk,
        notification.rule.name,
        notification.tries,
        error[:500],
    )
    changes: dict[str, Any] = {"last_error": error[:2000]}
    if notification.tries >= TRIES:
        changes["gave_up_at"] = Now()
    else:
        pause = min(FIRST_PAUSE * 2 ** (notification.tries - 1), LONGEST_PAUSE)
        changes["next_try_at"] = clock.now() + pause
    mine.update(**changes)


def due() -> list[int]:
    """The notifications that are to be sent now, the oldest first."""
    keys = AlertNotification.objects.due().order_by("pk").values_list("pk", flat=True)
    return list(keys[:BATCH])


def deliver_due() -> int:
    """Send what is due now, one after the other; return how many were sent. For `checkalerts`."""
    sent = 0
    for key in due():
        notification = claim(key)
        if notification is not None:
            sent += deliver(notification)
    return sent


def _take(free: int, sending: Collection[int]) -> list[int]:
    # Those that other threads are about to claim are still due.
    return [key for key in due() if key not in sending][:free]


def _send(key: int) -> None:
    try:
        with borrowed():
            notification = claim(key)
            if notification is not None:
                deliver(notification)
    except (DatabaseError, InterfaceError) as problem:
        # It is tried again when its lease is over.
        logger.warning("Notification %s: %s", key, str(problem).strip())


outbox: Outbox[int] = Outbox("ojs-alerts", AT_ONCE, take=_take, send=_send)
"""Sends notifications while it runs."""

"""Maintenance mode: one switch that stops fetches and, if asked, enqueues (OJS admin API §12.1).

It is a single row that the claim itself reads: this costs no extra statement, and no process can
miss the change.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext

from ..access.audit import Actor, record_action
from ..errors import InMaintenance
from ..models import Maintenance, Queue
from ..record.wording import distance
from ..spec.timestamps import format_timestamp
from ..store import clock, wakeup
from ..store.database import atomic


def current() -> Maintenance | None:
    """Return the switch if it is on now, else None."""
    return Maintenance.objects.on().first()


def begin(
    *,
    actor: Actor,
    reason: str = "",
    until: datetime | None = None,
    lasts: timedelta | None = None,
    refuses_jobs: bool = False,
) -> Maintenance:
    """Hand out no more jobs; active jobs continue.

    Beginning it again changes its reason and end, and keeps its start.

    Args:
        until: when it ends automatically.
        lasts: the expected duration from now on.
        refuses_jobs: also refuse enqueues from outside.
    """
    with atomic():
        before, now = current(), clock.now()
        fields = {
            "since": before.since if before else now,
            "until": until,
            "estimated_until": now + lasts if lasts else None,
            "refuses_jobs": refuses_jobs,
            "reason": reason,
            "started_by": actor.name,
        }
        switch, _ = Maintenance.objects.update_or_create(pk=1, defaults=fields)
        _record(actor, "on", reason, refuses_jobs=refuses_jobs, until=until)
    return switch


def end(*, actor: Actor, reason: str = "") -> bool:
    """Hand out jobs again; return whether it was on."""
    with atomic():
        was_on = current() is not None
        Maintenance.objects.all().delete()
        if was_on:
            _record(actor, "off", reason)
            wakeup.notify(Queue.objects.values_list("name", flat=True))
    return was_on


def _record(actor: Actor, to: str, reason: str, **how: Any) -> None:
    chosen = {name: str(value) for name, value in how.items() if value}
    record_action(
        actor,
        "maintenance",
        kind="maintenance",
        count=1,
        selection={"switched": to} | chosen,
        reason=reason,
    )


def refuse_jobs() -> None:
    """
    Raises:
        InMaintenance: enqueues are refused now.
    """
    switch = current()
    if switch is not None and switch.refuses_jobs:
        until = {"until": format_timestamp(switch.until)} if switch.until else {}
        raise InMaintenance(
            "The server is in maintenance and takes no jobs now"
            + (f": {switch.reason}" if switch.reason else "."),
            **until,
        )


def in_words(switch: Maintenance) -> str:
    """Describe what maintenance means for jobs, why and by whom it was begun, and when it ends."""
    message = gettext("Maintenance: no jobs are handed out.")
    if switch.refuses_jobs:
        message = gettext("Maintenance: no jobs are handed out, and none are taken.")
    if switch.reason:
        message = f"{message} {switch.reason}"
    about = gettext("Begun by %(who)s") % {"who": switch.started_by or "?"}
    if switch.until:
        ends = gettext("ends %(distance)s") % {"distance": distance(switch.until)}
        about = f"{about}, {ends}"
    return f"{message} ({about})"

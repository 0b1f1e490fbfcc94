"""Maintenance mode: one switch that stops fetches and, if asked, enqueues (OJS admin API §12.1).

It is one row of a table of its own, which the claim looks into as it runs: no further statement,
and no process that has not heard of it yet.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from ..access.audit import Actor, record_action
from ..errors import InMaintenance
from ..models import Maintenance, Queue
from ..spec.timestamps import format_timestamp
from ..store import clock, wakeup
from ..store.database import atomic


def current() -> Maintenance | None:
    """The switch, if it is on now."""
    return Maintenance.objects.on().first()


def begin(
    *,
    actor: Actor,
    reason: str = "",
    until: datetime | None = None,
    lasts: timedelta | None = None,
    refuses_jobs: bool = False,
) -> Maintenance:
    """Hand out no more jobs; what workers have in their hands goes on.

    Beginning it again changes its reason and its end, and keeps since when it lasts.

    Args:
        until: when it ends by itself.
        lasts: how long it will take from now on, as far as one knows.
        refuses_jobs: nothing is enqueued from outside either.
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
        InMaintenance: nothing is enqueued now.
    """
    switch = current()
    if switch is not None and switch.refuses_jobs:
        until = {"until": format_timestamp(switch.until)} if switch.until else {}
        raise InMaintenance(
            "The server is in maintenance and takes no jobs now"
            + (f": {switch.reason}" if switch.reason else "."),
            **until,
        )

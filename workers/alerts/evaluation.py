"""Compares rules with the situation: alerts begin and end, and notifications are written.

Any number of processes may do so. A rule's row is the lock, an unended alert is unique, each step
is an update that is guarded by the state it leaves, and a notification is written in the same
transaction as the step that it reports.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from jobs.store import clock
from jobs.store.database import atomic

from ..models import Alert, AlertNotification, AlertRule, Announced
from . import documents
from .problems import KINDS, Link, Problem
from .quiet_hours import is_quiet
from .situation import Situation

MOST = 100
"""Most alerts that one rule has open at the same time."""
KEPT = timedelta(days=90)
"""How long ended alerts and notifications are kept."""
PRUNED = 500


def evaluate(only: Collection[str] = ()) -> int:
    """Compare every rule with the situation; always returns 0, because nothing is left to do.

    Args:
        only: kinds of problems; empty means all.
    """
    rules = AlertRule.objects.filter(enabled=True).order_by("checked_at", "pk")
    if only:
        rules = rules.filter(kind__in=only)
    now = clock.now()
    situation = Situation()
    for rule in rules:
        kind = KINDS.get(rule.kind)
        if kind is None:  # of a later release
            continue
        # First, so that a rule that cannot be checked does not keep the others from their turn.
        AlertRule.objects.filter(pk=rule.pk).update(checked_at=Now())
        terms = kind.terms(rule.limits, queue=rule.queue, type=rule.type, project=rule.project)
        apply(rule, kind.find(situation, terms), now)
    return 0


def apply(rule: AlertRule, problems: Iterable[Problem], now: datetime) -> None:
    """Bring a rule's alerts in line with the problems that there were at `now`."""
    found = {problem.subject: problem for problem in itertools.islice(problems, MOST)}
    with atomic():
        # One process at a time, and none for a rule that was disabled or deleted meanwhile.
        if not AlertRule.objects.select_for_update().filter(pk=rule.pk, enabled=True).exists():
            return
        _see(rule, found, now)
        _miss(rule, found, now)
        announce(rule, now)


def _see(rule: AlertRule, found: dict[str, Problem], now: datetime) -> None:
    """Note what is wrong; an alert begins once it has lasted."""
    unended = Alert.objects.filter(rule=rule).unended()
    known = dict(unended.filter(subject__in=found).values_list("subject", "text"))
    # Another process may find the same problem now: the constraint lets one of them in.
    fresh = [
        Alert(
            rule=rule,
            kind=rule.kind,
            subject=subject,
            text=problem.text,
            link=_stored(problem.link),
            since=now,
            seen_at=now,
        )
        for subject, problem in found.items()
        if subject not in known
    ]
    Alert.objects.bulk_create(fresh, ignore_conflicts=True)
    seen = unended.filter(subject__in=found)
    seen.filter(seen_at__lt=now).update(seen_at=now, over_since=None)
    for subject, problem in found.items():
        if known.get(subject, problem.text) != problem.text:
            unended.filter(subject=subject).update(text=problem.text)
    lasted = now - timedelta(seconds=rule.begins_after)
    seen.filter(began_at__isnull=True, since__lte=lasted).update(began_at=now)
    # It was acknowledged for a time, which is over.
    again = seen.filter(began_at__isnull=False, acknowledged_until__lte=now)
    again.update(acknowledged_at=None, acknowledged_until=None, announced="")


def _miss(rule: AlertRule, found: dict[str, Problem], now: datetime) -> None:
    """Note what is over; an alert ends once it has been over for long enough."""
    missing = Alert.objects.filter(rule=rule).unended().exclude(subject__in=found)
    missing = missing.filter(seen_at__lt=now)
    missing.filter(began_at__isnull=True).delete()
    missing.filter(over_since__isnull=True).update(over_since=now)
    over = now - timedelta(seconds=rule.ends_after)
    missing.filter(over_since__lte=over).update(ended_at=now)


def announce(rule: AlertRule, now: datetime) -> None:
    """Write a notification of what has begun and ended, unless these are quiet hours.

    What begins and ends within quiet hours is never announced.
    """
    unannounced = Alert.objects.filter(rule=rule).unannounced()
    if not unannounced.exists() or is_quiet(rule, now):
        return
    alerts = list(unannounced.order_by("pk").select_for_update())
    begun = [alert for alert in alerts if alert.ended_at is None]
    ended = [alert for alert in alerts if alert.ended_at is not None]
    Alert.objects.filter(pk__in=[alert.pk for alert in begun]).update(announced=Announced.BEGIN)
    Alert.objects.filter(pk__in=[alert.pk for alert in ended]).update(announced=Announced.END)
    write(rule, documents.of_alerts(rule, begun, ended, now), alerts, now)


def write(
    rule: AlertRule, document: dict[str, Any], alerts: Collection[Alert], now: datetime
) -> int:
    """Write a notification for each channel of the rule; return how many there are."""
    channels = documents.channels(rule)
    for channel in channels:
        notification = AlertNotification.objects.create(
            rule=rule, channel=channel, document=document, created_at=now, next_try_at=now
        )
        notification.alerts.set(alerts)
    return len(channels)


def test(rule: AlertRule) -> int:
    """Write a notification that is marked as a test; return to how many channels it goes."""
    now = clock.now()
    with atomic():
        return write(rule, documents.of_test(rule, now), (), now)


def switch(rules: Collection[AlertRule], *, on: bool) -> list[AlertRule]:
    """Enable or disable rules; return those that were changed. The alerts of disabled ones end."""
    with atomic():
        others = AlertRule.objects.filter(pk__in=[rule.pk for rule in rules], enabled=not on)
        changed = list(others.select_for_update().order_by("pk"))
        AlertRule.objects.filter(pk__in=[rule.pk for rule in changed]).update(enabled=on)
        for rule in rules if not on else ():
            end_all(rule, _("The rule was disabled."))
    return changed


def end_all(rule: AlertRule, why: str) -> None:
    """End every alert of a rule that is no longer evaluated."""
    now = clock.now()
    unended = Alert.objects.filter(rule=rule).unended()
    unended.filter(began_at__isnull=True).delete()
    unended.update(ended_at=now, over_since=now, text=why)
    announce(rule, now)


def acknowledge(
    alerts: Collection[int], *, who: str, until: datetime | None = None, reason: str = ""
) -> int:
    """Acknowledge open alerts, until they end or until then; return how many there were."""
    return int(
        Alert.objects.begun()
        .filter(pk__in=alerts)
        .update(
            acknowledged_at=clock.now(),
            acknowledged_by=who[:255],
            acknowledged_until=until,
            reason=reason,
        )
    )


def prune() -> int:
    """Delete one batch of alerts that ended, and of notifications that were sent, long ago."""
    long_ago = Now() - KEPT
    finished = Q(sent_at__isnull=False) | Q(gave_up_at__isnull=False)
    done = 0
    for old in (
        AlertNotification.objects.filter(finished, created_at__lte=long_ago),
        Alert.objects.filter(ended_at__lte=long_ago),
    ):
        ids = list(old.order_by("pk").values_list("pk", flat=True)[:PRUNED])
        done += old.model.objects.filter(pk__in=ids).delete()[0] if ids else 0
    return done


def link_of(alert: Alert) -> Link | None:
    """Where an alert leads; None if that page no longer exists."""
    stored = alert.link
    try:
        model = apps.get_model(stored["model"])
    except (KeyError, LookupError, ValueError):
        return None
    if "key" in stored:
        return Link(model, stored["key"])
    return Link(model, query=stored.get("query", {}), page=stored.get("page", "changelist"))


def _stored(link: Link | None) -> dict[str, Any]:
    if link is None:
        return {}
    found: dict[str, Any] = {"model": link.model._meta.label_lower}
    if link.key is not None:
        return found | {"key": link.key}
    return found | {"query": dict(link.query), "page": link.page}

"""Quiet hours of a rule: a span of each day in a time zone, across midnight if need be."""

from __future__ import annotations

from datetime import datetime, tzinfo
from zoneinfo import ZoneInfo

from django.utils import timezone

from ..models import AlertRule


def zone_of(rule: AlertRule) -> tzinfo:
    """The time zone of the rule's quiet hours: its own, or that of the site."""
    return ZoneInfo(rule.timezone) if rule.timezone else timezone.get_default_timezone()


def is_quiet(rule: AlertRule, moment: datetime) -> bool:
    """Whether the rule sends nothing at this moment.

    By the clock on the wall: where clocks are set forward within the quiet hours, they are shorter.
    """
    begin, end = rule.quiet_from, rule.quiet_until
    if rule.is_critical or begin is None or end is None:
        return False
    local = moment.astimezone(zone_of(rule)).time()
    if begin <= end:
        return begin <= local < end
    return local >= begin or local < end

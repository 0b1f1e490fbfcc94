"""Counts attempts for the metrics of OJS webhooks §11.2."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db.models import F

from jobs.conf import ojs_settings
from jobs.record.counters import merged, new_histogram, observe

from ..models import DeliveryState, WebhookCounter, WebhookDelivery

if TYPE_CHECKING:
    from .delivery import Outcome

DURATION_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
RETRY_BUCKETS = (0, 1, 2, 3, 4, 5, 6, 7)
"""Stored histograms depend on these bounds: never change them in place."""
COLUMNS = {
    DeliveryState.DELIVERED: "success",
    DeliveryState.PENDING: "failed",
    DeliveryState.DEAD: "dead",
}


def add(outcome: Outcome) -> None:
    """Count an outcome, in the transaction that notes it."""
    if not ojs_settings.METRICS:
        return
    attempt, column = outcome.attempt, COLUMNS[outcome.state]
    about: dict[str, Any] = {
        "subscription_id": attempt.subscription,
        "event_type": attempt.event_type,
    }
    WebhookCounter.objects.get_or_create(**about)
    row = WebhookCounter.objects.select_for_update().get(**about)
    setattr(row, column, getattr(row, column) + 1)
    row.durations = _with(row.durations, DURATION_BUCKETS, outcome.duration)
    if outcome.is_success:
        row.retries = _with(row.retries, RETRY_BUCKETS, attempt.number - 1)
    row.save()


def add_dead(rows: Sequence[WebhookDelivery]) -> None:
    """Count deliveries that are dead without another attempt, in the transaction that notes it."""
    if not ojs_settings.METRICS:
        return
    counts = Counter((row.subscription_id, row.event_type) for row in rows)
    for (subscription, event_type), count in sorted(counts.items()):
        about: dict[str, Any] = {"subscription_id": subscription, "event_type": event_type}
        WebhookCounter.objects.get_or_create(**about)
        WebhookCounter.objects.filter(**about).update(dead=F("dead") + count)


def _with(histogram: dict[str, Any], bounds: Sequence[float], value: float) -> dict[str, Any]:
    new = new_histogram(bounds)
    observe(new, bounds, value)
    return merged(histogram, new)


def series() -> list[WebhookCounter]:
    """Return all counters, those of the newest subscriptions first."""
    return list(WebhookCounter.objects.order_by("-subscription_id", "event_type"))


def by_type(rows: Sequence[WebhookCounter]) -> list[tuple[str, Counter[str], dict[str, Any]]]:
    """Return types of events, how many attempts had which outcome, and the histogram of retries."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    retries: dict[str, dict[str, Any]] = {}
    for row in rows:
        kind = row.event_type
        counts[kind].update({column: getattr(row, column) for column in COLUMNS.values()})
        retries[kind] = merged(retries.get(kind), row.retries)
    return [(kind, counts[kind], retries[kind]) for kind in sorted(counts)]

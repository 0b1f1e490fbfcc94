"""Counts attempts for the metrics of OJS webhooks §11.2."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from jobs.conf import ojs_settings
from jobs.record.counters import merged, new_histogram, observe

from ..models import DeliveryState, WebhookCounter

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


def add(outcomes: Sequence[Outcome]) -> None:
    """Count outcomes, in the transaction that notes them."""
    if not ojs_settings.METRICS or not outcomes:
        return
    by_series: dict[tuple[UUID, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        attempt = outcome.attempt
        by_series[attempt.subscription, attempt.event_type].append(outcome)
    # In the order of their keys, as in every process that does this.
    for (subscription, kind), each in sorted(by_series.items()):
        series: dict[str, Any] = {"subscription_id": subscription, "event_type": kind}
        WebhookCounter.objects.get_or_create(**series)
        row = WebhookCounter.objects.select_for_update().get(**series)
        _count(row, each)
        row.save()


def _count(row: Any, outcomes: Sequence[Outcome]) -> None:
    durations, retries = new_histogram(DURATION_BUCKETS), new_histogram(RETRY_BUCKETS)
    for outcome in outcomes:
        column = COLUMNS[outcome.state]
        setattr(row, column, getattr(row, column) + 1)
        observe(durations, DURATION_BUCKETS, outcome.duration)
        if outcome.is_success:
            observe(retries, RETRY_BUCKETS, outcome.attempt.number - 1)
    row.durations = merged(row.durations, durations)
    row.retries = merged(row.retries, retries)


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

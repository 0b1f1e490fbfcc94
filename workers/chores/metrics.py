"""The Prometheus families of OJS observability §8, read from the database at each scrape.

The process keeps no figures: every server returns the same ones. Requires the extra `metrics`. A
site with its own registry may register `Collector()` there instead of scraping this endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from jobs.conf import ojs_settings
from jobs.models import JobCounter, Queue
from jobs.record import counters, dashboard
from jobs.spec.lifecycle import State
from jobs.store import clock

from ..fleet import autoscaling
from ..lifecycle import WorkerState
from ..models import Worker
from . import reaper, tallies

MOST_QUEUES = 1_000
"""Most queues with gauges: labels must be bounded (§8.4)."""
STATES = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.ACTIVE)
"""States of unfinished jobs. Counters cover the finished ones."""
PLAIN = "text/plain"

COUNTERS = {
    "enqueued": "Total jobs enqueued.",
    "completed": "Total jobs that reached the state completed.",
    "failed": "Total jobs that reached the state discarded.",
    "retried": "Total retry attempts.",
    "cancelled": "Total cancellations.",
    "expired": "Total jobs expired via TTL.",
}


def is_installed() -> bool:
    try:
        import prometheus_client  # noqa: F401 (whether it is there)
    except ImportError:
        return False
    return True


def exposition(accept: str) -> tuple[bytes, str]:
    """Return all metrics, and their media type: OpenMetrics if `accept` names it, else plain text.

    Events since the last sweep are counted first, so that a scrape is up to date.
    """
    from prometheus_client.exposition import generate_latest
    from prometheus_client.openmetrics import exposition as openmetrics

    if ojs_settings.METRICS:
        tallies.count(batches=1)
    registry: Any = Collector()
    if "application/openmetrics-text" in accept:
        return openmetrics.generate_latest(registry), openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(registry), PLAIN


class Collector:
    """Provides the metrics to a Prometheus registry."""

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        if ojs_settings.RECORD_EVENTS:  # no counters rather than counters that never change
            yield from _counters()
        yield from _gauges()


def _counters() -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    rows = list(JobCounter.objects.order_by("queue", "job_type"))
    labels = ["queue", "type"]
    for column, description in COUNTERS.items():
        family = CounterMetricFamily(f"ojs_job_{column}", description, labels=labels)
        for row in rows:
            family.add_metric([row.queue, row.job_type], getattr(row, column))
        yield family
    durations = HistogramMetricFamily(
        "ojs_job_duration_seconds",
        "Job processing duration, from active to a terminal state.",
        labels=[*labels, "state"],
    )
    waits = HistogramMetricFamily(
        "ojs_job_queue_time_seconds",
        "Time from being available to the start of the first attempt.",
        labels=labels,
    )
    for row in rows:
        for state, histogram in sorted(row.durations.items()):
            buckets = _buckets(histogram, counters.DURATION_BUCKETS)
            durations.add_metric([row.queue, row.job_type, state], buckets, histogram["sum"])
        if row.queue_times:
            buckets = _buckets(row.queue_times, counters.QUEUE_TIME_BUCKETS)
            waits.add_metric([row.queue, row.job_type], buckets, row.queue_times["sum"])
    yield durations
    yield waits


def _buckets(histogram: Any, bounds: tuple[float, ...]) -> list[tuple[str, float]]:
    from prometheus_client.utils import floatToGoString

    totals = accumulate(histogram["counts"])
    upper = [*bounds, float("inf")]
    return [(floatToGoString(bound), total) for bound, total in zip(upper, totals, strict=True)]


def _gauges() -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    names = list(Queue.objects.order_by("name").values_list("pk", flat=True)[:MOST_QUEUES])
    found = dashboard.depths(names)
    depth = GaugeMetricFamily(
        "ojs_queue_depth", "Unfinished jobs of a queue by state.", labels=["queue", "state"]
    )
    oldest = GaugeMetricFamily(
        "ojs_queue_oldest_seconds", "Wait of the job that waits longest.", labels=["queue"]
    )
    busy = GaugeMetricFamily("ojs_workers_busy", "Jobs being executed.", labels=["queue"])
    wanted = GaugeMetricFamily(
        "ojs_queue_wanted_workers", "Workers a queue wants (autoscaling).", labels=["queue"]
    )
    now = clock.now()
    for name in names:
        for state in STATES:
            depth.add_metric([name, state], found[name].of(state))
        since = found[name].waiting_since
        oldest.add_metric([name], max(0.0, (now - since).total_seconds()) if since else 0)
        busy.add_metric([name], found[name].of(State.ACTIVE))
    for demand in autoscaling.demands(names, found):
        wanted.add_metric([demand.queue], demand.wanted_workers)
    yield from (depth, oldest, busy, wanted)
    running = Worker.objects.live().filter(state=WorkerState.RUNNING).count()
    yield GaugeMetricFamily("ojs_workers_active", "Running workers.", value=running)
    seen = reaper.last_seen()
    if seen is not None:
        yield GaugeMetricFamily(
            "ojs_reaper_last_seen_timestamp_seconds",
            "When any reaper was last seen.",
            value=seen.timestamp(),
        )

"""Prometheus families of OJS observability §8, read from the database at each scrape.

The process keeps no figures: every server returns the same ones. Requires the extra `metrics`. A
site with its own registry may register `Collector()` there instead of scraping this endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

from jobs.conf import ojs_settings
from jobs.models import JobCounter, Pool, Queue
from jobs.record import counters, dashboard, scheduling, tenants
from jobs.spec.lifecycle import State
from jobs.store import clock
from jobs.store.database import elsewhere

from ..fleet import autoscaling, pools
from ..lifecycle import WorkerState
from ..models import WebhookSubscription, Worker
from ..webhooks import counting
from . import reaper, tallies

MOST_QUEUES = 1_000
"""Most queues with gauges: labels must be bounded (§8.4)."""
MOST_SERIES = 1_000
"""Most pairs of subscription and type of event."""
WAITING = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE)
STATES = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.ACTIVE)
"""States of unfinished jobs. Counters cover the finished ones."""
PLAIN = "text/plain"


class Family(NamedTuple):
    """A metric: its kind, what Prometheus shows of it, and its labels."""

    kind: str
    help: str
    labels: tuple[str, ...] = ()
    note: str = ""
    """What the reference page adds."""
    unit: str = "{job}"
    """As OpenTelemetry writes it."""


_OF_TYPES = ("queue", "type")
_OF_TENANTS = ("tenant_id", "queue")
FAMILIES = {
    "ojs_job_enqueued": Family(
        "counter",
        "Total jobs enqueued.",
        _OF_TYPES,
        "Each job once, when it enters its queue or its schedule; a pending job when activated.",
    ),
    "ojs_job_completed": Family(
        "counter", "Total jobs that reached the state completed.", _OF_TYPES
    ),
    "ojs_job_failed": Family(
        "counter", "Total jobs that reached the state discarded.", _OF_TYPES, "For whatever reason."
    ),
    "ojs_job_retried": Family("counter", "Total retry attempts.", _OF_TYPES),
    "ojs_job_cancelled": Family("counter", "Total cancellations.", _OF_TYPES),
    "ojs_job_expired": Family("counter", "Total jobs expired via TTL.", _OF_TYPES),
    "ojs_job_duration_seconds": Family(
        "histogram",
        "Job processing duration, from active to a terminal state.",
        (*_OF_TYPES, "state"),
        "The last attempt of jobs that reached a terminal state.",
        "s",
    ),
    "ojs_job_queue_time_seconds": Family(
        "histogram",
        "Time from being available to the start of the first attempt.",
        _OF_TYPES,
        unit="s",
    ),
    "ojs_queue_depth": Family(
        "gauge",
        "Unfinished jobs of a queue by state.",
        ("queue", "state"),
        "`available`, `scheduled`, `retryable`, `active`.",
    ),
    "ojs_queue_oldest_seconds": Family(
        "gauge",
        "Wait of the job that waits longest.",
        ("queue",),
        "Of those that are available.",
        "s",
    ),
    "ojs_backpressure_pressure": Family(
        "gauge",
        "Depth of a bounded queue divided by its bound.",
        ("queue",),
        "Of queues with `max_size`, without their pending jobs.",
    ),
    "ojs_workers_busy": Family("gauge", "Jobs being executed.", ("queue",)),
    "ojs_queue_wanted_workers": Family(
        "gauge",
        "Workers a queue wants (autoscaling).",
        ("queue",),
        "[How it is computed](../metrics.md#how-many-workers-a-queue-needs).",
        "{worker}",
    ),
    "ojs_workers_active": Family("gauge", "Running workers.", unit="{worker}"),
    "ojs_tenant_jobs_active": Family(
        "gauge",
        "Active jobs of a tenant.",
        _OF_TENANTS,
        "Beyond 1,000 tenants, `_other` stands for the rest.",
    ),
    "ojs_tenant_queue_depth": Family(
        "gauge",
        "Jobs of a tenant that wait.",
        _OF_TENANTS,
        "`available`, `scheduled` and `retryable` ones.",
    ),
    "ojs_tenant_fairness_share": Family(
        "gauge",
        "Share of a tenant in the jobs of tenants that completed in the last minutes.",
        ("tenant_id",),
        unit="1",
    ),
    "ojs_scheduling_dispatch": Family(
        "counter",
        "Total jobs handed out.",
        ("queue", "pool"),
        "`pool` is empty without a worker pool; beyond 100 of a queue, `(other)`.",
    ),
    "ojs_scheduling_dispatch_ratio": Family(
        "gauge",
        "Share of a queue in the jobs handed out in the last minute.",
        ("queue",),
        unit="1",
    ),
    "ojs_scheduling_pool_utilization": Family(
        "gauge",
        "Active jobs of a worker pool divided by its limit.",
        ("pool",),
        "Of pools with `concurrency`.",
        unit="1",
    ),
    "ojs_scheduling_starvation_events": Family(
        "counter",
        "Total times that a queue waited in vain for longer than its pool's rotation interval.",
        ("queue",),
        unit="{event}",
    ),
    "ojs_webhook_delivery": Family(
        "counter",
        "Total attempts to deliver an event.",
        ("event_type", "status"),
        "`success`, `failed` (another attempt follows), `dead`.",
        "{attempt}",
    ),
    "ojs_webhook_dead_delivery": Family(
        "counter",
        "Total deliveries that failed for good.",
        ("event_type", "subscription_id"),
        unit="{delivery}",
    ),
    "ojs_webhook_delivery_duration_seconds": Family(
        "histogram", "Time of an attempt.", ("event_type", "subscription_id"), unit="s"
    ),
    "ojs_webhook_delivery_retry_count": Family(
        "histogram", "Retries before a delivery succeeded.", ("event_type",), unit="{retry}"
    ),
    "ojs_webhook_subscriptions": Family(
        "gauge", "Active webhook subscriptions.", unit="{subscription}"
    ),
    "ojs_reaper_last_seen_timestamp_seconds": Family(
        "gauge",
        "When any reaper was last seen.",
        note="If `time() - …` exceeds a minute, no reaper is running.",
        unit="s",
    ),
}
"""Every metric (OJS observability §8). Prometheus adds `_total` to the names of counters."""
COUNTERS = ("enqueued", "completed", "failed", "retried", "cancelled", "expired")
"""Columns of `JobCounter`."""


def is_installed() -> bool:
    try:
        import prometheus_client  # noqa: F401 (whether it is there)
    except ImportError:
        return False
    return True


def exposition(accept: str) -> tuple[bytes, str]:
    """Return all metrics and their media type: OpenMetrics if `accept` names it, or plain text."""
    from prometheus_client.exposition import generate_latest
    from prometheus_client.openmetrics import exposition as openmetrics

    registry: Any = _Current()
    if "application/openmetrics-text" in accept:
        return openmetrics.generate_latest(registry), openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(registry), PLAIN


def families() -> Iterator[Any]:
    """Return all metrics as families of prometheus_client.

    Events since the last sweep are counted first, so that they are up to date; not if a standby is
    read, where nothing can be written.
    """
    if ojs_settings.METRICS and not elsewhere():
        tallies.count(batches=1)
    return Collector().collect()


def dotted(name: str) -> str:
    """Return the name of a family as OpenTelemetry writes it: without its unit (OJS distributed
    tracing §10.1)."""
    words = 3 if name.startswith("ojs_tenant_") else 2
    return name.removesuffix("_seconds").replace("_", ".", words)


class Collector:
    """Provides the metrics to a Prometheus registry."""

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        if ojs_settings.RECORD_EVENTS:  # no counters rather than counters that never change
            yield from _counters()
            yield from _webhooks()
            yield from _dispatches()
        yield from _gauges()
        yield from _tenants()
        yield _utilization()


class _Current(Collector):
    def collect(self) -> Iterator[Any]:
        return families()


def _counters() -> Iterator[Any]:
    rows = list(JobCounter.objects.order_by("queue", "job_type"))
    for column in COUNTERS:
        family = _family(f"ojs_job_{column}")
        for row in rows:
            family.add_metric([row.queue, row.job_type], getattr(row, column))
        yield family
    durations = _family("ojs_job_duration_seconds")
    waits = _family("ojs_job_queue_time_seconds")
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


def _webhooks() -> Iterator[Any]:
    """Metrics of OJS webhooks §11.2; those by subscription cover the newest of them."""
    attempts = _family("ojs_webhook_delivery")
    retries = _family("ojs_webhook_delivery_retry_count")
    rows = counting.series()
    for kind, counts, histogram in counting.by_type(rows):
        for status, count in counts.items():
            attempts.add_metric([kind, status], count)
        if histogram:  # none was delivered otherwise
            buckets = _buckets(histogram, counting.RETRY_BUCKETS)
            retries.add_metric([kind], buckets, histogram["sum"])
    dead = _family("ojs_webhook_dead_delivery")
    durations = _family("ojs_webhook_delivery_duration_seconds")
    for row in rows[:MOST_SERIES]:
        labels = [row.event_type, f"sub_{row.subscription_id}"]
        dead.add_metric(labels, row.dead)
        if row.durations:  # none was attempted otherwise
            buckets = _buckets(row.durations, counting.DURATION_BUCKETS)
            durations.add_metric(labels, buckets, row.durations["sum"])
    yield from (attempts, retries, dead, durations)
    active = WebhookSubscription.objects.active().count()
    yield _family("ojs_webhook_subscriptions", value=active)


def _tenants() -> Iterator[Any]:
    """Metrics of OJS multi-tenancy §11.2."""
    active = _family("ojs_tenant_jobs_active")
    depth = _family("ojs_tenant_queue_depth")
    counts = tenants.by_queue()
    for family, states in ((active, (State.ACTIVE,)), (depth, WAITING)):
        for (label, queue), jobs in sorted(tenants.summed(counts, states).items()):
            family.add_metric([label, queue], jobs)
    share = _family("ojs_tenant_fairness_share")
    for label, part in sorted(tenants.shares_by_label().items()):
        share.add_metric([label], part)
    yield from (active, depth, share)


def _dispatches() -> Iterator[Any]:
    """Counters of OJS fair scheduling §11.2."""
    given = _family("ojs_scheduling_dispatch")
    for pair, jobs in sorted(scheduling.totals().items())[:MOST_SERIES]:
        given.add_metric(pair, jobs)
    ratio = _family("ojs_scheduling_dispatch_ratio")
    lately = scheduling.lately()
    for queue, found in sorted(lately.queues.items())[:MOST_QUEUES]:
        ratio.add_metric([queue], lately.ratio(found))
    starved = _family("ojs_scheduling_starvation_events")
    for queue, times in sorted(scheduling.starvations().items())[:MOST_QUEUES]:
        starved.add_metric([queue], times)
    yield from (given, ratio, starved)


def _utilization() -> Any:
    family = _family("ojs_scheduling_pool_utilization")
    limited = list(Pool.objects.filter(concurrency__isnull=False).order_by("pk")[:MOST_SERIES])
    does = pools.activity(limited) if limited else {}
    for pool in limited:
        family.add_metric([pool.pk], does[pool.pk].jobs / (pool.concurrency or 1))
    return family


def _gauges() -> Iterator[Any]:
    rows = Queue.objects.order_by("name").values_list("pk", "max_depth")[:MOST_QUEUES]
    bounds = dict(rows)
    names = list(bounds)
    found = dashboard.depths(names)
    depth = _family("ojs_queue_depth")
    oldest = _family("ojs_queue_oldest_seconds")
    pressure = _family("ojs_backpressure_pressure")
    busy = _family("ojs_workers_busy")
    wanted = _family("ojs_queue_wanted_workers")
    now = clock.now()
    for name in names:
        for state in STATES:
            depth.add_metric([name, state], found[name].of(state))
        since = found[name].waiting_since
        oldest.add_metric([name], max(0.0, (now - since).total_seconds()) if since else 0)
        if bound := bounds[name]:
            waiting = sum(found[name].of(state) for state in STATES if state != State.ACTIVE)
            pressure.add_metric([name], min(1.0, waiting / bound))
        busy.add_metric([name], found[name].of(State.ACTIVE))
    for demand in autoscaling.demands(names, found):
        wanted.add_metric([demand.queue], demand.wanted_workers)
    yield from (depth, oldest, pressure, busy, wanted)
    running = Worker.objects.live().filter(state=WorkerState.RUNNING).count()
    yield _family("ojs_workers_active", value=running)
    seen = reaper.last_seen()
    if seen is not None:
        yield _family("ojs_reaper_last_seen_timestamp_seconds", value=seen.timestamp())


def _family(name: str, **more: Any) -> Any:
    """Return the empty family `name` of prometheus_client."""
    from prometheus_client import core

    known = FAMILIES[name]
    kind = getattr(core, f"{known.kind.capitalize()}MetricFamily")
    labels = {"labels": list(known.labels)} if known.labels else {}
    return kind(name, known.help, **labels, **more)

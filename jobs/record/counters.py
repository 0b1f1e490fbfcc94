"""Counters of jobs by queue and type, for metrics and autoscaling (OJS observability §8).

No request pays for them: the reader of the record of events (`tallies`) passes each batch on, once
and in order, inside the transaction that moves its place in the record. So a counter never counts
twice, never misses what commits late, and is the same in every process. Where `RECORD_EVENTS` is
off there is nothing to count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import orjson
from django.db.models import Q, QuerySet

from ..conf import ojs_settings
from ..models import Event, JobCounter, QueueFlow
from ..store.expressions import Among, as_text
from . import scheduling
from .dashboard import moment_of
from .transitions import is_release


class Counted(NamedTuple):
    """An event, as far as counting needs it."""

    id: int
    type: str
    worker_id: str
    subject: str
    queue: str
    job_type: str
    attempt: int | None
    time: datetime
    data: dict[str, Any] | None


READ = (*Counted._fields[:-2], as_text("time"), as_text("data"))
"""Django and its driver take several times as long to read a time, and a document."""

DURATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
QUEUE_TIME_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600)
"""Upper bounds in seconds (§8.2). Stored histograms depend on them: never change them in place."""

OTHERS = "(other)"
"""Queue and type of all jobs beyond `METRICS_MAX_SERIES`: labels must be bounded (§8.4)."""

COUNTED = {
    "job.scheduled": ("enqueued",),
    "job.completed": ("completed",),
    "job.discarded": ("failed",),
    "job.expired": ("expired", "failed"),
    "job.retrying": ("retried",),
    "job.cancelled": ("cancelled",),
}
"""Event → counters. `job.enqueued` counts for a job's first time only, see `_is_first()`."""
COLUMNS = ("enqueued", "completed", "failed", "retried", "cancelled", "expired")
ENDS = {"job.discarded": "discarded", "job.cancelled": "cancelled"}
"""Ends from which the run time is not known."""

WINDOW = 5
"""Minutes over which flows are averaged; a few more are stored."""
KEPT = WINDOW + 3


def new_histogram(buckets: Sequence[float]) -> dict[str, Any]:
    return {"counts": [0] * (len(buckets) + 1), "sum": 0.0}


def observe(histogram: dict[str, Any], buckets: Sequence[float], seconds: float) -> None:
    histogram["counts"][bisect_left(buckets, seconds)] += 1
    histogram["sum"] += seconds


def merged(one: dict[str, Any] | None, other: dict[str, Any]) -> dict[str, Any]:
    """Return what both have observed together; one that has observed nothing may be empty."""
    if not (one and other):
        return one or other
    counts = [a + b for a, b in zip(one["counts"], other["counts"], strict=True)]
    return {"counts": counts, "sum": one["sum"] + other["sum"]}


@dataclass(slots=True)
class _Counts:
    """What a batch adds to one series."""

    numbers: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    durations: dict[str, dict[str, Any]] = field(default_factory=dict)
    queue_times: dict[str, Any] | None = None

    def ran(self, state: str, seconds: float) -> None:
        histogram = self.durations.setdefault(state, new_histogram(DURATION_BUCKETS))
        observe(histogram, DURATION_BUCKETS, seconds)

    def waited(self, seconds: float) -> None:
        if self.queue_times is None:
            self.queue_times = new_histogram(QUEUE_TIME_BUCKETS)
        observe(self.queue_times, QUEUE_TIME_BUCKETS, seconds)


def read(events: QuerySet[Event]) -> list[Counted]:
    """Return the events in the order of the queryset."""
    found = []
    for *columns, time, data in events.values_list(*READ):
        document = orjson.loads(data) if data else None
        found.append(Counted._make((*columns, moment_of(time), document)))
    return found


def add(events: Sequence[Counted]) -> None:
    """Count a batch of events, in their order, in the transaction that moves the cursor."""
    events = [event for event in events if event.job_type]
    series: dict[tuple[str, str], _Counts] = defaultdict(_Counts)
    flows: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0.0]))
    dispatches: dict[str, scheduling.Fresh] = defaultdict(scheduling.fresh)
    for event, since in _with_beginnings(events):
        counts = series[event.queue, event.job_type]
        flow = flows[event.queue][int(event.time.timestamp() // 60)]
        if not is_release(event):
            for column in COUNTED.get(event.type, ()):
                counts.numbers[column] += 1
        if event.type == "job.enqueued":
            flow[0] += 1
            counts.numbers["enqueued"] += _is_first(event)
        elif event.type == "job.started":
            scheduling.observe(dispatches[event.queue], event, since)
            if since is not None:
                counts.waited((event.time - since).total_seconds())
        else:
            seconds = _seconds(event, since)
            if seconds is not None:
                counts.ran(ENDS.get(event.type, "completed"), seconds)
                flow[1] += 1
                flow[2] += seconds
    _store(series)
    _store_flows(flows, dispatches)


def _is_first(event: Any) -> bool:
    return "priority" in (event.data or {})


def _seconds(event: Any, since: datetime | None) -> float | None:
    if event.type == "job.completed":
        return max(0.0, float((event.data or {}).get("duration_ms", 0)) / 1000)
    return None if since is None else max(0.0, (event.time - since).total_seconds())


def _with_beginnings(events: Sequence[Any]) -> Iterable[tuple[Any, datetime | None]]:
    """Pair each event with the moment its job became available or was started, where that counts.

    That event is nearly always in the same batch. Otherwise it is read from the record, in one
    query for each kind; if retention has deleted it, the duration is unknown and not counted.
    """
    wanted: list[tuple[int, str, str]] = []
    latest: dict[tuple[str, str], datetime] = {}
    beginnings: dict[int, datetime] = {}
    for index, event in enumerate(events):
        kind = _beginning(event)
        if kind and (kind, event.subject) in latest:
            beginnings[index] = latest[kind, event.subject]
        elif kind:
            wanted.append((index, kind, event.subject))
        if event.type in ("job.enqueued", "job.started"):
            latest[event.type, event.subject] = event.time
    for index, moment in _recorded(events, wanted):
        beginnings[index] = moment
    return [(event, beginnings.get(index)) for index, event in enumerate(events)]


def _beginning(event: Any) -> str:
    """Return the kind of event that the time until `event` is measured from; empty for none."""
    if event.type == "job.started" and event.attempt == 1:
        return "job.enqueued"
    if event.type == "job.discarded" or (event.type == "job.cancelled" and event.worker_id):
        return "job.started"
    return ""


def _recorded(
    events: Sequence[Any], wanted: Sequence[tuple[int, str, str]]
) -> Iterable[tuple[int, datetime]]:
    if not wanted:
        return
    subjects: dict[str, set[str]] = defaultdict(set)
    for _, kind, subject in wanted:
        subjects[kind].add(subject)
    earlier = Q()
    for kind, names in subjects.items():
        earlier |= Q(Among("subject", names), type=kind)
    moments: dict[tuple[str, str], list[Any]] = defaultdict(list)
    rows = Event.objects.filter(earlier).order_by()
    for kind, subject, time in rows.values_list("type", "subject", as_text("time")):
        moments[kind, subject].append(moment_of(time))
    for index, kind, subject in wanted:
        before = [at for at in moments[kind, subject] if at <= events[index].time]
        if before:
            yield index, max(before)


def _store(series: dict[tuple[str, str], _Counts]) -> None:
    """Add to the counters. The caller's lock on the cursor lets one process do so at a time."""
    series = {pair: counts for pair, counts in series.items() if _is_worth(counts)}
    if not series:
        return
    known = _known(series)
    fresh = [pair for pair in series if pair not in known]
    if fresh:
        room = max(0, ojs_settings.METRICS_MAX_SERIES - JobCounter.objects.count())
        for pair in fresh[room:]:
            others = (OTHERS, OTHERS)
            known |= {} if others in known else _known([others])
            counter = known.setdefault(others, JobCounter(queue=OTHERS, job_type=OTHERS))
            _add(counter, series.pop(pair))
        for pair in fresh[:room]:
            known[pair] = JobCounter(queue=pair[0], job_type=pair[1])
    for pair, counts in series.items():
        _add(known[pair], counts)
    JobCounter.objects.bulk_create(
        [known[pair] for pair in sorted(known)],
        batch_size=500,
        update_conflicts=True,
        unique_fields=["queue", "job_type"],
        update_fields=[*COLUMNS, "durations", "queue_times"],
    )


def _is_worth(counts: _Counts) -> bool:
    return bool(any(counts.numbers.values()) or counts.durations or counts.queue_times)


def _known(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], JobCounter]:
    wanted = set(pairs)
    rows = JobCounter.objects.filter(
        queue__in={queue for queue, _ in wanted}, job_type__in={name for _, name in wanted}
    )
    found = {(row.queue, row.job_type): row for row in rows}
    return {pair: found[pair] for pair in wanted if pair in found}


def _add(counter: JobCounter, counts: _Counts) -> None:
    for column, number in counts.numbers.items():
        setattr(counter, column, getattr(counter, column) + number)
    for state, histogram in counts.durations.items():
        counter.durations[state] = merged(counter.durations.get(state), histogram)
    if counts.queue_times is not None:
        counter.queue_times = merged(counter.queue_times, counts.queue_times)


def _store_flows(
    flows: dict[str, dict[int, list[float]]], dispatches: Mapping[str, scheduling.Fresh]
) -> None:
    rows = QueueFlow.objects.in_bulk(list(flows))
    for queue, minutes in flows.items():
        row = rows.setdefault(queue, QueueFlow(queue=queue))
        for minute, numbers in minutes.items():
            before = row.minutes.get(str(minute), (0, 0, 0.0))
            row.minutes[str(minute)] = [a + b for a, b in zip(before, numbers, strict=True)]
        last = max(map(int, row.minutes))
        row.minutes = {m: numbers for m, numbers in row.minutes.items() if int(m) > last - KEPT}
        if queue in dispatches:
            scheduling.merge(row, dispatches[queue])
    QueueFlow.objects.bulk_create(
        [rows[queue] for queue in sorted(rows)],
        batch_size=500,
        update_conflicts=True,
        unique_fields=["queue"],
        update_fields=["minutes", "dispatches"],
    )


@dataclass(frozen=True, slots=True)
class Flow:
    """Recent arrivals and run times of a queue's jobs."""

    arrivals: float = 0.0
    """Jobs a second that became available."""
    run_time: timedelta | None = None
    """Mean of those that ran; None if none did."""


def flows(queues: Iterable[str], now: datetime) -> dict[str, Flow]:
    """Return the flow of each of `queues` over the last minutes."""
    first = int(now.timestamp() // 60) - WINDOW
    elapsed = now.timestamp() - first * 60
    found = {}
    for row in QueueFlow.objects.filter(pk__in=list(queues)):
        recent = [numbers for minute, numbers in row.minutes.items() if int(minute) >= first]
        arrived, ran, seconds = (sum(numbers[n] for numbers in recent) for n in range(3))
        mean = timedelta(seconds=seconds / ran) if ran else None
        found[row.queue] = Flow(arrived / elapsed, mean)
    return found

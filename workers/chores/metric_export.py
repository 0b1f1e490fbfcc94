"""The figures of `/ojs/v1/metrics`, sent to a collector by OpenTelemetry (OJS observability §8,
distributed tracing §10).

They are the database's, so one process is enough: a reaper sends them, and several reapers take
turns. They are not instruments of a meter, since OpenTelemetry has no histogram that is read from
elsewhere. Requires the extra `otlp`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from time import time_ns
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, InterfaceError, connections
from django.utils.module_loading import import_string

from jobs.conf import ojs_settings

from . import metrics, reaper

logger = logging.getLogger("workers.metrics")
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
USUAL = 60_000
"""Milliseconds between two exports, as OpenTelemetry has it."""
EARLY = 0.9
"""Share of the interval after which it is another's turn: clocks of threads are not exact."""
LAST_WORDS = 5.0
"""Seconds for an export under way when the process ends."""


@contextlib.contextmanager
def exporting() -> Iterator[None]:
    """Send the metrics as long as the context lasts, if the site names an exporter.

    Raises:
        ImproperlyConfigured: the exporter cannot be made, or the interval is not a number.
    """
    if not (ojs_settings.METRICS and ojs_settings.METRICS_EXPORTER):
        yield
        return
    exporter, interval = _exporter(ojs_settings.METRICS_EXPORTER), _interval()
    over = threading.Event()
    thread = threading.Thread(
        target=_run, args=(exporter, interval, over), name="ojs-metrics", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LAST_WORDS)
        exporter.shutdown()


def _exporter(path: str) -> Any:
    if not metrics.is_installed():
        raise ImproperlyConfigured(
            "OJS[\"METRICS_EXPORTER\"] needs prometheus-client: pip install 'django-ojs[otlp]'"
        )
    try:
        return import_string(path)()
    except ImportError as problem:
        raise ImproperlyConfigured(
            f'OJS["METRICS_EXPORTER"]: cannot import {path!r}: {problem}. The exporter of OTLP is '
            "installed by: pip install 'django-ojs[otlp]'"
        ) from problem


def _interval() -> timedelta:
    given = os.environ.get(INTERVAL) or USUAL
    try:
        found = timedelta(milliseconds=int(given))
    except ValueError:
        found = timedelta()
    if found <= timedelta():
        raise ImproperlyConfigured(f"{INTERVAL} must be a number of milliseconds, not {given!r}.")
    return found


def _run(exporter: Any, interval: timedelta, over: threading.Event) -> None:
    while not over.wait(interval.total_seconds()):
        try:
            export_in_turn(exporter, interval)
        except (DatabaseError, InterfaceError) as problem:
            logger.debug("Metrics wait for the database: %s", problem)
        except Exception:
            logger.exception("The metrics could not be exported.")
        finally:
            connections.close_all()


def export_in_turn(exporter: Any, interval: timedelta) -> bool:
    """Export once, unless another process has done so in this interval; return whether."""
    turn = reaper.Chore("metrics-export", lambda: 0, "exports", interval)
    if not reaper.take_turn(turn, patience=EARLY):
        return False
    exporter.export(figures())
    return True


def figures() -> Any:
    """Return all metrics as OpenTelemetry's `MetricsData`."""
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    from jobs.opentelemetry import SCOPE, resource

    now = time_ns()
    found = [_metric(family, now) for family in metrics.families()]
    scope = export.ScopeMetrics(InstrumentationScope(SCOPE), [each for each in found if each], "")
    return export.MetricsData([export.ResourceMetrics(resource(of_process=False), [scope], "")])


def _metric(family: Any, now: int) -> Any:
    """Convert a family of prometheus_client; None if it is empty."""
    from opentelemetry.sdk.metrics import export

    known = metrics.FAMILIES[family.name]
    if not family.samples:
        return None
    data: Any
    if known.kind == "histogram":
        points = [_histogram(labels, samples, now) for labels, samples in _series(family)]
        data = export.Histogram(points, export.AggregationTemporality.CUMULATIVE)
    else:
        numbers = [
            export.NumberDataPoint(sample.labels, 0, now, float(sample.value))
            for sample in family.samples
        ]
        if known.kind == "counter":
            data = export.Sum(numbers, export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
        else:
            data = export.Gauge(numbers)
    return export.Metric(metrics.dotted(family.name), known.help, known.unit, data)


def _series(family: Any) -> Iterator[tuple[Mapping[str, str], Mapping[str, Any]]]:
    """Yield the labels of each histogram of a family, and its samples by kind."""
    found: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        samples = found.setdefault(tuple(labels.items()), {"bucket": []})
        kind = sample.name.removeprefix(f"{family.name}_")
        if kind == "bucket":
            samples[kind].append((float(sample.labels["le"]), int(sample.value)))
        else:
            samples[kind] = sample.value
    for key, samples in found.items():
        yield dict(key), samples


def _histogram(labels: Mapping[str, str], samples: Mapping[str, Any], now: int) -> Any:
    from opentelemetry.sdk.metrics import export

    bounds = [bound for bound, _ in samples["bucket"]]
    totals = [total for _, total in samples["bucket"]]
    counts = [total - before for before, total in zip([0, *totals], totals, strict=False)]
    # The least and the greatest are not known: as None they are left out of the message.
    unknown: Any = None
    return export.HistogramDataPoint(
        attributes=labels,
        start_time_unix_nano=0,
        time_unix_nano=now,
        count=totals[-1],
        sum=samples.get("sum", 0.0),
        bucket_counts=counts,
        explicit_bounds=bounds[:-1],
        min=unknown,
        max=unknown,
    )

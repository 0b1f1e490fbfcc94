"""The figures of the metrics endpoint as OpenTelemetry's (OJS observability §8, distributed
tracing §10)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import pytest
from django.core.exceptions import ImproperlyConfigured
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

from tests.collector import attributes
from tests.factories import QueueFactory, ago
from workers.chores import metric_export, metrics
from workers.models import Sweep

EXPORTER = "opentelemetry.exporter.otlp.proto.http.metric_exporter.OTLPMetricExporter"
NAMES = {
    "ojs.backpressure.pressure",
    *("ojs.webhook.delivery", "ojs.webhook.delivery_duration", "ojs.webhook.delivery_retry_count"),
    *("ojs.webhook.dead_delivery", "ojs.webhook.subscriptions"),
    *("ojs.job.enqueued", "ojs.job.completed", "ojs.job.failed", "ojs.job.retried"),
    *("ojs.job.cancelled", "ojs.job.expired", "ojs.job.duration", "ojs.job.queue_time"),
    *("ojs.queue.depth", "ojs.queue.oldest", "ojs.queue.wanted_workers"),
    *("ojs.scheduling.dispatch", "ojs.scheduling.dispatch_ratio"),
    *("ojs.scheduling.pool_utilization", "ojs.scheduling.starvation_events"),
    *("ojs.tenant.jobs.active", "ojs.tenant.queue.depth", "ojs.tenant.fairness.share"),
    *("ojs.workers.active", "ojs.workers.busy", "ojs.reaper.last_seen_timestamp"),
}


def exported() -> dict[str, Any]:
    """The metrics as they are sent, by name."""
    request = encode_metrics(metric_export.figures())
    return {
        metric.name: metric
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_names_are_those_of_the_document_and_have_no_unit():
    assert {metrics.dotted(name) for name in metrics.FAMILIES} == NAMES


@pytest.mark.django_db
def test_what_is_exported_is_what_is_scraped(api):
    for type in ("email.send", "email.other"):
        job_id = api.pushed(type=type, options={"queue": "email"})
        api.fetch("email", worker_id="w")
        api.ack(job_id, worker_id="w")
    api.pushed(type="email.send", options={"queue": "email"})

    found = exported()

    enqueued = found["ojs.job.enqueued"]
    assert (enqueued.unit, enqueued.sum.is_monotonic) == ("{job}", True)
    assert enqueued.sum.aggregation_temporality == 2  # cumulative
    values = {attributes(each)["type"]: each.as_double for each in enqueued.sum.data_points}
    assert values == {"email.send": 2, "email.other": 1}
    scraped = [sample for family in metrics.families() for sample in family.samples]
    counts = {
        sample.labels["type"]: sample.value
        for sample in scraped
        if sample.name == "ojs_job_duration_seconds_count"
    }
    duration = found["ojs.job.duration"]
    assert duration.unit == "s"
    for point in duration.histogram.data_points:
        labels = attributes(point)
        assert set(labels) == {"queue", "type", "state"}
        assert (labels["state"], point.count) == ("completed", counts[labels["type"]])
        assert sum(point.bucket_counts) == point.count
        assert list(point.explicit_bounds)[:3] == [0.005, 0.01, 0.025]
        assert not point.HasField("min") and not point.HasField("max")
    (waiting,) = (
        point.as_double
        for point in found["ojs.queue.depth"].gauge.data_points
        if attributes(point) == {"queue": "email", "state": "available"}
    )
    assert waiting == 1


@pytest.mark.django_db
def test_the_figures_of_every_process_are_the_same_series():
    (found,) = encode_metrics(metric_export.figures()).resource_metrics

    named = attributes(found.resource)
    assert named["service.name"] == "ojs"
    assert "service.instance.id" not in named


@pytest.mark.django_db
def test_a_histogram_without_values_is_left_out():
    QueueFactory(name="email")

    found = exported()

    assert "ojs.job.duration" not in found
    assert "ojs.queue.depth" in found


@pytest.mark.django_db
def test_of_several_reapers_one_exports_in_each_interval():
    """More than one would double every sum."""

    class Kept:
        exports: ClassVar[list[Any]] = []

        def export(self, figures: Any) -> None:
            self.exports.append(figures)

    taken = [metric_export.export_in_turn(Kept(), timedelta(hours=1)) for _ in range(3)]
    Sweep.objects.filter(name="metrics-export").update(ran_at=ago(3600))
    taken.append(metric_export.export_in_turn(Kept(), timedelta(hours=1)))

    assert taken == [True, False, False, True]
    assert len(Kept.exports) == 2


@pytest.mark.parametrize(
    ("options", "interval", "problem"),
    [
        ({"METRICS_EXPORTER": "missing.Exporter"}, "1000", "cannot import 'missing.Exporter'"),
        ({"METRICS_EXPORTER": EXPORTER}, "often", "OTEL_METRIC_EXPORT_INTERVAL must be"),
        ({"METRICS_EXPORTER": EXPORTER}, "0", "OTEL_METRIC_EXPORT_INTERVAL must be"),
    ],
)
def test_what_cannot_work_is_refused(settings, monkeypatch, options, interval, problem):
    monkeypatch.setenv(metric_export.INTERVAL, interval)
    settings.OJS = options

    with pytest.raises(ImproperlyConfigured, match=problem), metric_export.exporting():
        pass


@pytest.mark.parametrize("options", [{}, {"METRICS_EXPORTER": EXPORTER, "METRICS": False}])
def test_nothing_is_exported_unless_it_is_wanted(settings, options):
    settings.OJS = options

    with metric_export.exporting():
        assert "ojs-metrics" not in [thread.name for thread in metric_export.threading.enumerate()]

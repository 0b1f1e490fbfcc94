"""Monitoring: metrics for Prometheus, a number for autoscalers, readiness."""

from __future__ import annotations

import time
from typing import Any

from django.http import HttpResponse
from rest_framework.response import Response

from jobs.api.system import backend
from jobs.conf import ojs_settings
from jobs.errors import InvalidRequest, NotFound, NotInstalled
from jobs.http.base import OJSViewSet
from jobs.http.request import Request
from jobs.store import readiness, standby
from workers.chores import metrics
from workers.fleet import autoscaling

from .requests import MOST_QUEUES, AutoscalingQuery, MetricsQuery


class MetricsViewSet(OJSViewSet):
    """`/ojs/v1/metrics` (OJS observability §8)"""

    resource = "metrics"
    queries = {"retrieve": MetricsQuery}

    def retrieve(self, request: Request) -> HttpResponse:
        """All metrics in Prometheus' text format, or in OpenMetrics if the client accepts it."""
        if not ojs_settings.METRICS:
            raise NotFound(
                "Metrics are switched off on this server.",
                hint='The option is OJS["METRICS"], or the environment variable OJS_METRICS.',
            )
        if not metrics.is_installed():
            raise NotInstalled(
                "This server cannot answer with metrics: prometheus-client is not installed.",
                hint="pip install 'django-ojs[metrics]'",
                extra="metrics",
            )
        named = MetricsQuery.format.read(request.query_params)

        def respond() -> HttpResponse:
            accepted = named or request.META.get("HTTP_ACCEPT", "")
            text, media_type = metrics.exposition(accepted)
            return HttpResponse(text, content_type=media_type)

        return standby.answer(respond)


class AutoscalingViewSet(OJSViewSet):
    """`/ojs/v1/autoscaling`"""

    resource = "autoscaling"
    queries = {"retrieve": AutoscalingQuery}

    def retrieve(self, request: Request) -> Response:
        """How many workers the queues named by `queues` need, together and each."""
        named = request.query_params.get("queues", "")
        queues = [name for name in named.split(",") if name]
        if not 1 <= len(queues) <= MOST_QUEUES:
            raise InvalidRequest(
                f"Name 1 to {MOST_QUEUES} queues, separated by commas: ?queues=email,reports.",
                field="queues",
            )
        found = autoscaling.demands(queues)
        return Response(
            {
                "wanted_workers": autoscaling.wanted_workers(found),
                "queues": [_document(demand) for demand in found],
            }
        )


def _document(demand: autoscaling.Demand) -> dict[str, Any]:
    run_time = demand.run_time
    return {
        "queue": demand.queue,
        "wanted_workers": demand.wanted_workers,
        "wanted_concurrency": round(demand.places, 3),
        "worker_concurrency": round(demand.concurrency, 3),
        "available": demand.waiting,
        "active": demand.active,
        "arrivals_per_second": round(demand.arrivals, 3),
        "run_seconds": None if run_time is None else round(run_time.total_seconds(), 3),
        "paused": demand.paused,
    }


class ReadinessViewSet(OJSViewSet):
    """`/ojs/v1/ready`: whether requests can be served (observability §10).

    The stand-alone project also responds at `/ready`.
    """

    resource = "readiness"

    def retrieve(self, request: Request) -> Response:
        started = time.monotonic()
        obstacle = readiness.obstacle()
        found: dict[str, Any]
        if obstacle:
            found = {"type": backend(), "status": "unhealthy", "error": obstacle}
            return Response({"status": "unavailable", "backend": found}, status=503)
        latency = round((time.monotonic() - started) * 1000)
        found = {"type": backend(), "status": "healthy", "latency_ms": latency}
        return Response({"status": "ready", "backend": found})

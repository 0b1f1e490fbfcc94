"""Worker URLs in both families, and those of the short document, for the same actions."""

from django.urls import path

from jobs.http.fast_path import fast

from . import verbs
from .checkpoints import CheckpointViewSet, DurableViewSet
from .documentation import docs, openapi_json
from .observing import AutoscalingViewSet, MetricsViewSet, ReadinessViewSet
from .progress import ProgressViewSet, stream
from .views import HealthViewSet, LeavingViewSet, WorkerViewSet

register = WorkerViewSet.as_view({"post": "register"})
heartbeat = fast(
    WorkerViewSet.as_view({"post": "heartbeat"}), verbs.heartbeat, batch=verbs.heartbeats
)
fetch = fast(
    WorkerViewSet.as_view({"post": "fetch"}),
    verbs.fetch,
    batch=verbs.fetches,
    alone=verbs.LONG,
)
ack = fast(WorkerViewSet.as_view({"post": "ack"}), verbs.ack, batch=verbs.acks, alone=verbs.LONG)
nack = fast(WorkerViewSet.as_view({"post": "nack"}), verbs.nack)

durable = DurableViewSet.as_view({"post": "save", "delete": "destroy"})
resume = DurableViewSet.as_view({"get": "retrieve"})

# The most frequent come first.
urlpatterns = [
    path("ojs/v1/workers/fetch", fetch, name="fetch"),
    path("ojs/v1/workers/ack", ack, name="ack"),
    path("ojs/v1/workers/heartbeat", heartbeat, name="heartbeat"),
    path("ojs/v1/workers/nack", nack, name="nack"),
    path("ojs/v1/health", HealthViewSet.as_view({"get": "retrieve"}), name="health"),
    path("ojs/v1/ready", ReadinessViewSet.as_view({"get": "retrieve"}), name="ready"),
    path("ojs/v1/metrics", MetricsViewSet.as_view({"get": "retrieve"}), name="metrics"),
    path("ojs/v1/autoscaling", AutoscalingViewSet.as_view({"get": "retrieve"}), name="autoscaling"),
    path("ojs/v1/openapi.json", openapi_json, name="openapi"),
    path("ojs/v1/docs", docs, name="docs"),
    path("ojs/v1/workers/register", register, name="register"),
    path(
        "ojs/v1/workers/deregister",
        WorkerViewSet.as_view({"post": "deregister"}),
        name="deregister",
    ),
    path("ojs/v1/workers/beat", heartbeat),
    path("ojs/v1/jobs/fetch", fetch),
    path("ojs/v1/workers/fail", nack),
    path("ojs/v1/jobs/<str:job_id>/ack", ack),
    path("ojs/v1/jobs/<str:job_id>/nack", nack),
    path("ojs/v1/jobs/<str:job_id>/fail", nack),
    path(
        "ojs/v1/jobs/<str:job_id>/progress",
        ProgressViewSet.as_view({"get": "retrieve", "put": "report", "post": "report"}),
        name="progress",
    ),
    path(
        "ojs/v1/jobs/<str:job_id>/progress/stream",
        fast(ProgressViewSet.as_view({"get": "stream"}), stream, "GET", streams=True),
        name="progress-stream",
    ),
    path(
        "ojs/v1/jobs/<str:job_id>/checkpoint",
        CheckpointViewSet.as_view(
            {"post": "save", "put": "save", "get": "retrieve", "delete": "destroy"}
        ),
        name="checkpoint",
    ),
    path("ojs/v1/checkpoints/<str:job_id>", durable),
    path("ojs/v1/checkpoints/<str:job_id>/resume", resume),
    # The SDKs prefix a path that has the prefix.
    path("ojs/v1/ojs/v1/checkpoints/<str:job_id>", durable),
    path("ojs/v1/ojs/v1/checkpoints/<str:job_id>/resume", resume),
    path("ojs/v1/workers/progress", ProgressViewSet.as_view({"post": "report"})),
    path(
        "ojs/v1/workers/<path:worker_id>/health",
        WorkerViewSet.as_view({"get": "health"}),
        name="worker-health",
    ),
    path(
        "ojs/v1/workers/<path:worker_id>",
        LeavingViewSet.as_view({"delete": "deregister"}),
        name="worker",
    ),
]

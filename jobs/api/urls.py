"""URLs of the producer side of the OJS HTTP binding; `workers.urls` includes it."""

from typing import Any

from django.urls import path

from ..http.fast_path import fast
from ..http.verbs import Batch, Verb
from . import live, results, verbs
from .admin import urls as admin
from .admin.bulk import AdminBulkViewSet
from .admin.dead_letter import AdminDeadLetterViewSet, WholeDeadLetterViewSet
from .admin.urls import Endpoint
from .bulk import BulkViewSet
from .codec import CodecViewSet
from .cron import CronViewSet
from .history import HistoryViewSet
from .jobs import JobViewSet
from .live import LiveViewSet
from .queue_ops import QueueOperationsViewSet as Queues
from .queues import DeadLetterViewSet, EventViewSet, QueueViewSet
from .rate_limits import RateLimitViewSet
from .results import ResultViewSet
from .schemas import SchemaViewSet
from .specs import SpecViewSet
from .system import ManifestViewSet
from .workflows import WorkflowViewSet

JOB = "v1/jobs/<str:job_id>"
WORKFLOW = "v1/workflows/<str:workflow_id>"
QUEUE = "v1/queues/<str:name>"
DEAD = "v1/dead-letter"
CRON = "v1/cron/<str:name>"
SCHEMAS = "v1/schemas"

# Route below `ojs/`, name, viewset, and the action for each method.
ENDPOINTS: tuple[Endpoint, ...] = (
    ("manifest", "manifest", ManifestViewSet, {"get": "retrieve"}),
    ("v1/jobs/results", "job-results", ResultViewSet, {"post": "bulk"}),
    ("v1/jobs/bulk", "jobs-bulk", BulkViewSet, {"post": "enqueue"}),
    ("v1/jobs/bulk/cancel", "bulk-cancel", BulkViewSet, {"post": "cancel"}),
    ("v1/jobs/bulk/retry", "bulk-retry", BulkViewSet, {"post": "retry"}),
    ("v1/jobs/bulk/delete", "bulk-delete", BulkViewSet, {"post": "delete_finished"}),
    (JOB, "job", JobViewSet, {"get": "retrieve", "delete": "cancel", "patch": "prioritize"}),
    (f"{JOB}/retries", "job-retries", JobViewSet, {"get": "retries"}),
    *admin.of_history(HistoryViewSet, "v1/"),
    (f"{JOB}/cancel", "job-cancel", JobViewSet, {"post": "cancel"}),
    (f"{JOB}/activate", "job-activate", JobViewSet, {"post": "activate"}),
    ("v1/workflows", "workflows", WorkflowViewSet, {"get": "list", "post": "create"}),
    (WORKFLOW, "workflow", WorkflowViewSet, {"get": "retrieve", "delete": "cancel"}),
    (f"{WORKFLOW}/cancel", "workflow-cancel", WorkflowViewSet, {"post": "cancel"}),
    (f"{WORKFLOW}/progress", "workflow-progress", WorkflowViewSet, {"get": "progress"}),
    ("v1/queues", "queues", QueueViewSet, {"get": "list", "post": "create"}),
    (QUEUE, "queue", Queues, {"get": "retrieve", "delete": "destroy"}),
    (f"{QUEUE}/stats", "queue-stats", Queues, {"get": "stats"}),
    (f"{QUEUE}/priority-stats", "queue-priority-stats", Queues, {"get": "priorities"}),
    (f"{QUEUE}/pause", "queue-pause", Queues, {"post": "pause"}),
    (f"{QUEUE}/drain", "queue-drain", Queues, {"post": "drain"}),
    (f"{QUEUE}/resume", "queue-resume", Queues, {"post": "resume"}),
    (f"{QUEUE}/config", "queue-config", Queues, {"get": "configuration", "put": "configure"}),
    (f"{QUEUE}/jobs", "queue-jobs", Queues, {"delete": "purge"}),
    # As the command line calls it.
    (f"{QUEUE}/purge", "queue-purge", Queues, {"post": "purge"}),
    ("v1/rate-limits", "rate-limits", RateLimitViewSet, {"get": "list"}),
    (
        "v1/rate-limits/<str:key>",
        "rate-limit",
        RateLimitViewSet,
        {"get": "retrieve", "put": "override"},
    ),
    # As the command line and the admin UI call it.
    (
        "v1/rate-limits/<str:key>/override",
        "rate-limit-override",
        RateLimitViewSet,
        {"put": "override", "delete": "restore"},
    ),
    (DEAD, "dead-letter", WholeDeadLetterViewSet, {"get": "list", "delete": "purge"}),
    (f"{DEAD}/purge", "dead-letter-purge", WholeDeadLetterViewSet, {"post": "purge"}),
    (f"{DEAD}/stats", "dead-letter-stats", AdminDeadLetterViewSet, {"get": "stats"}),
    (f"{DEAD}/retry", "dead-letter-bulk-retry", AdminBulkViewSet, {"post": "retry_dead"}),
    (
        f"{DEAD}/<str:job_id>",
        "dead-letter-job",
        DeadLetterViewSet,
        {"get": "retrieve", "delete": "destroy"},
    ),
    (f"{DEAD}/<str:job_id>/retry", "dead-letter-retry", DeadLetterViewSet, {"post": "retry"}),
    ("v1/cron", "cron-jobs", CronViewSet, {"get": "list", "post": "create"}),
    (CRON, "cron-job", CronViewSet, {"get": "retrieve", "delete": "destroy", "patch": "update"}),
    (f"{CRON}/pause", "cron-pause", CronViewSet, {"post": "pause"}),
    (f"{CRON}/resume", "cron-resume", CronViewSet, {"post": "resume"}),
    (f"{CRON}/trigger", "cron-trigger", CronViewSet, {"post": "trigger"}),
    (f"{CRON}/history", "cron-history", CronViewSet, {"get": "history"}),
    # As the admin UI calls them.
    ("v1/crons", "crons", CronViewSet, {"get": "list"}),
    (
        "v1/crons/<str:name>",
        "crons-job",
        CronViewSet,
        {"get": "retrieve", "delete": "destroy", "patch": "update"},
    ),
    ("v1/job-specs", "job-specs", SpecViewSet, {"get": "list", "post": "create"}),
    ("v1/job-specs/<str:name>", "job-spec", SpecViewSet, {"delete": "destroy"}),
    (SCHEMAS, "schema-list", SchemaViewSet, {"get": "list", "post": "register"}),
    (f"{SCHEMAS}/<str:type>/versions", "schema-versions", SchemaViewSet, {"get": "versions"}),
    (
        f"{SCHEMAS}/<str:type>/<str:version>",
        "schema-version",
        SchemaViewSet,
        {"get": "version", "delete": "destroy_version"},
    ),
    # A URI, which may contain slashes.
    (f"{SCHEMAS}/<path:name>", "schema", SchemaViewSet, {"get": "retrieve", "delete": "destroy"}),
    ("v1/events", "events", EventViewSet, {"get": "list"}),
    ("codec/encode", "codec-encode", CodecViewSet, {"post": "encode"}),
    ("codec/decode", "codec-decode", CodecViewSet, {"post": "decode"}),
    ("v1/ws", "socket", LiveViewSet, {"get": "socket"}),
)

# The hot verbs, and those that wait, have addresses of their own. The most frequent come first.
FAST: tuple[tuple[str, str, Any, str, str, Verb, Batch | None], ...] = (
    ("v1/jobs", "jobs", JobViewSet, "POST", "create", verbs.create, verbs.creates),
    ("v1/jobs/batch", "jobs-batch", JobViewSet, "POST", "batch", verbs.batch, None),
    (f"{JOB}/result", "job-result", ResultViewSet, "GET", "retrieve", results.retrieve, None),
)

BESIDE = {"v1/jobs": {"get": "list"}}
"""Other methods of those addresses, which take the usual way."""

# An event loop writes them.
STREAMS: tuple[tuple[str, str, str, Verb], ...] = (
    ("v1/events/stream", "event-stream", "of_channel", live.of_channel),
    (f"{JOB}/events", "job-events", "of_job", live.of_job),
    (f"{QUEUE}/events", "queue-events", "of_queue", live.of_queue),
)

urlpatterns = [
    *(
        path(
            f"ojs/{route}",
            fast(
                viewset.as_view({method.lower(): action} | BESIDE.get(route, {})),
                verb,
                method,
                batch=batch,
            ),
            name=name,
        )
        for route, name, viewset, method, action, verb, batch in FAST
    ),
    *(
        path(f"ojs/{route}", viewset.as_view(actions), name=name)
        for route, name, viewset, actions in ENDPOINTS
    ),
    *(
        path(
            f"ojs/{route}",
            fast(LiveViewSet.as_view({"get": action}), verb, "GET", streams=True),
            name=name,
        )
        for route, name, action, verb in STREAMS
    ),
    *admin.urlpatterns,
]

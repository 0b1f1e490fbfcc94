"""The producer side of the OJS HTTP binding; `workers.urls` includes it."""

from django.urls import path

from .admin import urls as admin
from .admin.bulk import AdminBulkViewSet
from .admin.dead_letter import AdminDeadLetterViewSet, WholeDeadLetterViewSet
from .bulk import BulkViewSet
from .cron import CronViewSet
from .jobs import JobViewSet
from .queue_ops import QueueOperationsViewSet as Queues
from .queues import DeadLetterViewSet, EventViewSet, QueueViewSet
from .rate_limits import RateLimitViewSet
from .results import ResultViewSet
from .specs import SpecViewSet
from .system import ConformanceViewSet, ManifestViewSet
from .workflows import WorkflowViewSet

urlpatterns = [
    path("ojs/manifest", ManifestViewSet.as_view({"get": "retrieve"}), name="manifest"),
    path("ojs/v1/jobs", JobViewSet.as_view({"post": "create"}), name="jobs"),
    path("ojs/v1/jobs/batch", JobViewSet.as_view({"post": "batch"}), name="jobs-batch"),
    path("ojs/v1/jobs/results", ResultViewSet.as_view({"post": "bulk"}), name="job-results"),
    path("ojs/v1/jobs/bulk", BulkViewSet.as_view({"post": "enqueue"}), name="jobs-bulk"),
    path("ojs/v1/jobs/bulk/cancel", BulkViewSet.as_view({"post": "cancel"}), name="bulk-cancel"),
    path("ojs/v1/jobs/bulk/retry", BulkViewSet.as_view({"post": "retry"}), name="bulk-retry"),
    path(
        "ojs/v1/jobs/bulk/delete",
        BulkViewSet.as_view({"post": "delete_finished"}),
        name="bulk-delete",
    ),
    path(
        "ojs/v1/jobs/<str:job_id>",
        JobViewSet.as_view({"get": "retrieve", "delete": "cancel", "patch": "prioritize"}),
        name="job",
    ),
    path(
        "ojs/v1/jobs/<str:job_id>/cancel", JobViewSet.as_view({"post": "cancel"}), name="job-cancel"
    ),
    path(
        "ojs/v1/jobs/<str:job_id>/activate",
        JobViewSet.as_view({"post": "activate"}),
        name="job-activate",
    ),
    path(
        "ojs/v1/jobs/<str:job_id>/result",
        ResultViewSet.as_view({"get": "retrieve"}),
        name="job-result",
    ),
    path(
        "ojs/v1/workflows",
        WorkflowViewSet.as_view({"get": "list", "post": "create"}),
        name="workflows",
    ),
    path(
        "ojs/v1/workflows/<str:workflow_id>",
        WorkflowViewSet.as_view({"get": "retrieve", "delete": "cancel"}),
        name="workflow",
    ),
    path(
        "ojs/v1/workflows/<str:workflow_id>/cancel",
        WorkflowViewSet.as_view({"post": "cancel"}),
        name="workflow-cancel",
    ),
    path(
        "ojs/v1/workflows/<str:workflow_id>/progress",
        WorkflowViewSet.as_view({"get": "progress"}),
        name="workflow-progress",
    ),
    path("ojs/v1/queues", QueueViewSet.as_view({"get": "list", "post": "create"}), name="queues"),
    *(
        path(f"ojs/v1/queues/<str:name>{suffix}", Queues.as_view(actions))
        for suffix, actions in (
            ("", {"get": "retrieve", "delete": "destroy"}),
            ("/stats", {"get": "stats"}),
            ("/priority-stats", {"get": "priorities"}),
            ("/pause", {"post": "pause"}),
            ("/resume", {"post": "resume"}),
            ("/config", {"get": "configuration", "put": "configure"}),
            ("/jobs", {"delete": "purge"}),
        )
    ),
    path("ojs/v1/rate-limits", RateLimitViewSet.as_view({"get": "list"}), name="rate-limits"),
    path(
        "ojs/v1/rate-limits/<str:key>",
        RateLimitViewSet.as_view({"get": "retrieve", "put": "override"}),
        name="rate-limit",
    ),
    path(
        "ojs/v1/dead-letter",
        WholeDeadLetterViewSet.as_view({"get": "list", "delete": "purge"}),
        name="dead-letter",
    ),
    path(
        "ojs/v1/dead-letter/stats",
        AdminDeadLetterViewSet.as_view({"get": "stats"}),
        name="dead-letter-stats",
    ),
    path(
        "ojs/v1/dead-letter/retry",
        AdminBulkViewSet.as_view({"post": "retry_dead"}),
        name="dead-letter-bulk-retry",
    ),
    path(
        "ojs/v1/dead-letter/<str:job_id>",
        DeadLetterViewSet.as_view({"get": "retrieve", "delete": "destroy"}),
        name="dead-letter-job",
    ),
    path(
        "ojs/v1/dead-letter/<str:job_id>/retry",
        DeadLetterViewSet.as_view({"post": "retry"}),
        name="dead-letter-retry",
    ),
    path("ojs/v1/cron", CronViewSet.as_view({"get": "list", "post": "create"}), name="cron-jobs"),
    path(
        "ojs/v1/cron/<str:name>",
        CronViewSet.as_view({"get": "retrieve", "delete": "destroy", "patch": "update"}),
        name="cron-job",
    ),
    path("ojs/v1/cron/<str:name>/pause", CronViewSet.as_view({"post": "pause"}), name="cron-pause"),
    path(
        "ojs/v1/cron/<str:name>/resume", CronViewSet.as_view({"post": "resume"}), name="cron-resume"
    ),
    path(
        "ojs/v1/cron/<str:name>/trigger",
        CronViewSet.as_view({"post": "trigger"}),
        name="cron-trigger",
    ),
    path(
        "ojs/v1/cron/<str:name>/history",
        CronViewSet.as_view({"get": "history"}),
        name="cron-history",
    ),
    path(
        "ojs/v1/job-specs",
        SpecViewSet.as_view({"get": "list", "post": "create"}),
        name="job-specs",
    ),
    path(
        "ojs/v1/job-specs/<str:name>", SpecViewSet.as_view({"delete": "destroy"}), name="job-spec"
    ),
    path("ojs/v1/events", EventViewSet.as_view({"get": "list"}), name="events"),
    path("ojs/v1/admin/reset", ConformanceViewSet.as_view({"post": "reset"}), name="reset"),
    *admin.urlpatterns,
]

"""The Admin API of what `jobs` knows; `workers.api.urls` has the rest."""

from django.urls import path

from .bulk import AdminBulkViewSet
from .dead_letter import AdminDeadLetterViewSet
from .history import HistoryViewSet
from .jobs import AdminJobViewSet
from .queues import AdminQueueViewSet as Queues
from .system import SystemViewSet

BASE = "ojs/v1/admin"

ONE_QUEUE = f"{BASE}/queues/<str:name>"

urlpatterns = [
    path(f"{BASE}/queues", Queues.as_view({"get": "list"}), name="admin-queues"),
    *(
        path(f"{ONE_QUEUE}{suffix}", Queues.as_view(actions), name=f"admin-queue{name}")
        for suffix, name, actions in (
            ("", "", {"get": "retrieve", "delete": "destroy"}),
            ("/stats", "-stats", {"get": "stats"}),
            ("/priority-stats", "-priority-stats", {"get": "priorities"}),
            ("/pause", "-pause", {"post": "pause"}),
            ("/resume", "-resume", {"post": "resume"}),
            ("/config", "-config", {"get": "configuration", "put": "configure"}),
            ("/rate-limit", "-rate-limit", {"put": "limit"}),
            ("/jobs", "-jobs", {"delete": "purge"}),
        )
    ),
    *(
        path(
            f"{BASE}/jobs/bulk/{verb}",
            AdminBulkViewSet.as_view({"post": action}),
            name=f"admin-bulk-{verb}",
        )
        for verb, action in (
            ("retry", "retry"),
            ("cancel", "cancel"),
            ("delete", "delete_finished"),
        )
    ),
    path(f"{BASE}/jobs", AdminJobViewSet.as_view({"get": "list"}), name="admin-jobs"),
    path(
        f"{BASE}/jobs/<str:job_id>", AdminJobViewSet.as_view({"get": "retrieve"}), name="admin-job"
    ),
    path(
        f"{BASE}/jobs/<str:job_id>/cancel",
        AdminJobViewSet.as_view({"post": "cancel"}),
        name="admin-job-cancel",
    ),
    path(
        f"{BASE}/jobs/<str:job_id>/retry",
        AdminJobViewSet.as_view({"post": "retry"}),
        name="admin-job-retry",
    ),
    path(
        f"{BASE}/dead-letter",
        AdminDeadLetterViewSet.as_view({"get": "list", "delete": "purge"}),
        name="admin-dead-letter",
    ),
    path(
        f"{BASE}/dead-letter/stats",
        AdminDeadLetterViewSet.as_view({"get": "stats"}),
        name="admin-dead-letter-stats",
    ),
    path(
        f"{BASE}/dead-letter/retry",
        AdminBulkViewSet.as_view({"post": "retry_dead"}),
        name="admin-dead-letter-bulk-retry",
    ),
    path(
        f"{BASE}/dead-letter/<str:job_id>",
        AdminDeadLetterViewSet.as_view({"get": "retrieve", "delete": "destroy"}),
        name="admin-dead-letter-job",
    ),
    path(
        f"{BASE}/dead-letter/<str:job_id>/retry",
        AdminDeadLetterViewSet.as_view({"post": "retry"}),
        name="admin-dead-letter-retry",
    ),
    path(
        f"{BASE}/stats/history",
        HistoryViewSet.as_view({"get": "retrieve"}),
        name="admin-stats-history",
    ),
    path(
        f"{BASE}/system/maintenance",
        SystemViewSet.as_view({"get": "maintenance", "post": "switch"}),
        name="admin-maintenance",
    ),
    path(f"{BASE}/system/config", SystemViewSet.as_view({"get": "config"}), name="admin-config"),
]

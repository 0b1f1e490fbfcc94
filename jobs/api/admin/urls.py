"""URLs of the Admin API in `jobs`; `workers.api.urls` has the rest."""

from typing import Any

from django.urls import path

from ...http.base import OJSViewSet
from ..history import AdminHistoryViewSet
from .bulk import AdminBulkViewSet
from .dead_letter import AdminDeadLetterViewSet
from .history import HistoryViewSet
from .jobs import AdminJobViewSet
from .queues import AdminQueueViewSet as Queues
from .schemas import SchemaViewSet
from .system import SystemViewSet
from .tenants import TenantViewSet

Endpoint = tuple[str, str, type[OJSViewSet], dict[str, Any]]
"""Route, name, viewset, and the action for each method."""
QUEUE = "queues/<str:name>"
JOB = "jobs/<str:job_id>"
DEAD = "dead-letter/<str:job_id>"
SCHEMA = "schemas/<str:type>"
TENANT = "tenants/<str:tenant_id>"


def of_history(viewset: type[OJSViewSet], prefix: str = "") -> tuple[Endpoint, ...]:
    """Return the endpoints of the execution history, below a prefix."""
    of_job = f"{prefix}{JOB}"
    return (
        (f"{of_job}/history", "job-history", viewset, {"get": "of_job", "delete": "purge_job"}),
        (f"{of_job}/lineage", "job-lineage", viewset, {"get": "lineage"}),
        (f"{prefix}history", "history", viewset, {"get": "search", "delete": "purge"}),
        (f"{prefix}history/stats", "history-stats", viewset, {"get": "statistics"}),
    )


# Route below `ojs/v1/admin/`, name after `admin-`, viewset, and the action for each method.
ENDPOINTS: tuple[Endpoint, ...] = (
    ("queues", "queues", Queues, {"get": "list"}),
    (QUEUE, "queue", Queues, {"get": "retrieve", "delete": "destroy"}),
    (f"{QUEUE}/stats", "queue-stats", Queues, {"get": "stats"}),
    (f"{QUEUE}/priority-stats", "queue-priority-stats", Queues, {"get": "priorities"}),
    (f"{QUEUE}/pause", "queue-pause", Queues, {"post": "pause"}),
    (f"{QUEUE}/drain", "queue-drain", Queues, {"post": "drain"}),
    (f"{QUEUE}/resume", "queue-resume", Queues, {"post": "resume"}),
    (f"{QUEUE}/config", "queue-config", Queues, {"get": "configuration", "put": "configure"}),
    (f"{QUEUE}/rate-limit", "queue-rate-limit", Queues, {"put": "limit"}),
    (f"{QUEUE}/jobs", "queue-jobs", Queues, {"delete": "purge"}),
    ("jobs/bulk/retry", "bulk-retry", AdminBulkViewSet, {"post": "retry"}),
    ("jobs/bulk/cancel", "bulk-cancel", AdminBulkViewSet, {"post": "cancel"}),
    ("jobs/bulk/delete", "bulk-delete", AdminBulkViewSet, {"post": "delete_finished"}),
    ("jobs", "jobs", AdminJobViewSet, {"get": "list"}),
    (JOB, "job", AdminJobViewSet, {"get": "retrieve", "patch": "prioritize"}),
    (f"{JOB}/cancel", "job-cancel", AdminJobViewSet, {"post": "cancel"}),
    (f"{JOB}/retry", "job-retry", AdminJobViewSet, {"post": "retry"}),
    *of_history(AdminHistoryViewSet),
    ("dead-letter", "dead-letter", AdminDeadLetterViewSet, {"get": "list", "delete": "purge"}),
    ("dead-letter/stats", "dead-letter-stats", AdminDeadLetterViewSet, {"get": "stats"}),
    ("dead-letter/retry", "dead-letter-bulk-retry", AdminBulkViewSet, {"post": "retry_dead"}),
    (DEAD, "dead-letter-job", AdminDeadLetterViewSet, {"get": "retrieve", "delete": "destroy"}),
    (f"{DEAD}/retry", "dead-letter-retry", AdminDeadLetterViewSet, {"post": "retry"}),
    (
        "schema-validation",
        "schema-validation",
        SchemaViewSet,
        {"get": "validation", "put": "set_validation"},
    ),
    (SCHEMA, "schemas", SchemaViewSet, {"get": "list"}),
    (f"{SCHEMA}/versions", "schema-versions", SchemaViewSet, {"get": "list"}),
    (
        f"{SCHEMA}/<str:version>",
        "schema",
        SchemaViewSet,
        {"get": "retrieve", "put": "register", "delete": "destroy"},
    ),
    ("tenants", "tenants", TenantViewSet, {"get": "list"}),
    (
        TENANT,
        "tenant",
        TenantViewSet,
        {"get": "retrieve", "put": "configure", "delete": "destroy"},
    ),
    (f"{TENANT}/limits", "tenant-limits", TenantViewSet, {"put": "limit"}),
    (f"{TENANT}/stats", "tenant-stats", TenantViewSet, {"get": "stats"}),
    (f"{TENANT}/jobs", "tenant-jobs", TenantViewSet, {"get": "jobs"}),
    ("stats/history", "stats-history", HistoryViewSet, {"get": "retrieve"}),
    ("system/maintenance", "maintenance", SystemViewSet, {"get": "maintenance", "post": "switch"}),
    # As the command line calls them.
    ("maintenance", "cli-maintenance", SystemViewSet, {"get": "maintenance", "post": "switch"}),
    ("config", "cli-config", SystemViewSet, {"get": "config"}),
    ("system/config", "config", SystemViewSet, {"get": "config"}),
)

urlpatterns = [
    path(f"ojs/v1/admin/{route}", viewset.as_view(actions), name=f"admin-{name}")
    for route, name, viewset, actions in ENDPOINTS
]

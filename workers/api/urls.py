"""URLs of workers, marks and statistics. A worker's id may contain slashes, so verbs come first."""

from django.urls import path

from .bulk import AdminWorkerBulkViewSet as Bulk
from .marks import MarkViewSet as Marks
from .views import AdminWorkerViewSet as Workers
from .views import StatisticsViewSet as Statistics

BASE = "ojs/v1/admin"
ONE = f"{BASE}/workers/<path:worker_id>"

MANY = f"{BASE}/workers/bulk"

urlpatterns = [
    path(f"{BASE}/stats", Statistics.as_view({"get": "retrieve"}), name="admin-stats"),
    path(f"{BASE}/marks", Marks.as_view({"get": "list", "post": "create"}), name="admin-marks"),
    path(f"{BASE}/workers", Workers.as_view({"get": "list"}), name="admin-workers"),
    # Before a worker with the id "bulk", which can be given orders through its `directive`.
    path(f"{MANY}/quiet", Bulk.as_view({"post": "quiet"}), name="admin-workers-quiet"),
    path(f"{MANY}/resume", Bulk.as_view({"post": "resume"}), name="admin-workers-resume"),
    path(f"{MANY}/terminate", Bulk.as_view({"post": "terminate"}), name="admin-workers-terminate"),
    path(f"{ONE}/quiet", Workers.as_view({"post": "quiet"}), name="admin-worker-quiet"),
    path(f"{ONE}/resume", Workers.as_view({"post": "resume"}), name="admin-worker-resume"),
    path(f"{ONE}/terminate", Workers.as_view({"post": "terminate"}), name="admin-worker-terminate"),
    path(f"{ONE}/directive", Workers.as_view({"post": "direct"}), name="admin-worker-directive"),
    path(ONE, Workers.as_view({"get": "retrieve", "delete": "destroy"}), name="admin-worker"),
]

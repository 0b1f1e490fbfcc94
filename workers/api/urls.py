"""URLs of workers, marks, statistics and webhooks.

A worker's id may contain slashes, so verbs come first.
"""

from django.urls import path

from .bulk import AdminWorkerBulkViewSet as Bulk
from .marks import MarkViewSet as Marks
from .pools import PoolViewSet as Pools
from .pools import SchedulingViewSet as Scheduling
from .views import AdminWorkerViewSet as Workers
from .views import StatisticsViewSet as Statistics
from .webhooks import WebhookViewSet as Webhooks

BASE = "ojs/v1/admin"
ONE = f"{BASE}/workers/<path:worker_id>"

MANY = f"{BASE}/workers/bulk"
HOOKS = "ojs/v1/webhooks/subscriptions"
HOOK = f"{HOOKS}/<str:subscription_id>"
DELIVERIES = "ojs/v1/webhooks/deliveries"
DELIVERY = f"{DELIVERIES}/<str:delivery_id>"

urlpatterns = [
    path(f"{BASE}/stats", Statistics.as_view({"get": "retrieve"}), name="admin-stats"),
    path(f"{BASE}/marks", Marks.as_view({"get": "list", "post": "create"}), name="admin-marks"),
    path(f"{BASE}/pools", Pools.as_view({"get": "list"}), name="admin-pools"),
    path(
        f"{BASE}/pools/<str:name>",
        Pools.as_view({"get": "retrieve", "put": "configure", "delete": "destroy"}),
        name="admin-pool",
    ),
    path(
        f"{BASE}/scheduling/stats",
        Scheduling.as_view({"get": "retrieve"}),
        name="admin-scheduling-stats",
    ),
    path(f"{BASE}/workers", Workers.as_view({"get": "list"}), name="admin-workers"),
    # Before a worker with the id "bulk", which can be given orders through its `directive`.
    path(f"{MANY}/quiet", Bulk.as_view({"post": "quiet"}), name="admin-workers-quiet"),
    path(f"{MANY}/resume", Bulk.as_view({"post": "resume"}), name="admin-workers-resume"),
    path(f"{MANY}/terminate", Bulk.as_view({"post": "terminate"}), name="admin-workers-terminate"),
    # As the public command line gives an order to all.
    path(
        f"{BASE}/workers/directive", Bulk.as_view({"post": "direct"}), name="admin-workers-direct"
    ),
    path(f"{ONE}/quiet", Workers.as_view({"post": "quiet"}), name="admin-worker-quiet"),
    path(f"{ONE}/resume", Workers.as_view({"post": "resume"}), name="admin-worker-resume"),
    path(f"{ONE}/terminate", Workers.as_view({"post": "terminate"}), name="admin-worker-terminate"),
    path(f"{ONE}/directive", Workers.as_view({"post": "direct"}), name="admin-worker-directive"),
    path(HOOKS, Webhooks.as_view({"get": "list", "post": "create"}), name="webhooks"),
    path(
        HOOK,
        Webhooks.as_view({"get": "retrieve", "patch": "update", "delete": "destroy"}),
        name="webhook",
    ),
    path(f"{HOOK}/test", Webhooks.as_view({"post": "test"}), name="webhook-test"),
    path(f"{HOOK}/rotate-secret", Webhooks.as_view({"post": "rotate"}), name="webhook-rotate"),
    path(f"{HOOK}/pause", Webhooks.as_view({"post": "pause"}), name="webhook-pause"),
    path(f"{HOOK}/resume", Webhooks.as_view({"post": "resume"}), name="webhook-resume"),
    path(DELIVERIES, Webhooks.as_view({"get": "deliveries"}), name="webhook-deliveries"),
    path(DELIVERY, Webhooks.as_view({"get": "delivery"}), name="webhook-delivery"),
    path(f"{DELIVERY}/retry", Webhooks.as_view({"post": "retry"}), name="webhook-retry"),
    path(ONE, Workers.as_view({"get": "retrieve", "delete": "destroy"}), name="admin-worker"),
]

"""The URLs of Flare. Where it is not switched on they match nothing, so a site may have its own."""

from __future__ import annotations

from typing import Any

from django.urls.resolvers import RegexPattern, RoutePattern, URLPattern

from jobs.conf import ojs_settings

from .views import JobViewSet, WorkerViewSet, not_found


class Switched(URLPattern):
    """Asked at each request, and only for a path that no other pattern before it took."""

    def resolve(self, path: str) -> Any:
        return super().resolve(path) if ojs_settings.FLARE.ENABLED else None


def _endpoint(path: str, viewset: Any, actions: dict[str, str], name: str) -> Switched:
    route = RoutePattern(f"flare/v1/{path}", name=name, is_endpoint=True)
    return Switched(route, viewset.as_view(actions), None, name)


urlpatterns = [
    _endpoint("workers/poll", WorkerViewSet, {"post": "poll"}, "flare-poll"),
    _endpoint("workers/ack", WorkerViewSet, {"post": "ack"}, "flare-ack"),
    _endpoint("workers/heartbeat", WorkerViewSet, {"post": "heartbeat"}, "flare-heartbeat"),
    _endpoint("workers/register", WorkerViewSet, {"post": "register"}, "flare-register"),
    _endpoint("jobs", JobViewSet, {"post": "create"}, "flare-jobs"),
    _endpoint("jobs/<str:job_id>", JobViewSet, {"get": "retrieve"}, "flare-job"),
    _endpoint("jobs/<str:job_id>/cancel", JobViewSet, {"post": "cancel"}, "flare-cancel"),
    Switched(RegexPattern(r"^flare(?:/|\Z)"), not_found),
]

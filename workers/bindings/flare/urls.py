"""The URLs of Flare. Where it is not switched on they match nothing, so a site may have its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.http import Http404
from django.urls.resolvers import RegexPattern, RoutePattern, URLPattern

from jobs.conf import ojs_settings
from jobs.http.fast_path import fast


class Switched(URLPattern):
    """Asked at each request, and only for a path that no other pattern before it took.

    What answers is imported when it is first asked for: switched off, it is never.
    """

    def __init__(self, pattern: Any, load: Callable[[], Any], name: str | None = None) -> None:
        self._load = cache(load)
        super().__init__(pattern, load, name=name)

    @property
    def callback(self) -> Any:
        # `reverse` looks at the view of every pattern there is, once; so does the system check of
        # URLs, beside the one that tells of a wrong setting.
        try:
            return self._load() if ojs_settings.FLARE.ENABLED else _nothing
        except ImproperlyConfigured:
            return _nothing

    @callback.setter
    def callback(self, load: Any) -> None:
        """Django keeps here what it is given; we have it already."""

    def switched_on(self) -> URLPattern:
        """The pattern as it is where Flare is served, for whoever describes all there is."""
        return URLPattern(self.pattern, self._load(), name=self.name)

    def resolve(self, path: str) -> Any:
        return super().resolve(path) if ojs_settings.FLARE.ENABLED else None


def _nothing(request: Any, **kwargs: Any) -> Any:
    """Stands for a view that is not served."""
    raise Http404


def _endpoint(
    path: str, viewset: str, actions: dict[str, str], name: str, *, hot: bool = False
) -> Switched:
    """
    Args:
        hot: its one action is a hot verb, of the same name.
    """

    def load() -> Any:
        from . import verbs, views

        view = getattr(views, viewset).as_view(actions)
        return fast(view, getattr(verbs, actions["post"])) if hot else view

    route = RoutePattern(f"flare/v1/{path}", name=name, is_endpoint=True)
    return Switched(route, load, name)


def _not_found() -> Any:
    from .views import not_found

    return not_found


urlpatterns = [
    _endpoint("workers/poll", "WorkerViewSet", {"post": "poll"}, "flare-poll", hot=True),
    _endpoint("workers/ack", "WorkerViewSet", {"post": "ack"}, "flare-ack", hot=True),
    _endpoint(
        "workers/heartbeat", "WorkerViewSet", {"post": "heartbeat"}, "flare-heartbeat", hot=True
    ),
    _endpoint("workers/register", "WorkerViewSet", {"post": "register"}, "flare-register"),
    _endpoint("jobs", "JobViewSet", {"post": "create"}, "flare-jobs", hot=True),
    _endpoint("jobs/<str:job_id>", "JobViewSet", {"get": "retrieve"}, "flare-job"),
    _endpoint("jobs/<str:job_id>/cancel", "JobViewSet", {"post": "cancel"}, "flare-cancel"),
    Switched(RegexPattern(r"^flare(?:/|\Z)"), _not_found),
]

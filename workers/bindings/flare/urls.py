"""URLs of Flare. If it is not enabled they match nothing, so a site may use the paths."""

from __future__ import annotations

from typing import Any

from jobs.http.fast_path import fast
from workers.bindings.shared import switched

from . import options


def is_on() -> bool:
    return options().ENABLED


def _endpoint(
    path: str, viewset: str, actions: dict[str, str], name: str, *, hot: bool = False
) -> switched.Switched:
    """
    Args:
        hot: its only action is a hot verb, of the same name.
    """

    def load() -> Any:
        from . import verbs, views

        view = getattr(views, viewset).as_view(actions)
        return fast(view, getattr(verbs, actions["post"])) if hot else view

    return switched.route(f"flare/v1/{path}", load, is_on, name)


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
    switched.everything_below("flare", _not_found, is_on),
]

"""All HTTP bindings: the one line a host site includes."""

from importlib import import_module
from typing import Any

from django.urls import re_path

from jobs.api import urls as producers
from jobs.conf import ojs_settings, protocols
from jobs.http.base import not_found
from jobs.protocols import SHARED

from .api import urls as operators
from .bindings.shared import switched

app_name = "ojs"


def of_protocols(*, shared: bool) -> list[Any]:
    """The patterns of the worker protocols that are served over HTTP.

    Args:
        shared: those below `jobs.protocols.SHARED`, else all others.
    """
    return [
        pattern
        for protocol in protocols()
        if protocol.http is not None and (protocol.http.prefix == SHARED) is shared
        for pattern in import_module(protocol.http.urls).urlpatterns
    ]


def _in_conformance_mode() -> bool:
    return ojs_settings.CONFORMANCE_MODE


def _reset() -> Any:
    from .conformance import ConformanceViewSet

    return ConformanceViewSet.as_view({"post": "reset"})


# Workers first: `jobs/fetch` must not be taken for a job called "fetch". One flat list: each
# level of includes costs every request as much as a database index look-up.
urlpatterns = [
    *of_protocols(shared=True),
    *producers.urlpatterns,
    *operators.urlpatterns,
    switched.route("ojs/v1/admin/reset", _reset, _in_conformance_mode, "reset"),
    re_path(r"^ojs(?:/|\Z)", not_found),
    *of_protocols(shared=False),
]

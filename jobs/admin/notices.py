"""Notices at the top of all our pages while they apply: "the reaper has not run for 40 s".

Any app can add a source with `notice`; it is called on each page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.http import HttpRequest

from ..engine import maintenance
from ..models import Maintenance

Source = Callable[[HttpRequest], str | None]

_sources: list[Source] = []


def notice(source: Source) -> Source:
    """Call `source` on each page, and show there what it returns, if anything."""
    _sources.append(source)
    return source


def notices(request: HttpRequest) -> Iterator[str]:
    for source in _sources:
        text = source(request)
        if text:
            yield text


def maintenance_now(request: Any) -> Maintenance | None:
    """The switch if it is on; queried once for a page."""
    if not hasattr(request, "ojs_maintenance"):
        request.ojs_maintenance = maintenance.current()
    switch: Maintenance | None = request.ojs_maintenance
    return switch

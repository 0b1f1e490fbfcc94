"""Times in the reader's time zone, which `admin.js` leaves in a cookie; UTC without one."""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable
from urllib.parse import unquote

from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

COOKIE = "ojs_zone"
LONGEST = 64


def zone_of(request: HttpRequest) -> zoneinfo.ZoneInfo | None:
    """The zone that the browser named; None if it named none that is known."""
    # Django reads cookies as they are; the script has encoded the slash of `Europe/Berlin`.
    name = unquote(request.COOKIES.get(COOKIE, ""))
    if not name or len(name) > LONGEST:
        return None
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):  # a path, a folder, or nothing
        return None


class ZoneMiddleware:
    """Show people their own time; requests of workers and producers do not come here."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        zone = zone_of(request)
        if zone is None:
            return self.get_response(request)
        with timezone.override(zone):
            response = self.get_response(request)
        return response

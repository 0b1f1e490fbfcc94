"""Warnings about a missing reaper, on every admin page of these apps."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _

from jobs.admin.display import span
from jobs.admin.notices import notice
from jobs.store import clock

from ..chores import reaper

APPS = ("ojs_workers", "ojs_jobs")


def reaper_seen(request: Any) -> datetime | None:
    """When any reaper was last seen; queried once for a page."""
    if not hasattr(request, "ojs_reaper_seen"):
        request.ojs_reaper_seen = reaper.last_seen()
    seen: datetime | None = request.ojs_reaper_seen
    return seen


@notice
def reaper_notice(request: HttpRequest) -> str | None:
    """Warn that no reaper recovers the jobs of dead workers, and since when."""
    if not any(request.user.has_module_perms(app) for app in APPS):
        return None
    seen = reaper_seen(request)
    if not reaper.is_silent(seen):
        return None
    if seen is None:
        return _(
            "The reaper has never run: jobs of dead workers are not recovered. "
            "Start “manage.py runreaper”."
        )
    return _(
        "The reaper has not run for %(span)s: jobs of dead workers are not recovered. "
        "Check “manage.py runreaper”."
    ) % {"span": span(clock.now() - seen)}

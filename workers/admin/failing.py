"""Which types of jobs fail at present: a table of the dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _

from jobs.models import Job
from jobs.record import breakdowns
from jobs.record.dashboard import grouped
from jobs.record.history import Points
from jobs.spec.reserved import WEBHOOK_JOB
from jobs.store import clock

from ..models import Dashboard, WebhookSubscription
from .figures import Figures

HOUR = timedelta(hours=1)
SHOWN = 10


@dataclass(frozen=True)
class Row:
    type: str
    url: str
    """The page of the type; of the type that carries webhooks, the list of subscriptions."""
    count: str
    error: str
    """Empty for a user who may not view jobs."""
    jobs_url: str
    """The list of its jobs with this error."""
    last_at: datetime


def failing(figures: Figures, points: Points) -> dict[str, Any]:
    """The table, of the last hour whatever the range of the page, and its notes.

    Not looked for if nothing has failed in that range: every range ends now.
    """
    if not points.total("failed"):
        return {}
    found, has_more = breakdowns.failing_types(clock.now() - HOUR)
    note = ""
    if has_more:
        note = _("Of the latest %(count)s failed attempts.")
        note %= {"count": grouped(breakdowns.TOLD_APART)}
    return {
        "rows": [_row(one, figures) for one in found[:SHOWN]],
        "more": max(0, len(found) - SHOWN),
        "note": note,
    }


def _row(one: breakdowns.Failing, figures: Figures) -> Row:
    jobs_url = figures.url_of(Job, type=one.type, q=f'error:"{one.error}"')
    if one.type == WEBHOOK_JOB:
        url = figures.url_of(WebhookSubscription)
    else:
        url = figures.url_of(Dashboard, page="breakdown", by="type", name=one.type, range="1h")
    return Row(
        type=one.type,
        url=url,
        count=grouped(one.count),
        error=one.error if jobs_url else "",
        jobs_url=jobs_url,
        last_at=one.last_at,
    )

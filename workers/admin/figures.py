"""Current figures of the dashboard, with the pages that they lead to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.http import urlencode

from jobs.admin import display
from jobs.models import Queue
from jobs.record import dashboard
from jobs.spec.lifecycle import State

from ..alerts.situation import QueueRow, Situation


@dataclass(frozen=True)
class ShownQueue(QueueRow):
    """A row of the dashboard's table."""

    url: str = ""

    @property
    def cells(self) -> Iterator[str]:
        for state in (State.AVAILABLE, State.ACTIVE, State.SCHEDULED, State.RETRYABLE):
            yield self.depth.shown(state)

    @property
    def oldest(self) -> str:
        return display.NOTHING if self.wait is None else display.span(self.wait)


class Figures(Situation):
    """Queues and workers as they are now, for one reader."""

    named = 5

    def __init__(self, site: Any, request: Any, reaper_seen: datetime | None) -> None:
        self._site, self._request = site, request
        self.reaper_seen = reaper_seen

    def url_of(self, model: Any, key: Any = None, **query: str) -> str:
        """The URL of a row's page or, without a key, of the list; empty for a user who may not
        view it."""
        if key is not None:
            return display.page_url(self._site, self._request, model, "change", key)
        url = display.page_url(self._site, self._request, model, "changelist")
        return f"{url}?{urlencode(query)}" if url and query else url

    def row(self, queue: Queue, depth: dashboard.Depth, workers: int) -> ShownQueue:
        return ShownQueue(queue, depth, workers, self.url_of(Queue, queue.pk))

    @property
    def depth(self) -> str:
        """Jobs that wait to be fetched, over all queues."""
        total = sum(row.depth.of(State.AVAILABLE) for row in self.queues)
        capped = any(State.AVAILABLE in row.depth.capped for row in self.queues)
        return f"≈ {dashboard.grouped(total)}" if capped else dashboard.grouped(total)

    @property
    def oldest(self) -> str:
        waits = [row.wait for row in self.queues if row.wait is not None]
        return display.span(max(waits)) if waits else display.NOTHING

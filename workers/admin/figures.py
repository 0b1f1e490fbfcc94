"""Current figures of the dashboard, with the pages that they lead to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
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

    def __init__(self, site: Any, request: Any) -> None:
        self._site, self._request = site, request

    def url_of(self, model: Any, key: Any = None, *, page: str = "changelist", **query: str) -> str:
        """The URL of a row's page or, without a key, of the list or another page of the model;
        empty for a user who may not view it."""
        if key is not None:
            return display.page_url(self._site, self._request, model, "change", key)
        url = display.page_url(self._site, self._request, model, page)
        return f"{url}?{urlencode(query)}" if url and query else url

    def row(self, queue: Queue, depth: dashboard.Depth, workers: int) -> ShownQueue:
        return ShownQueue(queue, depth, workers, self.url_of(Queue, queue.pk))

    @property
    def available(self) -> int:
        """Jobs that wait to be fetched, over all queues."""
        return sum(row.depth.of(State.AVAILABLE) for row in self.queues)

    @property
    def depth(self) -> str:
        """The same in words: after ≈ if it is a sample."""
        capped = any(State.AVAILABLE in row.depth.capped for row in self.queues)
        shown = dashboard.grouped(self.available)
        return f"≈ {shown}" if capped else shown

    @property
    def oldest_wait(self) -> timedelta | None:
        return max((row.wait for row in self.queues if row.wait is not None), default=None)

    @property
    def oldest(self) -> str:
        return display.NOTHING if self.oldest_wait is None else display.span(self.oldest_wait)

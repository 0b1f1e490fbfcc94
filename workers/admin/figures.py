"""Current figures of the dashboard: a handful of queries, however big the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.db.models import Q
from django.utils.http import urlencode

from jobs.admin import display
from jobs.conf import ojs_settings
from jobs.models import Queue
from jobs.record import dashboard
from jobs.spec.lifecycle import State
from jobs.store import clock

from ..fleet.condition import Condition, condition, in_hand
from ..models import Worker

MOST_QUEUES = 500
RECENT = timedelta(hours=24)
"""A worker that died longer ago no longer calls for attention."""


@dataclass(frozen=True)
class QueueRow:
    """One queue, and the workers that serve it."""

    queue: Queue
    depth: dashboard.Depth
    workers: int
    """Running workers that fetch from it."""
    url: str

    @property
    def wait(self) -> timedelta | None:
        since = self.depth.waiting_since
        return clock.now() - since if since else None

    @property
    def is_late(self) -> bool:
        """Whether a job has been waiting for too long, and not because the queue is paused."""
        is_long = self.wait is not None and self.wait > ojs_settings.WAIT_LIMIT
        return is_long and not self.queue.is_paused

    @property
    def cells(self) -> Iterator[str]:
        for state in (State.AVAILABLE, State.ACTIVE, State.SCHEDULED, State.RETRYABLE):
            yield self.depth.shown(state)

    @property
    def oldest(self) -> str:
        return display.NOTHING if self.wait is None else display.span(self.wait)


class Figures:
    """Queues and workers as they are now."""

    def __init__(self, site: Any, request: Any, reaper_seen: datetime | None) -> None:
        self._site, self._request = site, request
        self.reaper_seen = reaper_seen

    def list_of(self, model: Any, **query: str) -> str:
        """The URL of a list; empty for a user who may not view it."""
        url = display.page_url(self._site, self._request, model, "changelist")
        return f"{url}?{urlencode(query)}" if url and query else url

    def page_of(self, row: Any) -> str:
        """The URL of a row's page; empty for a user who may not view it."""
        return display.page_url(self._site, self._request, type(row), "change", row.pk)

    @cached_property
    def _fleet(self) -> list[Any]:
        """Live workers, and those that died recently."""
        died = clock.now() - RECENT
        workers = Worker.objects.filter(
            Q(pk__in=Worker.objects.live().values("pk")) | Q(died_at__gte=died)
        )
        annotated = workers.annotate(in_hand=in_hand()).annotate(condition=condition())
        read = ("condition", "queues", "concurrency", "job_versions", "in_hand")
        return list(annotated.order_by().values(*read))

    @cached_property
    def workers(self) -> Counter[str]:
        """How many workers are in each condition."""
        return Counter(row["condition"] for row in self._fleet)

    @property
    def busy(self) -> int:
        return sum(row["in_hand"] for row in self._fleet)

    @property
    def capacity(self) -> int:
        """How many jobs the running workers run at once."""
        return sum(
            row["concurrency"] or ojs_settings.CONCURRENCY
            for row in self._fleet
            if row["condition"] == Condition.RUNNING
        )

    @cached_property
    def queues(self) -> list[QueueRow]:
        """Every queue, the deepest first."""
        serving = Counter(
            name
            for row in self._fleet
            if row["condition"] == Condition.RUNNING
            for name in set(row["queues"])
        )
        queues = list(Queue.objects.order_by("name")[:MOST_QUEUES])
        depths = dashboard.depths([queue.pk for queue in queues])
        rows = [
            QueueRow(queue, depths[queue.pk], serving[queue.pk], self.page_of(queue))
            for queue in queues
        ]
        return sorted(rows, key=lambda row: -row.depth.of(State.AVAILABLE))

    def versions_taken_in(self, queue: str) -> list[dict[str, list[int | None]]]:
        """What each running worker that fetches from the queue declared; empty where it takes all
        versions of all types (OJS job versioning §8.1)."""
        return [
            row["job_versions"] or {}
            for row in self._fleet
            if row["condition"] == Condition.RUNNING and queue in row["queues"]
        ]

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

"""The worker that delivers webhooks: in the reaper's process, once there is something to send.

More of them can be started anywhere: `runjobworker --queues ojs.webhooks`.

A receiver that is slow or away must not hold up the others. So the jobs of a subscription may take
a few places (`webhooks.delivery_jobs`), and those of all slow ones half of a worker's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError, close_old_connections, connections

from jobs.spec.reserved import WEBHOOK_JOB, WEBHOOK_QUEUE
from jobs.store.database import borrowed, connection

from ..models import WebhookDelivery, WebhookSubscription
from ..runtime import handlers
from ..runtime.client import LocalClient, Refused
from ..runtime.context import JobContext
from ..runtime.handling import Handler
from ..runtime.options import Options, new_worker_id
from ..runtime.outcomes import Discard, Retry, Snooze
from ..runtime.process import WorkerProcess
from ..webhooks import delivery

logger = logging.getLogger("workers.webhooks")

AT_ONCE = 32
"""Requests under way from the reaper's process."""
SLOW = 2.0
"""Seconds; a subscription that answered later than that, or failed, is slow."""
SOON = timedelta(seconds=2)
"""When a job is tried again that found the places of slow subscriptions taken."""
INTERVAL = 1.0
"""Seconds between two looks whether a worker is needed."""
LAST_WORDS = 15.0
"""Seconds that a process waits, when it ends, for what is being sent."""
ONCE = 60.0
"""Seconds after which `run_waiting()` leaves the rest to its next call."""


class SlowPlaces:
    """The places of this process's worker that slow subscriptions have taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0
        self._lasted: dict[UUID, float] = {}
        """How long the last attempt took, in seconds."""

    @contextlib.contextmanager
    def place(self, row: WebhookSubscription, places: int) -> Iterator[None]:
        """
        Args:
            places: of the worker.

        Raises:
            Snooze: the subscription is slow, and slow ones have taken half of them.
        """
        if row.failing_since is None and self._lasted.get(row.pk, 0) <= SLOW:
            yield
            return
        with self._lock:
            if self._taken >= max(places // 2, 1):
                raise Snooze(SOON, "Slow receivers have taken their share of the worker's places.")
            self._taken += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken -= 1

    def note(self, row: WebhookSubscription, seconds: float) -> None:
        self._lasted[row.pk] = seconds


slow_places = SlowPlaces()


def deliver(context: JobContext, key: str) -> dict[str, Any] | None:
    """Make an attempt of a delivery."""
    row = delivery.carried_by(context.id, UUID(key))
    if row is None:
        return None
    if row.next_try_at > row.now:
        # Its last attempt was noted, but this job's failure was not.
        raise Snooze(row.next_try_at - row.now, "It is not due yet.")
    with slow_places.place(row.subscription, context.line.places):
        attempt = delivery.begin(row)
        if attempt is None:
            return None
        if not connection().in_atomic_block:
            # No connection is held while a receiver takes its time, unless the site keeps them.
            close_old_connections()
        outcome = delivery.send(attempt)
        slow_places.note(row.subscription, outcome.duration)
    pause = delivery.note(outcome)
    if pause is not None:
        raise Retry(pause, outcome.reason)
    if not outcome.is_success:
        raise Discard(outcome.reason)
    return {"status": outcome.status}


handlers.own[WEBHOOK_JOB] = Handler(WEBHOOK_JOB, deliver)


def _worker(*, burst: bool = False) -> WorkerProcess:
    options = Options(
        queues=[WEBHOOK_QUEUE],
        concurrency=AT_ONCE,
        grace_period=LAST_WORDS,
        burst=burst,
        release=os.environ.get("OJS_RELEASE", ""),
    )
    return WorkerProcess(LocalClient(new_worker_id()), options)


@contextlib.contextmanager
def hosted() -> Iterator[None]:
    """Run a worker in a thread, as long as the context lasts, once there is something to send."""
    host = _Host()
    host.start()
    try:
        yield
    finally:
        host.end()


class _Host(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="ojs-webhooks", daemon=True)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._process: WorkerProcess | None = None

    def end(self) -> None:
        with self._lock:
            self._over.set()
            if self._process is not None:
                self._process.state.terminate("the end of its process")
        self.join(LAST_WORDS + 5)

    def run(self) -> None:
        try:
            self._host()
        finally:
            connections.close_all()

    def _host(self) -> None:
        while not self._over.is_set():
            try:
                if _is_needed():
                    self._work()
            except (DatabaseError, InterfaceError, Refused) as problem:
                logger.debug("No worker delivers webhooks yet: %s", problem)
            except Exception:
                logger.exception("The worker that delivers webhooks failed; another follows.")
            # A worker that an operator terminated is followed by another, too.
            self._over.wait(INTERVAL)

    def _work(self) -> None:
        with self._lock:
            if self._over.is_set():
                return
            self._process = _worker()
        self._process.run()


def _is_needed() -> bool:
    with borrowed():
        found: bool = WebhookDelivery.objects.pending().exists()
    return found


def run_waiting() -> None:
    """Deliver what waits, for a minute at most. For a reaper that runs once."""
    if not WebhookDelivery.objects.pending().exists():
        return
    process = _worker(burst=True)
    # In a thread, because a worker closes the connections of its own when it ends.
    thread = threading.Thread(target=process.run, name="ojs-webhooks", daemon=True)
    thread.start()
    thread.join(ONCE)
    process.state.terminate("its minute")
    thread.join(LAST_WORDS + 5)

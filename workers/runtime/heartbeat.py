"""The heartbeat, in its own thread that no handler can starve (OJS worker protocol §4).

A failed heartbeat changes nothing (§4.6): it is logged and sent again, at growing intervals, yet
often enough that the worker is not declared dead as soon as the server is back.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable

from .active import ActiveJobs
from .client import Client, Refused, Terms, Unavailable
from .options import Options
from .state import ProcessState
from .wake_event import WakeEvent

logger = logging.getLogger("workers.runtime")

SOONEST = 1.0
"""Least seconds between heartbeats that handlers request."""
PATIENCE = 5.0
"""Seconds a handler waits for the heartbeat it requested."""


class HeartbeatThread:
    """Sends heartbeats until stopped, and at once when the state changes."""

    def __init__(
        self,
        client: Client,
        state: ProcessState,
        active: ActiveJobs,
        options: Options,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._state = state
        self._active = active
        self._options = options
        self._after = after
        self._terms = Terms()
        self._wake_event = WakeEvent()
        self._stopping = False
        self._sequence = itertools.count(1)
        self._failures = 0
        self._beaten_at = 0.0
        self._rounds = 0
        self._answered = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self, terms: Terms) -> None:
        self._terms = terms
        self._thread = threading.Thread(target=self._beat_on, name="ojs-heartbeat", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Send a heartbeat now, not at the next interval."""
        self._wake_event.ring()

    def stop(self, timeout: float) -> None:
        self._stopping = True
        self._wake_event.ring()
        if self._thread is not None:
            self._thread.join(timeout)

    def extend(self) -> None:
        """Send a heartbeat that a handler requests (§5.4), at most one per second.

        Whether it arrives is not the handler's concern: the next one follows.
        """
        # Not from the handler's thread: it may be in the middle of a transaction, and would lock
        # the worker's row for as long as that lasts.
        with self._answered:
            if time.monotonic() - self._beaten_at < SOONEST:
                return
            before = self._rounds
            self.hurry()
            self._answered.wait_for(lambda: self._rounds > before, timeout=PATIENCE)

    def beat(self) -> None:
        """Send one heartbeat and act on the reply (§4.2, §4.4).

        Raises:
            Unavailable: the server did not answer.
            Refused: the server rejected the heartbeat.
        """
        self._beaten_at = time.monotonic()
        reported = self._state.now
        answer = self._client.beat(
            reported,
            self._active.held_ids(),
            self._options.description(),
            next(self._sequence),
        )
        if not answer.is_known:
            logger.warning("The server no longer knows this worker: registering again.")
            self._client.register(self._options.description())
            return
        self.lose(answer.jobs_lost)
        if answer.state is not None:
            self._state.obey(answer.state, reported)

    def lose(self, job_ids: list[str]) -> None:
        """Cancel the handlers of lost reservations (§10.4). Their reports are still sent: the
        server refuses them, and records that."""
        lost = set(job_ids)
        for job in self._active.unsettled():
            if str(job.id) in lost and not job.is_decided and not job.context.cancelled:
                logger.warning("This worker has lost job %s; its handler is cancelled.", job.id)
                job.context.cancel("lost")

    def _beat_on(self) -> None:
        try:
            while not self._stopping:
                self._wake_event.clear()
                self._try()
                with self._answered:
                    self._rounds += 1
                    self._answered.notify_all()
                self._after()
                if not self._stopping:
                    self._wake_event.wait(self._pause())
        finally:
            self._client.release()

    def _try(self) -> None:
        try:
            self.beat()
        except (Unavailable, Refused) as problem:
            self._failures += 1
            logger.warning("Heartbeat failed (%d in a row): %s", self._failures, problem)
            self._client.recover()
        else:
            if self._failures:
                logger.info("Heartbeats are answered again.")
            self._failures = 0

    def _pause(self) -> float:
        interval = self._terms.heartbeat_interval
        longest = max(interval, self._terms.heartbeat_timeout / 3)
        return min(interval * (1 + self._failures), longest)

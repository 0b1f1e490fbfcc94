"""Sends what is written in a table, in threads: notifications of alerts, deliveries of webhooks.

One thread looks for what is due and reserves it for a while, and a thread for each item sends it.
So what is slow holds up neither the caller nor the rest. A process that dies between sending an
item and noting that leaves it to another one, once its reservation is over: each item is sent at
least once.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from django.db import InterfaceError, OperationalError, ProgrammingError, connections

from jobs.store.database import borrowed

logger = logging.getLogger("workers.outbox")

LEASE = timedelta(minutes=5)
"""How long other processes leave an item to the one that sends it."""
INTERVAL = 1.0
"""Seconds between two looks for items that are due."""
PATIENCE = 5.0
"""The same while the database is unavailable."""
LAST_WORDS = 15.0
"""Seconds that a process waits, when it ends, for what is being sent."""

ONCE = 60.0
"""Seconds after which `once()` leaves the rest to its next call."""

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Outbox(Generic[Item, Outcome]):
    """What to send, and how."""

    name: str
    at_once: int
    """Items that a process sends at the same time."""
    take: Callable[[int, Collection[Item]], Sequence[Item]]
    """Return up to so many items that are due, given those that are being sent. Each must not be
    due for another process from then on, or `send` must see to that."""
    send: Callable[[Item], Outcome]
    """Send an item; runs in a thread of its own."""
    note: Callable[[Sequence[Outcome]], object] = lambda outcomes: None
    """Note what became of some of them; called again with the same if the database fails."""

    def start(self) -> tuple[Callable[[], None], threading.Thread]:
        """Start sending; return what ends it, and the thread that then waits for the rest."""
        over = threading.Event()
        wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, args=(over, wake), name=self.name, daemon=True)

        def end() -> None:
            over.set()
            wake.put(None)

        thread.start()
        return end, thread

    def once(self) -> int:
        """Send what is due now, for a minute; return how many items were sent, well or not."""
        count = 0
        until = time.monotonic() + ONCE
        with ThreadPoolExecutor(self.at_once, self.name) as pool:
            while time.monotonic() < until and (items := self.take(self.at_once, ())):
                self.note([each for each in pool.map(self._alone, items) if each is not None])
                count += len(items)
        return count

    def _alone(self, item: Item) -> Outcome:
        try:
            return self.send(item)
        finally:
            connections.close_all()

    def _run(self, over: threading.Event, wake: queue.SimpleQueue[None]) -> None:
        sending: dict[int, Item] = {}
        sent: queue.SimpleQueue[tuple[int, Outcome | None]] = queue.SimpleQueue()
        unnoted: list[Outcome] = []
        number = 0
        ends_at: float | None = None
        while True:
            while not sent.empty():
                key, outcome = sent.get()
                del sending[key]
                if outcome is not None:
                    unnoted.append(outcome)
            pause = INTERVAL
            try:
                with borrowed():
                    if unnoted:
                        self.note(unnoted)
                        unnoted = []
                    free = self.at_once - len(sending)
                    if free and not over.is_set():
                        for item in self.take(free, sending.values()):
                            number += 1
                            sending[number] = item
                            threading.Thread(
                                target=self._send,
                                args=(number, item, sent, wake),
                                name=f"{self.name}-{number}",
                                daemon=True,
                            ).start()
            except (OperationalError, ProgrammingError, InterfaceError) as problem:
                logger.debug("%s waits for the database: %s", self.name, problem)
                pause = PATIENCE
            except Exception:
                logger.exception("%s failed.", self.name)
                # They are due again when their reservation is over.
                unnoted = []
                pause = PATIENCE
            if over.is_set():
                ends_at = ends_at or time.monotonic() + LAST_WORDS
                if time.monotonic() >= ends_at or not (sending or unnoted):
                    connections.close_all()
                    return
            with contextlib.suppress(queue.Empty):
                wake.get(timeout=pause)
                while not wake.empty():
                    wake.get()

    def _send(
        self,
        number: int,
        item: Item,
        sent: queue.SimpleQueue[tuple[int, Outcome | None]],
        wake: queue.SimpleQueue[None],
    ) -> None:
        outcome = None
        try:
            outcome = self.send(item)
        except Exception:
            # A bug; the item is due again when its reservation is over.
            logger.exception("%s could not send %r.", self.name, item)
        finally:
            connections.close_all()
            sent.put((number, outcome))
            wake.put(None)


@contextlib.contextmanager
def sending(*outboxes: Outbox[Any, Any]) -> Iterator[None]:
    """Send what is due as long as the context lasts."""
    started = [outbox.start() for outbox in outboxes]
    try:
        yield
    finally:
        for end, _thread in started:
            end()
        for _end, thread in started:
            thread.join(LAST_WORDS + 1)

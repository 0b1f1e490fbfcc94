"""Sends what is written in a table, in threads: the notifications of alerts.

One thread looks for what is due, and a thread for each item reserves it for a while and sends it.
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
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

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

Item = TypeVar("Item")


@dataclass(frozen=True)
class Outbox(Generic[Item]):
    """What to send, and how."""

    name: str
    at_once: int
    """Items that a process sends at the same time."""
    take: Callable[[int, Collection[Item]], Sequence[Item]]
    """Return up to so many items that are due, given those that are being sent."""
    send: Callable[[Item], object]
    """Reserve an item and send it; runs in a thread of its own."""

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Send what is due as long as the context lasts."""
        over = threading.Event()
        wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, args=(over, wake), name=self.name, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            wake.put(None)
            thread.join(LAST_WORDS + 1)

    def _run(self, over: threading.Event, wake: queue.SimpleQueue[None]) -> None:
        sending: dict[int, Item] = {}
        sent: queue.SimpleQueue[int] = queue.SimpleQueue()
        number = 0
        ends_at: float | None = None
        while True:
            while not sent.empty():
                del sending[sent.get()]
            pause = INTERVAL
            try:
                free = self.at_once - len(sending)
                if free and not over.is_set():
                    with borrowed():
                        items = self.take(free, sending.values())
                    for item in items:
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
                pause = PATIENCE
            if over.is_set():
                ends_at = ends_at or time.monotonic() + LAST_WORDS
                if time.monotonic() >= ends_at or not sending:
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
        sent: queue.SimpleQueue[int],
        wake: queue.SimpleQueue[None],
    ) -> None:
        try:
            self.send(item)
        except Exception:
            # A bug; the item is due again when its reservation is over.
            logger.exception("%s could not send %r.", self.name, item)
        finally:
            connections.close_all()
            sent.put(number)
            wake.put(None)

"""Batches concurrent requests of several threads, as a group commit does.

With a free slot the caller runs at once, so that an idle process loses no time; otherwise it
queues, and one leader runs the queue as a batch, in one statement and with one commit. The others
need only its answer, not even a connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

PATIENCE = 1.0
"""Seconds after which a thread stops waiting for a free slot and runs anyway: the running
batch's connection may hang until the network gives it up."""


class _Place(Generic[Item, Answer]):
    """A thread waiting its turn."""

    __slots__ = ("answer", "item", "key", "taken", "wake")

    def __init__(self, key: Hashable, item: Item) -> None:
        self.key = key
        self.item = item
        self.taken: list[_Place[Item, Answer]] = []
        """The batch it is to run, its own item included; empty if another thread runs it."""
        self.answer: Answer | None = None
        # A held lock is the cheapest thing a thread can wait for.
        self.wake = threading.Lock()
        self.wake.acquire()


class GroupCommit(Generic[Item, Answer]):
    """Combines items of several threads into batches."""

    def __init__(
        self,
        run: Callable[[list[Item]], Sequence[Answer | None]],
        *,
        max_size: int,
        max_in_flight: int,
    ) -> None:
        """
        Args:
            run: runs the items, in the thread of one of the callers; returns an answer for
                each, None for an item that was left alone.
            max_size: largest batch.
            max_in_flight: most batches running at the same time.
        """
        self._run = run
        self._max_size = max_size
        self._max_in_flight = max_in_flight
        self._lock = threading.Lock()
        self._waiting: list[_Place[Item, Answer]] = []
        self._leaders: set[_Place[Item, Answer]] = set()

    def do(self, key: Hashable, item: Item) -> Answer | None:
        """Run `item`, possibly with others; None if it was left alone or the batch failed.

        Args:
            key: two items of one batch must not have the same key.
        """
        place: _Place[Item, Answer] = _Place(key, item)
        try:
            with self._lock:
                self._waiting.append(place)
                if len(self._leaders) < self._max_in_flight:
                    self._appoint(place)
            self._wait(place)
            if place.taken:
                answers = self._run([one.item for one in place.taken])
                for one, answer in zip(place.taken, answers, strict=True):
                    one.answer = answer
        finally:
            # However it ended: no thread may wait for one that is gone.
            self._leave(place)
        return place.answer

    def _wait(self, place: _Place[Item, Answer]) -> None:
        if place.wake.acquire(timeout=PATIENCE):
            return
        with self._lock:
            if place in self._waiting:
                self._appoint(place)
        place.wake.acquire()

    def _appoint(self, leader: _Place[Item, Answer]) -> None:
        """Make a waiting thread the leader of as many waiting items as fit in one batch."""
        taken = {leader.key: leader}
        for place in self._waiting:
            if len(taken) == self._max_size:
                break
            taken.setdefault(place.key, place)
        self._waiting = [place for place in self._waiting if taken.get(place.key) is not place]
        leader.taken = list(taken.values())
        self._leaders.add(leader)
        leader.wake.release()

    def _leave(self, place: _Place[Item, Answer]) -> None:
        with self._lock:
            if place in self._waiting:
                self._waiting.remove(place)
            if place in self._leaders:
                self._leaders.discard(place)
                if self._waiting and len(self._leaders) < self._max_in_flight:
                    self._appoint(self._waiting[0])
        for one in place.taken:
            if one is not place:
                one.wake.release()

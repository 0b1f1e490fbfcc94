"""Doing at once what several threads ask for at the same time, as a group commit does.

Whoever finds little under way does its own at once, so that a process with little to do loses no
time. Whoever comes when there is enough waits; then one of those that wait does it for all of them,
in one statement and with one commit, and the others need nothing but its answer, not even a
connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

PATIENCE = 1.0
"""Seconds after which a thread no longer waits for one that is under way, but goes as well: that
one's connection may hang until the network gives it up."""


class _Place(Generic[Item, Answer]):
    """A thread that waits its turn."""

    __slots__ = ("answer", "bell", "item", "key", "taken")

    def __init__(self, key: Hashable, item: Item) -> None:
        self.key = key
        self.item = item
        self.taken: list[_Place[Item, Answer]] = []
        """What it shall do, its own among it; nothing where another one does it."""
        self.answer: Answer | None = None
        # A lock that is held is the cheapest of all that a thread can wait for.
        self.bell = threading.Lock()
        self.bell.acquire()


class Combiner(Generic[Item, Answer]):
    """Where threads that want the same kind of thing meet."""

    def __init__(
        self, together: Callable[[list[Item]], Sequence[Answer | None]], *, most: int, abreast: int
    ) -> None:
        """
        Args:
            together: does the items, in the thread of one that asked; returns an answer to each,
                None for one that was left alone.
            most: items that are done at once.
            abreast: how often that may be under way at the same time.
        """
        self._together = together
        self._most = most
        self._abreast = abreast
        self._lock = threading.Lock()
        self._waiting: list[_Place[Item, Answer]] = []
        self._leaders: set[_Place[Item, Answer]] = set()

    def do(self, key: Hashable, item: Item) -> Answer | None:
        """Do `item`, maybe with others; None where it was left alone, or the others failed.

        Args:
            key: what two that are done at once must not have in common.
        """
        place: _Place[Item, Answer] = _Place(key, item)
        try:
            with self._lock:
                self._waiting.append(place)
                if len(self._leaders) < self._abreast:
                    self._appoint(place)
            self._wait(place)
            if place.taken:
                answers = self._together([one.item for one in place.taken])
                for one, answer in zip(place.taken, answers, strict=True):
                    one.answer = answer
        finally:
            # However it ended: nobody waits for a thread that is gone.
            self._leave(place)
        return place.answer

    def _wait(self, place: _Place[Item, Answer]) -> None:
        if place.bell.acquire(timeout=PATIENCE):
            return
        with self._lock:
            if place in self._waiting:
                self._appoint(place)
        place.bell.acquire()

    def _appoint(self, leader: _Place[Item, Answer]) -> None:
        """Have a thread that waits do what waits, as far as it can be done at once."""
        taken = {leader.key: leader}
        for place in self._waiting:
            if len(taken) == self._most:
                break
            taken.setdefault(place.key, place)
        self._waiting = [place for place in self._waiting if taken.get(place.key) is not place]
        leader.taken = list(taken.values())
        self._leaders.add(leader)
        leader.bell.release()

    def _leave(self, place: _Place[Item, Answer]) -> None:
        with self._lock:
            if place in self._waiting:
                self._waiting.remove(place)
            if place in self._leaders:
                self._leaders.discard(place)
                if self._waiting and len(self._leaders) < self._abreast:
                    self._appoint(self._waiting[0])
        for one in place.taken:
            if one is not place:
                one.bell.release()

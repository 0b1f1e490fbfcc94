"""Database that the Python API uses: the site's, or that of a mode of `jobs.testing`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from . import engine
from .spec.validation import NewJob
from .store import clock


class Place:
    """The site's database."""

    is_memory = False
    """Whether nothing happens to its jobs until the test triggers it."""
    runs_at_once = False
    """Whether new jobs have run when they are enqueued."""

    def inside(self) -> AbstractContextManager[None]:
        """Return a context in which the engine works on the jobs of this place."""
        return contextlib.nullcontext()

    def now(self) -> datetime:
        return clock.now()

    def deliver(self, new: Sequence[NewJob]) -> Sequence[NewJob]:
        """Take new, validated jobs."""
        return engine.enqueue(new)

    def announcing(self) -> AbstractContextManager[None]:
        """Return a context in which new jobs are announced; none of them runs before it ends."""
        return contextlib.nullcontext()

    def began(self, workflow: Any) -> None:
        """Notice a new workflow."""


DATABASE = Place()
_entered: list[tuple[Place, bool]] = []
"""Modes that are active in any thread, newest last, and whether the main thread entered each."""
_own: ContextVar[tuple[Place, ...]] = ContextVar("ojs_places", default=())


def current() -> Place:
    """Return the innermost mode that this thread or task entered, else the site's database.

    A thread that entered none uses a mode of the test that started it. Which one that is cannot be
    known, so the newest of all is used, except in the main thread, which uses only its own modes.
    """
    if not _entered:
        return DATABASE
    active = [place for place, _ in _entered]
    for place in reversed(_own.get()):
        if place in active:
            return place
    if threading.current_thread() is threading.main_thread():
        active = [place for place, by_main in _entered if by_main]
    return active[-1] if active else DATABASE


def enter(place: Place) -> None:
    is_main = threading.current_thread() is threading.main_thread()
    _entered.append((place, is_main))
    _own.set((*_own.get(), place))


def leave(place: Place) -> None:
    # Not with a token: a test may end in a different context than the one in which it began.
    _entered[:] = [entry for entry in _entered if entry[0] is not place]
    _own.set(tuple(other for other in _own.get() if other is not place))

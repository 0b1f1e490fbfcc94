"""Where the Python API works: in the site's database, or in a mode of `jobs.testing`."""

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
    """Whether nothing happens to its jobs until the test asks for it."""

    def inside(self) -> AbstractContextManager[None]:
        """Return a context in which the engine works on the jobs of this place."""
        return contextlib.nullcontext()

    def now(self) -> datetime:
        return clock.now()

    def deliver(self, new: Sequence[NewJob]) -> Sequence[NewJob]:
        """Take new jobs, which have been checked."""
        return engine.enqueue(new)

    def began(self, workflow: Any) -> None:
        """Take note of a new workflow."""


DATABASE = Place()
_entered: list[tuple[Place, bool]] = []
"""The modes that are active in any thread, newest last; whether the main thread entered it."""
_own: ContextVar[tuple[Place, ...]] = ContextVar("ojs_places", default=())


def current() -> Place:
    """Return the innermost mode that this thread or task entered, else the site's database.

    A thread that entered none works in the newest mode of the test that started it. Which one that
    is cannot be known: the newest of all is taken, and in the main thread only what it entered.
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
    # Not by a token: a test may end in another context than the one it began in.
    _entered[:] = [entry for entry in _entered if entry[0] is not place]
    _own.set(tuple(other for other in _own.get() if other is not place))

"""Divides long work into pieces, with a rest after each, and into turns.

On a machine whose processors are mostly busy, a second of uninterrupted work makes everything that
arrives in that second wait for it, and for each other. The same work in pieces of some hundredths
of a second, with rests, is hardly noticed. Whether to rest, and for how long, is up to the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

TURN = 1.0
"""Seconds for which a chore goes on with work that may take much longer, before the others get
theirs."""
now = time.monotonic
_rest: ContextVar[Callable[[float], object] | None] = ContextVar("ojs_rest", default=None)


@contextmanager
def resting(rest: Callable[[float], object]) -> Iterator[None]:
    """Call `rest` after each piece of the work in this context, with the seconds that it took."""
    token = _rest.set(rest)
    try:
        yield
    finally:
        _rest.reset(token)


@contextmanager
def piece() -> Iterator[None]:
    """A piece of work. In no transaction: a rest would keep its locks."""
    began = now()
    yield
    rest = _rest.get()
    if rest is not None:
        rest(now() - began)


def turn() -> Iterator[None]:
    """Yield until a turn is over, but once at least: `for _ in turn(): ...`."""
    until = now() + TURN
    yield
    while now() <= until:
        yield

"""Records which files of the project lie between a caller and SQL."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tests.processes import ROOT

PROJECT = tuple(f"{ROOT}/{name}/" for name in ("jobs", "workers", "ojs_project"))

PSYCOPG = "/psycopg/"
"""Its modules; the driver of SQLite has none, and is called without a frame."""

Tasks = Callable[[], Iterable["asyncio.Task[Any]"]]


class CallChains:
    """The callers of each statement, as a debugger shows them."""

    def __init__(self) -> None:
        self.longest: list[str] = []
        """The files on the way to the statement that has most, in the order of the calls."""
        self.entered: set[str] = set()
        """All files in which a function was called, helpers that had returned included."""

    def clear(self) -> None:
        self.longest = []
        self.entered.clear()

    @contextmanager
    def recording(self, tasks: Tasks = tuple) -> Iterator[None]:
        """Record this thread, and those that start meanwhile.

        Args:
            tasks: returns the tasks of an event loop that wait for these threads; what they await
                belongs to the chain.
        """

        def profile(frame: FrameType, event: str, argument: Any) -> None:
            name = frame.f_code.co_filename
            called = argument.__name__ if event == "c_call" else ""
            if event == "call" and name.startswith(PROJECT):
                self.entered.add(_short(name))
            elif called == "execute" or (event == "call" and PSYCOPG in name):
                awaited = [name for task in tasks() for name in _awaited(task)]
                files = list(dict.fromkeys([*awaited, *_callers(frame)]))
                self.longest = max(self.longest, files, key=len)

        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]


def _callers(frame: FrameType | None) -> list[str]:
    """Files of the project on the stack, the outermost first."""
    found = []
    while frame is not None:
        found.append(frame.f_code.co_filename)
        frame = frame.f_back
    return _ours(reversed(found))


def _awaited(task: asyncio.Task[Any]) -> list[str]:
    """Files of the coroutines in which a task waits, the outermost first."""
    found = []
    coroutine: Any = task.get_coro()
    while (code := getattr(coroutine, "cr_code", None)) is not None:
        found.append(code.co_filename)
        coroutine = coroutine.cr_await
    return _ours(found)


def _ours(names: Iterable[str]) -> list[str]:
    return [_short(name) for name in names if name.startswith(PROJECT)]


def _short(name: str) -> str:
    return name[len(str(ROOT)) + 1 :]

"""Tells open admin pages that something has changed, so that they fetch themselves anew.

The stream carries no data: a page shows what its user may see, as it does when it is reloaded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from django.db.models import Max
from django.http import HttpRequest, HttpResponse

from ..http.dialects import EVENTS
from ..http.fast_path import Answer, StreamedResponse
from ..http.loop import LOOP, Loop
from ..http.waiting import first_of
from ..models import Event
from ..store.database import alias

logger = logging.getLogger("jobs.admin")

EVERY = 1.0
"""Seconds between two looks at the record of events, for all pages of a process together."""
ANYWAY = 15.0
"""Seconds after which a page is told even so: not everything that it shows is an event."""
LONGEST = 300.0
"""Seconds that a stream lasts. The browser opens the next one, and the session is checked anew."""
HEADERS = {
    "Content-Type": EVENTS,
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
BEGINNING = b"retry: 3000\nevent: heard\ndata:\n\n"
CHANGED = b"event: changed\ndata:\n\n"


def live(request: HttpRequest) -> HttpResponse:
    """The stream of a page; the caller has checked that its user may see the admin."""
    if LOOP not in request.META:
        # 204 keeps the browser from asking again.
        return HttpResponse(status=204)
    return StreamedResponse(Answer(200, dict(HEADERS), b"", changes))


async def changes(loop: Loop) -> AsyncIterator[bytes]:
    """Yield an event when something has changed, at most once a second."""
    news = loop.shared(News)
    deadline = time.monotonic() + LONGEST
    yield BEGINNING
    with news.listening() as changed:
        while time.monotonic() < deadline and not loop.ending.is_set():
            await first_of(changed, loop.ending, seconds=ANYWAY)
            changed.clear()
            yield CHANGED


class News:
    """Looks at the record on behalf of all open pages of this process."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._listeners: set[asyncio.Event] = set()
        self._looking: asyncio.Task[None] | None = None
        self._newest: int | None = None

    def listening(self) -> _Listening:
        return _Listening(self)

    def add(self, listener: asyncio.Event) -> None:
        self._listeners.add(listener)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())

    def remove(self, listener: asyncio.Event) -> None:
        self._listeners.discard(listener)

    async def _look(self) -> None:
        try:
            while self._listeners:
                await self._look_once()
                await asyncio.sleep(EVERY)
        finally:
            self._looking = None

    async def _look_once(self) -> None:
        try:
            newest = await self._loop.in_thread(_newest)
        except Exception as problem:  # the database is away
            logger.warning("Open pages are not told of changes at present: %s", problem)
            return
        if newest != self._newest:
            self._newest = newest
            for listener in self._listeners:
                listener.set()


class _Listening:
    """Adds an event to the listeners for the length of a block."""

    def __init__(self, news: News) -> None:
        self._news = news
        self._changed = asyncio.Event()

    def __enter__(self) -> asyncio.Event:
        self._news.add(self._changed)
        return self._changed

    def __exit__(self, *problem: Any) -> None:
        self._news.remove(self._changed)


def _newest() -> int | None:
    newest: int | None = Event.objects.using(alias()).aggregate(newest=Max("id"))["newest"]
    return newest

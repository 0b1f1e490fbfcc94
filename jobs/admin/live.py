"""Notifies open admin pages of changes, so that they reload their content.

The stream carries no data: a page shows what its user may see, as it does when it is reloaded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection

from django.db.models import Max
from django.http import HttpRequest, HttpResponse

from ..http.dialects import STREAM_HEADERS
from ..http.fast_path import Answer, StreamedResponse
from ..http.loop import LOOP, Loop
from ..http.poll import Poll
from ..http.waiting import first_of
from ..models import Event
from ..store.database import alias

EVERY = 1.0
"""Seconds between two queries of the record of events, for all pages of a process together."""
ANYWAY = 15.0
"""Seconds after which a page refreshes anyway: not everything that it shows is an event."""
LONGEST = 300.0
"""Seconds that a stream lasts. The browser opens the next one, and the session is checked anew."""
BEGINNING = b"retry: 3000\nevent: heard\ndata:\n\n"
CHANGED = b"event: changed\ndata:\n\n"


def live(request: HttpRequest) -> HttpResponse:
    """The stream of a page; the caller has checked that its user may see the admin."""
    if LOOP not in request.META:
        # 204 keeps the browser from reconnecting.
        return HttpResponse(status=204)
    return StreamedResponse(Answer(200, dict(STREAM_HEADERS), b"", changes))


async def changes(loop: Loop) -> AsyncIterator[bytes]:
    """Yield an event when something has changed, at most once a second."""
    news = loop.shared(News)
    deadline = time.monotonic() + LONGEST
    yield BEGINNING
    changed = asyncio.Event()
    with news.joined(changed):
        while time.monotonic() < deadline and not loop.ending.is_set():
            await first_of(changed, loop.ending, seconds=ANYWAY)
            changed.clear()
            yield CHANGED


class News(Poll[asyncio.Event]):
    """Queries the record on behalf of all open pages of this process."""

    every = EVERY
    subject = "The record of events, for open pages,"
    _known: int | None = None

    async def look(self, members: Collection[asyncio.Event]) -> None:
        newest = await self._loop.in_thread(_newest)
        if newest != self._known:
            self._known = newest
            for changed in members:
                changed.set()


def _newest() -> int | None:
    newest: int | None = Event.objects.using(alias()).aggregate(newest=Max("id"))["newest"]
    return newest

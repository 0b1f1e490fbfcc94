"""Reads request bodies on the event loop, completely, within `BODY_TIMEOUT` and `MAX_BODY_SIZE`."""

from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from jobs.conf import ojs_settings
from jobs.http.body import DRAINED

TICK = 0.5
"""Seconds between two checks of unfinished bodies."""
MOST_HELD = 256 * 1024 * 1024
"""Bytes of unfinished bodies that a process holds; beyond that, the oldest is given up."""
CONTENT_LENGTH = re.compile(r"[0-9]{1,18}")

LATE = "The request body was not complete after {limit:g} s."
CROWDED = "The request body was incomplete, and the server needed its memory for others."

Receive = Callable[[], Awaitable[Any]]


class Unfinished(io.RawIOBase):
    """The body of a request that was given up: reading it fails."""

    def __init__(self, refusal: str) -> None:
        self.refusal = refusal

    def read(self, size: int = -1) -> bytes:
        raise OSError(self.refusal)

    readline = read  # type: ignore[assignment]


class Late(Exception):
    """The body was given up; the text gives the reason."""


class Reading:
    """A body that is being read."""

    __slots__ = ("began", "held", "pending", "refusal")

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.held = 0
        self.refusal = ""
        """Why it was given up."""
        self.pending: asyncio.Future[Any] | None = None
        """The next part."""


class Bodies:
    """All the bodies that this process is reading, oldest first."""

    def __init__(self) -> None:
        self._readings: dict[Reading, None] = {}
        self._held = 0

    async def watch(self) -> None:
        """Give up bodies that take too long, until cancelled."""
        while True:
            await asyncio.sleep(TICK)
            limit = ojs_settings.BODY_TIMEOUT.total_seconds()
            now = time.monotonic()
            for reading in list(self._readings):
                if not limit or now - reading.began < limit:
                    break
                self._give_up(reading, LATE.format(limit=limit))

    def _give_up(self, reading: Reading, refusal: str) -> None:
        self._forget(reading)
        reading.refusal = refusal
        if reading.pending is not None:
            reading.pending.cancel()

    def _forget(self, reading: Reading) -> None:
        if reading in self._readings:
            del self._readings[reading]
            self._held -= reading.held

    async def read(self, receive: Receive, environ: dict[str, Any]) -> bytes | None:
        """Return the body, only its beginning if it is too large; None if the client disconnected.

        Raises:
            Late: the body was given up.
        """
        limit = ojs_settings.MAX_BODY_SIZE
        declared = environ.get("CONTENT_LENGTH") or ""
        size = int(declared) if CONTENT_LENGTH.fullmatch(declared) else 0
        if size > DRAINED * limit:
            return b""
        reading = Reading()
        self._readings[reading] = None
        parts: list[bytes] = []
        total = 0
        try:
            while True:
                # granian returns a future, others a coroutine; both can be cancelled like this.
                awaited: Any = receive()
                reading.pending = (
                    awaited if hasattr(awaited, "cancel") else asyncio.ensure_future(awaited)
                )
                message: Any = await reading.pending
                if message["type"] == "http.disconnect":
                    return None
                part = message.get("body", b"")
                total += len(part)
                # Many clients read the response only after they have sent everything.
                if size <= limit and reading.held <= limit:
                    parts.append(part)
                    self._hold(reading, len(part))
                if not message.get("more_body") or total > DRAINED * limit:
                    return parts[0] if len(parts) == 1 else b"".join(parts)
        except asyncio.CancelledError:
            if reading.refusal:
                raise Late(reading.refusal) from None
            raise
        finally:
            self._forget(reading)

    def _hold(self, reading: Reading, size: int) -> None:
        if reading not in self._readings:
            return
        reading.held += size
        self._held += size
        while self._held > MOST_HELD:
            self._give_up(next(iter(self._readings)), CROWDED)

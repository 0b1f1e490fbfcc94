"""An event loop with threads for the database, like a server's, and clients of its streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from django.db import connections

from jobs.access import Binding, find
from jobs.http.authentication import ANYBODY, Caller
from jobs.realtime import channels
from jobs.realtime.channels import Filter
from jobs.realtime.hub import Hub
from jobs.realtime.sse import EventStream

PATIENCE = 300
"""Seconds to wait on a busy machine; only a failing test waits that long."""


class ServerLoop:
    """Implements `jobs.http.loop.Loop`."""

    def __init__(self) -> None:
        self.ending = asyncio.Event()
        self._threads = ThreadPoolExecutor(4)
        self._shared: dict[Any, Any] = {}
        self._kept: list[Any] = []

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._call, function, *arguments)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        finally:
            connections.close_all()

    def shared(self, make: Callable[[Any], Any]) -> Any:
        if make not in self._shared:
            self._shared[make] = make(self)
        return self._shared[make]

    def keep(self, task: Coroutine[Any, Any, None]) -> None:
        self._kept.append(asyncio.ensure_future(task))

    @property
    def hub(self) -> Hub:
        return self.shared(Hub)

    def close(self) -> None:
        self._threads.shutdown()


def on_loop(story: Callable[[ServerLoop], Coroutine[Any, Any, Any]]) -> Any:
    """Run a scenario on a separate loop, to its end."""

    async def run() -> Any:
        loop = ServerLoop()
        try:
            async with asyncio.timeout(PATIENCE):
                return await story(loop)
        finally:
            loop.close()

    return asyncio.run(run())


class Sent(NamedTuple):
    """A server-sent event, as a browser reads it."""

    id: str
    event: str
    data: Any


class Reader:
    """A client of a stream, which parses it by HTML's specification."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts
        self._ready: list[Sent] = []
        self._text = b""
        self.last_id = ""
        self.comments: list[str] = []
        self.retry = 0
        self.raw = b""

    async def next(self) -> Sent | None:
        """Return the next event; None once the stream has ended."""
        while not self._ready:
            try:
                part = await anext(self._parts)
            except StopAsyncIteration:
                return None
            self.take(part)
        return self._ready.pop(0)

    async def open(self) -> Reader:
        """Read the first part, so that the subscription has begun."""
        self.take(await anext(self._parts))
        return self

    def take(self, part: bytes) -> None:
        self.raw += part
        self._text += part
        while b"\n\n" in self._text:
            block, _, self._text = self._text.partition(b"\n\n")
            self._dispatch(block.decode())

    def _dispatch(self, block: str) -> None:
        event, data = "message", []
        for line in block.split("\n"):
            if line.startswith(":"):
                self.comments.append(line[1:])
                continue
            name, _, value = line.partition(": ")
            if name == "id":
                self.last_id = value
            elif name == "event":
                event = value
            elif name == "data":
                data.append(value)
            elif name == "retry":
                self.retry = int(value)
        if data:
            self._ready.append(Sent(self.last_id, event, json.loads("\n".join(data))))

    async def rest(self) -> list[Sent]:
        """Return everything until the end of the stream."""
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found

    async def several(self, count: int) -> list[Sent]:
        found = []
        for _ in range(count):
            event = await self.next()
            assert event is not None, "the stream has ended"
            found.append(event)
        return found

    async def close(self) -> None:
        await self._parts.aclose()  # type: ignore[attr-defined]


async def listen(
    loop: ServerLoop,
    channel: str,
    types: list[str] | None = None,
    *,
    caller: Caller = ANYBODY,
    last_event_id: str = "",
    key: str = "",
    address: str = "127.0.0.1",
    names_events: bool = False,
) -> Reader:
    """Open a stream and read its beginning."""

    def make() -> EventStream:
        return EventStream(
            caller,
            channels.parse(channel),
            Filter(types),
            key=key,
            address=address,
            command=find(Binding.OJS, "live.of_channel"),
            last_event_id=last_event_id,
            names_events=names_events,
        )

    stream = await loop.in_thread(make)
    return await Reader(stream(loop)).open()

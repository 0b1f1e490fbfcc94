"""Events of a channel as server-sent events (OJS realtime §2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ..access import Command
from ..conf import ojs_settings
from ..errors import OJSError, Unsupported
from ..http.authentication import Caller
from ..http.loop import Loop
from ..http.renderers import dumps
from . import replay
from .channels import Channel, Filter
from .connection import Connection, Entry, Loss, Subscription
from .hub import Hub
from .messages import frame, with_name
from .places import Place

RETRY = 3000
"""Milliseconds after which a client is to reconnect (§2.3)."""
HEARTBEAT = 15.0
"""Seconds without an event after which a comment is sent (§2.4)."""
EVENTS_DROPPED, GAP, SHUTDOWN = "system.events_dropped", "system.gap", "server.shutdown"
ERROR = "system.error"
"""An extension: the stream ends because its key is no longer valid."""


def require_record() -> None:
    """
    Raises:
        Unsupported: the server records no events.
    """
    if not ojs_settings.RECORD_EVENTS:
        raise Unsupported(
            "This server keeps no record of events.", hint='Switch on OJS["RECORD_EVENTS"].'
        )


class EventStream:
    """The body of a response: called with the event loop, it yields the stream.

    Created in a thread, so that errors are raised before the stream begins.
    """

    def __init__(
        self,
        caller: Caller,
        channel: Channel,
        wanted: Filter,
        *,
        key: str,
        address: str,
        command: Command | None,
        last_event_id: str = "",
        names_events: bool = False,
    ) -> None:
        """
        Args:
            key: digest of the API key; empty without one.
            command: the command that the key must continue to permit.
            last_event_id: the last event that a reconnecting client received.
            names_events: put an event's name into its data as well.

        Raises:
            NotFound: there is no such job or queue.
            TooManyConnections: the client has reached its limit.
            Unsupported: the server records no events.
        """
        require_record()
        self._start = replay.start(channel, last_event_id)
        job = replay.require(channel, caller.project)
        self._last_words = None if job is None else replay.last_words(job, channel, self._start)
        self._channel, self._wanted = channel, wanted
        self._caller, self._key, self._command = caller, key, command
        self._names_events = names_events
        self._last_id = self._start.id
        self._place = Place.of(caller, address)

    def __call__(self, loop: Loop) -> AsyncIterator[bytes]:
        return self._write(loop)

    async def _write(self, loop: Loop) -> AsyncIterator[bytes]:
        connection = Connection(self._caller, self._key, self._command)
        subscription = Subscription(
            connection,
            self._channel,
            self._wanted,
            self._start.position,
            ends_with_job=bool(self._channel.job_id),
        )
        try:
            if self._last_words is None:
                async for part in self._follow(loop.shared(Hub), subscription):
                    yield part
                return
            messages, faces = subscription.select(self._last_words)
            entries = map(Entry, [subscription] * len(messages), messages, faces)
            yield self._head() + b"".join(map(self._of_entry, entries))
        finally:
            self._place.give_back()

    async def _follow(self, hub: Hub, subscription: Subscription) -> AsyncIterator[bytes]:
        hub.connect(subscription.connection)
        hub.subscribe(subscription)
        following = asyncio.create_task(hub.follow(subscription))
        try:
            yield self._head()
            async for part in self._events(hub, subscription):
                yield part
        finally:
            following.cancel()
            hub.disconnect(subscription.connection)

    async def _events(self, hub: Hub, subscription: Subscription) -> AsyncIterator[bytes]:
        connection = subscription.connection
        while True:
            is_due = await connection.wait(HEARTBEAT)
            if connection.is_ending:
                yield self._goodbye(connection.ending)
                return
            if not is_due:
                yield self._heartbeat(hub, subscription)
                continue
            losses, entries = await connection.take()
            if losses or entries:
                yield b"".join([*map(self._of_loss, losses), *map(self._of_entry, entries)])
            if any(entry.message.is_last for entry in entries) and subscription.ends_with_job:
                return

    # Output

    def _head(self) -> bytes:
        """
        An id without data is not an event, but a client that loses the connection before the first
        event reconnects with it, and misses nothing.
        """
        head = b"retry: %d\nid: %s\n\n" % (RETRY, self._last_id.encode())
        if self._start.gap is not None:
            head += self._of_system(GAP, self._start.gap)
        return head

    def _heartbeat(self, hub: Hub, subscription: Subscription) -> bytes:
        if subscription.is_live:
            # The record up to there has been read for this client.
            self._last_id = replay.id_of(max(hub.position, subscription.position))
        return b":heartbeat\nid: %s\n\n" % self._last_id.encode()

    def _goodbye(self, problem: OJSError | None) -> bytes:
        if problem is None:
            return self._of_system(SHUTDOWN, {"reason": "shutdown", "grace_period_ms": 0})
        return self._of_system(ERROR, {"code": problem.code, "message": problem.message})

    def _of_loss(self, lost: tuple[Subscription, Loss]) -> bytes:
        subscription, loss = lost
        self._last_id = loss.newest.id
        comment = b":events-dropped %d\n\n" % loss.count
        return comment + self._of_system(EVENTS_DROPPED, loss.document(subscription.channel.name))

    def _of_entry(self, entry: Entry) -> bytes:
        message, face, project = entry.message, entry.face, entry.subscription.project
        self._last_id = message.id
        if face is None:
            return b""
        make = message.named_frame if self._names_events else message.frame
        return make(face, project)

    def _of_system(self, name: str, document: dict[str, Any]) -> bytes:
        data = dumps(document)
        return frame(self._last_id, name, with_name(name, data) if self._names_events else data)

"""Reads the record of events once for all subscriptions of a process (OJS realtime).

While there are subscriptions, one query every `POLL` seconds reads the new events, and each event
is passed to the subscriptions of its channels. A new subscription reads the record from its own
position until it has caught up with the hub; from then on the hub passes it the rest. Both count
in ids of the record, up to the hub's position, so that no event in between is left out or sent
twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from ..http import open_keys
from ..http.loop import Loop
from . import replay
from .connection import Connection, Selection, Subscription
from .messages import Message

logger = logging.getLogger("jobs.realtime")

POLL = 0.2
"""Seconds between two reads of the record."""
AGAIN = 1.0
"""Seconds before another query after an error."""
AT_ONCE = 2
"""Subscriptions that read from the record at the same time; others wait their turn."""
REMEMBERED = 1_000
"""Ended connections that are remembered, so that clients can resume them."""

Result = TypeVar("Result")
Key = tuple[str, str]
"""Project and name of a channel."""


class Resumable(NamedTuple):
    """A client's subscriptions when it disconnected."""

    client: str
    subscriptions: list[tuple[str, tuple[str, ...] | None]]
    """Channels, and the filter of each."""
    first: int
    last: int
    """The positions of the first and the last event it was sent."""


class Hub:
    """The connections of a process, and their subscriptions."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._connections: set[Connection] = set()
        self._live: defaultdict[Key, dict[Subscription, None]] = defaultdict(dict)
        self._followed = 0
        """Subscriptions, live or catching up."""
        self.position = 0
        """How far the record has been read, while there are subscriptions."""
        self._has_begun = asyncio.Event()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._reader: asyncio.Task[None] | None = None
        self._watchers: list[asyncio.Task[None]] = []
        self._left: OrderedDict[int, Resumable] = OrderedDict()
        self._departures = 0

    # Connections

    def connect(self, connection: Connection) -> None:
        self._connections.add(connection)
        if self._loop.ending.is_set():
            connection.end()
        if not self._watchers:
            self._watchers = [
                asyncio.create_task(self._say_goodbye()),
                asyncio.create_task(open_keys.watch(self._connections, self._loop.in_thread)),
            ]

    def disconnect(self, connection: Connection) -> None:
        for subscription in list(connection.subscriptions.values()):
            self.unsubscribe(subscription)
        self._connections.discard(connection)
        if not self._connections:
            for task in self._watchers:
                task.cancel()
            self._watchers = []

    async def _say_goodbye(self) -> None:
        await self._loop.ending.wait()
        for connection in list(self._connections):
            connection.end()

    # Reconnecting clients

    def remember(self, left: Resumable) -> None:
        """Remember a client's subscriptions, in case it reconnects to this process."""
        self._departures += 1
        self._left[self._departures] = left
        if len(self._left) > REMEMBERED:
            self._left.popitem(last=False)

    def resume(self, client: str, position: int) -> Resumable | None:
        """Return the client's subscriptions when it received the event at `position`."""
        for number, left in reversed(self._left.items()):
            if left.client == client and left.first <= position <= left.last:
                del self._left[number]
                return left
        return None

    # Subscriptions

    def subscribe(self, subscription: Subscription) -> None:
        """Add a subscription; `follow()` then feeds it."""
        connection = subscription.connection
        connection.subscriptions[subscription.channel.name] = subscription
        self._followed += 1
        if self._reader is None:
            self._has_begun.clear()
            self._reader = asyncio.create_task(self._read())
            self._reader.add_done_callback(self._has_failed)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop feeding it, and drop its buffered messages."""
        connection, name = subscription.connection, subscription.channel.name
        if connection.subscriptions.get(name) is not subscription:
            return
        del connection.subscriptions[name]
        connection.drop(subscription)
        self._followed -= 1
        if subscription.is_live:
            subscription.is_live = False
            key = (subscription.project, name)
            self._live[key].pop(subscription, None)
            if not self._live[key]:
                del self._live[key]
        if not self._followed and self._reader is not None:
            self._reader.cancel()
            self._reader = None

    async def follow(self, subscription: Subscription) -> None:
        """Pass on what the record has for a subscription; return once it is live."""
        await self._has_begun.wait()
        # What the record has now is sent as slowly as the client reads. Later events are treated
        # like live ones, so that catching up comes to an end.
        patient_until = self.position
        while subscription.position < (target := self.position):
            most = replay.BATCH
            if subscription.position < patient_until:
                target, most = patient_until, await subscription.connection.room()
            batch = await self._asked(
                replay.page,
                subscription.channel,
                subscription.project,
                subscription.position,
                target,
                most,
            )
            if not self._is_fed(subscription):
                return
            subscription.position = batch.position
            subscription.take(subscription.select(batch.messages))
        if self._is_fed(subscription):
            subscription.is_live = True
            self._live[subscription.project, subscription.channel.name][subscription] = None

    async def backfill(self, subscription: Subscription, after: int) -> None:
        """Pass on the record from `after` to where the subscription began (§5.5.2)."""
        until, subscription.began = subscription.began, min(after, subscription.began)
        while after < until and self._is_fed(subscription):
            batch = await self._asked(
                replay.page,
                subscription.channel,
                subscription.project,
                after,
                until,
                await subscription.connection.room(),
            )
            after = batch.position
            subscription.take(subscription.select(batch.messages))

    def _is_fed(self, subscription: Subscription) -> bool:
        current = subscription.connection.subscriptions.get(subscription.channel.name)
        return current is subscription

    async def _asked(self, function: Callable[..., Result], *arguments: Any) -> Result:
        async with self._turns:
            return await self._patiently(function, *arguments)

    # The reader

    async def _read(self) -> None:
        self.position = await self._patiently(replay.newest)
        self._has_begun.set()
        while True:
            batch = await self._patiently(replay.read, self.position)
            # In one step, so that a subscription catching up sees both changes or neither.
            self.position = batch.position
            self._hand_over(batch.messages)
            if len(batch.messages) < replay.BATCH:
                await asyncio.sleep(POLL)

    def _has_failed(self, reader: asyncio.Task[None]) -> None:
        if reader.cancelled() or reader.exception() is None:
            return
        logger.error("Events cannot be handed over.", exc_info=reader.exception())
        for connection in list(self._connections):
            connection.end()

    async def _patiently(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Query the record, retrying while the database is unavailable."""
        has_complained = False
        while True:
            try:
                return await self._loop.in_thread(function, *arguments)
            except Exception:
                if not has_complained:
                    logger.exception("The record of events cannot be read.")
                has_complained = True
            await asyncio.sleep(AGAIN)

    def _hand_over(self, messages: Sequence[Message]) -> None:
        wanted: defaultdict[Key, list[Message]] = defaultdict(list)
        live = self._live
        for message in messages:
            projects = ("", message.project) if message.project else ("",)
            for name in message.channels():
                for project in projects:
                    if (project, name) in live:
                        wanted[project, name].append(message)
        for key, found in wanted.items():
            selections: dict[Any, Selection] = {}
            for subscription in live[key]:
                same = (subscription.wanted.types, subscription.ends_with_job)
                selection = selections.get(same)
                if selection is None:
                    selection = selections[same] = subscription.select(found)
                if found[0].position <= subscription.position:
                    # It began at an event that this hub had not read yet.
                    rest = [one for one in found if one.position > subscription.position]
                    selection = subscription.select(rest)
                subscription.take(selection)

"""A connected client: its bounded buffer of messages, and its rate limit (OJS realtime §5.4,
§5.7)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

from ..access import Command, authorize
from ..conf import ojs_settings
from ..errors import NotAuthenticated, OJSError, PermissionDenied
from ..http.authentication import Caller, renewed
from .channels import Channel, Face, Filter
from .messages import Message

MOST_AT_ONCE = 100
"""Maximum number of events written at once."""


class Selection(NamedTuple):
    """Messages of a channel, and how each is shown; None for one that only ends a stream."""

    messages: Sequence[Message]
    faces: Sequence[Face | None]


def select(messages: Sequence[Message], wanted: Filter, *, ends_with_job: bool) -> Selection:
    """Select the messages for a subscription.

    Args:
        ends_with_job: include the end of a job even if the filter excludes it.
    """
    shown = [(one, wanted.face(one.name, one.event.type)) for one in messages]
    chosen = [(one, face) for one, face in shown if face or (ends_with_job and one.is_last)]
    return Selection([one for one, _ in chosen], [face for _, face in chosen])


class Subscription:
    """A client's subscription to a channel."""

    def __init__(
        self,
        connection: Connection,
        channel: Channel,
        wanted: Filter,
        position: int,
        *,
        ends_with_job: bool = False,
    ) -> None:
        """
        Args:
            position: it gets the events after this id.
            ends_with_job: it must get the end of its job even if the filter excludes that.
        """
        self.connection = connection
        self.channel = channel
        self.wanted = wanted
        self.position = position
        """Everything up to this id has been passed on."""
        self.began = position
        self.ends_with_job = ends_with_job
        self.is_live = False
        """Whether it gets events as they are read; before that, it is catching up."""

    @property
    def project(self) -> str:
        return self.connection.caller.project

    def select(self, messages: Sequence[Message]) -> Selection:
        return select(messages, self.wanted, ends_with_job=self.ends_with_job)

    def take(self, selection: Selection) -> None:
        """Queue what was selected for this subscription."""
        if selection.messages:
            self.connection.put(self, selection)


class Entry(NamedTuple):
    """A message in the buffer."""

    subscription: Subscription
    message: Message
    face: Face | None


class Loss:
    """Messages of a subscription that were dropped before they could be sent."""

    __slots__ = ("count", "newest", "oldest")

    def __init__(self, oldest: Message) -> None:
        self.count = 0
        self.oldest = self.newest = oldest

    def add(self, message: Message) -> None:
        self.count += 1
        self.newest = message

    def document(self, channel: str) -> dict[str, Any]:
        """Its `system.events_dropped` (§4.4)."""
        return {
            "channel": channel,
            "dropped_count": self.count,
            "oldest_dropped_id": self.oldest.id,
            "newest_dropped_id": self.newest.id,
            "timestamp": self.newest.timestamp,
        }


class Pace:
    """How many events may be sent now; unlimited if the rate is 0."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._left = float(rate)
        self._at = time.monotonic()

    def grant(self, wanted: int) -> int:
        """Return how many of `wanted` may be sent now, and count them as sent."""
        if not self._rate:
            return wanted
        now = time.monotonic()
        self._left = min(float(self._rate), self._left + (now - self._at) * self._rate)
        self._at = now
        granted = min(wanted, int(self._left))
        self._left -= granted
        return granted

    @property
    def pause(self) -> float:
        """Seconds until more may be sent."""
        return max(0.05, 1 / self._rate) if self._rate else 0.0


class Connection:
    """The server's state of a connected client."""

    def __init__(self, caller: Caller, key: str, command: Command | None) -> None:
        """
        Args:
            key: digest of the API key; empty without one.
            command: the command that the key must continue to permit.
        """
        self.caller = caller
        self.key = key
        self.command = command
        self.ending: OJSError | None = None
        """Why it must end, if it must."""
        self.is_shutdown = False
        """It must end because the server is stopping."""
        self.subscriptions: dict[str, Subscription] = {}
        """By name of the channel."""
        self.losses: dict[Subscription, Loss] = {}
        self._limit = max(1, ojs_settings.REALTIME_BUFFER_SIZE)
        self._entries: deque[Entry] = deque()
        self._pace = Pace(ojs_settings.REALTIME_RATE_LIMIT_PER_SECOND)
        self._something = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    # Buffered messages

    def put(self, subscription: Subscription, selection: Selection) -> None:
        """Queue messages; if there are too many, drop the oldest and count them."""
        entries = self._entries
        entries.extend(map(Entry, repeat(subscription), selection.messages, selection.faces))
        for _ in range(len(entries) - self._limit):
            dropped = entries.popleft()
            loss = self.losses.get(dropped.subscription)
            if loss is None:
                loss = self.losses[dropped.subscription] = Loss(dropped.message)
            loss.add(dropped.message)
        self._something.set()

    def drop(self, subscription: Subscription) -> None:
        """Drop the buffered messages of a subscription."""
        self.losses.pop(subscription, None)
        kept = [entry for entry in self._entries if entry.subscription is not subscription]
        self._entries = deque(kept)
        self._look_at_room()

    def filter_anew(self, subscription: Subscription, wanted: Filter) -> None:
        """Change the filter of a subscription, also for messages already buffered (§5.6.3)."""
        subscription.wanted = wanted
        entries, self._entries = self._entries, deque()
        for entry in entries:
            face = entry.face
            if entry.subscription is subscription:
                face = wanted.face(entry.message.name, entry.message.event.type)
            if face is not None or entry.subscription is not subscription:
                self._entries.append(entry._replace(face=face))
        self._look_at_room()

    @property
    def is_empty(self) -> bool:
        return not (self._entries or self.losses)

    def end(self, problem: OJSError | None = None) -> None:
        """Ask it to end, because of a problem with its key or because the server is stopping."""
        self.is_shutdown = problem is None
        self.ending = problem
        self._something.set()

    @property
    def is_ending(self) -> bool:
        return self.is_shutdown or self.ending is not None

    async def wait(self, seconds: float) -> bool:
        """Wait until there is something to send, or it must end; False if the time is up."""
        if self.is_empty and not self.is_ending:
            self._something.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._something.wait()
            except TimeoutError:
                return False
        return True

    async def take(self) -> tuple[list[tuple[Subscription, Loss]], list[Entry]]:
        """Return what may be sent now: losses, then some messages; may be empty."""
        losses = list(self.losses.items())
        self.losses.clear()
        granted = self._pace.grant(min(len(self._entries), MOST_AT_ONCE))
        taken = [self._entries.popleft() for _ in range(granted)]
        if self._entries and not granted:
            await asyncio.sleep(self._pace.pause)
        self._look_at_room()
        return losses, taken

    # Catching up waits for room, and so is no faster than the client reads.

    def _look_at_room(self) -> None:
        if len(self._entries) <= self._limit // 2:
            self._room.set()

    async def room(self) -> int:
        """Wait until half of the buffer is free, and return how many messages fit."""
        while len(self._entries) > self._limit // 2:
            self._room.clear()
            await self._room.wait()
        return max(1, self._limit // 2)

    # Its key

    def renew(self, caller: Caller | None) -> None:
        """Continue with the current rights of the key, or end."""
        if self.is_ending:
            return
        if caller is None:
            self.end(NotAuthenticated("This API key is not valid any more."))
            return
        try:
            caller = renewed(caller, self.caller)
            authorize(caller, self.command)
            if caller.project != self.caller.project:
                raise PermissionDenied("This API key belongs to another project now.")
        except PermissionDenied as refusal:
            self.end(refusal)
        else:
            self.caller = caller

"""Events of many channels over one WebSocket (OJS realtime §3)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, NamedTuple

import orjson

from ..access import Binding, Command, authorize, find
from ..access.address import address_of
from ..conf import ojs_settings
from ..errors import (
    BodyTooLarge,
    DatabaseUnavailable,
    InvalidPayload,
    InvalidRequest,
    NotAuthenticated,
    NotFound,
    OJSError,
    TooManySubscriptions,
)
from ..http import errors
from ..http.authentication import ApiKeyAuthentication, Caller, current_caller, key_of, renewed
from ..http.body import require_storable
from ..http.hosts import check_host
from ..http.loop import Loop, Socket
from ..http.renderers import dumps
from ..http.request import Meta
from ..protocols import OJS
from ..spec import fields
from ..spec.timestamps import format_timestamp
from ..store import clock
from ..store.trouble import explain
from . import channels, replay
from .channels import Channel, Filter
from .connection import Connection, Entry, Loss, Subscription
from .hub import Hub, Resumable
from .messages import Message
from .places import Place, client_of
from .sse import EVENTS_DROPPED, GAP, SHUTDOWN, require_record

logger = logging.getLogger("jobs.realtime")

PATH = "/ojs/v1/ws"
SUBPROTOCOL = "ojs.v1"
BEARER = "bearer."
"""The only header a browser can set names subprotocols: this prefix marks its key."""
COMMAND = "live.socket"
PING = 30.0
"""Seconds of silence after which a message is sent (§3.5)."""
SLOWEST_READER = 30.0
"""Seconds after which a connection is closed whose client does not read a message."""
MOST_TEXT = 64 * 1024
"""Maximum length of a client's message, in characters."""
GOING_AWAY, TOO_BIG, TRY_AGAIN_LATER, INTERNAL_ERROR = 1001, 1009, 1013, 1011
REVOKED, FORBIDDEN = 4401, 4403
"""Close codes that we define: the key is not valid, or does not permit this."""
ID_LENGTH = 64


class UnknownEventId(NotFound):
    """The record no longer has the events after this one (§5.5.2)."""

    code = "unknown_event_id"

    def __init__(self) -> None:
        super().__init__("Event ID not found in buffer. Perform a full state sync.")


class Visitor(NamedTuple):
    """The client that opens a WebSocket."""

    caller: Caller
    key: str
    """Digest of the API key; empty without one."""
    address: str
    command: Command | None
    place: Place


async def serve(loop: Loop, socket: Socket) -> None:
    """Serve a WebSocket from its handshake to its end."""
    try:
        visitor = await loop.in_thread(_admit, socket.meta, socket.subprotocols)
    except OJSError as refusal:
        await socket.refuse(errors.status_of(refusal), f"{refusal.message}\n")
        return
    try:
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.subprotocols else None)
        await Session(loop, socket, visitor).run()
    finally:
        visitor.place.give_back()


def _admit(meta: Meta, subprotocols: list[str]) -> Visitor:
    """
    Raises:
        OJSError: the connection is refused.
    """
    caller = None
    meta = {**meta, "HTTP_AUTHORIZATION": _login(meta, subprotocols)}
    authentication = ApiKeyAuthentication()
    try:
        check_host(meta)
        caller = authentication.caller("GET", meta)
        command = find(Binding.OJS, COMMAND)
        authorize(caller, command)
        require_record()
        address = address_of(meta)
        return Visitor(caller, key_of(meta), address, command, Place.of(caller, address))
    except OJSError as refusal:
        errors.note_refusal(
            refusal, caller, protocol=authentication.protocol, method="GET", path=PATH, meta=meta
        )
        raise
    except Exception as problem:
        trouble = explain(problem)
        if trouble is None:
            raise
        logger.error("A WebSocket cannot be opened: %s %s", trouble, problem)
        raise trouble from problem


def _login(meta: Meta, subprotocols: list[str]) -> str:
    """The Authorization header, or its substitute for clients that cannot send one."""
    header: str = meta.get("HTTP_AUTHORIZATION", "")
    offered = [name for name in subprotocols if name.startswith(BEARER)]
    return f"Bearer {offered[0].removeprefix(BEARER)}" if offered and not header else header


class Session:
    """An open WebSocket: answers the client's messages, and sends events concurrently."""

    def __init__(self, loop: Loop, socket: Socket, visitor: Visitor) -> None:
        self._loop = loop
        self._socket = socket
        self._visitor = visitor
        self._hub = loop.shared(Hub)
        self._connection = Connection(visitor.caller, visitor.key, visitor.command)
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._first = self._last = 0
        """Positions of the first and the last event that was sent."""

    async def run(self) -> None:
        self._hub.connect(self._connection)
        talking = [asyncio.create_task(self._listen()), asyncio.create_task(self._tell())]
        try:
            await asyncio.wait(talking, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*talking, *self._tasks):
                task.cancel()
            ended = await asyncio.gather(*talking, return_exceptions=True)
            self._remember()
            self._hub.disconnect(self._connection)
        for problem in ended:
            if isinstance(problem, Exception) and not isinstance(problem, ConnectionError):
                with contextlib.suppress(ConnectionError):
                    await self._give_up(problem)

    def _remember(self) -> None:
        followed = self._connection.subscriptions.values()
        if followed and self._last:
            kept = [(one.channel.name, one.wanted.types) for one in followed]
            self._hub.remember(Resumable(self._client, kept, self._first, self._last))

    @property
    def _client(self) -> str:
        return client_of(self._connection.caller, self._visitor.address)

    async def _give_up(self, problem: Exception) -> None:
        """Close the connection after a bug, or while the database is away."""
        if isinstance(problem, TimeoutError):
            await self._socket.close(TRY_AGAIN_LATER, "messages were left unread")
        elif isinstance(explain(problem), DatabaseUnavailable):
            logger.error("Closing a WebSocket: %s", problem)
            await self._socket.close(TRY_AGAIN_LATER, "the database is away")
        else:
            logger.error("A WebSocket failed.", exc_info=problem)
            await self._socket.close(INTERNAL_ERROR, "internal error")

    async def _send(self, text: str) -> None:
        async with self._sending, asyncio.timeout(SLOWEST_READER):
            await self._socket.send(text)

    async def _say(self, **message: Any) -> None:
        await self._send(dumps(message).decode())

    # The client's messages

    async def _listen(self) -> None:
        while (text := await self._socket.receive()) is not None:
            if len(text) > MOST_TEXT:
                await self._refuse(BodyTooLarge(f"A message may have {MOST_TEXT} characters."))
                await self._socket.close(TOO_BIG, "the message is too long")
                return
            message: dict[str, Any] = {}
            try:
                message = _read(text)
                await self._hear(message)
            except OJSError as refusal:
                await self._refuse(refusal, message.get("channel"))
                if isinstance(refusal, NotAuthenticated):
                    await self._socket.close(REVOKED, refusal.code)
                    return

    async def _refuse(self, problem: OJSError, channel: Any = None) -> None:
        about = {"channel": channel} if isinstance(channel, str) else {}
        await self._say(type="error", code=problem.code, message=problem.message, **about)

    async def _hear(self, message: dict[str, Any]) -> None:
        """
        Raises:
            OJSError: it is refused.
        """
        actions = {
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "resume": self._resume,
            "ping": self._answer_ping,
        }
        action = fields.required_text(message, "action")
        if action not in actions:
            raise InvalidRequest(
                f"There is no action {action[:40]!r}, only {', '.join(actions)}.", field="action"
            )
        await actions[action](message)

    async def _answer_ping(self, message: dict[str, Any]) -> None:
        await self._say(type="pong")

    async def _subscribe(self, message: dict[str, Any]) -> None:
        channel = channels.parse(fields.required_text(message, "channel"))
        types = fields.texts(message, "event_types", longest=channels.LONGEST_TYPE)
        wanted = Filter(types)
        after = fields.text(message, "last_event_id", longest=ID_LENGTH) or ""
        known = self._connection.subscriptions.get(channel.name)
        if known is not None:
            self._connection.filter_anew(known, wanted)
            await self._confirm(known)
            return
        await self._begin(channel, wanted, after)

    async def _begin(self, channel: Channel, wanted: Filter, after: str) -> None:
        connection = self._connection
        if len(connection.subscriptions) >= ojs_settings.REALTIME_SUBSCRIPTIONS:
            raise TooManySubscriptions(
                f"A WebSocket may subscribe to {ojs_settings.REALTIME_SUBSCRIPTIONS} channels.",
                limit=ojs_settings.REALTIME_SUBSCRIPTIONS,
            )
        caller, start, ended = await self._loop.in_thread(self._look_up, channel, after)
        connection.renew(caller)
        if connection.is_ending:
            return
        subscription = Subscription(connection, channel, wanted, start.position)
        self._hub.subscribe(subscription)
        await self._confirm(subscription)
        if start.gap is not None:
            await self._send_system(channel.name, GAP, start.gap, start.id, start.gap["gap_end"])
        if ended is not None:
            subscription.take(subscription.select([ended]))
            subscription.position = max(start.position, ended.position)
        self._in_background(self._hub.follow(subscription))

    def _look_up(self, channel: Channel, after: str) -> tuple[Caller, replay.Start, Message | None]:
        """Check the key and the subject of the channel; called in a thread.

        Raises:
            OJSError: the key is not valid, or there is no such job or queue.
        """
        visitor, caller = self._visitor, self._connection.caller
        if visitor.key:
            known = current_caller(visitor.key, protocol=OJS, address=visitor.address)
            caller = renewed(known, caller)
        authorize(caller, visitor.command)
        start = replay.start(channel, after)
        job = replay.require(channel, caller.project)
        return caller, start, None if job is None else replay.last_word(job, channel, start)

    async def _confirm(self, subscription: Subscription) -> None:
        types = subscription.wanted.types
        about = {} if types is None else {"event_types": types}
        await self._say(type="subscribed", channel=subscription.channel.name, **about)

    async def _unsubscribe(self, message: dict[str, Any]) -> None:
        channel = channels.parse(fields.required_text(message, "channel"))
        known = self._connection.subscriptions.get(channel.name)
        if known is not None:
            self._hub.unsubscribe(known)
        await self._say(type="unsubscribed", channel=channel.name)

    async def _resume(self, message: dict[str, Any]) -> None:
        """Send the events after a given one on the subscribed channels; a client without
        subscriptions resumes those of its previous connection."""
        identifier = fields.required_text(message, "last_event_id", longest=ID_LENGTH)
        after = await self._loop.in_thread(replay.position_of, identifier)
        if after is None:
            raise UnknownEventId()
        followed = list(self._connection.subscriptions.values())
        for subscription in followed:
            self._in_background(self._hub.backfill(subscription, after))
        if followed:
            return
        left = self._hub.resume(self._client, after)
        if left is None:
            raise UnknownEventId()
        for name, types in left.subscriptions:
            try:
                await self._begin(channels.parse(name), Filter(types), identifier)
            except NotFound as gone:
                await self._refuse(gone, name)

    def _in_background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Messages to the client

    async def _tell(self) -> None:
        connection = self._connection
        while True:
            is_due = await connection.wait(PING)
            if connection.is_ending:
                await self._say_goodbye(connection.ending)
                return
            if not is_due:
                await self._say(type="ping")
                continue
            losses, entries = await connection.take()
            for subscription, loss in losses:
                await self._tell_of_loss(subscription, loss)
            for entry in entries:
                await self._send_event(entry)

    async def _send_event(self, entry: Entry) -> None:
        subscription, message, face = entry
        name = subscription.channel.name
        # It may have been unsubscribed while other events were being sent.
        if face is not None and self._connection.subscriptions.get(name) is subscription:
            tail = message.tail(face, subscription.project).decode()
            await self._send(f'{{"type":"event","channel":{dumps(name).decode()}{tail}')
            self._note(message)

    def _note(self, message: Message) -> None:
        self._first = self._first or message.position
        self._last = max(self._last, message.position)

    async def _tell_of_loss(self, subscription: Subscription, loss: Loss) -> None:
        """Both messages of the document (§5.4, §8.4)."""
        document = loss.document(subscription.channel.name)
        await self._say(
            type="warning",
            code="events_dropped",
            count=loss.count,
            **{
                name: document[name]
                for name in ("channel", "oldest_dropped_id", "newest_dropped_id")
            },
        )
        await self._send_system(
            document["channel"], EVENTS_DROPPED, document, loss.newest.id, document["timestamp"]
        )
        self._note(loss.newest)

    async def _say_goodbye(self, problem: OJSError | None) -> None:
        if problem is None:
            document = {"reason": "shutdown", "grace_period_ms": 0}
            identifier = replay.id_of(self._last or self._hub.position)
            now = format_timestamp(clock.now())
            await self._send_system("system", SHUTDOWN, document, identifier, now)
            await self._socket.close(GOING_AWAY, "the server ends")
            return
        await self._refuse(problem)
        revoked = isinstance(problem, NotAuthenticated)
        await self._socket.close(REVOKED if revoked else FORBIDDEN, problem.code)

    async def _send_system(
        self, channel: str, name: str, document: dict[str, Any], identifier: str, timestamp: str
    ) -> None:
        await self._say(
            type="event",
            channel=channel,
            event=name,
            data=document,
            id=identifier,
            timestamp=timestamp,
        )


def _read(text: str | bytes) -> dict[str, Any]:
    """
    Raises:
        InvalidPayload: it is not a JSON object, or has what no database stores, such as a NUL.
    """
    try:
        message = orjson.loads(text)
    except orjson.JSONDecodeError as problem:
        raise InvalidPayload(f"A message must be a JSON object: {problem}.") from None
    if type(message) is not dict:
        raise InvalidPayload("A message must be a JSON object.")
    require_storable(message, len(text))
    return message

"""Connection of one Rota worker: receives heartbeats, sends assignments."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from jobs.conf import ojs_settings
from jobs.engine import ClaimedJob
from jobs.errors import (
    DatabaseUnavailable,
    InvalidRequest,
    NotAuthenticated,
    OJSError,
    PermissionDenied,
)
from jobs.http.authentication import Caller
from jobs.http.loop import Socket
from jobs.store import outages
from jobs.store.trouble import explain
from workers.fetching.waiting import Look, Waiter

from . import actions, messages, options

if TYPE_CHECKING:
    from .connections import Connections

logger = logging.getLogger("workers.rota")

SLOWEST_READER = 30.0
"""Seconds after which a connection is cut whose worker does not read our messages."""
PROMPTLY = 1.0
"""Seconds after which an assignment holds up the jobs behind it: they are released, and the worker
gets one job at a time."""
UNREAD = 256 * 1024
"""Characters of answers that may wait until the worker reads; beyond that, it is not heard."""
GOODBYE = 2.0
"""Seconds that a worker has to answer the closing handshake."""
SILENT, REPLACED, REFUSED, REVOKED = 4408, 4409, 4400, 4401
"""Close codes that we send."""
GOING_AWAY, TOO_BIG, INTERNAL_ERROR, TRY_AGAIN_LATER = 1001, 1009, 1011, 1013
PROPERLY = (1000, 1001)
"""Close codes of a worker that leaves properly."""


class Session:
    def __init__(self, connections: Connections, socket: Socket, visitor: actions.Visitor) -> None:
        self._connections = connections
        self._loop = connections.loop
        self._socket = socket
        self._visitor = visitor
        self._registration: messages.Registration | None = None
        self._pusher: asyncio.Task[None] | None = None
        self._stopped: set[asyncio.Task[None]] = set()
        """Pushers that were stopped; they may still have jobs to release."""
        self._closing: asyncio.Task[None] | None = None
        self._is_closed = False
        """The connection was closed by us, not by the worker."""
        self._answers: deque[str] = deque()
        """Answers that have not been sent yet."""
        self._answering: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set once closing has finished."""
        self._name = ""
        """The stored id of its worker, which identifies it among the connections."""
        self._wishes = asyncio.Event()
        """Set when the worker wants a different number of jobs: wakes `_push` and `_find`."""
        self._is_gone = False
        """The connection has ended; jobs claimed for it from now on are released."""
        self._in_hand: set[str] = set()
        self._wanted = 0
        self._looks = 0
        """Claims in progress for this connection."""
        self._assigned = 0
        """Assignments sent on this connection."""
        self._reads_slowly = False

    @property
    def _project(self) -> str:
        return self._registration.project if self._registration else ""

    @property
    def worker_id(self) -> str:
        return self._registration.worker_id if self._registration else ""

    async def run(self) -> None:
        while (frame := await self._receive()) is not None:
            await self._answer(frame)
            if self._answering is not None and sum(map(len, self._answers)) > UNREAD:
                await asyncio.wait([self._answering])

    async def _answer(self, frame: bytes) -> None:
        try:
            await self._hear(frame)
        except NotAuthenticated as refusal:
            await self._note(refusal)
            await self._revoked(refusal)
        except OJSError as refusal:
            if isinstance(refusal, PermissionDenied):
                await self._note(refusal)
            self._reply(messages.refusal(refusal))
            if self._registration is None:
                await self._close_after_answers(REFUSED, "registration was refused")

    async def _receive(self) -> bytes | None:
        """Return the next message; None once the connection has ended for any reason."""
        timeout = options().HEARTBEAT_TIMEOUT.total_seconds()
        try:
            text = None if self._is_closed else await self._next(timeout)
        except TimeoutError:
            # Jobs that have not been sent are released before the worker is declared dead.
            self._stop_pushing()
            await self._close(SILENT, f"nothing was heard for {timeout:g} s")
            return None
        frame = text.encode() if isinstance(text, str) else text
        if frame is not None and len(frame) > options().MAX_MESSAGE:
            await self._close(TOO_BIG, f"a message has {options().MAX_MESSAGE} bytes at most")
            return None
        return frame

    async def _next(self, timeout: float) -> str | bytes | None:
        async with asyncio.timeout(timeout):
            return await self._socket.receive()

    async def _close(self, code: int, reason: str) -> None:
        """Close the connection, unless that has begun."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            async with asyncio.timeout(GOODBYE):
                await self._socket.close(code, reason)
        except (TimeoutError, ConnectionError):
            pass  # it has ended, or the client does not read
        finally:
            if not self._over.done():
                self._over.set_result(None)

    async def say_goodbye(self) -> None:
        """End the connection because the server stops; the worker will reconnect."""
        await self._close(GOING_AWAY, "the server ends")

    async def _note(self, refusal: OJSError) -> None:
        visitor = self._visitor
        await self._loop.in_thread(actions.note, refusal, "message", visitor.address, visitor)

    @property
    def key(self) -> str:
        return self._visitor.key

    def renew(self, caller: Caller | None) -> None:
        """Continue with the current rights of the key."""
        if caller is None and self._closing is None:
            problem = NotAuthenticated("This API key is not valid any more.")
            self._closing = asyncio.create_task(self._revoked(problem))
        elif caller is not None and self._visitor.has_other_rights(caller):
            # The next claim is made with the current rights.
            self._wishes.set()

    async def _revoked(self, problem: OJSError) -> None:
        """End the connection: its key is no longer valid."""
        self._reply(messages.refusal(problem))
        await self._close_after_answers(REVOKED, "the API key is not valid any more")

    async def _close_after_answers(self, code: int, reason: str) -> None:
        if self._answering is not None:
            await asyncio.wait([self._answering])
        await self._close(code, reason)

    def _reply(self, text: str) -> None:
        """Send an answer after those before it. The worker is heard meanwhile.

        It may be reading a large assignment, or have disconnected. What it said before still
        counts, and only after its last message is it known how it closed.
        """
        self._answers.append(text)
        if self._answering is None or self._answering.done():
            self._answering = asyncio.create_task(self._send_answers())

    async def _send_answers(self) -> None:
        try:
            while self._answers:
                await self._send(self._answers[0])
                self._answers.popleft()
        except ConnectionError:
            self._answers.clear()
        except Exception as problem:
            self._answers.clear()
            await self.give_up(problem)

    async def _send(self, text: str) -> None:
        """
        Raises:
            ConnectionError: the worker has disconnected, or does not read.
        """
        if self._is_closed:
            raise ConnectionError("The connection was closed.")
        try:
            async with asyncio.timeout(SLOWEST_READER):
                await self._socket.send(text)
        except TimeoutError:
            await self._close(TRY_AGAIN_LATER, "messages were left unread")
            raise ConnectionError("The worker does not read.") from None

    async def _hear(self, frame: bytes) -> None:
        timeout = options().HEARTBEAT_TIMEOUT
        message = messages.read(frame, self.worker_id, timeout)
        more: dict[str, Any] = {}
        if message.registration is not None:
            more = await self._register(message.registration, message.job_ids)
        registration = self._registration
        if registration is None:
            raise InvalidRequest(
                "The first message must register the worker.", field="registration"
            )
        handled = await self._loop.in_thread(
            actions.hear, self._visitor, registration, message, frozenset(self._in_hand)
        )
        if registration.name != self._name and self._give_place_up():
            self._take_place()
        self._in_hand |= set(handled.reply.jobs_extended)
        self._in_hand -= handled.settled | set(handled.reply.jobs_lost)
        self._reply(messages.answer(handled.reply, handled.outcomes, **more))
        if message.wanted is not None:
            self._want(message.wanted, message.received)

    def _want(self, wanted: int, received: int | None) -> None:
        # Assignments on their way count towards what it wants.
        under_way = 0 if received is None else self._assigned - received
        wanted = max(0, wanted - max(0, under_way))
        if wanted != self._wanted:
            self._wanted = wanted
            self._wishes.set()

    async def _register(
        self, registration: messages.Registration, named: list[str] | None
    ) -> dict[str, Any]:
        if self._registration is not None and registration.worker_id != self.worker_id:
            raise InvalidRequest(
                f"This connection is that of worker '{self.worker_id}'.",
                field="registration.worker_id",
            )
        await self._loop.in_thread(actions.register, self._visitor, registration, named)
        self._registration = registration
        self._take_place()
        self._stop_pushing()
        self._pusher = asyncio.create_task(self._push(registration))
        timeout = options().HEARTBEAT_TIMEOUT.total_seconds()
        return {
            "registered": registration.worker_id,
            "heartbeat_timeout_ms": round(timeout * 1000),
            "specs": await self._loop.in_thread(actions.specs_of, registration),
        }

    def _take_place(self) -> None:
        """Become the connection of the worker, under its current stored id."""
        assert self._registration is not None
        self._give_place_up()
        name, sessions = self._registration.name, self._connections.sessions
        before, sessions[name], self._name = sessions.get(name), self, name
        if before is not None and before is not self:
            before.replace()

    def _give_place_up(self) -> bool:
        """Whether it was the connection of the worker until now."""
        was_its = self._connections.sessions.get(self._name) is self
        if was_its:
            del self._connections.sessions[self._name]
        return was_its

    def replace(self) -> None:
        """End this connection without delaying the new one, on which its worker has reconnected."""
        self._stop_pushing()
        closing = self._close(REPLACED, "the worker has connected again")
        self._closing = asyncio.create_task(closing)

    # Assignments

    def _stop_pushing(self) -> None:
        """Stop assigning. Never twice: that would interrupt the release of jobs."""
        if self._pusher is not None:
            self._pusher.cancel()
            self._stopped.add(self._pusher)
            self._pusher = None

    async def _push(self, registration: messages.Registration) -> None:
        """Assign jobs as soon as there are any, at most as many as wanted."""
        try:
            while not self._loop.ending.is_set():
                self._wishes.clear()
                if self._wanted <= 0:
                    await self._wishes.wait()
                    continue
                found = await self._find(registration)
                if found is not None:
                    await self._assign(found)
        except ConnectionError:
            pass
        except (NotAuthenticated, PermissionDenied) as refusal:
            await self._revoked(refusal)
        except Exception as problem:
            await self.give_up(problem)

    async def give_up(self, problem: Exception) -> None:
        """Close the connection after a bug, or while the database is unavailable.

        The worker will reconnect.
        """
        trouble = explain(problem)
        if isinstance(trouble, DatabaseUnavailable):
            outages.report(logger, trouble, problem)
            await self._close(TRY_AGAIN_LATER, str(trouble))
        else:
            logger.error("The connection of %r failed.", self.worker_id, exc_info=problem)
            await self._close(INTERNAL_ERROR, "internal error")

    async def _find(self, registration: messages.Registration) -> Look | None:
        """Wait for work; None if the worker no longer wants any."""
        hub, queues = self._connections.hub, registration.queues
        await hub.hear(self._loop)
        looked_at = time.monotonic()
        found = await self._look(registration)
        if found.jobs:
            return found
        waiter = Waiter(self.worker_id, lambda: self._look(registration), self._give_back)
        alike = (found.able, registration.project)
        waiting = asyncio.create_task(hub.wait(waiter, queues, alike, looked_at, None))
        try:
            await self._wanted_or(waiting)
            if not waiting.done():
                # Jobs that it claims at this moment are released.
                waiting.cancel()
                await asyncio.wait([waiting])
        except asyncio.CancelledError:
            waiting.cancel()
            (came,) = await asyncio.gather(waiting, return_exceptions=True)
            if isinstance(came, Look):
                await self._give_back(came)
            raise
        return None if waiting.cancelled() else waiting.result()

    async def _wanted_or(self, waiting: asyncio.Task[Any]) -> None:
        """Return when `waiting` is done, or when the worker no longer wants anything.

        A worker that wants more or fewer jobs continues to wait, and a claim in progress is
        awaited: `_assign` releases any surplus.
        """
        while not waiting.done() and (self._wanted > 0 or self._looks):
            self._wishes.clear()
            wishing = asyncio.create_task(self._wishes.wait())
            try:
                await asyncio.wait([waiting, wishing], return_when=asyncio.FIRST_COMPLETED)
            finally:
                wishing.cancel()

    async def _look(self, registration: messages.Registration) -> Look:
        """Claim once, to the end: claimed jobs are sent or released."""
        count = min(self._wanted, 1 if self._reads_slowly else ojs_settings.MAX_FETCH)
        if count <= 0:
            return Look([])
        looking = asyncio.ensure_future(
            self._loop.in_thread(actions.look, self._visitor, registration, count)
        )
        self._looks += 1
        try:
            found = await asyncio.shield(looking)
            if self._is_gone:
                await self._give_back(found)
                return Look([])
            return found
        except asyncio.CancelledError:
            # The claim continues in its thread, and its jobs must not be lost.
            await self._give_back(await looking)
            raise
        finally:
            self._looks -= 1
            self._wishes.set()

    async def _assign(self, found: Look) -> None:
        """Send claimed jobs as long as they are wanted; release the rest."""
        self._in_hand |= {str(job.id) for job in found.jobs}
        loop, unsent = asyncio.get_running_loop(), list(found.jobs)
        try:
            while unsent and self._wanted > 0 and not self._loop.ending.is_set():
                # Counted before it is sent, because a message that arrives meanwhile is compared
                # with this number.
                self._assigned += 1
                self._wanted -= 1
                self._reads_slowly = False
                slow = loop.call_later(PROMPTLY, self._give_others_back, unsent)
                try:
                    await self._send(messages.assignment(unsent[0], self._project))
                finally:
                    slow.cancel()
                del unsent[0]
        finally:
            await self._give_back(Look(unsent))

    def _give_others_back(self, unsent: list[ClaimedJob]) -> None:
        """Release the jobs that wait while the first one is being sent."""
        self._reads_slowly = True
        others = unsent[1:]
        del unsent[1:]
        self._loop.keep(self._release(others))

    async def _release(self, jobs: list[ClaimedJob]) -> None:
        try:
            await self._give_back(Look(jobs))
        except Exception as problem:
            await self.give_up(problem)

    async def _give_back(self, found: Look) -> None:
        if found.jobs:
            self._in_hand -= {str(job.id) for job in found.jobs}
            await self._loop.in_thread(actions.release, self._registration, found.jobs)

    async def end(self) -> None:
        """Clean up after the connection. Whether the worker has left depends on how it closed.

        A worker that closed properly and holds no jobs has left (a warm shutdown). Any other may
        reconnect until it has been silent for too long, when the reaper takes over.
        """
        if self._is_closed:
            await self._over
        self._is_gone = True
        if self._pusher is not None and self._loop.ending.is_set():
            # A message being sent completes or fails first: otherwise the holder would be unknown.
            self._wishes.set()
            await asyncio.wait([self._pusher], timeout=GOODBYE)
        self._stop_pushing()
        if self._answering is not None:
            self._answering.cancel()
        ended = await asyncio.gather(*self._stopped, return_exceptions=True)
        while self._looks:
            self._wishes.clear()
            await self._wishes.wait()
        is_last, has_left = self._give_place_up(), self._socket.close_code in PROPERLY
        if is_last and has_left and not self._is_closed and not self._in_hand:
            await self._loop.in_thread(actions.leave, self._registration)
        for problem in ended:
            if isinstance(problem, Exception) and not isinstance(problem, ConnectionError):
                raise problem

"""One AGQ client's connection, and the order of what is done on it.

One command of a connection at a time, and nothing more is read from it while many wait: a client
that pipelines without reading holds up itself alone. Commands run in threads, each with a
database connection of its own; waiting costs no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from jobs import wakeup
from jobs.conf import ojs_settings
from jobs.errors import DatabaseUnavailable, OJSError
from jobs.trouble import explain
from workers.waiting import Look, Waiter

from . import commands, documents, small_talk, verify
from .commands import COMMANDS
from .resp import NO_ITEMS, Encoded, Failed, Parser, ProtocolError, Status, encode
from .session import NO_AUTH, Session

if TYPE_CHECKING:
    from .server import Server

logger = logging.getLogger("workers.agq")

PIPELINED = 1000
"""Commands of one connection that wait for their turn; beyond that, reading pauses."""
STRANGERS_COMMAND = 64 * 1024
"""Largest command, in bytes, of somebody who has not said who they are."""
STRANGERS_FAILURES = 5
SLOWEST_READER = 30.0
"""Seconds a client may leave a reply unread before its connection is closed."""
LONGEST_BLOCK = 24 * 3600.0
READ = 64 * 1024


class Connection(asyncio.Protocol):
    """One client."""

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self.server = server
        self.session = Session(next(server.numbers))
        self.parser = Parser(STRANGERS_COMMAND)
        self._commands: deque[list[bytes]] = deque()
        self._waiting_bytes = 0
        self.working: asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._reading = True
        self._ends = False
        """Nothing more is expected: it is closed when what came before is answered."""
        self._deaf = False
        """What arrives cannot be understood any more."""
        self._held = 0

    # What the event loop tells us

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if len(self.server.connections) >= ojs_settings.AGQ.MAX_CONNECTIONS:
            transport.write(encode(Failed("ERR max number of clients reached")))
            transport.close()
            return
        transport.set_write_buffer_limits(high=READ)
        self.server.connections.add(self)

    def connection_lost(self, problem: Exception | None) -> None:
        self.server.connections.discard(self)
        if self.server.registered.get(self.session.worker_id) is self:
            del self.server.registered[self.session.worker_id]
        self._count(0)
        self._commands.clear()
        self._may_write.set()
        if self.working is not None:
            self.working.cancel()

    def data_received(self, data: bytes) -> None:
        if self._ends or self._deaf:
            return
        if self.session.is_known:
            self.parser.limit = ojs_settings.AGQ.MAX_COMMAND
        try:
            for command in self.parser.feed(data):
                self._commands.append(command)
                self._waiting_bytes += sum(map(len, command))
            self._count(self.parser.held + self._waiting_bytes)
            if self._held > READ and self.server.held > ojs_settings.AGQ.MAX_BUFFERED:
                raise ProtocolError("the server is holding too many unfinished commands")
        except ProtocolError as problem:
            # What was understood before is still answered.
            self._deaf = True
            self._commands.append([b"", str(problem).encode()])
        if len(self._commands) > PIPELINED or self._waiting_bytes > READ:
            self._pause()
        if self._commands and (self.working is None or self.working.done()):
            self.working = self.server.loop.create_task(self._work())

    def eof_received(self) -> bool:
        # Commands that came before the end are still carried out, as `printf … | nc` expects.
        if self.working is not None and not self.working.done() and not self.is_blocked:
            self._ends = True
            return True
        return False

    is_blocked = False

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    # What we do

    def _count(self, held: int) -> None:
        self.server.held += held - self._held
        self._held = held

    def _pause(self) -> None:
        if self._reading and not self.transport.is_closing():
            self._reading = False
            self.transport.pause_reading()

    def _resume(self) -> None:
        if not self._reading and not self.transport.is_closing():
            self._reading = True
            self.transport.resume_reading()

    async def _work(self) -> None:
        """Carry out what has arrived, in order."""
        try:
            while self._commands and not self.transport.is_closing():
                command = self._commands.popleft()
                self._waiting_bytes -= sum(map(len, command))
                reply = await self._carry_out(command)
                self.transport.write(reply)
                if not self._may_write.is_set():
                    async with asyncio.timeout(SLOWEST_READER):
                        await self._may_write.wait()
                if len(self._commands) < PIPELINED // 2 and self._waiting_bytes <= READ:
                    self._resume()
            self._count(self.parser.held + self._waiting_bytes)
            if self._ends:
                self.transport.close()
        except TimeoutError:
            logger.info("Connection %d reads too slowly and is closed.", self.session.number)
            self.transport.abort()

    async def _carry_out(self, command: list[bytes]) -> bytes:
        name = command[0].decode("latin-1").upper()
        if not name:  # no RESP: there is no telling where the next command would begin
            self._ends = True
            self._commands.clear()
            return encode(Failed(f"ERR Protocol error: {command[1].decode()}"))
        try:
            reply = await self._reply(name, command[1:])
        except Failed as refusal:
            reply = refusal
            if self.session.failures >= STRANGERS_FAILURES:
                self._ends = True
                self._commands.clear()
        except OJSError as refusal:
            reply = commands.explained(refusal)
        except Exception as problem:
            # A bug or a database that is away: this client is told, and the others go on.
            trouble = explain(problem)
            if isinstance(trouble, DatabaseUnavailable):
                logger.error("%s: %s %s", name[:40], trouble, str(problem).strip())
                reply = Failed(f"ERR {trouble} Try again.")
            else:
                logger.exception("%s failed.", name[:40])
                reply = Failed("ERR the server failed; try again")
        return reply if isinstance(reply, Encoded) else encode(reply, self.session.resp)

    async def _reply(self, name: str, arguments: list[bytes]) -> Any:
        if name == "QUIT":
            self._ends = True
            self._commands.clear()
            return Status("OK")
        if name in small_talk.WORDS:
            needed, answer = small_talk.WORDS[name]
            if needed and not self.session.is_known:
                raise Failed(NO_AUTH)
            return answer(self.session, arguments)
        if name == "HELLO":
            return await self._hello(arguments)
        if name == "BRPOP":
            return await self._pop(arguments)
        if name == "WORKER.VERIFY":
            return await self._verify(arguments)
        if name not in COMMANDS:
            if not self.session.is_known:
                raise Failed(NO_AUTH)
            raise Failed(f"ERR unknown command '{name[:64]}'")
        function, fewest, most = COMMANDS[name]
        if not fewest <= len(arguments) <= most:
            raise Failed(f"ERR wrong number of arguments for '{name.lower()}' command")
        if name == "WORKER.REGISTER":
            return await self._register(arguments[0])
        return await self.server.in_thread(function, self.session, *arguments)

    async def _register(self, document: bytes) -> Any:
        if not self.session.is_known:
            raise Failed(NO_AUTH)
        worker_id = documents.read(document, "worker").get("worker_id")
        first = self.server.registered.get(worker_id) if isinstance(worker_id, str) else None
        resume = first is None or first is self or first.transport.is_closing()
        reply = await self.server.in_thread(
            lambda: commands.register(self.session, document, resume=resume)
        )
        if not self.transport.is_closing():
            self.server.registered[self.session.worker_id] = self
        return reply

    async def _hello(self, arguments: list[bytes]) -> Any:
        """HELLO [2|3 [AUTH <user> <key>] [SETNAME <name>]]"""
        version, login, name = small_talk.hello(arguments)
        if login is not None:
            await self.server.in_thread(commands.auth, self.session, *login)
        if not self.session.is_known:
            raise Failed(NO_AUTH)
        if name is not None:
            small_talk.name_it(self.session, name)
        self.session.resp = version or self.session.resp
        return small_talk.greeting(self.session)

    async def _verify(self, arguments: list[bytes]) -> Any:
        if not 2 <= len(arguments) <= 3:
            raise Failed("ERR wrong number of arguments for 'worker.verify' command")
        question = await self.server.in_thread(commands.verify_begin, self.session, *arguments)
        if len(arguments) == 3:
            await self.server.hub.ring_for(arguments[2].decode())
        deadline = time.monotonic() + verify.PATIENCE
        while time.monotonic() < deadline:
            answer = await self.server.in_thread(verify.answer, question)
            if answer is not None:
                return answer
            await asyncio.sleep(wakeup.SHORT_POLL)
        raise await self.server.in_thread(verify.give_up, question)

    async def _pop(self, arguments: list[bytes]) -> Any:
        """BRPOP queue:<name> [queue:<name> …] <timeout>; 0 waits for ever."""
        if not 2 <= len(arguments) <= 100:
            raise Failed("ERR wrong number of arguments for 'brpop' command")
        seconds = small_talk.seconds(arguments[-1])
        queues = list(dict.fromkeys(commands.queue_name(key) for key in arguments[:-1]))
        self.is_blocked = True
        try:
            found = await self._wait_for_job(queues, seconds)
        finally:
            self.is_blocked = False
        if found is None:
            return NO_ITEMS if self.session.resp == 2 else None
        job = found.jobs[0]
        return [f"queue:{job.queue}", documents.pulled(job)]

    async def _wait_for_job(self, queues: list[str], seconds: float) -> Look | None:
        hub = self.server.hub
        deadline = time.monotonic() + seconds if seconds else math.inf
        if not hub.listens:
            await self.server.in_thread(hub.listen)
        since = hub.heard(queues)
        found = await self._look(queues)
        if found.jobs:
            return found
        left = min(deadline - time.monotonic(), LONGEST_BLOCK)
        if left <= 0 or self._ends or self.server.is_ending:
            return None
        waiter = Waiter(self.session.worker_id, lambda: self._look(queues), self._give_back)
        alike = (found.able, self.session.project)
        return await hub.wait(waiter, queues, alike, since, left)

    async def _look(self, queues: list[str]) -> Look:
        """Look once, to the end: a job that was claimed is handed over or given back."""
        looking = asyncio.ensure_future(self.server.in_thread(commands.pop, self.session, queues))
        try:
            found = await asyncio.shield(looking)
        except asyncio.CancelledError:
            self.server.keep(self._give_back_when_done(looking))
            raise
        if found.jobs and self.transport.is_closing():
            await self._give_back(found)
            return Look([])
        return found

    async def _give_back(self, found: Look) -> None:
        if found.jobs:
            await self.server.in_thread(commands.give_back, self.session, found.jobs)

    async def _give_back_when_done(self, looking: asyncio.Future[Look]) -> None:
        with contextlib.suppress(Failed, OJSError):
            await self._give_back(await looking)

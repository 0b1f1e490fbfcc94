"""Connection of an AGQ client, and the order of the work on it.

Commands of a connection are carried out one at a time, and reading pauses while many are waiting:
a client that pipelines without reading delays only itself. Commands run in threads, each with its
own database connection; waiting takes no thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from jobs.access import refusals
from jobs.errors import DatabaseUnavailable, NotAuthenticated, OJSError
from jobs.http.authentication import Caller
from jobs.store import outages, wakeup
from jobs.store.trouble import explain
from workers.fetching.waiting import Look, Waiter

from . import PROTOCOL, commands, connection_commands, documents, options, verify
from .commands import COMMANDS, OK
from .resp import (
    NO_ITEMS,
    Encoded,
    Failed,
    HTTPSpoken,
    Parser,
    ProtocolError,
    Status,
    encode,
    size_of,
)
from .session import NO_AUTH, Revoked, Session
from .transaction import ABORTED, AT_ONCE, NO_WATCH, WAITS, Transaction

if TYPE_CHECKING:
    from jobs.access import Command

    from .server import Server

logger = logging.getLogger("workers.agq")

PIPELINED = 1000
"""Commands of one connection that may wait for their turn; beyond that, reading pauses."""
STRANGERS_COMMAND = 64 * 1024
"""Maximum size of a command from an unauthenticated client, in bytes."""
STRANGERS_FAILURES = 5
ALWAYS_TAKEN = 1024
"""Bytes of a connection that are accepted however full the buffers are: enough to log in."""
SLOWEST_READER = 30.0
"""Seconds after which a connection is closed whose client does not read a reply."""
LINGERING = 10.0
"""Seconds for which a client may go on sending after bytes that cannot be read. What it sends is
dropped; if the connection were closed at once, the reset would often reach it before the reply."""
LONGEST_BLOCK = 24 * 3600.0
READ = 64 * 1024
WORDS = frozenset(commands.known())
NOT_CARRIED_OUT = encode(
    Failed("ERR not carried out: the answers to the commands before are too much for one reply")
)
ARGUMENTS = {name: (fewest, most) for name, (_, fewest, most) in COMMANDS.items()} | {
    "BRPOP": (2, 100),
    "WORKER.VERIFY": (2, 3),
    "WATCH": (1, 1000),
    **dict.fromkeys(("MULTI", "EXEC", "DISCARD", "UNWATCH", "RESET"), (0, 0)),
}
"""Command → minimum and maximum number of arguments."""


class Connection(asyncio.Protocol):
    """The connection of one client."""

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
        """The connection is closing: it ends when earlier commands have been answered."""
        self._has_heard_end = False
        """The client sends no more."""
        self._unreadable: ProtocolError | None = None
        """Why the stream cannot be parsed any further: the last answer on this connection."""
        self._held = 0
        self._held_as_known = False
        self._deadline: asyncio.TimerHandle | None = None
        """Ends the connection if the client does not authenticate in time."""
        self._is_overdue = False
        self._transaction: Transaction | None = None
        self._runs_transaction = False
        self._popped: list[Look] = []
        """Jobs that a running transaction has popped, but not yet delivered."""
        self._registered: set[tuple[str, str]] = set()
        """The workers that registered on it, by project and id; see `Server.registered`."""

    # Called by the event loop

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.session.address = str((transport.get_extra_info("peername") or ("",))[0])
        if len(self.server.connections) >= options().MAX_CONNECTIONS:
            transport.write(encode(Failed("ERR max number of clients reached")))
            transport.close()
            return
        transport.set_write_buffer_limits(high=READ)
        self.server.connections.add(self)
        self._expect_key()

    def _expect_key(self) -> None:
        """Start the time limit for authentication."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._is_overdue = False
        patience = options().AUTH_TIMEOUT.total_seconds()
        if patience and not self.session.is_known:
            self._deadline = self.server.loop.call_later(patience, self._end_stranger)

    def connection_lost(self, problem: Exception | None) -> None:
        self.server.connections.discard(self)
        self._forget_workers()
        self._count(0)
        self._commands.clear()
        # What has not ended yet, such as the release of a job, keeps this object for a while.
        self.parser.clear()
        self._may_write.set()
        if self._deadline is not None:
            self._deadline.cancel()
        if self.working is not None:
            self.working.cancel()

    def data_received(self, data: bytes) -> None:
        if self._ends or self._unreadable:
            return
        if self.session.is_known:
            self.parser.limit = options().MAX_COMMAND
        try:
            for command in self.parser.feed(data):
                self._commands.append(command)
                self._waiting_bytes += size_of(command)
            self._count(self._unfinished)
            self._check_share()
        except HTTPSpoken:
            self._end_browser()
            return
        except ProtocolError as problem:
            # Commands parsed before this are still answered.
            self._unreadable = problem
        if len(self._commands) > PIPELINED or self._waiting_bytes > READ:
            self._pause()
        has_work = self._commands or self._unreadable
        if has_work and (self.working is None or self.working.done()):
            self.working = self.server.loop.create_task(self._work())

    def eof_received(self) -> bool:
        self._has_heard_end = True
        # Commands received before the end are still carried out, as `printf … | nc` expects.
        if self.working is not None and not self.working.done() and not self.is_blocked:
            self._ends = True
            # TLS connections cannot be half-closed.
            return self.transport.get_extra_info("ssl_object") is None
        return False

    is_blocked = False

    @property
    def _is_open(self) -> bool:
        return not (self._ends or self.transport.is_closing())

    @property
    def key(self) -> str:
        return self.session.key

    def renew(self, caller: Caller | None) -> None:
        """Continue with the current rights of the key."""
        is_idle = self.working is None or self.working.done()
        if caller is not None and caller != self.session.caller:
            self.session.caller = caller
            if self.is_blocked:
                # The next attempt checks whether it may still wait for these queues.
                self.server.keep(self.server.hub.ring_for(self.session.worker_id))
        elif caller is None and (is_idle or self.is_blocked) and self._is_open:
            # Otherwise the current command, or the next one, is refused.
            self._end()
            self.transport.write(encode(Revoked(), self.session.resp))
            self.transport.close()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    # Our own work

    @property
    def _unfinished(self) -> int:
        """Bytes of commands that were received but not carried out."""
        put_off = self._transaction.size if self._transaction else 0
        return self.parser.held + self._waiting_bytes + put_off

    def _count(self, held: int) -> None:
        self.server.held[self._held_as_known] -= self._held
        self._held, self._held_as_known = held, self.session.is_known
        self.server.held[self._held_as_known] += held

    def _check_share(self) -> None:
        """
        Raises:
            ProtocolError: there is no room for what this connection has sent so far.
        """
        known = self._held_as_known
        if self._held > (READ if known else ALWAYS_TAKEN) and (
            self.server.held[known] > self.server.may_hold(known)
        ):
            raise ProtocolError("the server is holding too many unfinished commands")

    def _end_browser(self) -> None:
        """End the connection of a browser that sends HTTP with commands in the body.

        Without a reply, as in Redis: the page could make the browser read it.
        """
        address = (self.transport.get_extra_info("peername") or ("an unknown address",))[0]
        if self.server.browsers.is_new(address):
            logger.warning("HTTP from %s at AGQ's port: the connection was closed.", address)
        self._end()
        self.transport.abort()

    def _end_stranger(self) -> None:
        """End the connection if it has not authenticated in time; waits for a pending lookup."""
        self._is_overdue = True
        if self.session.is_known or self.transport.is_closing():
            return
        if self.working is None or self.working.done():
            logger.info("Connection %d has not authenticated in time.", self.session.number)
            self.transport.write(encode(Failed(NO_AUTH)))
            self.transport.close()
            # A client that does not read would keep it open.
            self._deadline = self.server.loop.call_later(SLOWEST_READER, self.transport.abort)

    def _pause(self) -> None:
        if self._reading and not self.transport.is_closing():
            self._reading = False
            self.transport.pause_reading()

    def _resume(self) -> None:
        if not self._reading and not self.transport.is_closing():
            self._reading = True
            self.transport.resume_reading()

    def _end(self) -> None:
        """End the connection once the current command is answered; the others are not."""
        self._ends = True
        self._unreadable = None
        self._commands.clear()

    async def _close_with(self, last: bytes) -> None:
        """Send a last reply; close once the client has stopped sending, or has had time to."""
        self._end()
        self._count(self._unfinished)
        if can_stay := self.transport.can_write_eof():
            # With an empty buffer, the end is sent here and not by the event loop.
            self.transport.set_write_buffer_limits(high=0)
        self.transport.write(last)
        await self._until_written()
        if self._has_heard_end or not can_stay:
            self.transport.close()
            return
        try:
            self.transport.write_eof()
        except OSError:
            # The client has reset the connection; the event loop has yet to notice.
            self.transport.abort()
            return
        self._resume()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.server.loop.call_later(LINGERING, self.transport.abort)

    async def _work(self) -> None:
        """Carry out the received commands; without this task, nothing would be answered."""
        try:
            await self._carry_out()
        except TimeoutError:
            logger.info("Connection %d reads too slowly and is closed.", self.session.number)
            self.transport.abort()
        except Exception:
            logger.exception("Connection %d failed and is closed.", self.session.number)
            self.transport.abort()

    async def _carry_out(self) -> None:
        """Carry out the received commands, in order."""
        while self._commands and not self.transport.is_closing():
            name, *arguments = command = self._commands.popleft()
            self._waiting_bytes -= size_of(command)
            reply = await self._answer(name.decode("latin-1").upper(), arguments)
            self.transport.write(reply)
            if self._is_overdue and not self.session.is_known:
                self._end()
            await self._until_written()
            if len(self._commands) < PIPELINED // 2 and self._waiting_bytes <= READ:
                self._resume()
        if self._unreadable and not self.transport.is_closing():
            await self._close_with(encode(Failed(f"ERR Protocol error: {self._unreadable}")))
            return
        self._count(self._unfinished)
        if self._ends:
            self.transport.close()

    async def _until_written(self) -> None:
        """Wait while more than the limit of the write buffer waits for the client to read it.

        Raises:
            TimeoutError: the client reads too slowly.
        """
        if not self._may_write.is_set():
            async with asyncio.timeout(SLOWEST_READER):
                await self._may_write.wait()

    async def _answer(self, name: str, arguments: list[bytes]) -> bytes:
        try:
            reply = await self._reply(name, arguments)
        except Revoked as refusal:
            reply = refusal
            self._end()
        except Failed as refusal:
            reply = refusal
            if str(refusal) == NO_AUTH:
                self._audit(NotAuthenticated(NO_AUTH), name)
            if self.session.failures >= STRANGERS_FAILURES:
                self._end()
        except OJSError as refusal:
            self._audit(refusal, name)
            reply = commands.explained(refusal)
        except Exception as problem:
            # A bug or an unavailable database: report it to this client and continue.
            trouble = explain(problem)
            if isinstance(trouble, DatabaseUnavailable):
                outages.report(logger, trouble, problem)
                reply = Failed(f"ERR {trouble} Try again.")
            else:
                logger.exception("%s failed.", name[:40])
                reply = Failed("ERR the server failed; try again")
        return reply if isinstance(reply, Encoded) else encode(reply, self.session.resp)

    def _audit(self, problem: OJSError, name: str) -> None:
        """Record a refusal in the audit. The client does not wait for it."""
        caller = self.session.caller
        refusal = refusals.seen(
            problem,
            protocol=PROTOCOL.name,
            address=self.session.address,
            key=caller.name if caller else "",
            # An unknown command may be a key in the wrong place.
            call=name if name in WORDS else "",
        )
        if refusal is not None:
            self.server.keep(self.server.in_thread(refusals.record, refusal))

    async def _reply(self, name: str, arguments: list[bytes]) -> Any:
        try:
            declared = self._check(name, arguments)
        except (Failed, OJSError):
            # A command that is refused immediately aborts the transaction.
            if self._puts_off and self._transaction:
                self._transaction.give_up()
            raise
        if name == "QUIT":
            self._end()
            return Status("OK")
        if name == "RESET":
            return self._reset()
        if name in AT_ONCE:
            await self.server.in_thread(self.session.look_again)
        if name in AT_ONCE or self._puts_off:
            return await self._of_transaction(name, arguments)
        if name in connection_commands.WORDS:
            if self.session.key and not (declared and declared.is_open):
                await self.server.in_thread(self.session.look_again)
            return connection_commands.WORDS[name](self.session, arguments)
        if name == "HELLO":
            return await self._hello(arguments)
        if name == "BRPOP":
            return await self._pop(arguments)
        if name == "WORKER.VERIFY":
            return await self._verify(arguments)
        if name == "WORKER.REGISTER":
            return await self._register(arguments[0])
        if name == "WORKER.UNREGISTER":
            return await self._unregister(arguments[0])
        return await self.server.in_thread(commands.carry_out, self.session, name, *arguments)

    def _check(self, name: str, arguments: list[bytes]) -> Command | None:
        """Return the declaration of a command.

        Raises:
            Failed: it does not exist, has the wrong number of arguments, or requires a key.
            PermissionDenied: the key does not permit it.
        """
        if name not in WORDS:
            if not self.session.is_known:
                raise Failed(NO_AUTH)
            raise Failed(f"ERR unknown command '{name[:64]}'")
        declared = commands.rule(name)
        self.session.entitle(declared)
        fewest, most = ARGUMENTS.get(name, (0, len(arguments)))
        if not fewest <= len(arguments) <= most:
            raise Failed(f"ERR wrong number of arguments for '{name.lower()}' command")
        if self._puts_off and name in WAITS:
            raise Failed(f"ERR {name} waits for an answer, and cannot be put off by MULTI")
        return declared

    @property
    def _puts_off(self) -> bool:
        """Whether commands are queued until EXEC."""
        return self._transaction is not None and not self._runs_transaction

    async def _of_transaction(self, name: str, arguments: list[bytes]) -> Any:
        """MULTI, EXEC and related commands, and the commands queued between them."""
        waiting = self._transaction
        if name == "WATCH":
            raise Failed("ERR WATCH inside MULTI is not allowed" if waiting else NO_WATCH)
        if name == "UNWATCH":
            return OK
        if name == "MULTI":
            if waiting is not None:
                raise Failed("ERR MULTI calls can not be nested")
            self._transaction = Transaction(options().MAX_COMMAND)
            return OK
        if waiting is None:
            raise Failed(f"ERR {name} without MULTI")
        if name == "DISCARD":
            self._transaction = None
            return OK
        if name == "EXEC":
            return await self._execute(waiting)
        return waiting.add([name.encode("latin-1"), *arguments])

    async def _execute(self, waiting: Transaction) -> Encoded:
        """Carry out the queued commands, in order; an error is a reply like any other.

        Raises:
            Failed: a command was refused when it was queued.
        """
        if waiting.is_broken:
            self._transaction = None
            raise Failed(ABORTED)
        answers: list[bytes] = []
        size, most = 0, options().MAX_COMMAND
        self._runs_transaction = True
        try:
            for name, *arguments in waiting.commands:
                if size > most or self.session.failures >= STRANGERS_FAILURES:
                    answers.append(NOT_CARRIED_OUT)
                    continue
                answers.append(await self._answer(name.decode("latin-1"), arguments))
                size += len(answers[-1])
        except asyncio.CancelledError:
            for found in self._popped:
                self.server.keep(self._give_back(found))
            raise
        finally:
            self._transaction, self._runs_transaction = None, False
            self._popped.clear()
        return Encoded(b"*%d\r\n%b" % (len(answers), b"".join(answers)))

    def _reset(self) -> Status:
        """RESET: return to the state of a new connection."""
        self._forget_workers()
        self.session.reset()
        self.parser.limit = STRANGERS_COMMAND
        self._transaction = None
        self._expect_key()
        return Status("RESET")

    async def _register(self, document: bytes) -> Any:
        worker_id = documents.read(document, "worker").get("worker_id")
        first = None
        if isinstance(worker_id, str):
            first = self.server.registered.get((self.session.project, worker_id))
        resume = first is None or first is self or first.transport.is_closing()
        reply = await self.server.in_thread(
            lambda: commands.carry_out(self.session, "WORKER.REGISTER", document, resume=resume)
        )
        if not self.transport.is_closing():
            self.server.registered[self.session.identity] = self
            self._registered.add(self.session.identity)
        return reply

    async def _unregister(self, worker_id: bytes) -> Any:
        project = self.session.project
        reply = await self.server.in_thread(
            commands.carry_out, self.session, "WORKER.UNREGISTER", worker_id
        )
        self._forget_worker((project, worker_id.decode()))
        return reply

    def _forget_worker(self, identity: tuple[str, str]) -> None:
        self._registered.discard(identity)
        if self.server.registered.get(identity) is self:
            del self.server.registered[identity]

    def _forget_workers(self) -> None:
        for identity in list(self._registered):
            self._forget_worker(identity)

    async def _hello(self, arguments: list[bytes]) -> Any:
        """HELLO [2|3 [AUTH <user> <key>] [SETNAME <name>]]"""
        version, login, name = connection_commands.hello(arguments)
        if login is not None:
            await self.server.in_thread(commands.carry_out, self.session, "AUTH", *login)
        if not self.session.is_known:
            raise Failed(NO_AUTH)
        if name is not None:
            connection_commands.name_it(self.session, name)
        self.session.resp = version or self.session.resp
        return connection_commands.greeting(self.session)

    async def _verify(self, arguments: list[bytes]) -> Any:
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
        """BRPOP queue:<name> [queue:<name> …] <timeout>; 0 waits forever."""
        seconds = connection_commands.seconds(arguments[-1])
        queues = list(dict.fromkeys(commands.queue_name(key) for key in arguments[:-1]))
        self.is_blocked = True
        try:
            found = await self._wait_for_job(queues, seconds)
        finally:
            self.is_blocked = False
        if found is None:
            return NO_ITEMS if self.session.resp == 2 else None
        if self._runs_transaction:
            self._popped.append(found)
        job = found.jobs[0]
        return [f"queue:{job.queue}", documents.pulled(job, self.session.project)]

    async def _wait_for_job(self, queues: list[str], seconds: float) -> Look | None:
        hub = self.server.hub
        deadline = time.monotonic() + seconds if seconds else math.inf
        await hub.hear(self.server)
        looked_at = time.monotonic()
        found = await self._look(queues)
        if found.jobs:
            return found
        left = min(deadline - time.monotonic(), LONGEST_BLOCK)
        if left <= 0 or self._ends or self._runs_transaction or self.server.is_ending:
            return None
        waiter = Waiter(self.session.worker_id, lambda: self._look(queues), self._give_back)
        alike = (found.able, self.session.project)
        return await hub.wait(waiter, queues, alike, looked_at, left)

    async def _look(self, queues: list[str]) -> Look:
        """Try once, to the end: a claimed job is delivered or released."""
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
            await self.server.in_thread(commands.release, self.session, found.jobs)

    async def _give_back_when_done(self, looking: asyncio.Future[Look]) -> None:
        try:
            await self._give_back(await looking)
        except (Failed, OJSError):
            pass
        except Exception as problem:
            # Its reservation will expire, which also returns the job.
            logger.warning("A job for a closed connection could not be released: %s", problem)

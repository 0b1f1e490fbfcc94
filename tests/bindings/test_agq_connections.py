"""What an AGQ server keeps of a connection, and what happens to one that fails."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import logging
import weakref
from collections.abc import Awaitable, Callable

import pytest

from jobs.http.authentication import make_key
from jobs.store import wakeup
from tests import processes
from workers.bindings.agq import connection_commands
from workers.bindings.agq.server import Server

pytestmark = pytest.mark.django_db(transaction=True)


class Client:
    """A worker's connection, in the loop of its server."""

    def __init__(
        self, key: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.key = key
        self._reader, self._writer = reader, writer

    async def __call__(self, *words: str) -> str:
        self.send(b"*%d\r\n" % len(words))
        for word in words:
            self.send(b"$%d\r\n%b\r\n" % (len(word), word.encode()))
        return (await self.line()).decode().rstrip()

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def line(self) -> bytes:
        """The next line; empty once the server has closed the connection."""
        async with asyncio.timeout(processes.PATIENCE):
            with contextlib.suppress(ConnectionResetError):
                return await self._reader.readline()
        return b""

    async def register(self, worker_id: str) -> str:
        about = {
            "worker_id": worker_id,
            "hostname": "box",
            "agw_version": "1.0.0",
            "capabilities": {"tools": []},
        }
        return await self("WORKER.REGISTER", json.dumps(about))

    async def leave(self) -> None:
        """Disconnect, and wait until the server has noticed."""
        self._writer.write_eof()
        while await self.line():
            pass
        self._writer.close()


@pytest.fixture
def served(monkeypatch):
    """Returns a function that tells a story to a server: `served(story)`."""
    monkeypatch.setattr(wakeup, "LINGER", 0)  # the thread that listens ends with the server
    _, key = make_key("tests")

    def serve(story: Callable[[Server, Callable[[], Awaitable[Client]]], Awaitable[None]]) -> None:
        async def told() -> None:
            server = Server()
            address = await server.start("127.0.0.1", 0)

            async def connect() -> Client:
                port = address.rpartition(":")[2]
                client = Client(key, *await asyncio.open_connection("127.0.0.1", port))
                assert await client("AUTH", key) == "+OK"
                return client

            await story(server, connect)
            await server.end()

        asyncio.run(told())

    return serve


async def registers(client: Client) -> None:
    await client.register("w-1")


async def registers_and_leaves(client: Client) -> None:
    await client.register("w-1")
    assert await client("WORKER.UNREGISTER", "w-1") == "+OK"


async def registers_twice(client: Client) -> None:
    await client.register("w-1")
    assert (await client.register("w-2")).startswith("+OK")


async def authenticates_again(client: Client) -> None:
    await client.register("w-1")
    assert await client("AUTH", client.key) == "+OK"


@pytest.mark.parametrize(
    "life", [registers, registers_and_leaves, registers_twice, authenticates_again]
)
def test_nothing_is_kept_of_a_connection_that_has_ended(served, life):
    async def story(server, connect):
        client = await connect()
        await life(client)
        (connection,) = server.connections
        connection = weakref.ref(connection)

        client.send(b"*2\r\n$4\r\nECHO\r\n$1000\r\nthe rest never comes")
        await client.leave()

        # The thread that answered the last command may be about to let go of it.
        async with asyncio.timeout(processes.PATIENCE):
            while connection() is not None:
                await asyncio.sleep(0.01)
                gc.collect()

    served(story)


def test_an_id_is_taken_until_the_connection_has_ended_on_which_it_registered(served):
    async def story(server, connect):
        first, second = await connect(), await connect()
        await first.register("w-1")
        await first.register("w-2")

        assert await second.register("w-1") == "-ERR Worker ID already registered"
        assert await first("WORKER.UNREGISTER", "w-1") == "+OK"
        assert (await second.register("w-1")).startswith("+OK worker_id=w-1")
        assert (await second("RESET"), await second("AUTH", second.key)) == ("+RESET", "+OK")
        assert (await first.register("w-1")).startswith("+OK worker_id=w-1")
        assert await second.register("w-1") == "-ERR Worker ID already registered"

        await first.leave()
        assert (await second.register("w-1")).startswith("+OK worker_id=w-1")
        assert (await second.register("w-2")).startswith("+OK worker_id=w-2")

    served(story)


def test_a_connection_ends_its_own_registration_and_not_the_one_that_replaced_it(served):
    _, bound = make_key("w-1", worker_id="w-1")

    async def story(server, connect):
        first, second = await connect(), await connect()
        for client in (first, second):
            assert await client("AUTH", bound) == "+OK"
            assert (await client.register("w-1")).startswith("+OK worker_id=w-1")

        for _ in range(2):
            said = await first("WORKER.UNREGISTER", "w-1")
            assert said == "-ERR Worker not registered: w-1"
        assert await second("WORKER.HEARTBEAT", "w-1") == "+OK"
        assert await second("WORKER.UNREGISTER", "w-1") == "+OK"

    served(story)


def test_a_connection_that_fails_is_closed_and_never_left_deaf(served, monkeypatch, caplog):
    monkeypatch.setitem(connection_commands.WORDS, "INFO", lambda *_: object())

    async def story(server, connect):
        client, other = await connect(), await connect()

        client.send(b"INFO\r\nPING\r\n")

        assert await client.line() == b"", "the connection is closed"
        assert await other("PING") == "+PONG"

    served(story)
    (record,) = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert record.name == "workers.agq"
    assert record.exc_info


def test_a_client_that_resets_the_connection_during_its_last_reply_is_no_failure(
    served, monkeypatch, caplog
):
    async def story(server, connect):
        client, other = await connect(), await connect()
        for connection in server.connections:
            # As the system answers if the reset has arrived and the event loop has not seen it.
            monkeypatch.setattr(connection.transport, "write_eof", not_connected, raising=False)

        client.send(b"*1\r\n!not RESP\r\n")

        assert (await client.line()).startswith(b"-ERR Protocol error")
        assert await client.line() == b"", "the connection is closed"
        assert await other("PING") == "+PONG"

    def not_connected() -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    served(story)
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []

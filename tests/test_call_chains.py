"""Someone who follows a call to its SQL opens few files.

A chain has the files that a debugger shows when a statement is sent: from where a server has read
the request, through the event loop and a database thread. Helpers that have returned by then are
not in it. `pytest -s tests/test_call_chains.py` prints the chains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

import jobs
from jobs.http.authentication import make_key
from jobs.store import wakeup
from ojs_project import asgi
from tests.call_chains import CallChains
from tests.database import connection
from workers.bindings.agq.server import Server

pytestmark = pytest.mark.django_db(transaction=True)

FETCH_WITH_ACKS, ENQUEUE, BRPOP = 12, 8, 9
"""Most files in a chain."""


@pytest.fixture
def key() -> str:
    _, secret = make_key("tests")
    return secret


@pytest.fixture(autouse=True)
def _some_jobs() -> None:
    for _ in range(8):
        jobs.enqueue("mail.send")


def is_short(what: str, chains: CallChains, most: int) -> None:
    print(f"\n{what}: {len(chains.longest)} files, {len(chains.entered)} with all helpers")
    print("".join(f"  {name}\n" for name in chains.longest), end="")
    assert 0 < len(chains.longest) <= most


def test_from_a_fetch_with_acks_to_sql(key):
    acks: list[Any] = []

    async def fetch() -> None:
        body = {"worker_id": "w", "queues": ["default"], "count": 2, "acks": acks}
        reply = await post("/ojs/v1/workers/fetch", body, key)
        acks[:] = [{"job_id": job["id"]} for job in reply["jobs"]]
        assert len(acks) == 2

    async def story() -> CallChains:
        me = asyncio.current_task()
        assert me is not None
        chains = CallChains()
        with chains.recording(lambda: [me]):  # its threads start now
            # A process looks some things up once: the key, the worker, the queue.
            await fetch()
            await fetch()
            chains.clear()
            await fetch()
        return chains

    chains = asyncio.run(story())

    is_short("A fetch with acks", chains, FETCH_WITH_ACKS)
    assert chains.longest[0] == "workers/asgi/application.py"


async def post(path: str, body: Any, key: str) -> Any:
    """Send a request to the stand-alone project as an ASGI server does; return what it answers."""
    content = orjson.dumps(body)
    headers = {
        "Host": "localhost",
        "Content-Type": "application/openjobspec+json",
        "Content-Length": str(len(content)),
        "Authorization": f"Bearer {key}",
    }
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await asgi.application(scope, receive, send)
    assert sent[0]["status"] == 200, sent
    return orjson.loads(sent[1]["body"])


def test_from_enqueue_to_sql():
    chains = CallChains()
    with chains.recording():
        jobs.enqueue("mail.send")

    is_short("jobs.enqueue()", chains, ENQUEUE)
    assert chains.longest[0] == "jobs/producer.py"


def test_from_brpop_to_sql(key, monkeypatch):
    if connection.vendor == "postgresql":
        monkeypatch.setattr(wakeup, "LINGER", 0)  # the thread that listens ends with the server
    about = {
        "worker_id": "w",
        "hostname": "box",
        "platform": "linux-amd64",
        "agw_version": "1.0.0",
        "capabilities": {"tools": [], "agentic_units": []},
        "max_concurrent_jobs": 10,
    }

    async def story() -> CallChains:
        chains = CallChains()
        with chains.recording(connections):  # its threads start now
            server = Server()
            address = await server.start("127.0.0.1", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", address.rpartition(":")[2])

            async def call(*words: str) -> bytes:
                writer.write(b"*%d\r\n" % len(words))
                writer.writelines(b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in words)
                return await reader.readuntil(b"\r\n")

            await call("AUTH", key)
            await call("WORKER.REGISTER", orjson.dumps(about).decode())
            chains.clear()
            assert await call("BRPOP", "queue:default", "1") == b"*2\r\n"
            writer.close()
        await server.end()
        return chains

    def connections() -> Iterator[asyncio.Task[Any]]:
        return (task for task in asyncio.all_tasks(loop) if "Connection" in repr(task.get_coro()))

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        chains = runner.run(story())

    is_short("A BRPOP", chains, BRPOP)
    assert chains.longest[0] == "workers/bindings/agq/connection.py"

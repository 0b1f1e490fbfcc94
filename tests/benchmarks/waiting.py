"""Waiting without a thread: fetches, event streams and unfinished bodies in great numbers.

    python -m tests.benchmarks.waiting [--quick | --smoke] [--json FILE]

Each measurement has its own server process, so that memory is measured separately. The client is
one process with an event loop; its own time is part of every result.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from tests import postgres
from tests.processes import free_port

from . import goals
from .places import (
    BODIES,
    ENDED,
    FETCHES,
    GONE,
    LOGINS,
    STREAMS,
    WAITING,
    of_many,
)
from .plan import say, stop_when_asked
from .results import Results, percentile
from .servers import PATIENCE, Server, command, environment, serve

HOST = "127.0.0.1"
WAIT_MS = 30_000
MB = 1_000_000
AT_ONCE = 200
"""Connections that are made at the same time, fewer than a server's backlog."""
WAVE = 500
"""Connections that open and close together."""
WARM_UP = 5
PAUSE = 0.02
"""Seconds between two requests of a kind, so that they do not wait for each other."""
SETTLING = 4
"""Waves after which a server without leaks no longer grows."""
CALM = 0.2
"""Share of a processor below which a server counts as finished with its work."""
UNFINISHED = b'{"type":'
Result = TypeVar("Result")


@dataclass(frozen=True)
class Sizes:
    waiting: int = 5_000
    burst: int = 500
    """Jobs enqueued at once."""
    subscribers: int = 2_000
    events: int = 20
    bodies: int = 1_000
    gone: int = 10_000
    ending: int = 20
    samples: int = 300
    idle: float = 16
    """Seconds of idling; an event stream has a comment every 15 s."""


QUICK = Sizes(1_000, 100, 400, 5, 200, 2_000, 20, 100, 2)
SMOKE = Sizes(10, 5, 5, 1, 5, 20, 3, 3, 0.1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", help="a PostgreSQL database to use (default: one of its own)")
    parser.add_argument("--quick", action="store_true", help="fewer connections")
    parser.add_argument("--smoke", action="store_true", help="only see whether everything runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    return parser.parse_args()


class Line:
    """One connection of a client, as small as possible."""

    def __init__(
        self, key: str, queue: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.reader = reader
        self._key = key
        self.queue = queue
        self._writer = writer

    def write(self, method: str, path: str, body: bytes = b"", *, missing: int = 0) -> None:
        """Send a request, or all of it but the last bytes of its body.

        Args:
            missing: number of announced bytes that are not sent.
        """
        self._writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {self._key}\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(body) + missing}\r\n\r\n".encode()
            + body
        )

    async def reply(self) -> Any:
        head = await self.head()
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r")[0])
        return json.loads(await self.reader.readexactly(length))

    async def head(self) -> bytes:
        head = await self.reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 2"):
            raise RuntimeError((head + await self.reader.read(500)).decode(errors="replace"))
        return head

    async def post(self, path: str, body: Any) -> Any:
        self.write("POST", f"/ojs/v1/{path}", json.dumps(body).encode())
        return await self.reply()

    async def enqueue(self, number: int) -> str:
        job = {"type": "bench.noop", "queue": self.queue, "args": [number]}
        return cast(str, (await self.post("jobs", job))["job"]["id"])

    def ask(self, worker_id: str, acks: list[str] | None = None, wait_ms: int = WAIT_MS) -> None:
        """Acknowledge jobs and wait for others, without parsing them."""
        body: dict[str, Any] = {"worker_id": worker_id, "queues": [self.queue]}
        body |= {"wait_ms": wait_ms, "acks": [{"job_id": job_id} for job_id in acks or ()]}
        self.write("POST", "/ojs/v1/workers/fetch", json.dumps(body).encode())

    async def fetch(self, worker_id: str, acks: list[str], wait_ms: int = WAIT_MS) -> list[str]:
        """Acknowledge jobs, wait for others, and return their ids."""
        self.ask(worker_id, acks, wait_ms)
        return [job["id"] for job in (await self.reply())["jobs"]]

    def close(self) -> None:
        self._writer.close()


class Clients:
    """All connections to a server."""

    def __init__(self, server: Server, key: str, queue: str, group: asyncio.TaskGroup) -> None:
        """
        Args:
            queue: the queue of all their jobs.
            group: background tasks; a failure ends the measurement.
        """
        self.server = server
        self.queue = queue
        self._key = key
        self._group = group
        self._tasks: list[asyncio.Task[Any]] = []
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._lines: list[Line] = []

    async def connect(self) -> Line:
        async with self._turns:
            return self._line(*await asyncio.open_connection(HOST, self.server.port))

    async def connect_many(self, count: int) -> list[Line]:
        return await asyncio.gather(*(self.connect() for _ in range(count)))

    async def connect_evenly(self, count: int) -> list[Line]:
        """Connect as often to each process of the server; `count` is small."""
        found = await asyncio.to_thread(self.server.connect, count)
        return [self._line(*await asyncio.open_connection(sock=each)) for each in found]

    def _line(self, *streams: Any) -> Line:
        line = Line(self._key, self.queue, *streams)
        self._lines.append(line)
        return line

    async def warm_up(self) -> None:
        """Let the server load and connect what its first requests need."""
        line = await self.connect()
        acks: list[str] = []
        for number in range(WARM_UP):
            line.write("GET", "/ojs/v1/health")
            await line.reply()
            await line.enqueue(number)
            acks = await line.fetch("first", acks, wait_ms=0)
            await line.post("workers/heartbeat", {"worker_id": "first", "state": "running"})
        await line.fetch("first", acks, wait_ms=0)

    def background(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run something for the duration of the measurement."""
        task = self._group.create_task(work)
        self._tasks.append(task)
        return task

    def leave(self) -> None:
        """Close all connections."""
        for line in self._lines:
            line.close()
        self._lines.clear()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.leave()

    async def calm(self) -> None:
        """Return when the server has finished its work."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if await self.share(0.5) < CALM:
                return
        say("  The server does not become idle.")

    async def share(self, seconds: float) -> float:
        """The share of a processor that the server uses in the next seconds."""
        began, before = time.monotonic(), self.server.computed()
        await asyncio.sleep(seconds)
        return (self.server.computed() - before) / (time.monotonic() - began)


class Waiters:
    """Workers that wait for jobs of one queue."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._started: dict[str, asyncio.Future[float]] = {}

    async def begin(self, count: int) -> None:
        lines = await self._clients.connect_many(count)
        for number, line in enumerate(lines):
            self._clients.background(self._work(line, f"waits-{number}"))
        await self._clients.calm()

    async def _work(self, line: Line, worker_id: str) -> None:
        ids: list[str] = []
        while True:
            ids = await line.fetch(worker_id, ids)
            now = time.perf_counter()
            for job_id in ids:
                self.started(job_id).set_result(now)

    def started(self, job_id: str) -> asyncio.Future[float]:
        """The moment at which a job reached one of them."""
        if job_id not in self._started:
            self._started[job_id] = asyncio.get_running_loop().create_future()
        return self._started[job_id]


@contextlib.asynccontextmanager
async def again_and_again(
    clients: Clients, work: Callable[[], Awaitable[Any]]
) -> AsyncIterator[list[float]]:
    """Repeat `work`, at least once, until the block ends; yields its durations in milliseconds."""
    took: list[float] = []
    has_ended = False

    async def repeat() -> None:
        while not (has_ended and took):
            began = time.perf_counter()
            await work()
            took.append(1000 * (time.perf_counter() - began))
            await asyncio.sleep(PAUSE)

    task = clients.background(repeat())
    yield took
    has_ended = True
    await task


def note(results: Results, name: str, value: float, unit: str, remark: str = "") -> None:
    result = results.get(WAITING, name, unit)
    result.rounds.append(value)
    result.note = remark


def note_times(results: Results, name: str, took: list[float]) -> None:
    for share in (50, 99):
        note(results, f"{name}, p{share}", percentile(took, share / 100), "ms")


async def fetches(clients: Clients, sizes: Sizes, results: Results) -> None:
    """How soon jobs start in waiting fetches, and the cost of these."""

    def named(measure: str) -> str:
        return of_many(sizes.waiting, FETCHES, measure)

    before = clients.server.memory() / MB
    waiters = Waiters(clients)
    await waiters.begin(sizes.waiting)
    memory = clients.server.memory() / MB
    note(results, named("memory"), memory, "MB", f"({before:.0f} without them)")
    note(results, named("processor, idle"), 100 * await clients.share(sizes.idle / 4), "%")

    producer, worker = await clients.connect_many(2)
    beat = {"worker_id": "beats", "state": "running", "active_jobs": 0}
    delays = []
    async with again_and_again(clients, lambda: worker.post("workers/heartbeat", beat)) as beats:
        for number in range(sizes.samples):
            sent = time.perf_counter()
            job_id = await producer.enqueue(number)
            delays.append(1000 * (await waiters.started(job_id) - sent))
            await asyncio.sleep(PAUSE / 2)
    note_times(results, named("heartbeat"), beats)
    note_times(results, named("enqueue to start"), delays)

    job = {"type": "bench.noop", "queue": clients.queue, "args": []}
    sent = time.perf_counter()
    reply = await producer.post("jobs/batch", {"jobs": [job] * sizes.burst})
    last = max([await waiters.started(job["id"]) for job in reply["jobs"]])
    note(results, named(f"{sizes.burst:,} jobs at once started"), 1000 * (last - sent), "ms")


async def streams(clients: Clients, sizes: Sizes, results: Results) -> None:
    """How soon all subscribers of a queue receive an event, and their cost."""

    def named(measure: str) -> str:
        return of_many(sizes.subscribers, STREAMS, measure)

    producer = await clients.connect()
    before = clients.server.memory() / MB
    heard: list[float] = []
    all_heard = asyncio.Event()

    async def follow(line: Line) -> None:
        while True:
            await line.reader.readuntil(b"\ndata:")
            heard.append(time.perf_counter())
            if len(heard) == sizes.subscribers:
                all_heard.set()

    lines = await clients.connect_many(sizes.subscribers)
    for line in lines:
        line.write("GET", f"/ojs/v1/queues/{clients.queue}/events")
    for line in lines:
        await line.head()
        clients.background(follow(line))
    await clients.calm()
    memory = clients.server.memory() / MB
    note(results, named("memory"), memory, "MB", f"({before:.0f} without them)")
    note(results, named("processor, idle"), 100 * await clients.share(sizes.idle), "%")

    halves, wholes = [], []
    for number in range(sizes.events):
        heard.clear()
        all_heard.clear()
        sent = time.perf_counter()
        await producer.enqueue(number)
        await all_heard.wait()
        halves.append(1000 * (percentile(heard, 0.5) - sent))
        wholes.append(1000 * (max(heard) - sent))
    for name, took in (("half have heard", halves), ("all have heard", wholes)):
        results.get(WAITING, named(name), "ms").rounds += took


async def bodies(clients: Clients, sizes: Sizes, results: Results, *, path: str, what: str) -> None:
    """How unfinished bodies affect other requests."""

    def named(measure: str) -> str:
        return of_many(sizes.bodies, what, measure)

    lines = await clients.connect_many(sizes.bodies)
    for line in lines:
        line.write("POST", path, UNFINISHED, missing=100)
    answers = [clients.background(line.reader.read(1)) for line in lines]
    await clients.calm()
    worker = await clients.connect()
    acks: list[str] = []

    async def work() -> None:
        await worker.enqueue(0)
        acks[:] = await worker.fetch("works", acks, wait_ms=0)
        if not acks:
            raise RuntimeError("A worker found no job.")

    took = []
    async with again_and_again(clients, work) as fetched:
        for _ in range(sizes.samples):
            began = time.perf_counter()
            visitor = await clients.connect()
            visitor.write("GET", "/ojs/v1/health")
            await visitor.reply()
            took.append(1000 * (time.perf_counter() - began))
            visitor.close()
            await asyncio.sleep(PAUSE / 2)
    unfinished = sum(not answer.done() for answer in answers)
    remark = f"({unfinished:,} unfinished by then)"
    note(results, named("health, slowest"), max(took), "ms", remark)
    note(results, named("enqueue and fetch, slowest"), max(fetched), "ms")


async def gone(clients: Clients, sizes: Sizes, results: Results) -> None:
    """What remains of fetches whose clients have disconnected."""

    async def wave(count: int) -> None:
        lines = await clients.connect_many(count)
        for number, line in enumerate(lines):
            line.ask(f"leaves-{number}")
        await clients.calm()
        clients.leave()
        await clients.calm()

    count = min(WAVE, sizes.gone)
    for _ in range(SETTLING):
        await wave(count)
    before = clients.server.memory() / MB
    for _ in range(sizes.gone // count):
        await wave(count)
    after = clients.server.memory() / MB
    remark = f"({after:.0f} MB; {before:.0f} after the first {SETTLING * count:,})"
    note(results, of_many(sizes.gone, GONE, "memory, of before"), after / before, "×", remark)


async def ending(clients: Clients, sizes: Sizes, results: Results) -> None:
    """How waiting fetches are answered when the server is asked to stop."""

    def named(measure: str) -> str:
        return of_many(sizes.ending, ENDED, measure)

    lines = await clients.connect_many(sizes.ending)
    waiting = [
        asyncio.create_task(line.fetch(f"ends-{number}", [])) for number, line in enumerate(lines)
    ]
    await clients.calm()
    began = time.perf_counter()
    clients.server.terminate()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    seconds = time.perf_counter() - began
    answered = 100 * answers.count([]) / sizes.ending
    note(results, named("answered with an empty list"), answered, "%")
    note(results, named("until the last has ended"), 1000 * seconds, "ms")
    await asyncio.to_thread(clients.server.wait)
    note(results, named("until the process has"), 1000 * (time.perf_counter() - began), "ms")


MEASUREMENTS: tuple[tuple[Any, dict[str, str]], ...] = (
    (fetches, {}),
    (streams, {}),
    (bodies, {"path": "/ojs/v1/jobs", "what": BODIES}),
    (bodies, {"path": "/admin/login/", "what": LOGINS}),
    (gone, {}),
    (ending, {}),
)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Without garbage collections in this process: with thousands of tasks they take long."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


def run(sizes: Sizes, results: Results, key: str, environ: dict[str, str]) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for the servers, too

    async def measure(work: Any, queue: str, options: dict[str, str]) -> None:
        port = free_port()
        with serve(command(port, 1), port, 1, environ) as server:
            async with asyncio.TaskGroup() as group:
                clients = Clients(server, key, queue, group)
                await clients.warm_up()
                await work(clients, sizes, results, **options)
                clients.close()

    for number, (work, options) in enumerate(MEASUREMENTS):
        say(f"  {options.get('path') or work.__name__} …")
        with undisturbed():
            asyncio.run(measure(work, f"waits-{number}", options))


def main() -> None:
    stop_when_asked()
    options = arguments()
    sizes = SMOKE if options.smoke else QUICK if options.quick else Sizes()
    environ = environment(
        options.url or postgres.start(), OJS_REALTIME_CONNECTIONS=str(sizes.subscribers)
    )
    os.environ.update(environ)
    import django

    django.setup()
    from django.core.management import call_command

    from jobs.http.authentication import make_key

    call_command("migrate", verbosity=0)
    _, key = make_key("benchmarks")
    results = Results()
    run(sizes, results, key, environ)
    if options.json:
        options.json.write_text(json.dumps({"postgres": results.documents()}, indent=2))
    else:
        print(results.table({}) + "\n" + goals.table(results, goals.WHILE_WAITING))


if __name__ == "__main__":
    main()

"""What each fast path of the product gains: with and without it, in turn.

    python -m tests.benchmarks.paths [--only "one round trip"] [--rounds 5] [--seconds 2]

First each path is checked: without it, requests are answered as with it, and none of its code
runs. Then its operations are measured on two processes that differ in this path alone. Besides the
rate, the processor time of the process and of its database sessions counts: on a machine that also
does other things, it varies far less.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests import postgres
from tests.processes import PATIENCE

from . import over_http, tables
from .code_lines import lines_of
from .fast_paths import FAST_PATHS, FastPath
from .places import PATHS
from .plan import Plan, rounds, say, stop_when_asked
from .results import Results
from .servers import environment
from .without import HTTP, STEPS, WORKER, Side

ENOUGH = 5
"""Per cent of throughput or of processor time that a path must gain to be worth its lines."""
SCENARIOS = {item.name: item for item in (*over_http.SCENARIOS, *over_http.BESIDE_WSGI)}
RATE, TIME = "throughput", "processor time"
WORKED_OFF = 25_000
"""Jobs per second that a worker process may need."""
A_CLIENT = 0.03
"""Seconds by which each further client starts later."""
FEW = 30
MASKED = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[\d:.]+Z", re.IGNORECASE
)


class Measured(NamedTuple):
    rate: float
    cost: float
    """Seconds of processor time for each job or heartbeat."""


class Bench:
    """A database with an API key, and what is done on it."""

    def __init__(self, plan: Plan, key: str, folder: Path) -> None:
        self.plan = plan
        self.key = key
        self.folder = folder
        self._with: dict[tuple[Any, ...], tuple[list[Any], dict[str, int]]] = {}

    def check(self, path: FastPath) -> None:
        """
        Raises:
            AssertionError: without the path, a request is answered otherwise, or its code runs.
        """
        known = kind, beside = seen_by(path), path.beside
        if known not in self._with:
            alike = [one for one in FAST_PATHS if known == (seen_by(one), one.beside)]
            marks = {mark_of(one) for one in alike} - {""}
            self._with[known] = self._observe(kind, beside, sorted(marks))
        mark = mark_of(path)
        replies, on = self._with[known]
        others, off = self._observe(kind, (*beside, path.name), [mark] if mark else [])
        for number, (reply, other) in enumerate(zip(replies, others, strict=True)):
            assert reply == other, f"answer {number} is {other} instead of {reply}"
        if mark != path.mark:
            assert off[mark] > on[mark], f"it is still on: {mark}"
        elif mark:
            assert on[mark] > 0, f"it was never on: {mark}"
            assert off[mark] == 0, f"it is still on: {mark}"

    def _observe(
        self, kind: str, off: Sequence[str], marks: Sequence[str]
    ) -> tuple[list[Any], dict[str, int]]:
        tables.empty()
        with Side(kind, off, self.folder, counted=marks) as side:
            replies = story(side.port, self.key) if kind == HTTP else self._worked_off(FEW)
        return replies, side.counts

    def _worked_off(self, count: int) -> list[Any]:
        tables.load(count)
        deadline = time.monotonic() + PATIENCE
        while tables.completed() < count and time.monotonic() < deadline:
            time.sleep(0.02)
        return [tables.completed()]

    def measure(self, path: FastPath, operation: str, results: Results) -> None:
        """Measure one operation of a path, each round with it and without it."""
        kind = kind_of(operation)
        names = {True: path.beside, False: (*path.beside, path.name)}
        with contextlib.ExitStack() as stack:
            sides = {}
            if kind != WORKER:
                for is_on, off in names.items():
                    sides[is_on] = stack.enter_context(Side(kind, off, self.folder))
            for number, _ in enumerate(rounds(self.plan, [operation], results)):
                found: dict[bool, Measured] = {}
                # Which one is first changes, so that a drift of the machine favours neither.
                for is_on in (True, False) if number % 2 else (False, True):
                    if kind == HTTP:
                        found[is_on] = self._over_http(sides[is_on], operation)
                    elif kind == STEPS:
                        found[is_on] = self._in_process(sides[is_on], operation)
                    else:
                        found[is_on] = self._by_worker(names[is_on])
                gained = {
                    RATE: found[True].rate / found[False].rate - 1,
                    TIME: 1 - found[True].cost / found[False].cost,
                }
                for what, share in gained.items():
                    name = name_of(path, operation, what)
                    results.get(PATHS, name, "%").rounds.append(100 * share)
        shown = ", ".join(
            f"{what} {results.get(PATHS, name_of(path, operation, what)).median:+.1f} %"
            for what in (RATE, TIME)
        )
        say(f"  {path.name}: {operation}: {shown}")

    def _over_http(self, side: Side, operation: str) -> Measured:
        scenario, seconds = SCENARIOS[operation], self.plan.seconds
        clients = scenario.clients or self.plan.clients
        start = over_http.START + A_CLIENT * clients + over_http.WARM_UP
        tables.empty()
        if scenario.load == "heartbeat":
            tables.load(scenario.count * clients)
        else:
            tables.load(int(scenario.stock * (seconds + over_http.WARM_UP)))
        connections = side.connect(clients)
        spec = {
            "load": scenario.load,
            "count": scenario.count,
            "queue": tables.QUEUE,
            "key": self.key,
            "seconds": seconds,
            "from": time.monotonic() + start,
        }
        try:
            with ThreadPoolExecutor(1) as pool:
                # A refused request ends its client, and so the measurement, with an error.
                driven = pool.submit(over_http.drive, connections, spec)
                time.sleep(start)
                before = computed(side)
                outcomes = driven.result()
                cost = spent_since(before, side)
        finally:
            for connection in connections:
                connection.close()
        done = sum(client["done"] for client in outcomes)
        return Measured(done / max(client["seconds"] for client in outcomes), cost / done)

    def _in_process(self, side: Side, operation: str) -> Measured:
        name = operation.removeprefix(f"{STEPS}: ")
        tables.empty()
        side.pipe.send((name, min(over_http.WARM_UP, self.plan.seconds)))
        side.pipe.recv()
        before = computed(side)
        side.pipe.send((name, self.plan.seconds))
        done, seconds = side.pipe.recv()
        return Measured(done / seconds, spent_since(before, side) / done)

    def _by_worker(self, off: Sequence[str]) -> Measured:
        tables.empty()
        seconds = self.plan.seconds
        tables.load(int(WORKED_OFF * (seconds + over_http.WARM_UP)))
        with Side(WORKER, off, self.folder) as side:
            deadline = time.monotonic() + PATIENCE
            while not tables.completed() and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(min(over_http.WARM_UP, seconds))
            before, done, began = computed(side), tables.completed(), time.monotonic()
            time.sleep(seconds)
            while (now := tables.completed()) == done and time.monotonic() < deadline:
                time.sleep(0.01)
            ended, cost = time.monotonic(), spent_since(before, side)
        return Measured((now - done) / (ended - began), cost / (now - done))


def computed(side: Side) -> float:
    """Processor time of a process and of all database sessions, except our own, in seconds."""
    import psutil

    taken = side.computed()
    for pid in tables.sessions():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            taken += times.user + times.system
    return taken


def spent_since(before: float, side: Side) -> float:
    """Processor time since then; never zero, as a short measurement would read it."""
    return max(computed(side) - before, 1 / os.sysconf("SC_CLK_TCK"))


def story(port: int, key: str) -> list[Any]:
    """A worker's and a producer's requests; return the responses, ids and times masked."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    texts: list[str] = []

    def post(path: str, **document: Any) -> Any:
        connection.request("POST", f"/ojs/v1/{path}", json.dumps(document), headers)
        response = connection.getresponse()
        text = response.read().decode()
        texts.append(f"{response.status} {text}")
        return json.loads(text)

    worker, queue = {"worker_id": "story"}, tables.QUEUE
    about = {"hostname": "here", "pid": 1, "queues": [queue], "concurrency": 100}
    plain = {"type": "bench.noop", "queue": queue, "args": [1, "two", {"three": [3.5, None]}]}
    with contextlib.closing(connection):
        post("workers/register", **worker, **about)
        post("jobs", **plain)
        post("jobs", **plain | {"priority": 3, "tags": ["a"], "retry": {"max_attempts": 2}})
        post("jobs", **plain | {"queue": "not a queue"})
        post("jobs/batch", jobs=[plain | {"args": [number]} for number in range(3)])
        post("jobs/batch", jobs=[plain, plain | {"meta": {"number": 1}}])
        ids = [job["id"] for job in post("workers/fetch", **worker, queues=[queue])["jobs"]]
        post("workers/ack", **worker, job_id=ids[0], result={"done": True})
        post("workers/ack", **worker, job_id=ids[0])
        jobs = post("workers/fetch", **worker, queues=[queue], count=2)["jobs"]
        acks = [{"job_id": job["id"]} for job in jobs]
        jobs = post("workers/fetch", **worker, queues=[queue], count=3, acks=acks)["jobs"]
        ids = [job["id"] for job in jobs]
        post("workers/heartbeat", **worker, state="running", active_job_ids=ids)
        post("workers/heartbeat", **worker, state="running", active_job_ids=ids[:1])
        post("workers/ack", **worker, acks=[{"job_id": job_id, "attempt": 1} for job_id in ids])
        post("workers/fetch", **worker, queues=[queue], count=3)
        member = {"type": "bench.noop", "args": [], "options": {"queue": "members"}}
        post("workflows", type="group", jobs=[member, member])
        for _ in range(2):
            jobs = post("workers/fetch", **worker, queues=["members"])["jobs"]
            post("workers/ack", **worker, job_id=jobs[0]["id"])
    known: dict[str, str] = {}
    return [
        json.loads(text.partition(" ")[2]) | {"status of HTTP": text[:3]}
        for text in (MASKED.sub(lambda match: _name(known, match[0]), text) for text in texts)
    ]


def _name(known: dict[str, str], text: str) -> str:
    # Ids by their order; whether two times are equal depends on the clock.
    return "time" if text.endswith("Z") else known.setdefault(text, f"id {len(known)}")


def kind_of(operation: str) -> str:
    if operation.startswith(STEPS):
        return STEPS
    return WORKER if operation == WORKER else HTTP


def seen_by(path: FastPath) -> str:
    """The kind of process by which a path is checked."""
    return WORKER if path.operations == (WORKER,) else HTTP


def mark_of(path: FastPath) -> str:
    return path.mark.removeprefix("not ")


def name_of(path: FastPath, operation: str, what: str) -> str:
    return f"{path.name}: {operation}: {what}"


def run(bench: Bench, results: Results, *, is_smoke: bool) -> None:
    measured: set[str] = set()
    for path in FAST_PATHS:
        wanted = [it for it in path.operations if bench.plan.wants(f"{path.name}: {it}", PATHS)]
        if not wanted:
            continue
        if is_smoke:
            # One of each kind; all are checked.
            wanted = [it for it in wanted if kind_of(it) not in measured][:1]
            measured |= set(map(kind_of, wanted))
        try:
            bench.check(path)
            for operation in wanted:
                bench.measure(path, operation, results)
        except Exception as problem:
            # One that fails must not take the measurements of the others with it.
            say(f"  {path.name}: FAILED: {problem!r}")
            results.get(PATHS, f"{path.name}: failed", "").rounds.append(1)
        else:
            say(f"  {path.name}: checked")


def are_in(results: Results) -> bool:
    """Whether this part has been measured."""
    return any(document["group"] == PATHS for document in results.documents())


def table(results: Results) -> str:
    """A line for each path measured, or for all, with the operation that gains most by it."""
    lines = [
        "| fast path | lines | of tests | most gained by | throughput | processor time | |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in FAST_PATHS:
        found = [(gain_of(path, it, results), it) for it in path.operations]
        measured = [(gain, it) for gain, it in found if gain is not None]
        has_failed = results.median(PATHS, f"{path.name}: failed") is not None
        if are_in(results) and not (measured or has_failed):
            continue
        if measured:
            most, operation = max(measured)
            cells = [operation, *(shown(path, operation, what, results) for what in (RATE, TIME))]
            cells.append("keep" if most >= ENOUGH else "remove")
        else:
            cells = [path.operations[0], "not measured yet", "", ""]
        if has_failed:
            cells[-1] = "failed"
        counts = [str(lines_of(path.code)), str(lines_of(path.tests))]
        lines.append(f"| {' | '.join([path.name, *counts, *cells])} |")
    return "\n".join(lines)


def gain_of(path: FastPath, operation: str, results: Results) -> float | None:
    """The larger gain of an operation, in per cent; None if it was not measured.

    Throughput counts only if it was higher in every round: it varies more than the paths gain.
    """
    if results.median(PATHS, name_of(path, operation, TIME)) is None:
        return None
    rate, cost = (results.get(PATHS, name_of(path, operation, what)) for what in (RATE, TIME))
    return max(cost.median, rate.median) if min(rate.rounds) > 0 else cost.median


def shown(path: FastPath, operation: str, what: str, results: Results) -> str:
    found = results.get(PATHS, name_of(path, operation, what))
    return f"{found.median:+.1f} % ({min(found.rounds):+.0f} to {max(found.rounds):+.0f})"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", help="a PostgreSQL database on this machine (default: its own)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--only", action="append", default=[], help="part of a path or operation")
    parser.add_argument("--smoke", action="store_true", help="check all, measure one of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    return parser.parse_args()


def main() -> None:
    stop_when_asked()
    options = arguments()
    url = options.url or postgres.start()
    os.environ.update(environment(url, OJS_SERVER_THREADS="8"))
    import django

    django.setup()
    from django.core.management import call_command

    from jobs.http.authentication import make_key

    call_command("migrate", verbosity=0)
    _, key = make_key("benchmarks")
    plan = Plan(
        url,
        seconds=0.1 if options.smoke else options.seconds,
        rounds=1 if options.smoke else options.rounds,
        clients=2 if options.smoke else options.clients,
        only=tuple(word.lower() for word in options.only),
    )
    results = Results()
    with tempfile.TemporaryDirectory(prefix="ojs-paths-") as folder:
        run(Bench(plan, key, Path(folder)), results, is_smoke=options.smoke)
    if options.json:
        options.json.write_text(json.dumps({"postgres": results.documents()}, indent=2))
    else:
        print(table(results))


if __name__ == "__main__":
    main()

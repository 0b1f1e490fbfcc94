"""HTTP binding under load: a real server, clients in separate processes, and the floor."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.processes import free_port

from . import tables
from .places import FLEET, FLOOR, group_of, of_clients, of_interface
from .plan import Plan, rounds, say
from .results import Result, Results, percentile
from .servers import ROOT, Server, command, environment, serve

WARM_UP = 0.4
START = 0.25
"""Seconds that a client has to get ready."""
HANDED_OVER = 10_000
"""Workers per second whose heartbeats the clients can send."""
LINES = 4
"""Connections of a fleet for each client of the other scenarios: every worker has its own, and many
of them have a heartbeat in flight."""


@dataclass(frozen=True)
class Scenario:
    name: str
    load: str
    count: int = 1
    stock: int = 0
    """Available jobs per second that it may need."""
    clients: int | None = None
    """None: as many as requested."""


SCENARIOS = (
    Scenario(FLOOR, "floor"),
    Scenario("enqueue 1", "enqueue"),
    Scenario("enqueue 100", "enqueue", 100),
    Scenario("enqueue 1000", "enqueue", 1000),
    Scenario("fetch 1 + ack 1", "fetch then ack", 1, 2_500),
    Scenario("fetch 1 + ack 1, 2 clients", "fetch then ack", 1, 2_500, clients=2),
    Scenario("fetch 50 + ack 50", "fetch then ack", 50, 30_000),
    Scenario("fetch 1 carrying acks", "fetch carrying acks", 1, 4_000),
    Scenario("fetch 10 carrying acks", "fetch carrying acks", 10, 20_000),
    Scenario("fetch 10 carrying acks, 2 clients", "fetch carrying acks", 10, 20_000, clients=2),
    Scenario("fetch 100 carrying acks", "fetch carrying acks", 100, 50_000),
    Scenario("fetch 100 carrying acks, 2 clients", "fetch carrying acks", 100, 50_000, clients=2),
    Scenario("heartbeat, no jobs", "heartbeat", 0),
    Scenario("heartbeat, 10 jobs", "heartbeat", 10),
    # A fleet's heartbeats: no worker sends two within seconds, and all their jobs exist.
    Scenario(FLEET, "heartbeats of many", 10),
)

BESIDE_WSGI = tuple(
    Scenario(of_clients(name, clients), load, count, stock, clients)
    for name, load, count, stock, some in (
        ("enqueue 1", "enqueue", 1, 0, (1, 8, 32)),
        ("heartbeat, no jobs", "heartbeat", 0, 0, (1, 8, 32)),
        ("fetch 1 + ack 1", "fetch then ack", 1, 2_500, (1, 8, 32)),
        ("enqueue 100", "enqueue", 100, 0, (1, 8)),
    )
    for clients in some
)


def run(plan: Plan, results: Results, key: str) -> None:
    for processes in plan.processes:
        group = group_of(processes)
        wanted = {
            item.name: item
            for item in SCENARIOS
            if plan.wants(item.name, group) and (item.name != FLEET or plan.is_postgresql)
        }
        if not wanted:
            continue
        # Required to compute the ratios of the others.
        wanted = {FLOOR: SCENARIOS[0]} | wanted
        with contextlib.ExitStack() as stack:
            servers = {
                scenario: stack.enter_context(_server(plan, processes, settings))
                for scenario, settings in (
                    ("floor", "tests.benchmarks.floor_settings"),
                    ("product", "ojs_project.settings"),
                )
            }
            for name in rounds(plan, wanted, results):
                scenario = wanted[name]
                server = servers["floor" if scenario.load == "floor" else "product"]
                # Reconnects each time: the server closes connections that are idle for 30 s.
                clients = scenario.clients or plan.clients
                connections = server.connect(clients * LINES if name == FLEET else clients)
                try:
                    _measure(plan, results, group, scenario, connections, key)
                finally:
                    for connection in connections:
                        connection.close()


def beside_wsgi(plan: Plan, results: Results, key: str) -> None:
    """The event loop and blocking threads alternately, on two server processes each."""
    wanted = {
        (item.name, interface): item
        for item in BESIDE_WSGI
        for interface in ("asgi", "wsgi")
        if plan.wants(item.name, of_interface(interface))
    }
    if not wanted or 2 not in plan.processes:
        return
    with contextlib.ExitStack() as stack:
        servers = {
            interface: stack.enter_context(
                _server(plan, 2, "ojs_project.settings", interface=interface)
            )
            for interface in ("asgi", "wsgi")
        }
        for name, interface in rounds(plan, wanted, results):
            scenario = wanted[name, interface]
            connections = servers[interface].connect(scenario.clients or plan.clients)
            try:
                _measure(plan, results, of_interface(interface), scenario, connections, key)
            finally:
                for connection in connections:
                    connection.close()


def _server(
    plan: Plan, processes: int, settings: str, interface: str = ""
) -> contextlib.AbstractContextManager[Server]:
    port = free_port()
    # The floor is a view that does nothing, called as Django's own handler calls it.
    interface = interface or ("asgi" if settings == "ojs_project.settings" else "wsgi")
    surroundings = environment(
        plan.database_url,
        DJANGO_SETTINGS_MODULE=settings,
        OJS_SERVER_THREADS=str(plan.threads),
    )
    started = command(port, processes, plan.threads, interface=interface)
    return serve(started, port, processes, surroundings)


def _measure(
    plan: Plan,
    results: Results,
    group: str,
    scenario: Scenario,
    connections: list[socket.socket],
    key: str,
) -> None:
    tables.empty()
    held: list[tuple[str, list[str]]] = []
    if scenario.load == "heartbeats of many":
        held = tables.fleet(plan.fleet, scenario.count)
    elif scenario.load == "heartbeat":
        tables.load(scenario.count * len(connections))
    else:
        tables.load(plan.stock(scenario.stock * (plan.seconds + WARM_UP + START)))
    spec: dict[str, Any] = {
        "load": scenario.load,
        "count": scenario.count,
        "queue": tables.QUEUE,
        "key": key,
        "seconds": plan.seconds,
        "from": time.monotonic() + START + WARM_UP + len(held) / HANDED_OVER,
    }
    outcomes = (
        [drive_fleet(connections, spec | {"held": held})] if held else drive(connections, spec)
    )
    result = results.get(group, scenario.name, "req/s" if scenario.load == "floor" else "/s")
    record(result, outcomes)
    say(f"  {group}: {scenario.name}: {result.rounds[-1]:,.0f}")


def record(result: Result, outcomes: list[dict[str, Any]]) -> None:
    """Add a round: what its clients report."""
    seconds = max(client["seconds"] for client in outcomes)
    result.rounds.append(sum(client["done"] for client in outcomes) / seconds)
    for kind in outcomes[0]["times"]:
        times = [moment / 1000 for client in outcomes for moment in client["times"].get(kind, ())]
        result.p50[kind] = percentile(times, 0.5)
        result.p99[kind] = percentile(times, 0.99)
    if any(client["ran_dry"] for client in outcomes):
        result.note = "(ran out of jobs early)"


def drive(connections: list[socket.socket], spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one client for each connection, all at once; return what they report."""
    with contextlib.ExitStack() as stack:
        clients = []
        for number, connection in enumerate(connections):
            clients.append(stack.enter_context(_client("load", [connection])))
            own = {"connection": connection.fileno(), "worker": f"bench-{number}"}
            _hand_over(clients[-1], spec | own)
        return [_report(client) for client in clients]


def drive_fleet(connections: list[socket.socket], spec: dict[str, Any]) -> dict[str, Any]:
    """Run one client for all of the connections; return what it reports."""
    with _client("fleet", connections) as client:
        numbers = [connection.fileno() for connection in connections]
        _hand_over(client, spec | {"connections": numbers})
        return _report(client)


@contextlib.contextmanager
def _client(program: str, connections: list[socket.socket]) -> Iterator[subprocess.Popen[str]]:
    client = subprocess.Popen(
        [sys.executable, "-m", f"tests.benchmarks.{program}"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[connection.fileno() for connection in connections],
    )
    try:
        yield client
    finally:
        client.kill()
        client.wait()


def _hand_over(client: subprocess.Popen[str], spec: dict[str, Any]) -> None:
    assert client.stdin is not None
    client.stdin.write(json.dumps(spec))
    client.stdin.close()
    client.stdin = None


def _report(client: subprocess.Popen[str]) -> dict[str, Any]:
    output, problem = client.communicate()
    if client.returncode:
        raise RuntimeError(f"A load client failed:\n{problem}")
    report: dict[str, Any] = json.loads(output)
    return report

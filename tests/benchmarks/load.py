"""A load client: a process with one kept-alive connection, controlled over standard input.

Standard library only, raw sockets, requests built beforehand: the client must never be the
bottleneck. Its parent makes the connection and passes it on.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

JOB_ID = re.compile(rb'"specversion":"1\.0","id":"([0-9a-f-]{36})"')
PUSHED = b'{"type":"bench.noop","queue":"%s","args":[1,"two",{"three":3}]}'
EXTENDED = b'"jobs_lost":[]'


class Refused(Exception):
    """The server answered with something other than success."""


class Wire:
    """One connection that speaks just enough HTTP/1.1."""

    def __init__(self, connection: socket.socket, key: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._headers = (
            b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/openjobspec+json\r\n"
            b"Authorization: Bearer " + key.encode() + b"\r\nContent-Length: "
        )
        self.times: dict[str, list[int]] = {}
        """Kind of request → durations in microseconds."""

    def built(self, path: bytes, body: bytes) -> bytes:
        return b"POST %s%s%d\r\n\r\n%s" % (path, self._headers, len(body), body)

    def post(self, kind: str, path: bytes, body: bytes) -> bytes:
        return self.send(kind, self.built(path, body))

    def send(self, kind: str, request: bytes) -> bytes:
        """Send a request and return the body of the reply."""
        started = time.perf_counter_ns()
        self._connection.sendall(request)
        reply = self._connection.recv(1 << 20)
        head, gap, body = reply.partition(b"\r\n\r\n")
        while not gap:
            reply += self._receive()
            head, gap, body = reply.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r")[0])
        if len(body) < length:
            parts = [body]
            missing = length - len(body)
            while missing > 0:
                parts.append(self._receive())
                missing -= len(parts[-1])
            body = b"".join(parts)
        self.times.setdefault(kind, []).append((time.perf_counter_ns() - started) // 1000)
        if not head.startswith(b"HTTP/1.1 2"):
            raise Refused((head + gap + body[:500]).decode(errors="replace"))
        return body

    def _receive(self) -> bytes:
        received = self._connection.recv(1 << 20)
        if not received:
            raise Refused("The server closed the connection.")
        return received


Step = Callable[[], int]
"""Does one turn and returns the number of processed jobs (or requests); 0 ends the run."""


def floor(wire: Wire, spec: dict[str, Any]) -> Step:
    """A view that does nothing, with a body like that of an ACK."""
    request = wire.built(b"/floor", _ack(spec, b"01931f6c-0000-7000-8000-000000000000"))

    def step() -> int:
        wire.send("floor", request)
        return 1

    return step


def enqueue(wire: Wire, spec: dict[str, Any]) -> Step:
    """PUSH: one job per request, or `count` in a batch."""
    count = spec["count"]
    job = PUSHED % spec["queue"].encode()
    if count == 1:
        request = wire.built(b"/ojs/v1/jobs", job)
    else:
        request = wire.built(b"/ojs/v1/jobs/batch", b'{"jobs":[%s]}' % b",".join([job] * count))

    def step() -> int:
        wire.send("enqueue", request)
        return count

    return step


def fetch_then_ack(wire: Wire, spec: dict[str, Any]) -> Step:
    """Fetch `count`, then ack them: singly in the form for one job, else in one list."""
    request = wire.built(b"/ojs/v1/workers/fetch", b"{%s}" % _fetch(spec))

    def step() -> int:
        ids = JOB_ID.findall(wire.send("fetch", request))
        if len(ids) == 1:
            wire.post("ack", b"/ojs/v1/workers/ack", _ack(spec, ids[0]))
        elif ids:
            body = b'{"worker_id":"%s","acks":[%s]}' % (spec["worker"].encode(), _acks(ids))
            wire.post("ack", b"/ojs/v1/workers/ack", body)
        return len(ids)

    return step


def fetch_carrying_acks(wire: Wire, spec: dict[str, Any]) -> Step:
    """Fetch `count`, with the acks of the jobs fetched before."""
    asked = _fetch(spec)
    ids: list[bytes] = []

    def step() -> int:
        nonlocal ids
        body = b'{%s,"acks":[%s]}' % (asked, _acks(ids))
        done = len(ids)
        ids = JOB_ID.findall(wire.post("fetch", b"/ojs/v1/workers/fetch", body))
        return max(done, len(ids)) if ids else 0

    return step


def heartbeat(wire: Wire, spec: dict[str, Any]) -> Step:
    """BEAT of a worker that holds `count` jobs."""
    ids: list[str] = []
    if spec["count"]:
        body = b"{%s}" % _fetch(spec)
        found = JOB_ID.findall(wire.post("fetch", b"/ojs/v1/workers/fetch", body))
        if len(found) != spec["count"]:
            raise Refused(f"{len(found)} jobs for a worker that should hold {spec['count']}")
        ids = [job_id.decode() for job_id in found]
    request = beat(wire, spec["worker"], ids)

    def step() -> int:
        if EXTENDED not in wire.send("heartbeat", request):
            raise Refused("A heartbeat was told that jobs were lost.")
        return 1

    return step


def beat(wire: Wire, worker: str, ids: list[str]) -> bytes:
    said: dict[str, Any] = {"worker_id": worker, "state": "running"}
    said |= {"active_jobs": len(ids), "active_job_ids": ids}
    return wire.built(b"/ojs/v1/workers/heartbeat", json.dumps(said).encode())


def _fetch(spec: dict[str, Any]) -> bytes:
    worker, queue = spec["worker"].encode(), spec["queue"].encode()
    return b'"worker_id":"%s","queues":["%s"],"count":%d' % (worker, queue, spec["count"])


def _ack(spec: dict[str, Any], job_id: bytes) -> bytes:
    return b'{"worker_id":"%s","job_id":"%s"}' % (spec["worker"].encode(), job_id)


def _acks(ids: list[bytes]) -> bytes:
    return b",".join([b'{"job_id":"%s"}' % job_id for job_id in ids])


LOADS: dict[str, Callable[[Wire, dict[str, Any]], Step]] = {
    "floor": floor,
    "enqueue": enqueue,
    "fetch then ack": fetch_then_ack,
    "fetch carrying acks": fetch_carrying_acks,
    "heartbeat": heartbeat,
}


def register(wire: Wire, spec: dict[str, Any]) -> None:
    document = {
        "worker_id": spec["worker"],
        "hostname": "bench",
        "pid": 1,
        "queues": [spec["queue"]],
        "concurrency": 100_000,
    }
    wire.post("register", b"/ojs/v1/workers/register", json.dumps(document).encode())


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Warm up, then repeat for `seconds` or until nothing is left to do."""
    wire = Wire(socket.socket(fileno=spec["connection"]), spec["key"])
    if spec["load"] != "floor":
        register(wire, spec)
    step = LOADS[spec["load"]](wire, spec)
    for _ in _until(spec["from"]):
        step()
    wire.times.clear()
    done, turned = 0, True
    started = time.monotonic()
    for _ in _until(started + spec["seconds"]):
        turns = step()
        if not turns:
            turned = False
            break
        done += turns
    seconds = time.monotonic() - started
    return {"done": done, "seconds": seconds, "ran_dry": not turned, "times": wire.times}


def _until(moment: float) -> Iterator[None]:
    while time.monotonic() < moment:
        yield


if __name__ == "__main__":
    json.dump(run(json.load(sys.stdin)), sys.stdout)

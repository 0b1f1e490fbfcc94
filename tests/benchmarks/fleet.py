"""The load of a fleet: one process that acts for thousands of workers, over many connections.

Standard library only. One process, because the workers of a fleet are not on the server's machine:
a process for each of a few connections takes more of the processors than PostgreSQL's commits. On
each connection the next heartbeat is sent when the last one was answered.
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

from .load import EXTENDED, Refused, Wire, beat

KIND = "heartbeat"


class Line:
    """One connection, and its pending response."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = b""
        self._sent_at = 0

    def send(self, request: bytes) -> None:
        self._sent_at = time.perf_counter_ns()
        self.connection.sendall(request)

    def receive(self) -> int | None:
        """Read available data; return the microseconds since the request once it is answered.

        Raises:
            Refused: the response is not a success.
        """
        received = self.connection.recv(1 << 16)
        if not received:
            raise Refused("The server closed the connection.")
        reply = self._received + received
        head, gap, body = reply.partition(b"\r\n\r\n")
        announced = head.lower().partition(b"content-length:")[2].partition(b"\r")[0]
        if not gap or len(body) < int(announced):
            self._received = reply
            return None
        self._received = b""
        if not head.startswith(b"HTTP/1.1 2") or EXTENDED not in body:
            raise Refused(reply[:1000].decode(errors="replace"))
        return (time.perf_counter_ns() - self._sent_at) // 1000


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Warm up, then keep every connection busy for `seconds`."""
    lines = {number: Line(socket.socket(fileno=number)) for number in spec["connections"]}
    wire, *_ = [Wire(line.connection, spec["key"]) for line in lines.values()]
    turn = itertools.cycle([beat(wire, worker, ids) for worker, ids in spec["held"]])
    waiting = select.poll()
    for number, line in lines.items():
        waiting.register(number, select.POLLIN)
        line.send(next(turn))
    for _ in _answers(waiting, lines, turn, spec["from"]):
        pass
    started = time.monotonic()
    times = list(_answers(waiting, lines, turn, started + spec["seconds"]))
    seconds = time.monotonic() - started
    return {"done": len(times), "seconds": seconds, "ran_dry": False, "times": {KIND: times}}


def _answers(
    waiting: Any, lines: dict[int, Line], turn: Iterator[bytes], until: float
) -> Iterator[int]:
    """Yield the duration of each response; each is followed by the next heartbeat."""
    while time.monotonic() < until:
        for number, _ in waiting.poll(1_000):
            line = lines[number]
            took = line.receive()
            if took is not None:
                line.send(next(turn))
                yield took


if __name__ == "__main__":
    json.dump(run(json.load(sys.stdin)), sys.stdout)

"""Random and mutated bytes at AGQ and Rota: no crash, no hang, no growth.

A few hundred cases with a fixed seed each time; `FUZZ_SECONDS=60` runs for a minute instead,
from another seed, which it prints.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import socket
import struct
import time

import psutil
import pytest

import jobs
from jobs import engine
from tests import processes
from tests.conftest import url_of_test_database
from tests.once import once_is_enough_on_postgresql
from tests.processes import PATIENCE, eventually

pytestmark = [
    once_is_enough_on_postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
]

SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
CASES = 250
MOST_GROWTH = 64 * 2**20
"""Bytes by which a server may have grown through filled buffers, however long it runs."""
JOB = "01931f6c-0000-7000-8000-000000000000"
ODD = [
    *(None, True, -1, 0, 1.5, 2**31, 2**53, 2**63, 10**30, -(2**64), 1e308, "", "\0", "\ud800"),
    *("a" * 70_000, "💥" * 300, JOB, "queue:ready", [], {}, [[]], [None], {"": ""}, [{"a": [{}]}]),
]
NESTED = "[" * 5_000


class Fuzz(random.Random):
    """Mutates data."""

    def bytes_like(self, data: bytes) -> bytes:
        broken = bytearray(data)
        for _ in range(self.choice((0, 1, 1, 2, 8))):
            at = self.randrange(len(broken) + 1)
            match self.randrange(6):
                case 0:
                    broken[at:at] = self.randbytes(self.choice((1, 4, 300)))
                case 1:
                    del broken[at : at + self.choice((1, 4, 60))]
                case 2 if broken:
                    broken[at % len(broken)] ^= 1 << self.randrange(8)
                case 3:
                    broken[at:at] = self.choice(
                        (b"\r\n", b"$-1\r\n", b"*1000000000\r\n", b"$999999999999\r\n", b"*-7\r\n")
                    )
                case 4:
                    broken[at:at] = broken[self.randrange(len(broken) + 1) :][:200]
                case 5:
                    del broken[at:]
        return bytes(broken)

    def document_like(self, value: object) -> object:
        """The JSON value with parts replaced, omitted or repeated."""
        if self.random() < 0.08:
            return self.choice(ODD)
        if isinstance(value, dict):
            kept = {name: part for name, part in value.items() if self.random() > 0.05}
            changed = {name: self.document_like(part) for name, part in kept.items()}
            return changed | (
                {self.choice(("x", "", "type")): self.choice(ODD)} if not kept else {}
            )
        if isinstance(value, list):
            return [self.document_like(part) for part in value] * self.choice((1, 1, 1, 2, 30))
        return value

    def json_like(self, document: object) -> str:
        if self.random() < 0.02:
            return NESTED
        return json.dumps(self.document_like(document), ensure_ascii=self.random() < 0.5)


def for_a_while(cases=CASES):
    """The cases of a short run, or of the requested number of seconds."""
    seed = secrets.randbits(32) if SECONDS else 20261121
    print(f"seed {seed}")
    fuzz, ends = Fuzz(seed), time.monotonic() + SECONDS
    number = 0
    while number < cases if not SECONDS else time.monotonic() < ends:
        yield number, fuzz
        number += 1
    print(f"{number} cases")


@pytest.fixture
def serve(transactional_db, tmp_path):
    """Start a server that must survive the test without growing."""

    @contextlib.contextmanager
    def start(command, mark, **options):
        environment = processes.environment(url_of_test_database(), ALLOW_ANONYMOUS=1, **options)
        with processes.manage(tmp_path, environment, command) as served:
            served.wait_for(mark)
            yield psutil.Process(served.process.pid)
            assert served.process.poll() is None, served.output
            assert served.terminate() == 0
            assert "Traceback" not in served.output, served.output

    return start


def say(port: int, *parts: bytes, hears: bytes = b"") -> bytes:
    """Send these bytes and return what arrives until it has been quiet for a moment."""
    heard = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(PATIENCE if hears else 0.02)
        for part in parts:
            client.sendall(part)
        while chunk := client.recv(65_536):
            heard += chunk
            if hears and hears in heard:
                break
    return heard


def grown(process: psutil.Process, before: int) -> int:
    return int(process.memory_info().rss - before)


# AGQ


def command(*words: object) -> bytes:
    parts = [
        word if isinstance(word, bytes) else str(word).encode("utf-8", "replace") for word in words
    ]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


WORKER = {
    "worker_id": "fuzz-1",
    "hostname": "box",
    "agw_version": "1",
    "capabilities": {"tools": ["jq", "sort"], "agentic_units": ["ocr"]},
    "tags": {"pool": "gpu", "n": 1},
    "max_concurrent_jobs": 2,
}
PLAN = {"plan": ["sort"], "inputs": {"a": 1}, "capabilities": ["jq"], "priority": 3, "meta": {}}
UPDATE = {"status": "running", "progress_percent": 50, "current_task": "x", "task_results": [{}]}


def agq_commands(fuzz: Fuzz) -> list[tuple[object, ...]]:
    return [
        ("WORKER.REGISTER", fuzz.json_like(WORKER)),
        ("WORKER.HEARTBEAT", "fuzz-1", fuzz.json_like({"cpu": 0.5, "jobs": [1, 2]})),
        ("WORKER.UNREGISTER", "fuzz-1"),
        ("LPUSH", "queue:ready", fuzz.json_like(PLAN), fuzz.json_like(PLAN)),
        ("BRPOP", "queue:ready", "queue:urgent", fuzz.choice(("0.01", "-1", "nan", "1e400", "x"))),
        ("JOB.UPDATE", fuzz.choice((JOB, "x")), fuzz.json_like(UPDATE)),
        ("KEYS", fuzz.choice(("worker:*:alive", "*" * 300, "[", "*:*:*:*"))),
        ("GET", "worker:fuzz-1:stats"),
        ("TTL", "worker:fuzz-1:alive"),
        ("SMEMBERS", "capability:jq:workers"),
        ("HELLO", fuzz.choice((2, 3, 9)), "AUTH", "default", "x"),
        ("AUTH", fuzz.choice(("x", "\0", "é" * 99))),
        ("CLIENT", "SETNAME", fuzz.choice(("a", "a b", "\r\n"))),
        ("PING", fuzz.randbytes(9)),
    ]


def test_agq_outlives_whatever_bytes_come(serve):
    port = processes.free_port()
    with serve("runagq", "AGQ workers are served on", AGQ_PORT=port) as process:
        before = 0
        for number, fuzz in for_a_while():
            said = [command(*words) for words in fuzz.sample(agq_commands(fuzz), 3)]
            say(port, *(fuzz.bytes_like(part) for part in said))
            if number % 50 == 49:
                assert say(port, command("PING"), hears=b"+PONG") == b"+PONG\r\n"
                before = before or process.memory_info().rss
        assert grown(process, before) < MOST_GROWTH


# Rota

HANDSHAKE = (
    b"GET /work HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
REGISTRATION = {
    "type": "heartbeat",
    "wanted": 2,
    "registration": {
        "worker_id": "fuzz-1",
        "hostname": "box",
        "os": "Linux",
        "pid": 7,
        "queues": ["default"],
        "concurrency": 2,
        "labels": ["eu"],
        "started_at": "2026-11-21T16:02:11Z",
        "version": "1",
        "specs": [{"id": "email.send", "checksum": "v1"}, {"id": "video.cut", "checksum": "v2"}],
    },
}
STATUS = {
    "type": "heartbeat",
    "sequence": 3,
    "received": 1,
    "status": {
        "state": "running",
        "cpu": 0.5,
        "ram": 0.5,
        "jobs": [{"job_id": JOB, "progress": 0.5, "message": "half"}],
        "logs": [{"job_id": JOB, "level": "info", "message": "x", "time": "2026-11-21T16:02:11Z"}],
        "alerts": [{"job_id": JOB, "message": "x"}],
    },
    "results": [
        {"job_id": JOB, "attempt": 1, "outcome": "succeeded", "data": {"a": 1}},
        {"job_id": JOB, "outcome": "failed", "error": {"type": "E", "backtrace": ["a"]}},
    ],
}


def frame(fuzz: Fuzz, payload: bytes, *, broken: float = 0.0) -> bytes:
    """A masked text frame; some of its bits are wrong with the probability `broken`."""

    def wrong() -> bool:
        return fuzz.random() < broken

    first = fuzz.randrange(256) if wrong() else 0x81
    length = fuzz.choice((0, 125, 2**15, 2**31, 2**63)) if wrong() else len(payload)
    bit = 0 if wrong() else 0x80
    if length < 126:
        header = struct.pack("!BB", first, bit | length)
    elif length < 2**16:
        header = struct.pack("!BBH", first, bit | 126, length)
    else:
        header = struct.pack("!BBQ", first, bit | 127, length)
    mask = fuzz.randbytes(4)
    key = int.from_bytes((mask * (len(payload) // 4 + 1))[: len(payload)])
    masked = (int.from_bytes(payload) ^ key).to_bytes(len(payload))
    return header + mask + masked


def rota_messages(fuzz: Fuzz) -> list[bytes]:
    first = REGISTRATION if fuzz.random() < 0.8 else fuzz.document_like(REGISTRATION)
    texts = [
        json.dumps(first),
        *(fuzz.json_like(STATUS) for _ in range(2)),
        fuzz.json_like(REGISTRATION),
    ]
    return [text.encode("utf-8", "surrogatepass") for text in texts]


def test_rota_outlives_whatever_frames_come(serve):
    port = processes.free_port()
    # A different worker: a previous connection, still being handled, would replace it.
    sane = frame(Fuzz(1), json.dumps(REGISTRATION).replace("fuzz-1", "sane").encode())
    engine.register_specs({"email.send": "v1", "video.cut": "v1"})
    jobs.enqueue_many({"type": "email.send", "args": [number]} for number in range(500))
    options = {"ROTA_PORT": port, "ROTA_HEARTBEAT_TIMEOUT": 2}
    with serve("runrota", "Rota workers are served at", **options) as process:
        before = 0
        for number, fuzz in for_a_while(150):
            broken = fuzz.choice((0.0, 0.0, 0.1))
            hello = HANDSHAKE if fuzz.random() < 0.9 else fuzz.bytes_like(HANDSHAKE)
            frames = [frame(fuzz, text, broken=broken) for text in rota_messages(fuzz)]
            say(port, hello, *(fuzz.bytes_like(one) if broken else one for one in frames))
            if number % 50 == 49:
                assert b"matching" in say(port, HANDSHAKE, sane, hears=b"matching")
                before = before or process.memory_info().rss
        # Half-open connections end when their silence is detected.
        eventually(lambda: not process.net_connections("tcp")[1:])
        assert grown(process, before) < MOST_GROWTH

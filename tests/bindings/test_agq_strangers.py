"""AGQ and unauthenticated clients and browsers: accepted commands, and refusals."""

from __future__ import annotations

import json
import select

import pytest

from jobs.http.authentication import make_key
from jobs.models import Job
from tests.bindings.listening import connected, everything, listening
from tests.once import once_is_enough
from tests.processes import eventually
from workers.bindings.agq.resp import HTTPSpoken, Parser

pytestmark = [once_is_enough, pytest.mark.django_db(transaction=True), pytest.mark.slow]

PLAN = json.dumps({"plan": ["sort"], "inputs": {}})
PUSH = f"LPUSH queue:ready '{PLAN}'\r\n".encode()
NOAUTH = b"-NOAUTH Authentication required.\r\n"
MAX_BUFFERED = 4 * 1024 * 1024
HELD = 40_000
"""Bytes of an unfinished command, which one of 64 KiB may be."""

BROWSERS = {
    "a form": b"POST / HTTP/1.1\r\nHost: 127.0.0.1:6380\r\n\r\n" + PUSH,
    "a form in HTTP/1.0": b"POST /\r\n\r\n" + PUSH,
    "another method": b"put /x HTTP/1.1\r\nX: y\r\n\r\n" + PUSH,
    "a page": b"GET / HTTP/1.1\r\nHost: 127.0.0.1:6380\r\n\r\n" + PUSH,
    "a line in between": b"PING\r\nHost: 127.0.0.1:6380\r\n" + PUSH,
}


@pytest.fixture(scope="module")
def anonymous(django_db_setup, tmp_path_factory):
    with listening(tmp_path_factory.mktemp("agq"), "runagq", ALLOW_ANONYMOUS=1) as process:
        yield process


@pytest.mark.parametrize("said", BROWSERS.values(), ids=BROWSERS)
@pytest.mark.parametrize("cut", [False, True], ids=["at once", "byte by byte"])
def test_a_browser_is_not_listened_to(anonymous, said, cut):
    with connected(anonymous.port) as connection:
        for part in [said] if not cut else [said[:3], said[3:9], said[9:]]:
            try:
                connection.sendall(part)
            except OSError:  # closed already
                break
        answer = everything(connection)

    assert answer in (b"", b"+PONG\r\n")
    assert not Job.objects.exists()
    assert anonymous.output.count("HTTP from 127.0.0.1") == 1


def test_a_command_may_speak_of_http(anonymous):
    said = b"POST / HTTP/1.1\r\nHost: here"
    with connected(anonymous.port) as connection:
        connection.sendall(b"*2\r\n$4\r\nECHO\r\n$%d\r\n%b\r\n" % (len(said), said))
        connection.sendall(b'GET "worker:w:alive"\r\n')
        connection.sendall(b"QUIT\r\n")
        answer = everything(connection)

    assert answer == b"$%d\r\n%b\r\n" % (len(said), said) + b"$-1\r\n+OK\r\n"


@pytest.mark.parametrize("line", [b"POST / HTTP/1.1", b"Host: x", b"host:x", b"HEAD /a HTTP/2.0"])
def test_lines_of_http_are_known(line):
    with pytest.raises(HTTPSpoken):
        list(Parser(100).feed(line + b"\r\n"))


def test_who_does_not_authenticate_in_time_is_asked_to_leave(tmp_path):
    _, key = make_key("w", scopes=["work"])
    with listening(tmp_path, "runagq", AGQ_AUTH_TIMEOUT=8) as server:
        known = connected(server.port)
        known.sendall(b"AUTH %b\r\n" % key.encode())
        assert known.recv(100) == b"+OK\r\n"
        busy = connected(server.port)
        busy.sendall(b"PING\r\n")
        silent = connected(server.port)

        assert everything(silent) == NOAUTH
        assert everything(busy) == NOAUTH * 2
        known.sendall(b"PING\r\n")
        assert known.recv(100) == b"+PONG\r\n"
        known.sendall(b"RESET\r\n")
        assert everything(known) == b"+RESET\r\n" + NOAUTH, "a stranger again"
        for connection in (silent, busy, known):
            connection.close()


def test_strangers_have_a_share_of_the_memory_and_leave_the_rest_to_others(tmp_path):
    _, key = make_key("w", scopes=["produce"])
    options = {"AGQ_MAX_BUFFERED": MAX_BUFFERED, "AGQ_AUTH_TIMEOUT": 0}
    with listening(tmp_path, "runagq", **options) as server:
        unfinished = b"*2\r\n$4\r\nAUTH\r\n$60000\r\n" + b"x" * HELD
        strangers = [connected(server.port) for _ in range(30)]
        for connection in strangers:
            connection.sendall(unfinished)
        most = MAX_BUFFERED // 8 // HELD
        eventually(lambda: len(select.select(strangers, [], [], 0)[0]) >= len(strangers) - most)
        for connection in select.select(strangers, [], [], 0)[0]:
            assert b"too many unfinished commands" in connection.recv(100)
        # Others connect as usual, and may send far more than the share of strangers.
        with connected(server.port) as known:
            known.sendall(b"AUTH %b\r\n" % key.encode())
            assert known.recv(100) == b"+OK\r\n"
            plan = json.dumps({"plan": ["sort"], "inputs": {"file": "x" * 2_000_000}}).encode()
            words = (b"LPUSH", b"queue:ready", plan)
            known.sendall(
                b"*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
            )
            assert known.recv(100) == b":1\r\n"
        for connection in strangers:
            connection.close()

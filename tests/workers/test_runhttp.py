"""`manage.py runhttp`: uvicorn with limits on the head of a request, in one or more processes."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import uvicorn
import websockets.sync.client
from django.core.management import CommandError, call_command
from django.core.wsgi import get_wsgi_application
from uvicorn.server import ServerState

from ojs_project import bypass, health
from tests import processes
from tests.conftest import url_of_test_database
from tests.ojs_client import MEDIA_TYPE
from tests.once import once_is_enough
from tests.processes import PATIENCE, eventually, free_port, running
from workers.asgi import JobServer
from workers.asgi.application import Reply
from workers.management.http_protocol import HttpProtocol

trustme = pytest.importorskip("trustme")

pytestmark = [once_is_enough, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

HEALTH = b"GET /ojs/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def environment(django_db_setup):
    return processes.environment(url_of_test_database(), BODY_TIMEOUT=0.5, ALLOW_ANONYMOUS=1)


@pytest.fixture(scope="module")
def port(environment, tmp_path_factory):
    with processes.server(tmp_path_factory.mktemp("runhttp"), environment) as api:
        yield int(api.url.rpartition(":")[2])


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE)


def everything(line: socket.socket) -> bytes:
    """What arrives until the server closes the connection."""
    found = b""
    while part := line.recv(2**16):
        found += part
    return found


def refusal_in(answer: bytes, status: int) -> dict[str, Any]:
    """The error in a response that ends the connection (OJS HTTP §6.5, §16.1)."""
    head, body = answer.decode().split("\r\n\r\n")
    first, *lines = head.split("\r\n")
    headers = dict(line.split(": ") for line in lines)
    assert first.startswith(f"HTTP/1.1 {status} ") and headers["connection"] == "close"
    assert headers["content-type"] == MEDIA_TYPE and headers["ojs-version"] == "1.0"
    error = json.loads(body)["error"]
    assert error["request_id"] == headers["x-request-id"]
    return error


def test_headers_that_do_not_end_are_given_up(port):
    with connect(port) as line:
        line.sendall(b"GET /ojs/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        answer = everything(line)

    error = refusal_in(answer, 408)
    assert (error["code"], error["retryable"]) == ("timeout", True)
    assert error["message"] == "The request's headers were not complete after 0.5 s."


@pytest.mark.parametrize("beginning", [b"", b"\r\n"])
def test_a_connection_that_sends_no_request_is_closed(port, beginning):
    with connect(port) as line:
        line.sendall(beginning)
        assert everything(line) == b""


def test_so_is_one_that_begins_its_second_request_and_does_not_end_it(port):
    with connect(port) as line:
        line.sendall(HEALTH + HEALTH[:20])
        answer = everything(line)

    assert answer.startswith(b"HTTP/1.1 200 ") and b"HTTP/1.1 408 " in answer


@pytest.mark.parametrize("end", [b"", b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"])
def test_a_url_that_is_too_long_is_refused(port, end):
    with connect(port) as line:
        line.sendall(b"GET /ojs/v1/" + b"a" * 70_000 + end)
        answer = everything(line)

    assert "URL is too long" in refusal_in(answer, 414)["message"]


@pytest.mark.parametrize(
    "headers",
    [
        b"X-Large: " + b"a" * 70_000,
        b"X-Large: " + b"a" * 70_000 + b"\r\n\r\n",
        b"X-Many: 1\r\n" * 7_000 + b"\r\n",
        b"Connection: upgrade\r\nUpgrade: h2c\r\nX-Large: " + b"a" * 70_000 + b"\r\n\r\n",
    ],
    ids=["unfinished", "one", "many", "upgrade"],
)
def test_a_head_that_is_too_large_is_refused(port, headers):
    with connect(port) as line:
        line.sendall(b"GET /ojs/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers)
        answer = everything(line)

    message = refusal_in(answer, 431)["message"]
    assert message == "The request's headers are larger than 65536 bytes."


def test_bytes_of_an_earlier_request_do_not_count(port):
    body = json.dumps({"type": "report", "args": ["a" * 70_000]}).encode()
    headers = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connect(port) as line:
        line.sendall(POSTED + headers + body + HEALTH[:20])
        with http.client.HTTPResponse(line) as answer:
            answer.begin()
            assert answer.status == 201
            answer.read()
        line.sendall(HEALTH[20:])
        with http.client.HTTPResponse(line) as answer:
            answer.begin()
            assert answer.status == 200


POSTED = b"POST /ojs/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"FOO / HTTP/1.1\r\n\r\n", "Invalid method"),
        (b"\x16\x03\x01\x02\x00", "Invalid method"),
        (b"GET http://[ HTTP/1.1\r\n\r\n", "Invalid URL"),
        (POSTED + b"Content-Length: x\r\n\r\n", "Content-Length"),
        (POSTED + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "Content-Length"),
        (POSTED + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "chunk size"),
    ],
)
def test_what_is_no_http_is_refused_like_everything_else(port, sent, reason):
    with connect(port) as line:
        line.sendall(sent)
        error = refusal_in(everything(line), 400)

    assert error["code"] == "invalid_request" and reason in error["message"]


def test_a_head_may_arrive_in_pieces_and_a_connection_stays_open(port):
    with connect(port) as line:
        for _ in range(2):
            for part in (HEALTH[:10], HEALTH[10:30], HEALTH[30:]):
                line.sendall(part)
            with http.client.HTTPResponse(line) as answer:
                answer.begin()
                assert answer.status == 200
                answer.read()


class Site:
    """An application that can answer with and without ASGI messages."""

    def __init__(self) -> None:
        self.ways: list[str] = []
        self.has_begun = asyncio.Event()

    def answer_whole(self, scope, body):
        self.ways.append(f"directly: {body.decode()}")
        reply = asyncio.get_running_loop().create_future()
        reply.set_result(Reply(200, [("X-Way", "direct")], b"{}"))
        return reply

    async def __call__(self, scope, receive, send):
        self.has_begun.set()
        body = b""
        while (message := await receive())["more_body"]:
            body += message["body"]
        self.ways.append(f"with messages: {(body + message['body']).decode()}")
        await send({"type": "http.response.start", "status": 200, "headers": LENGTH})
        await send({"type": "http.response.body", "body": b"{}"})


LENGTH = [(b"content-length", b"2")]
POST = b"POST /ojs/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n"


@contextlib.asynccontextmanager
async def connected(site):
    """A connection to a server of `site` in this process."""
    config = uvicorn.Config(site, access_log=False, log_config=None, proxy_headers=False)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: HttpProtocol(config, ServerState(), {}), "127.0.0.1", 0
    )
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield reader, writer
        finally:
            writer.close()


def bug(*args):
    raise AssertionError("a bug")


@pytest.mark.parametrize(
    ("place", "name", "path"),
    [
        (bypass, "resolve", "/ojs/v1/jobs"),
        (bypass.Bypass, "gathered", "/ojs/v1/jobs"),
        (bypass.Bypass, "respond", "/ojs/v1/workers/register"),
        (bypass.Bypass, "respond_together", "/ojs/v1/jobs"),
    ],
)
def test_a_bug_is_answered_500_and_the_connection_stays(
    monkeypatch, settings, caplog, place, name, path
):
    settings.ALLOWED_HOSTS = ["localhost"]
    body = b'{"type": "report"}'
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"

    async def scenario():
        site = JobServer(bypass.Bypass(get_wsgi_application()), is_ours=lambda path: True)
        answers = []
        async with connected(site) as (reader, writer):
            for _ in range(2):
                writer.write(head.encode() + body)
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
                headers = dict(line.lower().split(": ") for line in lines if line)
                sent = json.loads(await reader.readexactly(int(headers["content-length"])))
                answers.append((first, headers["content-type"], sent["error"]["code"]))
        await site._run.close()
        return answers

    monkeypatch.setattr(place, name, bug)
    answers = asyncio.run(asyncio.wait_for(scenario(), PATIENCE))

    assert answers == [("HTTP/1.1 500 Internal Server Error", MEDIA_TYPE, "backend_error")] * 2
    assert "a bug" in caplog.text


@pytest.mark.parametrize(
    ("parts", "way"),
    [
        ([POST + b"\r\nbody"], "directly: body"),
        ([POST + b"\r\nbo", b"dy"], "with messages: body"),
        ([POST + b"\r\n", b"body"], "with messages: body"),
        ([POST + b"Expect: 100-continue\r\n\r\nbody"], "with messages: body"),
        ([b"GET /ojs/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"], "with messages: "),
    ],
)
def test_a_post_that_arrives_whole_needs_no_messages(parts, way):
    async def ask(site):
        async with connected(site) as (reader, writer):
            for number, part in enumerate(parts):
                if number:
                    await site.has_begun.wait()
                writer.write(part)
            return await reader.readuntil(b"{}")

    async def scenario():
        site = Site()
        return site, await asyncio.wait_for(ask(site), PATIENCE)

    site, answer = asyncio.run(scenario())

    assert site.ways == [way]
    assert b"HTTP/1.1 200 OK\r\n" in answer and answer.endswith(b"content-length: 2\r\n\r\n{}")


class Reader:
    """An application that reads a request to its end."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.headers: list[Any] = []
        self.last: Any = None

    async def __call__(self, scope, receive, send):
        self.headers = scope["headers"]
        self.has_begun.set()
        self.last = await receive()
        while self.last.get("more_body"):
            self.last = await receive()
        if self.last["type"] == "http.request":
            await send({"type": "http.response.start", "status": 200, "headers": LENGTH})
            await send({"type": "http.response.body", "body": b"{}"})


def read_by_parts(first: bytes, *parts: bytes) -> tuple[Reader, bytes]:
    """Send the first part, and once it is being read, the others; return the answer."""

    async def ask(site):
        async with connected(site) as (reader, writer):
            writer.write(first)
            await site.has_begun.wait()
            writer.write(b"".join(parts))
            return site, await asyncio.wait_for(reader.read(), PATIENCE)

    return asyncio.run(ask(Reader()))


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "trailers", [b"X-Many: 1\r\n" * 7_000, b"X-Large: " + b"a" * 70_000], ids=["many", "one"]
)
def test_trailers_that_are_too_large_are_refused(trailers):
    site, answer = read_by_parts(CHUNKED + b"2\r\n{}\r\n0\r\n", trailers)

    assert "follow the request's body" in refusal_in(answer, 431)["message"]
    assert site.last["type"] == "http.disconnect"


def test_a_trailer_is_no_header():
    trailer = b"X-OJS-Tenant: acme\r\n\r\n"
    site, answer = read_by_parts(CHUNKED + b"2\r\n{}\r\n", b"0\r\n", trailer)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"x-ojs-tenant" not in dict(site.headers)


def test_a_body_in_very_many_chunks_is_read_to_its_end():
    _, answer = read_by_parts(CHUNKED, b"1\r\na\r\n" * 70_000, b"0\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 200 ")


OFFERS = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    "TLS": b"Connection: upgrade\r\nUpgrade: TLS/1.0\r\n",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
}


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_offer_to_upgrade_leaves_a_request_what_it_is(port, offer, is_chunked):
    body = json.dumps({"type": "report", "args": []}).encode()
    length = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % len(body)
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body
    head = POSTED + b"Content-Type: application/json\r\n" + length + b"\r\n" + offer + b"\r\n"
    with connect(port) as line:
        for _ in range(2):
            line.sendall(head + sent)
            with http.client.HTTPResponse(line) as answer:
                answer.begin()
                assert answer.status == 201
                assert json.loads(answer.read())["type"] == "report"


class Line(asyncio.Transport):
    """A connection without a socket: what is sent stays in the packets in which it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data):
        self.written += data

    def close(self):
        self.is_closed = True

    def is_closing(self):
        return self.is_closed

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


OFFER = b"Connection: %b\r\nUpgrade: h2c\r\nX-Empty:\r\n"
PIPELINED = b"".join(
    [
        POST + OFFER % b"Upgrade" + b"\r\nbody",
        b"GET / HTTP/1.1\r\n" + OFFER % b"keep-alive, upgrade" + b"\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + OFFER % b"Upgrade",
        b"\r\n3\r\nchu\r\n3\r\nnks\r\n0\r\n\r\n",
        b"GET /ojs/v1/ws HTTP/1.1\r\n" + OFFERS["websocket"] + b"\r\n",
        POST.replace(b"HTTP/1.1", b"HTTP/1.0") + OFFER % b"keep-alive, upgrade" + b"\r\n1996",
    ]
)
CUTS = [[cut] for cut in range(len(PIPELINED))] + [list(range(len(PIPELINED)))]


def test_offers_to_upgrade_are_ignored_however_the_packets_are_cut():
    async def bodies(cuts):
        site, line = Site(), Line()
        config = uvicorn.Config(site, access_log=False, log_config=None, proxy_headers=False)
        protocol = HttpProtocol(config, ServerState(), {})
        protocol.connection_made(line)
        for start, end in pairwise([0, *cuts, len(PIPELINED)]):
            if start < end:
                protocol.data_received(PIPELINED[start:end])
        while not line.is_closed:
            await asyncio.sleep(0)
        protocol.connection_lost(None)
        assert line.written.count(b"HTTP/1.1 200 OK\r\n") == len(site.ways)
        return [way.rpartition(": ")[2] for way in site.ways]

    async def scenario():
        for cuts in CUTS:
            found = await asyncio.wait_for(bodies(cuts), PATIENCE)
            assert found == ["body", "", "chunks", "", "1996"], cuts

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        (b"", b"X-Large: " + b"a" * 9_000 + b"\r\n", 431),
        (b"", b"X-Many: 1\r\n" * 200, 431),
        (b"?large=" + b"a" * 9_000, b"", 414),
    ],
    ids=["large", "many", "long"],
)
@pytest.mark.parametrize("path", [b"/work", b"/ojs/v1/ws"])
def test_a_websocket_handshake_that_cannot_be_read_is_refused(port, path, query, headers, status):
    with connect(port) as line:
        line.sendall(b"GET " + path + query + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        line.sendall(OFFERS["websocket"] + headers + b"\r\n")
        answer = everything(line)

    assert "no WebSocket handshake that can be read" in refusal_in(answer, status)["message"]


@pytest.mark.parametrize(
    ("version", "headers"),
    [
        (b"1.1", b"Content-Length: 2\r\n\r\n{}"),
        (b"1.1", b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (b"1.0", b"\r\n"),
    ],
)
def test_what_is_no_websocket_handshake_is_answered_over_http(port, version, headers):
    first = b"GET /ojs/v1/ws HTTP/" + version + b"\r\nHost: 127.0.0.1\r\n"
    with connect(port) as line:
        line.sendall(first + OFFERS["websocket"] + headers)
        with http.client.HTTPResponse(line) as answer:
            answer.begin()
            assert answer.status == 426


def test_a_websocket_outlives_the_deadline_of_a_head(port):
    with websockets.sync.client.connect(f"ws://127.0.0.1:{port}/ojs/v1/ws", proxy=None) as socket:
        # One that came later has been given up.
        with connect(port) as line:
            line.sendall(b"GET /ojs/v1/health HTTP/1.1\r\n")
            assert everything(line).startswith(b"HTTP/1.1 408 ")

        assert socket.ping().wait(PATIENCE)


def words_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return ""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "django", "runhttp", *map(str, arguments)]


def is_healthy(port: int, context: ssl.SSLContext | None = None) -> bool:
    url = f"https://localhost:{port}" if context else f"http://127.0.0.1:{port}"
    try:
        return httpx.get(f"{url}/ojs/v1/health", verify=context or False).is_success
    except httpx.TransportError:
        return False


@pytest.fixture
def certificate(tmp_path):
    """A file with a certificate for localhost, and a context that trusts it."""
    authority = trustme.CA()
    root, path = tmp_path / "root.pem", tmp_path / "certificate.pem"
    authority.cert_pem.write_to_path(str(root))
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(path))
    return path, ssl.create_default_context(cafile=str(root))


def test_several_processes_serve_and_one_that_dies_is_replaced(environment, tmp_path):
    port = free_port()
    log = tmp_path / "server.log"
    with running(command("--port", port, "--processes", 2), log, environment) as started:
        parent = psutil.Process(started.process.pid)

        def serving() -> list[int]:
            """Those that serve; multiprocessing has a process of its own."""
            return [child.pid for child in parent.children() if "spawn_main" in words_of(child)]

        def answers() -> bool:
            return is_healthy(port)

        eventually(lambda: answers() and len(serving()) == 2, lambda: started.output)
        first, second = serving()
        os.kill(first, signal.SIGKILL)
        eventually(lambda: len(serving()) == 2 and first not in serving(), lambda: started.output)
        eventually(answers, lambda: started.output)
        assert second in serving()

        assert started.terminate() == 0, started.output
    assert "Traceback" not in started.output


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("runhttp", ["--processes", "1"], "startup complete"),
        ("runagq", [], "are served on"),
        ("runrota", [], "connect to"),
        ("runreaper", [], "The reaper runs"),
    ],
)
def test_a_closed_terminal_ends_a_command_in_order(environment, tmp_path, name, arguments, says):
    port = [] if name == "runreaper" else ["--port", str(free_port())]
    with processes.manage(tmp_path, environment, name, *port, *arguments) as started:
        started.wait_for(says)
        os.kill(started.process.pid, signal.SIGHUP)

        assert started.wait() == 0, started.output


HANGING = """
import django
from django.core.management import call_command
django.setup()
from workers.management.commands import runhttp
runhttp.LAST_WORDS, runhttp.PARTING, runhttp.HUNG = 1, 1, 10 * 60
if __name__ == "__main__":
    call_command("runhttp", "--port", "{port}", "--processes", "2")
"""


def test_a_process_that_hangs_does_not_keep_the_others_from_ending(environment, tmp_path):
    port = free_port()
    script = tmp_path / "hanging.py"
    script.write_text(HANGING.format(port=port))
    log = tmp_path / "server.log"
    environment = environment | {"PYTHONPATH": str(processes.ROOT)}
    with running([sys.executable, str(script)], log, environment) as started:
        parent = psutil.Process(started.process.pid)

        def serving() -> list[psutil.Process]:
            return [child for child in parent.children() if "spawn_main" in words_of(child)]

        eventually(lambda: started.output.count("startup complete") == 2, lambda: started.output)
        hung, well = serving()
        hung.suspend()
        assert started.terminate() == 0, started.output
        assert not psutil.pid_exists(hung.pid) and not psutil.pid_exists(well.pid)
    assert f"Finished server process [{well.pid}]" in started.output
    assert f"Process {hung.pid} did not end within 2 s: killed." in started.output


@pytest.mark.parametrize("processes", [1, 2])
def test_a_second_interrupt_ends_it_without_the_requests_in_hand(environment, tmp_path, processes):
    port = free_port()
    log = tmp_path / "server.log"
    environment = environment | {"OJS_BODY_TIMEOUT": "600"}
    arguments = command("--port", port, "--processes", processes)
    with running(arguments, log, environment) as started:
        eventually(lambda: is_healthy(port), lambda: started.output)
        with connect(port) as line:
            line.sendall(POST + b"Expect: 100-continue\r\n\r\n")
            assert line.recv(100).startswith(b"HTTP/1.1 100 ")
            started.process.send_signal(signal.SIGINT)
            started.wait_for("Waiting for connections to close")
            started.process.send_signal(signal.SIGINT)

            assert started.wait() == 0, started.output
            answer = everything(line)
    # Several are killed.
    assert processes > 1 or b"This process is about to end." in answer
    assert "Traceback" not in started.output and "ERROR" not in started.output


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_it_serves_ends_it(environment, tmp_path, processes, number):
    script = f"""
import django, os, time
from django.core.management import call_command
django.setup()
import uvicorn

def began(*args):
    print("it begins", flush=True)
    time.sleep(600)

uvicorn.Server.run = uvicorn.Config.bind_socket = began
call_command("runhttp", "--port", "{free_port()}", "--processes", "{processes}")
"""
    log = tmp_path / "server.log"
    with running([sys.executable, "-c", script], log, environment) as started:
        eventually(lambda: "it begins" in started.output, lambda: started.output)
        started.process.send_signal(number)
        assert started.wait() == 0, started.output


def test_processes_end_with_their_supervisor_even_if_it_is_killed(environment, tmp_path):
    port = free_port()
    arguments = command("--port", port, "--processes", 2)
    with running(arguments, tmp_path / "server.log", environment) as started:
        eventually(lambda: is_healthy(port), lambda: started.output)
        family = psutil.Process(started.process.pid).children(recursive=True)

        started.process.kill()

        _, alive = psutil.wait_procs(family, PATIENCE)
        assert not alive, started.output
    assert "The process that supervises this one is gone" in started.output
    with socket.create_server(("127.0.0.1", port)):
        pass  # the next server can have the port


def test_several_processes_do_not_start_with_options_that_are_refused(environment, tmp_path):
    environment = environment | {"DJANGO_DEBUG": "0", "DJANGO_SECRET_KEY": "k" * 50}
    arguments = command("--port", free_port(), "--processes", 2)
    refused = environment | {"OJS_ALLOW_ANONYMOUS": "1"}
    with running(arguments, tmp_path / "server.log", refused) as started:
        assert started.wait() == 1
    assert "it is refused outside DEBUG" in started.output
    assert "Started server process" not in started.output


def test_it_serves_tls(environment, tmp_path, certificate):
    path, context = certificate
    port = free_port()
    arguments = command("--port", port, "--tls-certificate", path)
    with running(arguments, tmp_path / "server.log", environment) as started:
        eventually(lambda: is_healthy(port, context), lambda: started.output)
        surroundings = {"OJS_SERVER_PORT": str(port), "OJS_SERVER_TLS_CERTIFICATE": "set"}
        health.check(surroundings, tmp_path / "alive")
        assert started.terminate() == 0, started.output


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::"])
@pytest.mark.parametrize("processes", [1, 2])
def test_the_health_check_finds_it_on_each_address_and_is_not_redirected(
    environment, tmp_path, host, processes
):
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    environment = environment | {
        "OJS_SERVER_HOST": host,
        "OJS_SERVER_PORT": str(free_port()),
        "DJANGO_SECURE_SSL_REDIRECT": "1",
    }

    def is_well() -> bool:
        try:
            health.check(environment, tmp_path / "alive")
        except health.NoAnswer:
            return False
        return True

    arguments = command("--processes", processes)
    with running(arguments, tmp_path / "server.log", environment) as started:
        eventually(is_well, lambda: started.output)
        assert started.terminate() == 0, started.output


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_a_websocket_that_is_refused_is_no_error_of_the_server(
    environment, tmp_path, certificate, scheme
):
    path, context = certificate if scheme == "wss" else ("", None)
    port = free_port()
    arguments = command("--port", port, *(["--tls-certificate", path] if path else []))
    guarded = environment | {"OJS_ALLOW_ANONYMOUS": "0"}

    def status(at: str) -> int:
        url = f"{scheme}://localhost:{port}{at}"
        with pytest.raises(websockets.InvalidStatus) as refused:
            websockets.sync.client.connect(url, ssl=context, proxy=None)
        return refused.value.response.status_code

    with running(arguments, tmp_path / "server.log", guarded) as started:
        eventually(lambda: is_healthy(port, context), lambda: started.output)
        found = [status(at) for at in ("/nowhere", "/work", "/ojs/v1/ws", "/nowhere")]
        assert started.terminate() == 0, started.output

    assert found == [404, 401, 401, 404]
    assert "ERROR" not in started.output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--processes", "0"], "at least one process"),
        (["--tls-certificate", "/nowhere.pem"], "/nowhere.pem"),
        (["--tls-key", "/nowhere.pem"], "no TLS certificate"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(arguments, reason):
    with pytest.raises(CommandError, match=reason):
        call_command("runhttp", *arguments)


def test_an_address_in_use_ends_it_with_the_reason(environment, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        arguments = command("--port", other.getsockname()[1])
        with running(arguments, Path(tmp_path / "server.log"), environment) as started:
            assert started.wait() != 0
    assert "address already in use" in started.output


def test_a_site_without_an_application_is_asked_for_one(settings):
    settings.ASGI_APPLICATION = None
    with pytest.raises(CommandError, match="ASGI_APPLICATION"):
        call_command("runhttp")

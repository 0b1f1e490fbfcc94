"""A client that never finishes a request body blocks no thread of the server."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.wsgi import get_wsgi_application
from django.test import RequestFactory

from jobs.http.authentication import make_key
from ojs_project.body_deadline import BodyDeadline
from ojs_project.bypass import Bypass
from tests import processes
from tests.once import once_is_enough

pytestmark = once_is_enough

LOGIN = "/admin/login/"
BEAT = "/ojs/v1/workers/heartbeat"
FORM = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": f"csrftoken={'a' * 32}"}
JSON = {"Content-Type": "application/json"}


def opened(port: int, path: str, headers: dict[str, str], body: bytes = b"{") -> socket.socket:
    """A connection with a request whose body is never finished."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"{name}: {text}" for name, text in headers.items()]
    if "Transfer-Encoding" not in headers:
        lines.append("Content-Length: 1000")
    connection = socket.create_connection(("127.0.0.1", port), processes.PATIENCE)
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
    return connection


def everything(connection: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(2**16):
            found += part
    return found


@pytest.fixture
def server(database_url, tmp_path):
    """`server(BODY_TIMEOUT=1)`: the port of a server, with fewer threads than a test needs."""
    with contextlib.ExitStack() as stack:

        def start(interface="asgi", **options):
            environment = processes.environment(database_url, ALLOW_ANONYMOUS=1, **options)
            return stack.enter_context(processes.server(tmp_path, environment, 6, interface))

        yield start


def port_of(api: processes.Api) -> int:
    return int(api.url.rpartition(":")[2])


# On a real server


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        (BEAT, JSON, b"{"),
        (BEAT, JSON, b""),
        (BEAT, JSON | {"Transfer-Encoding": "chunked"}, b"1\r\n{\r\n"),
        (LOGIN, FORM, b"username="),
        (LOGIN, FORM | {"Content-Type": "multipart/form-data; boundary=x"}, b"--x\r\n"),
    ],
    ids=["json", "nothing", "chunked", "form", "multipart"],
)
@pytest.mark.parametrize("interface", ["asgi", "wsgi"])
def test_a_body_that_does_not_end_is_answered_and_its_connection_closed(
    server, interface, path, headers, body
):
    api = server(interface, BODY_TIMEOUT=0.5)

    with opened(port_of(api), path, headers, body) as connection:
        answer = everything(connection)

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"The request body was not complete after 0.5 s." in answer


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("path", "headers"), [(BEAT, JSON), (LOGIN, FORM)], ids=["ojs", "login"])
@pytest.mark.parametrize(("interface", "many"), [("asgi", 200), ("wsgi", 30)])
def test_unfinished_bodies_do_not_stop_other_requests(server, interface, many, path, headers):
    """Many times more than there are threads, for an hour."""
    api = server(interface, BODY_TIMEOUT=3600, MAX_UNFINISHED_BODIES=3)

    with contextlib.ExitStack() as stack:
        for _ in range(many):
            stack.enter_context(opened(port_of(api), path, headers))

        assert api.call("GET", "/ojs/v1/health")[0] == 200
        assert api.post("workers/heartbeat", {"worker_id": "w", "state": "running"})["state"]
        api.post("jobs", {"type": "email.send", "args": []})
        assert api.post("workers/fetch", {"queues": ["default"], "worker_id": "w"})["jobs"]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_beyond_the_cap_the_oldest_body_is_given_up_and_the_newest_may_still_come(server):
    api = server("wsgi", BODY_TIMEOUT=3600, MAX_UNFINISHED_BODIES=1)
    body = json.dumps({"worker_id": "w", "state": "running"}).ljust(1000).encode()

    with opened(port_of(api), BEAT, JSON) as old, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(everything, old)
        # From outside it is not visible when the server has begun to wait for it.
        time.sleep(1)
        with opened(port_of(api), BEAT, JSON, body[:10]) as new:
            assert b"HTTP/1.1 408 " in answer.result(processes.PATIENCE)
            new.sendall(body[10:])
            assert new.recv(2**16).startswith(b"HTTP/1.1 200 ")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_large_body_in_many_parts_comes_through_whole(server):
    api = server(BODY_TIMEOUT=60, MAX_BODY_SIZE=4 * 2**20)
    job = {"type": "email.send", "args": ["x" * 3 * 2**20]}
    request = urllib.request.Request(
        f"{api.url}/ojs/v1/jobs", iter([json.dumps(job).encode()] + [b" "] * 100), JSON
    )

    with urllib.request.urlopen(request, timeout=processes.PATIENCE) as reply:
        assert reply.status == 201


# Bodies from a stream that is a socket


@pytest.fixture
def project():
    return BodyDeadline(Bypass(get_wsgi_application()))


def ask(project, stream, length: int, path: str = BEAT, kind: str = "application/json"):
    """Status and body of the response to a request whose body comes from `stream`."""
    _, key = make_key("x", scopes=["work"])
    headers = {"HTTP_AUTHORIZATION": f"Bearer {key}", "HTTP_COOKIE": FORM["Cookie"]}
    environ = RequestFactory().generic("POST", path, b"", content_type=kind, **headers).environ
    environ |= {"CONTENT_TYPE": kind, "CONTENT_LENGTH": str(length), "wsgi.input": stream}
    said = []
    parts = project(environ, lambda status, headers: said.append((status, dict(headers))))
    content = b"".join(parts)
    ((status, headers),) = said
    assert int(headers["Content-Length"]) == len(content)
    return status, content


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("sent", [b"", b'{"worker_id": "w"', b'{"worker_id": "w"}'])
def test_a_connection_that_ends_before_its_body_does_changes_nothing(project, sent):
    client, server = socket.socketpair()
    with client, server, server.makefile("rb") as stream:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)

        status, content = ask(project, stream, 100)

    assert status == "408 Request Timeout"
    assert json.loads(content)["error"]["retryable"] is True


@pytest.mark.django_db(transaction=True)
def test_a_form_that_was_cut_short_is_not_taken_for_a_whole_one(project):
    client, server = socket.socketpair()
    with client, server, server.makefile("rb") as stream:
        client.sendall(b"username=a&password=b")
        client.shutdown(socket.SHUT_WR)

        status, content = ask(project, stream, 100, LOGIN, FORM["Content-Type"])

    assert (status, content) == (
        "408 Request Timeout",
        b"The connection ended before the request body did.\n",
    )


@pytest.mark.django_db(transaction=True)
def test_without_a_deadline_a_body_is_read_in_the_requests_own_thread(project, settings):
    settings.OJS = settings.OJS | {"BODY_TIMEOUT": 0}
    readers = []

    class Stream(io.BytesIO):
        def read(self, *size: int) -> bytes:
            readers.append(threading.current_thread())
            return super().read(*size)

    assert ask(project, Stream(b'{"worker_id": "w"}'), 18)[0] == "200 OK"
    assert readers == [threading.current_thread()]

"""The ASGI application on real servers: waiting and streaming requests hold no thread.

The servers have two threads for requests, so that a test fails if anything keeps one.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jobs.models import Job
from jobs.spec.identifiers import uuid7
from jobs.spec.lifecycle import State
from tests import processes
from tests.database import atomic, connection
from tests.factories import JobFactory, QueueFactory, WorkerFactory

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

HOUR = 3_600_000
JSON = "application/json"


class Line:
    """A connection for requests whose responses may never be read."""

    def __init__(self, api: processes.Api) -> None:
        self.api = api
        port = int(api.url.rpartition(":")[2])
        self.socket = socket.create_connection(("127.0.0.1", port), processes.PATIENCE)
        self.buffer = b""

    def ask(self, method: str, path: str, body: dict | None = None, *, parts: int = 1) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        whole = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
        for part in (whole,) if parts == 1 else (whole[:-1], whole[-1:]):
            self.socket.sendall(part)
            if parts > 1:  # by the time of another response, the server has read this one
                self.api.call("GET", "/ojs/manifest")

    def fetch(
        self, worker_id: str, queue: str = "default", wait_ms: int = HOUR, *, parts: int = 1
    ) -> None:
        body = {"queues": [queue], "worker_id": worker_id, "wait_ms": wait_ms}
        self.ask("POST", "/ojs/v1/workers/fetch", body, parts=parts)

    def poll(self, worker_id: str, *, parts: int = 1) -> None:
        """Fetch as a Flare worker does."""
        body = {"queues": ["default"], "worker_id": worker_id}
        self.ask("POST", "/flare/v1/workers/poll", body, parts=parts)

    def read_until(self, pattern: bytes) -> bytes:
        while not (found := re.search(pattern, self.buffer)):
            part = self.socket.recv(2**16)
            assert part, self.buffer
            self.buffer += part
        before, self.buffer = self.buffer[: found.end()], self.buffer[found.end() :]
        return before

    def answer(self) -> tuple[int, dict]:
        head = self.read_until(b"\r\n\r\n").decode()
        length = int(re.search(r"(?i)content-length: (\d+)", head)[1])
        while len(self.buffer) < length:
            self.buffer += self.socket.recv(2**16)
        content, self.buffer = self.buffer[:length], self.buffer[length:]
        return int(head.split()[1]), json.loads(content)

    def jobs(self) -> list[str]:
        status, document = self.answer()
        assert status == 200, document
        return [job["args"] for job in document["jobs"]]


@pytest.fixture(params=["asgi"])
def server(request, database_url, tmp_path):
    """A server that polls only once in ten minutes, and answers in two threads."""
    environment = processes.environment(
        database_url, ALLOW_ANONYMOUS=1, MAX_WAIT=3600, WAIT_POLL_INTERVAL=600
    )
    with processes.server(tmp_path, environment, 2, request.param) as api:
        yield api


@pytest.fixture
def line(server):
    with contextlib.ExitStack() as stack:

        def connect() -> Line:
            made = Line(server)
            stack.enter_context(made.socket)
            return made

        yield connect


def push(api: processes.Api, *numbers: int, queue: str = "default") -> None:
    for number in numbers:
        job = {"type": "email.send", "args": [number], "options": {"queue": queue}}
        api.post("jobs", job)


def test_a_hundred_fetches_wait_and_everything_else_is_answered(server, line):
    waiting = [line() for _ in range(100)]
    for number, fetch in enumerate(waiting):
        fetch.fetch(f"w-{number}")

    beat = server.post("workers/heartbeat", {"worker_id": "v", "state": "running"})
    push(server, 1, queue="another")
    (job,) = server.post("workers/fetch", {"queues": ["another"], "worker_id": "v"})["jobs"]
    server.post("workers/ack", {"job_id": job["id"], "worker_id": "v"})

    assert beat["state"] == "running"
    push(server, *range(100))
    given = [args for fetch in waiting for (args,) in [fetch.jobs()]]
    assert sorted(given) == [[number] for number in range(100)]


@contextlib.contextmanager
def nobody_claims():
    """Keep claims waiting until the block ends; reading is possible."""
    with atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("LOCK TABLE ojs_jobs_job IN EXCLUSIVE MODE")
        else:
            cursor.execute("UPDATE ojs_jobs_job SET priority = priority")
        yield


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("protocol", ["ojs", "flare"])
def test_what_is_found_for_a_worker_that_has_left_meanwhile_is_for_the_next_one(
    server, line, protocol, parts
):
    gone, other = line(), line()
    push(server, 7)
    with nobody_claims():
        if protocol == "ojs":
            gone.fetch("gone", wait_ms=0, parts=parts)
        else:
            gone.poll("gone", parts=parts)
        gone.socket.close()
        # The server has seen that when it answers.
        assert server.call("GET", "/ojs/manifest")[0] == 200
        other.fetch("other")

    assert other.jobs() == [[7]]
    assert Job.objects.values_list("reserved_by", "attempt").get() == ("other", 1)


def test_a_worker_that_left_while_it_waited_gets_no_job(server, line):
    gone, other = line(), line()
    gone.fetch("gone")
    other.fetch("other")
    server.post("workers/heartbeat", {"worker_id": "gone", "state": "running"})
    gone.socket.close()

    push(server, 7)

    assert other.jobs() == [[7]]
    assert Job.objects.get().reserved_by == "other"


def test_a_quieted_worker_at_the_front_does_not_keep_others_from_work(server, line):
    WorkerFactory(worker_id="quiet", state="quiet")
    quiet, other = line(), line()
    quiet.fetch("quiet")
    server.post("workers/heartbeat", {"worker_id": "other", "state": "running"})
    other.fetch("other")

    push(server, 7)

    assert other.jobs() == [[7]]


def test_a_result_that_is_waited_for_comes_when_the_job_has_ended(server, line):
    job = JobFactory(active=True, reserved_by="w")
    waiting = [line() for _ in range(20)]
    for one in waiting:
        one.ask("GET", f"/ojs/v1/jobs/{job.pk}/result?wait=true&timeout=3600")

    server.post("workers/ack", {"job_id": str(job.pk), "worker_id": "w", "result": {"sent": 3}})

    answers = [one.answer() for one in waiting]
    assert [(status, document["result"]) for status, document in answers] == [
        (200, {"sent": 3})
    ] * 20


def test_an_enqueue_waits_for_room_without_a_thread(server, line):
    assert server.call("PUT", "/ojs/v1/queues/full/config", {"max_depth": 1})[0] == 200
    server.call("PUT", "/ojs/v1/queues/full/config", {"max_depth": 1, "overflow_policy": "block"})
    JobFactory(queue="full")
    body = json.dumps({"type": "email.send", "args": [], "options": {"queue": "full"}})
    waiting = [line() for _ in range(5)]
    for one in waiting:
        head = "POST /ojs/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        head += f"OJS-Block-Timeout: 0\r\nContent-Length: {len(body)}\r\n\r\n"
        one.socket.sendall((head + body).encode())

    assert [one.answer()[0] for one in waiting] == [429] * 5


def test_a_stream_of_progress_tells_what_happens_and_ends_with_the_job(server, line):
    job = JobFactory(active=True, reserved_by="w")
    streams = [line() for _ in range(20)]
    for stream in streams:
        stream.ask("GET", f"/ojs/v1/jobs/{job.pk}/progress/stream")
        stream.read_until(b"retry: 1000")

    server.post(f"jobs/{job.pk}/progress", {"progress": 0.5, "worker_id": "w"})
    for stream in streams:
        stream.read_until(b'event: progress\ndata: {"progress":0.5')
    server.post("workers/ack", {"job_id": str(job.pk), "worker_id": "w"})

    for stream in streams:
        stream.read_until(b"event: completed\n")
        stream.read_until(b"\r\n0\r\n\r\n")


@pytest.mark.parametrize("server", ["asgi", "granian"], indirect=True)
@pytest.mark.parametrize(
    ("path", "status", "media_type"),
    [
        ("jobs/{id}/progress/stream", 200, "text/event-stream"),
        ("jobs/{id}/events", 200, "text/event-stream"),
        ("queues/default/events", 200, "text/event-stream"),
        ("events/stream", 200, "text/event-stream"),
        ("jobs/{id}/result?wait=true&timeout=3600", 408, "application/openjobspec+json"),
    ],
)
def test_requests_for_the_head_of_what_waits_or_streams_end_at_once(
    server, line, path, status, media_type
):
    QueueFactory(name="default")
    path = path.format(id=JobFactory(active=True).pk)
    for _ in range(3):
        one = line()
        one.ask("HEAD", f"/ojs/v1/{path}")
        one.ask("GET", "/ojs/manifest")

        head = one.read_until(b"\r\n\r\n").decode().lower()

        assert head.startswith(f"http/1.1 {status} ") and f"content-type: {media_type}" in head
        assert ("content-length" in head) == (status == 408)
        assert one.answer()[0] == 200


@pytest.mark.parametrize("server", ["asgi", "granian"], indirect=True)
def test_a_server_that_is_asked_to_end_answers_what_waits(server, line):
    job = JobFactory(active=True, reserved_by="w")
    fetches = [line() for _ in range(20)]
    for number, fetch in enumerate(fetches):
        fetch.fetch(f"w-{number}")
    stream = line()
    stream.ask("GET", f"/ojs/v1/jobs/{job.pk}/progress/stream")
    stream.read_until(b"retry: 1000")
    server.post("workers/heartbeat", {"worker_id": "v", "state": "running"})

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(server.started.terminate)

        assert [fetch.jobs() for fetch in fetches] == [[]] * 20
        stream.read_until(b"\r\n0\r\n\r\n")
        for one in (stream, *fetches):
            one.socket.close()
        ended.result(processes.PATIENCE)
    assert not Job.objects.filter(state=State.ACTIVE).exclude(pk=job.pk).exists()


@pytest.mark.parametrize("server", ["asgi", "granian"], indirect=True)
def test_the_admin_and_its_files_are_served_as_before(server, line):
    page = line()
    page.ask("GET", "/admin/login/?next=/admin/")

    login = page.read_until(b"</html>").decode()

    assert " 200 OK" in login and "csrfmiddlewaretoken" in login
    (style,) = re.findall(r'href="(/static/admin/css/base[^"]*)"', login)
    page.buffer = b""
    page.ask("GET", style)
    assert b" 200 OK" in page.read_until(b"\r\n\r\n")


def test_requests_that_come_together_are_answered_each_for_itself(server, line):
    good = {"type": "email.send", "args": [1]}
    asked = [
        (good, 201),
        ({"type": "Not A Type", "args": []}, 400),
        (good, 201),
        ({"type": "email.send", "args": 3}, 400),
        (good | {"id": "01931f6c-0000-7000-8000-000000000000"}, 201),
    ] * 4
    lines = [line() for _ in asked]

    for one, (body, _) in zip(lines, asked, strict=True):
        one.ask("POST", "/ojs/v1/jobs", body)

    answered = [one.answer()[0] for one in lines]
    # A client's own id can be used only once.
    chosen = [status for status, (body, _) in zip(answered, asked, strict=True) if "id" in body]
    assert sorted(chosen) == [201, 409, 409, 409]
    assert [status for status in answered if status != 409][:4] == [201, 400, 201, 400]
    assert Job.objects.count() == 9


ARRIVALS = {
    "an enqueue": ("POST /ojs/v1/jobs HTTP/1.1", '{"type": "email.send", "args": [1]}', {}),
    "a heartbeat": ("POST /ojs/v1/workers/heartbeat HTTP/1.1", '{"worker_id": "w"}', {}),
    "a fetch": ("POST /ojs/v1/workers/fetch HTTP/1.1", '{"queues": ["empty"]}', {}),
    "of HTTP/1.0": ("POST /ojs/v1/jobs HTTP/1.0", '{"type": "email.send", "args": [1]}', {}),
    "the last one": ("POST /ojs/v1/jobs HTTP/1.1", "{}", {"Connection": "close"}),
    "no JSON": ("POST /ojs/v1/jobs HTTP/1.1", "{", {}),
    "another host": ("POST /ojs/v1/jobs HTTP/1.1", "{}", {"Host": "elsewhere.example"}),
    "too large": ("POST /ojs/v1/jobs HTTP/1.1", f'{{"args": ["{20_000 * "a"}"]}}', {}),
    "a slow verb": ("POST /ojs/v1/queues/default/pause HTTP/1.1", "{}", {}),
    "no such path": ("POST /ojs/v1/nowhere HTTP/1.1", "{}", {}),
    "a page": ("POST /admin/login/ HTTP/1.1", "username=a", {}),
}


@pytest.fixture
def small_bodies(database_url, tmp_path):
    environment = processes.environment(database_url, ALLOW_ANONYMOUS=1, MAX_BODY_SIZE=10_000)
    with processes.server(tmp_path, environment, 2) as api:
        yield api


def test_requests_are_answered_alike_whether_they_arrive_whole_or_in_parts(small_bodies):
    for name, (first, body, more) in ARRIVALS.items():
        headers = {"Host": "127.0.0.1", "Content-Type": JSON, "X-Request-Id": "same"} | more
        lines = [first, *(f"{header}: {text}" for header, text in headers.items())]
        lines += [f"Content-Length: {len(body)}", "", body]
        whole = "\r\n".join(lines).encode()
        answers = []
        for parts in ((whole,), (whole[:-1], whole[-1:])):
            line = Line(small_bodies)
            with line.socket:
                for part in parts:
                    line.socket.sendall(part)
                    if part is not parts[-1]:
                        # Read by the server before the rest is sent: it answers others later.
                        small_bodies.get("health")
                head = line.read_until(b"\r\n\r\n").decode()
                length = int(re.search(r"content-length: (\d+)", head)[1])
                while len(line.buffer) < length:
                    line.buffer += line.socket.recv(2**16)
                is_last = "close" in head
                assert not is_last or line.socket.recv(1) == b""
                answers.append((without_times(head), without_times(line.buffer.decode())))
        assert answers[0] == answers[1], name


def without_times(text: str) -> str:
    """Without what differs from one request to the next."""
    text = re.sub(r"date: [^\r]*", "", text)
    text = re.sub(r'value="[A-Za-z0-9]{64}"|csrftoken=[^;]*;|expires=[^;]*;', "", text)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", text)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)


def test_requests_sent_without_waiting_are_answered_in_their_order(server, line):
    one = line()
    bodies = [{"type": "email.send", "args": [number]} for number in range(3)]
    sent = b"".join(
        b"POST /ojs/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(text), text)
        for text in (json.dumps(body).encode() for body in bodies)
    )

    one.socket.sendall(sent[:-5])
    answered = [one.answer() for _ in range(2)]
    one.socket.sendall(sent[-5:])
    answered.append(one.answer())

    assert [document["job"]["args"] for _, document in answered] == [[0], [1], [2]]


def test_a_rolling_restart_loses_no_request_that_was_answered(database_url, tmp_path):
    """Two servers, stopped and started in turn under load, as in a deployment."""
    environment = processes.environment(database_url, ALLOW_ANONYMOUS=1)
    servers: dict[str, processes.Api] = {}
    answered: list[str] = []
    unexpected: list[object] = []
    over = threading.Event()

    def load(number: int) -> None:
        connections: dict[str, http.client.HTTPConnection] = {}
        while not over.is_set():
            job_id = str(uuid7())
            job = json.dumps({"id": job_id, "type": "email.send", "args": [number]})
            for name in itertools.cycle(sorted(servers)):
                url = servers[name].url
                connection = connections.get(url)
                if connection is None:
                    address = url.removeprefix("http://")
                    connection = connections[url] = http.client.HTTPConnection(
                        address, timeout=processes.PATIENCE
                    )
                try:
                    connection.request("POST", "/ojs/v1/jobs", job, {"Content-Type": JSON})
                    status = connection.getresponse()
                    status.read()
                except (ConnectionError, http.client.HTTPException):
                    connections.pop(url).close()
                    continue
                # 409: an earlier try succeeded, and its response was lost.
                if status.status in (201, 409):
                    answered.append(job_id)
                elif status.status != 503:
                    unexpected.append(status.status)
                break

    with contextlib.ExitStack() as stack:
        running = {}
        for name in ("one", "two"):
            running[name] = stack.enter_context(contextlib.ExitStack())
            (tmp_path / name).mkdir()
            server = processes.server(tmp_path / name, environment)
            servers[name] = running[name].enter_context(server)
        with ThreadPoolExecutor(4) as pool:
            under_way = [pool.submit(load, number) for number in range(4)]
            try:
                for name in ("one", "two"):
                    before = len(answered)
                    processes.eventually(lambda before=before: len(answered) > before + 20)
                    running[name].close()
                    before = len(answered)
                    processes.eventually(lambda before=before: len(answered) > before + 20)
                    server = processes.server(tmp_path / name, environment)
                    servers[name] = running[name].enter_context(server)
            finally:
                over.set()
            for one in under_way:
                one.result(processes.PATIENCE)

    assert unexpected == []
    stored = {str(pk) for pk in Job.objects.values_list("pk", flat=True)}
    assert set(answered) <= stored

"""A worker of a third-party server, which does not enforce the worker's rules.

It supports little more than fetch, ack, nack and heartbeat, as public servers may: no waiting, no
reports in a fetch, and registration only while `registers` is true. It always has work, and records
the requests.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pytest

from jobs.spec.identifiers import uuid7
from tests.once import once_is_enough
from tests.processes import eventually
from tests.workers.site import NOWHERE, Shop, ends_with, tell
from workers.runtime.client import Refused
from workers.runtime.http import HttpClient
from workers.runtime.options import Options

pytestmark = [once_is_enough, pytest.mark.slow]


class Elsewhere(ThreadingHTTPServer):
    """The third-party server."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.moments: list[tuple[str, float]] = []
        self.waiting: list[dict[str, Any]] = []
        self.settled: list[str] = []
        self.directive = "running"
        self.fails = False
        self.fails_progress = False
        self.loses_progress = False
        self.registers = True
        self.forgets = False
        """Make the next heartbeat get 404: the registration is gone."""
        self.lock = threading.Lock()

    def enqueue(self, type: str, *args: Any, **more: Any) -> str:
        job_id = str(uuid7())
        job = {"id": job_id, "type": type, "args": list(args), "queue": "default"}
        self.waiting.append(job | {"attempt": 1, "max_attempts": 3, "state": "active"} | more)
        return job_id

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self.lock:
            self.asked.append((path, body))
            self.moments.append((path, time.monotonic()))
            if self.fails:
                return 503, {}
            if path == "register" and self.registers:
                return 200, {"heartbeat_interval": 0.2, "heartbeat_timeout": 20}
            if path == "progress" and self.loses_progress:
                return 409, {"error": {"code": "conflict", "message": "not yours any more"}}
            if path == "progress":
                return 500 if self.fails_progress else 200, {}
            if path == "heartbeat" and self.forgets:
                self.forgets = False
                return 404, {}
            if path == "heartbeat":
                return 200, {"state": self.directive}
            if path == "fetch":
                count = body["count"]
                given, self.waiting = self.waiting[:count], self.waiting[count:]
                return 200, {"jobs": given}
            if path in ("ack", "nack"):
                self.settled.append(body["job_id"])
                return 200, {"acknowledged": True}
            return 404, {}

    def heard(self, path: str) -> list[dict[str, Any]]:
        with self.lock:
            return [body for asked, body in self.asked if asked == path]

    def has_report_of(self, job_id: str) -> bool:
        """Whether a report about the job has arrived, separately or with a fetch."""
        reports = [
            report
            for path in ("ack", "fetch")
            for body in self.heard(path)
            for report in [body, *body.get("acks", [])]
        ]
        return any(report.get("job_id") == job_id for report in reports)

    def beats(self, count: int, **like: Any) -> None:
        """Wait for that many more heartbeats of this kind."""
        before = len(self.heard("heartbeat"))

        def there() -> bool:
            new = self.heard("heartbeat")[before:]
            return sum(like.items() <= body.items() for body in new) >= count

        eventually(there, lambda: f"heartbeats: {self.heard('heartbeat')[before:]}")


class Handler(BaseHTTPRequestHandler):
    server: Elsewhere
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, document = self.server.answer(self.path.rpartition("/")[2], body)
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/openjobspec+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_PUT(self) -> None:
        self.do_POST()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    server = Elsewhere()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def shop(tmp_path: Any, elsewhere: Elsewhere) -> Shop:
    site = Shop(tmp_path, NOWHERE, "http")
    site.url = f"http://127.0.0.1:{elsewhere.server_address[1]}"
    return site


POLL = ("--poll-interval", "0.05")


def test_jobs_are_settled_one_by_one_with_worker_and_attempt(shop, elsewhere):
    done, failed = elsewhere.enqueue("shop.echo", 1), elsewhere.enqueue("shop.fail", "crash")
    with shop.worker(*POLL) as started:
        eventually(lambda: elsewhere.heard("ack") and elsewhere.heard("nack"))
        (ack,), (nack,) = elsewhere.heard("ack"), elsewhere.heard("nack")
        assert started.terminate() == 0

    who = elsewhere.heard("fetch")[0]["worker_id"]
    assert (ack["job_id"], ack["worker_id"], ack["attempt"]) == (done, who, 1)
    assert ack["result"]["args"] == [1]
    assert (nack["job_id"], nack["worker_id"]) == (failed, who)
    assert nack["error"]["code"] == "handler_error"
    assert nack["error"]["message"] == "no route: crash"


def test_every_heartbeat_says_all_of_it(shop, elsewhere):
    job = elsewhere.enqueue("shop.work", "work")
    with shop.worker(*POLL, "--queues", "a,b", "--labels", "blue", "--concurrency", "3") as started:
        shop.wait_for("work.began")
        tell(started, signal.SIGTSTP)
        elsewhere.beats(1, state="quiet")
        beat = elsewhere.heard("heartbeat")[-1]
        shop.go("work")
        assert (beat["active_jobs"], beat["active_job_ids"]) == (1, [job])
        assert (beat["queues"], beat["labels"]) == (["a", "b"], ["blue"])
        assert (beat["concurrency"], beat["pid"]) == (3, started.process.pid)
        assert beat["hostname"] and beat["started_at"].endswith("Z")


def test_a_full_worker_does_not_fetch(shop, elsewhere):
    for number in range(5):
        elsewhere.enqueue("shop.work", f"job{number}")
    with shop.worker(*POLL, "--concurrency", "2"):
        shop.wait_for("job0.began", "job1.began")
        assert [body["count"] for body in elsewhere.heard("fetch")] == [2]
        shop.go("job0")
        shop.wait_for("job2.began")
        assert not shop.has("job3.began")
        assert [body["count"] for body in elsewhere.heard("fetch")] == [2, 1]
        shop.go("job1", "job2", "job3", "job4")
        eventually(lambda: len(elsewhere.heard("ack")) == 5)


@pytest.mark.parametrize("how", ["signal", "server"])
def test_a_quiet_worker_does_not_fetch_and_a_resumed_one_does(shop, elsewhere, how):
    with shop.worker(*POLL) as started:
        eventually(lambda: len(elsewhere.heard("fetch")) > 2)
        if how == "signal":
            tell(started, signal.SIGTSTP)
            elsewhere.beats(1, state="quiet")
        else:
            elsewhere.directive = "quiet"
            elsewhere.beats(1, state="quiet")
        # A fetch may have begun when it turned quiet; it arrives before the next heartbeat.
        elsewhere.beats(1, state="quiet")
        fetched = len(elsewhere.heard("fetch"))
        elsewhere.enqueue("shop.echo")
        # By then, a worker that fetches would have done so many times.
        elsewhere.beats(1, state="quiet")
        assert len(elsewhere.heard("fetch")) == fetched
        assert len(elsewhere.waiting) == 1

        elsewhere.directive = "running"
        if how == "signal":
            tell(started, signal.SIGCONT)
        eventually(lambda: elsewhere.heard("ack"))


def test_a_terminating_worker_does_not_fetch_and_goes_on_beating(shop, elsewhere):
    elsewhere.enqueue("shop.work", "work")
    with shop.worker(*POLL) as started:
        shop.wait_for("work.began")
        tell(started, signal.SIGTERM)
        elsewhere.beats(1, state="terminate")
        fetched = len(elsewhere.heard("fetch"))
        elsewhere.enqueue("shop.echo")
        elsewhere.beats(1, state="terminate")
        shop.go("work")
        ends_with(started)
    assert len(elsewhere.heard("fetch")) <= fetched + 1
    assert len(elsewhere.heard("ack")) == 1
    assert elsewhere.heard("deregister")


def test_heartbeats_that_fail_change_nothing(shop, elsewhere):
    working = elsewhere.enqueue("shop.work", "work")
    with shop.worker(*POLL) as started:
        shop.wait_for("work.began")
        elsewhere.fails = True
        started.wait_for("Heartbeat failed")
        shop.go("work")
        eventually(lambda: elsewhere.has_report_of(working))
        assert elsewhere.heard("heartbeat")[-1]["state"] == "running"
        elsewhere.fails = False
        after = elsewhere.enqueue("shop.echo")
        eventually(lambda: {working, after} <= set(elsewhere.settled))


def test_heartbeats_that_fail_are_sent_less_often(shop, elsewhere):
    with shop.worker(*POLL) as started:
        elsewhere.beats(1, state="running")
        elsewhere.fails = True
        started.wait_for("Heartbeat failed (4 in a row)")
        elsewhere.fails = False
        started.wait_for("Heartbeats are answered again")
    beats = [moment for path, moment in elsewhere.moments if path == "heartbeat"]
    pauses = [later - earlier for earlier, later in pairwise(beats)]
    longer = (0.4, 0.6, 0.8)  # seconds, where the interval is 0.2
    assert any(
        all(pause >= least for pause, least in zip(pauses[start:], longer, strict=False))
        for start in range(len(pauses) - 2)
    ), pauses


def test_a_refusal_of_its_progress_tells_a_handler_that_the_job_is_lost(shop, elsewhere):
    elsewhere.loses_progress = True
    job = elsewhere.enqueue("shop.advance_until_lost", "advance")
    with shop.worker(*POLL) as started:
        assert shop.wait_for("advance.ended") == "lost"
        started.wait_for(f"This worker has lost job {job}")
        after = elsewhere.enqueue("shop.echo")
        eventually(lambda: elsewhere.has_report_of(after))


def test_a_server_without_registration_is_registered_with_at_every_chance(shop, elsewhere):
    elsewhere.registers = False
    with shop.worker(*POLL):
        elsewhere.beats(1, state="running")
    assert elsewhere.heard("register")[0]["hostname"]


@pytest.mark.parametrize(("path", "tried"), [("", "/ojs/v1/"), ("/ojs", "/ojs/ojs/v1/")])
def test_a_url_that_leads_to_no_ojs_server_is_refused_with_a_remedy(path, tried):
    class Nothing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def do_POST(self) -> None:
            self.send_error(404)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as other:
        threading.Thread(target=other.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{other.server_port}"
        worker = HttpClient("w", address + path)
        with pytest.raises(Refused, match=f"{address}{tried} .*is the address before /ojs/v1"):
            worker.register(Options().description())
        worker.release()
        other.shutdown()


def test_a_worker_whose_registration_is_gone_registers_again_and_goes_on(shop, elsewhere):
    with shop.worker(*POLL, "--labels", "blue") as started:
        elsewhere.forgets = True
        tell(started, signal.SIGTSTP)
        eventually(lambda: len(elsewhere.heard("register")) == 2)
        tell(started, signal.SIGCONT)
        after = elsewhere.enqueue("shop.echo")
        eventually(lambda: elsewhere.has_report_of(after))
    first, second = elsewhere.heard("register")
    assert second == first, "the same worker, with all it said"


def test_only_the_latest_progress_is_sent_and_not_in_the_handlers_time(shop, elsewhere):
    job = elsewhere.enqueue("shop.advance", "advance")
    with shop.worker(*POLL):
        shop.wait_for("advance.reported")
        eventually(lambda: elsewhere.heard("progress"))
        eventually(lambda: elsewhere.heard("progress")[-1].get("progress") == 1.0)
        shop.go("advance")
        eventually(lambda: elsewhere.has_report_of(job))
    reports = elsewhere.heard("progress")
    assert len(reports) <= 2, "not each of a hundred"
    assert reports[-1]["data"] == {"message": r"page 100 of a\udcff", "pages": 100}
    assert reports[-1]["attempt"] == 1 and reports[-1]["worker_id"]


def test_progress_that_the_server_refuses_harms_no_job(shop, elsewhere):
    elsewhere.fails_progress = True
    job = elsewhere.enqueue("shop.advance", "advance")
    with shop.worker(*POLL):
        shop.wait_for("advance.reported")
        eventually(lambda: elsewhere.heard("progress"))
        shop.go("advance")
        eventually(lambda: elsewhere.has_report_of(job))
    (ack,) = elsewhere.heard("ack") or [elsewhere.heard("fetch")[-1]["acks"][0]]
    assert ack["job_id"] == job


def test_a_handler_is_given_the_results_of_the_jobs_before(shop, elsewhere):
    elsewhere.enqueue("shop.parents", parent_results=[{"rows": 3}, None])
    with shop.worker(*POLL):
        eventually(lambda: elsewhere.heard("ack"))
    assert elsewhere.heard("ack")[0]["result"] == [{"rows": 3}, None]

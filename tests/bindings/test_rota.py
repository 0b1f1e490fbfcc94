"""Rota workers on real servers, `runrota` and the ASGI server.

They register, get work, report, fall silent and leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import secrets
import socket
import sys
from datetime import timedelta

import jsonschema
import pytest
import websockets
from django.core.management import call_command
from django.db.models import Count

import jobs
from jobs import engine
from jobs.access.audit import Actor
from jobs.errors import InvalidRequest
from jobs.http import endpoints
from jobs.http.authentication import make_key
from jobs.models import Event, Job, JobLog, OperatorAction, Source
from tests import processes
from tests.bindings.listening import loop_in_thread
from tests.conftest import url_of_test_database
from tests.database import connection
from tests.factories import ago
from tests.processes import eventually
from workers.bindings.rota import messages, server
from workers.chores import reaper
from workers.fleet.orders import order
from workers.lifecycle import WorkerState
from workers.models import Directive, Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
PATIENCE = processes.PATIENCE
SILENCE = 600
"""Seconds that most servers here allow: a busy machine keeps a test silent for longer than five."""
SPECS = {"email.send": "v1", "image.resize": "v7"}


NOBODYS = "01931f6c-0000-7000-8000-000000000000"

DOCUMENT = (processes.ROOT / "docs" / "protocols" / "rota.md").read_text()
SCHEMA_AND_EXAMPLES = [
    json.loads(block.partition("\n```")[0]) for block in DOCUMENT.split("```json\n")[1:]
]
WORKER = DOCUMENT.partition("```python\n")[2].partition("```\n")[0]
VALIDATORS = {
    side: jsonschema.Draft202012Validator(
        SCHEMA_AND_EXAMPLES[0] | {"$ref": f"#/$defs/{side}"},
        format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
    )
    for side in ("from_worker", "from_server")
}


def follows(side, message):
    return VALIDATORS[side].is_valid(message)


class Rota:
    """One worker's connection, driven step by step."""

    def __init__(self, loop, socket):
        self._loop = loop
        self.socket = socket

    def _wait(self, coming):
        return asyncio.run_coroutine_threadsafe(coming, self._loop).result(PATIENCE)

    def say(self, **message):
        said = {name: part for name, part in message.items() if part is not None}
        self._wait(self.socket.send(json.dumps({"type": "heartbeat"} | said)))

    def send(self, text):
        self._wait(self.socket.send(text))

    def read(self):
        """The next message."""
        message = json.loads(self._wait(self.socket.recv()))
        VALIDATORS["from_server"].validate(message)
        return message

    def hear(self, kind):
        """The next message of this kind; others in between are skipped."""
        while (message := self.read())["type"] != kind:
            pass
        return message

    def register(self, worker_id="rota-1", *, specs=SPECS, wanted=0, status=None, **more):
        said = {"worker_id": worker_id, "hostname": "box", "os": "Linux", "queues": ["default"]}
        said["specs"] = [{"id": name, "checksum": checksum} for name, checksum in specs.items()]
        self.say(registration=said | more, status=status, wanted=wanted)
        return self.hear("heartbeat")

    def stop_reading(self):
        """Leave what the server sends in small buffers, until it stops as well."""
        transport = self.socket.transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        self._loop.call_soon_threadsafe(transport.pause_reading)

    def read_on(self):
        self._loop.call_soon_threadsafe(self.socket.transport.resume_reading)

    def send_bytes(self, part):
        """Write to the connection directly, bypassing the WebSocket."""
        self._loop.call_soon_threadsafe(self.socket.transport.write, part)

    def close_code(self, given=None):
        """The server's close code, or None; ids of jobs that arrive before are added."""
        with pytest.raises(websockets.ConnectionClosed) as closed:
            while True:
                message = self.read()
                if given is not None and message["type"] == "assignment":
                    given.add(message["job"]["id"])
        return closed.value.rcvd and closed.value.rcvd.code

    def close(self):
        self._wait(self.socket.close())

    def abort(self):
        """Disconnect abruptly, so that the server has nothing more to write."""
        self._loop.call_soon_threadsafe(self.socket.transport.abort)
        self._wait(self.socket.wait_closed())


@pytest.fixture
def connecting():
    """Returns a function that connects to a port; connections are closed after the test."""
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(loop_in_thread())

        def connect(port, more_headers=(), **headers):
            async def opened():
                url = f"ws://127.0.0.1:{port}/work"
                sent = [*more_headers, *headers.items()]
                options = {"proxy": None, "max_size": None}
                return await websockets.connect(url, additional_headers=sent, **options)

            opening = asyncio.run_coroutine_threadsafe(opened(), loop)
            worker = Rota(loop, opening.result(PATIENCE))
            stack.callback(worker.abort)
            return worker

        yield connect


# Both run the same code behind their sockets, and starting servers takes long.
SERVERS = processes.ROTA_SERVERS if connection.vendor == "postgresql" else ("front door",)


@pytest.fixture(scope="module", params=SERVERS)
def start(request, django_db_setup, tmp_path_factory):
    """Start a server on the test database: `with start(ALLOW_ANONYMOUS=1) as process:`."""
    folder = tmp_path_factory.mktemp("rota")

    @contextlib.contextmanager
    def begin(database_url="", **options):
        environment = processes.environment(database_url or url_of_test_database(), **options)
        with processes.rota_server(request.param, folder, environment) as process:
            process.environment = environment
            yield process
            assert "Traceback" not in process.output, process.output

    return begin


@pytest.fixture(scope="module")
def served(start):
    """A server that is open to everyone, for the whole file."""
    with start(ALLOW_ANONYMOUS=1, ROTA_HEARTBEAT_TIMEOUT=SILENCE) as process:
        yield process
        assert process.process.poll() is None, process.output


@pytest.fixture
def connect(served, transactional_db, connecting):
    """Returns a function that connects to the server, which has the specs registered."""
    engine.register_specs(SPECS)
    return functools.partial(connecting, served.port)


def emails(count):
    """Enqueue that many jobs."""
    jobs.enqueue_many([{"type": "email.send", "args": [number]} for number in range(count)])


def state_of(job):
    return Job.objects.get(pk=job.id).state


def test_a_worker_registers_gets_a_job_and_reports_what_it_returned(connect):
    job = jobs.enqueue("email.send", ["ada@example.com"])
    worker = connect()

    welcome = worker.register(wanted=1, labels=["eu"], concurrency=2)
    given = worker.hear("assignment")["job"]
    assert (given["id"], given["args"], given["attempt"]) == (str(job.id), ["ada@example.com"], 1)
    result = {"job_id": given["id"], "attempt": 1, "outcome": "succeeded", "data": {"sent": 1}}
    worker.say(results=[result], wanted=1)
    answer = worker.hear("heartbeat")

    assert welcome["specs"] == {"matching": sorted(SPECS), "mismatching": []}
    assert answer["results"] == [{"job_id": given["id"], "ok": True, "state": "completed"}]
    assert Job.objects.get(pk=job.id).result == {"sent": 1}
    known = Worker.objects.get(pk="rota-1")
    assert (known.protocol, known.labels, known.details) == ("rota", ["eu"], {"os": "Linux"})


def test_work_is_pushed_as_soon_as_it_exists_and_never_more_than_wanted(connect):
    worker = connect()
    worker.register(wanted=2)

    waiting = [jobs.enqueue("email.send", [number]) for number in range(3)]
    given = [worker.hear("assignment")["job"]["id"] for _ in range(2)]
    worker.say(status={"state": "running"})
    answer = worker.hear("heartbeat")

    assert sorted(answer["jobs_extended"]) == sorted(given)
    assert sorted(map(state_of, waiting)) == ["active", "active", "available"]


def test_who_wants_more_and_more_keeps_what_was_claimed_meanwhile(connect):
    worker = connect()
    worker.register(wanted=10)

    for number in range(1, 51):
        jobs.enqueue("email.send", [number])
        for more in range(1, 4):
            worker.say(wanted=10 + 3 * number + more, received=number - 1)
        worker.hear("assignment")

    assert Event.objects.filter(type="job.started").count() == 50


def test_what_is_claimed_for_a_worker_that_wants_none_any_more_is_given_back(connect):
    worker = connect()
    worker.register(wanted=50)
    given = set()

    for number in range(50):
        jobs.enqueue("email.send", [number])
    worker.say(wanted=0)
    while (message := worker.read())["type"] == "assignment":
        given.add(message["job"]["id"])

    def in_its_hands():
        return {str(pk) for pk in Job.objects.active().values_list("pk", flat=True)}

    def settled():
        worker.say(status={"state": "running"})
        while (message := worker.read())["type"] == "assignment":
            given.add(message["job"]["id"])
        return in_its_hands() == given == set(message["jobs_extended"])

    eventually(settled)


def test_assignments_still_under_way_count_as_wanted(connect):
    worker = connect()
    worker.register(wanted=1)
    waiting = [jobs.enqueue("email.send", [number]) for number in range(2)]
    worker.hear("assignment")

    # Sent before the assignment arrived: it still wants one, and has received none.
    worker.say(wanted=1, received=0)
    worker.hear("heartbeat")
    worker.say(wanted=0, received=1)
    worker.hear("heartbeat")

    assert sorted(map(state_of, waiting)) == ["active", "available"]


def test_a_worker_is_heard_while_a_large_assignment_is_under_way(connect):
    job = jobs.enqueue("email.send", [secrets.token_urlsafe(9_000_000)])
    worker = connect()
    worker.register()
    worker.stop_reading()
    worker.say(wanted=1)
    eventually(lambda: state_of(job) == "active")

    for share in (0.1, 0.2, 0.3, 0.4, 0.5):
        worker.say(status={"cpu": share})
        eventually(lambda share=share: Worker.objects.get().stats == {"cpu": share})

    worker.read_on()
    assert worker.hear("assignment")["job"]["id"] == str(job.id)
    worker.say(results=[{"job_id": str(job.id), "outcome": "succeeded"}])
    while not (answer := worker.hear("heartbeat")).get("results"):
        pass
    assert answer["results"][0]["state"] == "completed"


def test_a_worker_that_reads_slowly_keeps_no_jobs_from_others(connect):
    count = 20
    text = secrets.token_urlsafe(750_000)
    jobs.enqueue_many([{"type": "email.send", "args": [text]} for _ in range(count)])
    worker = connect()
    worker.register()
    worker.stop_reading()

    worker.say(wanted=count)
    eventually(lambda: Event.objects.filter(type="job.started").count() == count)
    eventually(lambda: Job.objects.filter(state="available").count() > count / 4)
    # An attempt that never reached the worker is not counted.
    assert not Job.objects.filter(state="available", attempt=1, attempt_counted=False).exists()

    worker.read_on()
    given = [worker.hear("assignment")["job"] for _ in range(count)]
    assert len({job["id"] for job in given}) == count
    assert {job["attempt"] for job in given} == {1}


def test_only_types_whose_checksum_is_registered_are_assigned(connect):
    other = jobs.enqueue("image.resize", [1])
    unknown = jobs.enqueue("video.cut", [1])
    fitting = jobs.enqueue("email.send", [1])
    worker = connect()

    specs = {"email.send": "v1", "image.resize": "v6", "video.cut": "v1"}
    welcome = worker.register(specs=specs, wanted=3)
    given = worker.hear("assignment")["job"]["id"]
    worker.say(wanted=3)
    worker.hear("heartbeat")

    assert welcome["specs"]["mismatching"] == ["image.resize", "video.cut"]
    assert given == str(fitting.id)
    assert state_of(other) == state_of(unknown) == "available"

    call_command("registerspecs", "image.resize=v6")
    worker.say(wanted=3)

    assert worker.hear("assignment")["job"]["id"] == str(other.id)


def test_a_failure_is_retried_with_its_error_on_record(connect):
    job = jobs.enqueue("email.send", [1], retry={"max_attempts": 2})
    worker = connect()
    worker.register(wanted=1)
    worker.hear("assignment")

    error = {"type": "SMTPError", "message": "no route", "backtrace": ["a", "b"]}
    worker.say(results=[{"job_id": str(job.id), "outcome": "failed", "error": error}])
    answer = worker.hear("heartbeat")

    assert answer["results"][0]["ok"] is True
    kept = Job.objects.get(pk=job.id).errors.get()
    assert (kept.type, kept.message, kept.backtrace) == ("SMTPError", "no route", ["a", "b"])
    assert kept.worker_id == "rota-1"


def test_progress_is_that_of_every_protocol(connect, api):
    job = jobs.enqueue("email.send", [1])
    worker = connect()
    worker.register(wanted=1)
    worker.hear("assignment")

    for share in (0.4, 0.2):
        said = {"job_id": str(job.id), "progress": share, "message": f"at {share}"}
        worker.say(status={"jobs": [said]})
        worker.hear("heartbeat")

    reported = api.get(f"/ojs/v1/jobs/{job.id}/progress").json()
    assert (reported["progress"], reported["message"]) == (0.4, "at 0.2")


def test_the_manifest_says_where_workers_connect(api, transactional_db):
    endpoints.announce("rota", "ws://127.0.0.1:8081/work")

    manifest = api.get("/ojs/manifest").json()

    assert "rota" in manifest["protocols"]
    assert manifest["endpoints"]["rota"] == "ws://127.0.0.1:8081/work"


def test_logs_and_alerts_are_kept_with_the_job_they_are_about(connect):
    job, foreign = jobs.enqueue("email.send", [1]), jobs.enqueue("video.cut", [1])
    worker = connect()
    worker.register(wanted=1)
    worker.hear("assignment")

    status = {
        "cpu": 0.5,
        "logs": [{"job_id": str(job.id), "level": "info", "message": "connecting"}],
        "alerts": [
            {"job_id": str(job.id), "message": "mailbox is full"},
            {"job_id": str(foreign.id), "message": "not my job"},
        ],
    }
    worker.say(status=status)
    worker.hear("heartbeat")

    lines = JobLog.objects.order_by("id").values_list("job_id", "kind", "message", "attempt")
    assert list(lines) == [
        (job.id, "log", "connecting", 1),
        (job.id, "alert", "mailbox is full", 1),
    ]
    assert Worker.objects.get(pk="rota-1").stats == {"cpu": 0.5}


def test_a_worker_may_call_for_attention_to_itself(connect):
    worker = connect()
    worker.register()

    alerts = [{"message": "the disk is full", "level": "error"}, {"job_id": None, "message": "hot"}]
    worker.say(status={"alerts": alerts})
    worker.hear("heartbeat")
    worker.say(status={"alerts": [{"message": "again"}] * 200})
    worker.hear("heartbeat")

    raised = Event.objects.filter(type="worker.alert", subject="rota-1").order_by("id")
    assert [event.data for event in raised[:2]] == [
        {"message": "the disk is full", "level": "error"},
        {"message": "hot"},
    ]
    assert raised.count() == 100


def test_what_a_worker_does_not_measure_this_time_is_as_it_was(connect):
    worker = connect()
    worker.register()

    for status in ({"cpu": 0.25, "ram": 0.75}, {"cpu": 0.5}, {"state": "running"}):
        worker.say(status=status)
        worker.hear("heartbeat")

    assert Worker.objects.get(pk="rota-1").stats == {"cpu": 0.5, "ram": 0.75}


def test_a_job_of_another_worker_cannot_be_reported(connect):
    job = jobs.enqueue("email.send", [1])
    holder, other = connect(), connect()
    holder.register("holder", wanted=1)
    holder.hear("assignment")
    other.register("other")

    other.say(results=[{"job_id": str(job.id), "outcome": "succeeded"}])

    (refused,) = other.hear("heartbeat")["results"]
    assert (refused["ok"], refused["error"]["code"]) == (False, "conflict")
    assert state_of(job) == "active"


@pytest.mark.parametrize(
    ("report", "code"),
    [
        ({"attempt": 2, "outcome": "succeeded"}, "conflict"),
        ({"attempt": 2, "outcome": "failed"}, "conflict"),
        ({"outcome": "succeeded", "data": "x" * 2**21}, "RESULT_TOO_LARGE"),
    ],
    ids=["another attempt", "another attempt failed", "too large"],
)
def test_a_job_whose_result_is_refused_is_still_the_workers(connect, report, code):
    job = jobs.enqueue("email.send", [1])
    worker = connect()
    worker.register(wanted=1)
    worker.hear("assignment")

    worker.say(results=[{"job_id": str(job.id)} | report])
    answer = worker.hear("heartbeat")
    worker.say()
    later = worker.hear("heartbeat")

    (refused,) = answer["results"]
    assert (refused["ok"], refused["error"]["code"]) == (False, code)
    assert answer["jobs_extended"] == later["jobs_extended"] == [str(job.id)]
    worker.say(results=[{"job_id": str(job.id), "attempt": 1, "outcome": "failed"}])
    assert worker.hear("heartbeat")["results"][0]["state"] == "retryable"
    worker.say()
    assert worker.hear("heartbeat")["jobs_extended"] == []


def test_a_job_that_is_reported_too_late_is_lost_and_named_no_more(connect):
    job = jobs.enqueue("email.send", [1])
    worker = connect()
    worker.register(wanted=1)
    worker.hear("assignment")
    Job.objects.update(reserved_until=ago(1))
    reaper.sweep()

    worker.say(results=[{"job_id": str(job.id), "attempt": 1, "outcome": "succeeded"}])
    answer = worker.hear("heartbeat")
    worker.say()
    later = worker.hear("heartbeat")

    assert answer["results"][0]["error"]["code"] == "conflict"
    assert (answer["jobs_lost"], later["jobs_lost"]) == ([str(job.id)], [])
    assert answer["jobs_extended"] == later["jobs_extended"] == []


def test_a_quieted_worker_hears_it_and_is_given_nothing(connect):
    worker = connect()
    worker.register(wanted=1)
    Worker.objects.filter(pk="rota-1").direct(WorkerState.QUIET)

    job = jobs.enqueue("email.send", [1])
    worker.say(wanted=1)
    answer = worker.hear("heartbeat")
    worker.say(wanted=1)
    worker.hear("heartbeat")

    assert answer["state"] == "quiet"
    assert state_of(job) == "available"


def quieted(worker):
    Directive.objects.all().delete()
    workers = Worker.objects.filter(pk="rota-1")
    order(workers, WorkerState.QUIET, actor=Actor("ops", Source.SHELL))
    worker.say()
    assert worker.hear("heartbeat")["state"] == "quiet"
    reaper.sweep()
    return Directive.objects.get().answer


def test_an_order_is_reported_once_a_worker_that_says_its_state_says_so(connect):
    worker = connect()
    worker.register(status={"state": "running"})

    assert quieted(worker) == "waiting"
    worker.say(status={"state": "quiet"})
    worker.hear("heartbeat")
    reaper.sweep()

    assert Directive.objects.get().answer == "reported"


def test_an_order_is_relayed_to_a_worker_that_never_says_its_state(connect):
    before = connect()
    before.register(status={"state": "running"})
    worker = connect()
    worker.register()

    assert quieted(worker) == "relayed"


def test_a_silent_workers_job_is_recovered_and_run_by_another(connect):
    job = jobs.enqueue("email.send", [1])
    silent = connect()
    silent.register("silent", wanted=1)
    silent.hear("assignment")
    Worker.objects.update(last_heartbeat_at=ago(SILENCE + 1))

    reaper.sweep()
    heir = connect()
    heir.register("heir", wanted=1)
    again = heir.hear("assignment")["job"]

    assert (again["id"], again["attempt"]) == (str(job.id), 2)
    assert [error["type"] for error in again["errors"]] == ["worker_death"]


@pytest.fixture
def hire(tmp_path):
    """Start the document's own worker as a process, by a server and its port."""
    (tmp_path / "worker.py").write_text(WORKER)
    _, key = make_key("sleeper", scopes=["work"])
    engine.register_specs({"demo.sleep": "v1"})
    with contextlib.ExitStack() as stack:

        def start(served, name="worker"):
            environment = served.environment | {
                "ROTA_URL": f"ws://127.0.0.1:{served.port}/work",
                "ROTA_KEY": key,
            }
            command = [sys.executable, str(tmp_path / "worker.py")]
            log = tmp_path / f"{name}.log"
            return stack.enter_context(processes.running(command, log, environment))

        yield start


def test_a_worker_that_ends_warm_finishes_what_it_has_and_takes_nothing_more(
    served, hire, transactional_db
):
    given = [jobs.enqueue("demo.sleep", [0.5]) for _ in range(2)]
    worker = hire(served)
    eventually(lambda: worker.output.count("running") == 2, lambda: worker.output)
    waiting = jobs.enqueue("demo.sleep", [0])

    assert worker.terminate() == 0, worker.output

    assert [Job.objects.get(pk=job.id).result for job in given] == [{"slept": 0.5}] * 2
    left = Job.objects.get(pk=waiting.id)
    assert (left.state, left.attempt) == ("available", 0)
    eventually(lambda: Worker.objects.get().left_at is not None)


def test_what_a_worker_says_last_counts_although_it_waits_for_no_answer(connect):
    emails(3)
    worker = connect()
    worker.register(wanted=3)
    given = [worker.hear("assignment")["job"] for _ in range(3)]

    for job in given:
        worker.say(results=[{"job_id": job["id"], "attempt": 1, "outcome": "succeeded"}])
    worker.close()

    eventually(lambda: Worker.objects.get().left_at is not None)
    assert [state_of(Job(pk=job["id"])) for job in given] == ["completed"] * 3


def test_a_worker_that_says_goodbye_has_left_although_it_keeps_its_socket_open(connect):
    worker = connect()
    worker.register()
    worker.stop_reading()

    # A close frame with the code 1000, masked with zeros.
    worker.send_bytes(b"\x88\x82\x00\x00\x00\x00\x03\xe8")

    eventually(lambda: Worker.objects.get().left_at is not None)


def test_the_job_of_a_worker_that_was_killed_is_recovered_after_the_silence(
    start, hire, tmp_path, transactional_db
):
    job = jobs.enqueue("demo.sleep", [600])
    with start(ROTA_HEARTBEAT_TIMEOUT=10, REAPER_INTERVAL=0.2) as served:
        doomed = hire(served, "doomed")
        doomed.wait_for("running")
        Job.objects.filter(pk=job.id).update(args=[0])
        with processes.manage(tmp_path, served.environment, "runreaper"):
            doomed.process.kill()
            heir = hire(served, "heir")
            eventually(lambda: state_of(job) == "completed", lambda: heir.output)
            assert heir.terminate() == 0

    done = Job.objects.get(pk=job.id)
    assert (done.attempt, done.finished_by) == (2, f"sleeper-{heir.process.pid}")
    assert [error.type for error in done.errors.all()] == ["worker_death"]
    dead = Worker.objects.get(pk=f"sleeper-{doomed.process.pid}")
    assert dead.died_at - dead.last_heartbeat_at >= timedelta(seconds=10)


def test_a_worker_that_connects_again_goes_on_with_its_job(connect):
    job = jobs.enqueue("email.send", [1])
    before = connect()
    before.register(wanted=1, pid=7)
    before.hear("assignment")

    again = connect()
    again.register(pid=7)
    again.say(status={"jobs": [{"job_id": str(job.id), "progress": 0.5}]})
    extended = again.hear("heartbeat")["jobs_extended"]
    again.say(results=[{"job_id": str(job.id), "attempt": 1, "outcome": "succeeded"}])
    again.hear("heartbeat")

    assert extended == [str(job.id)]
    assert state_of(job) == "completed"
    with pytest.raises(websockets.ConnectionClosed) as closed:
        before.hear("heartbeat")
    assert closed.value.rcvd.code == 4409


def test_the_end_of_a_workers_old_connection_is_not_the_end_of_the_worker(
    start, connecting, transactional_db
):
    engine.register_specs(SPECS)
    job = jobs.enqueue("email.send", [1])
    options = {"ALLOW_ANONYMOUS": 1, "ROTA_HEARTBEAT_TIMEOUT": SILENCE}

    with start(**options) as one, start(**options) as other:
        before, again = connecting(one.port), connecting(other.port)
        before.register(pid=7)
        again.register(pid=7, wanted=1)
        again.hear("assignment")
        before.close()
        # A server that has ended has seen its connections off.
        assert one.terminate() == 0
        reaper.sweep()
        again.say()

        assert again.hear("heartbeat")["jobs_extended"] == [str(job.id)]
        assert Worker.objects.live().filter(pk="rota-1").exists()


def test_what_was_on_its_way_when_the_connection_broke_is_given_back(connect):
    lost, kept = jobs.enqueue("email.send", [1]), jobs.enqueue("email.send", [2])
    before = connect()
    before.register(wanted=2, pid=7)
    for _ in range(2):
        before.hear("assignment")
    before.abort()

    again = connect()
    again.register(pid=7, status={"jobs": [{"job_id": str(kept.id)}]})

    assert (state_of(lost), state_of(kept)) == ("available", "active")
    again.say(wanted=1, received=0)
    assert again.hear("assignment")["job"]["attempt"] == 1


def test_200_workers_get_a_job_each_and_go_on_with_it_when_they_connect_again(
    start, connecting, transactional_db
):
    engine.register_specs(SPECS)
    emails(200)

    with start(ALLOW_ANONYMOUS=1, ROTA_HEARTBEAT_TIMEOUT=SILENCE) as process:
        before = [connecting(process.port) for _ in range(200)]
        for number, worker in enumerate(before):
            worker.register(f"rota-{number}", wanted=1)
        given = [worker.hear("assignment")["job"]["id"] for worker in before]
        for number, job_id in enumerate(given):
            again = connecting(process.port)
            again.register(f"rota-{number}", status={"jobs": [{"job_id": job_id}]})
            again.say(results=[{"job_id": job_id, "attempt": 1, "outcome": "succeeded"}])
            assert again.hear("heartbeat")["results"][0]["ok"]
            assert before[number].close_code() == 4409

    assert len(set(given)) == 200
    assert Job.objects.filter(state="completed", attempt=1).count() == 200


def test_a_worker_is_sent_away_when_its_server_ends_and_finds_its_jobs_at_the_next(
    start, connecting, transactional_db
):
    engine.register_specs(SPECS)
    with start(ALLOW_ANONYMOUS=1, ROTA_HEARTBEAT_TIMEOUT=SILENCE) as process:
        worker = connecting(process.port)
        worker.register(wanted=500)
        emails(100)
        given = {worker.hear("assignment")["job"]["id"]}
        # More arrive while it stops.
        process.process.terminate()
        emails(100)
        assert worker.close_code(given) == 1001
        assert process.wait() == 0
    assert Worker.objects.get().left_at is None

    with start(ALLOW_ANONYMOUS=1, ROTA_HEARTBEAT_TIMEOUT=SILENCE) as process:
        worker = connecting(process.port)
        worker.register(status={"jobs": [{"job_id": job_id} for job_id in given]})

    states = dict(Job.objects.values_list("state").annotate(Count("pk")))
    assert set(states) <= {"active", "available"}
    assert sum(states.values()) == 200
    assert {str(pk) for pk in Job.objects.active().values_list("pk", flat=True)} <= given
    # An attempt that never reached the worker is not counted.
    assert not Job.objects.filter(state="available", attempt=1, attempt_counted=False).exists()


def test_a_server_that_ends_says_so(start, connecting, transactional_db):
    engine.register_specs(SPECS)
    with start(ALLOW_ANONYMOUS=1, ROTA_HEARTBEAT_TIMEOUT=SILENCE) as process:
        worker = connecting(process.port)
        worker.register()

        process.process.terminate()

        assert worker.close_code() == 1001


def test_a_server_that_ends_waits_for_no_unfinished_handshake(transactional_db, monkeypatch):
    monkeypatch.setattr(server, "serve", functools.partial(server.serve, open_timeout=None))

    async def told():
        stop, address = asyncio.Event(), asyncio.get_running_loop().create_future()
        running = asyncio.create_task(
            server.RotaServer().run("127.0.0.1", 0, stop, address.set_result)
        )
        port = (await address).rpartition(":")[2].partition("/")[0]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /work HTTP/1.1\r\nHost: x\r\n")
        mute, _ = await asyncio.open_connection("127.0.0.1", port)
        # Answered after the first two have been accepted.
        other, asking = await asyncio.open_connection("127.0.0.1", port)
        asking.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await other.readline()

        stop.set()

        async with asyncio.timeout(PATIENCE):
            await running
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == await mute.read() == b""

    asyncio.run(told())


def test_a_message_that_is_too_large_ends_the_connection(start, connecting, transactional_db):
    with start(ALLOW_ANONYMOUS=1, ROTA_MAX_MESSAGE=100_000) as process:
        worker = connecting(process.port)
        worker.register()

        worker.send(" " * 100_001)

        assert worker.close_code() == 1009


def test_text_that_is_not_utf_8_ends_the_connection_and_is_no_error_of_the_server(
    start, connecting, transactional_db
):
    # The output of a server that `start` has started contains no traceback.
    with start(ALLOW_ANONYMOUS=1) as process:
        worker = connecting(process.port)
        worker.register()

        worker.send_bytes(b"\x81\x82\x00\x00\x00\x00\xff\xfe")

        assert worker.close_code() == 1007


def test_a_worker_that_stops_in_mid_sentence_is_silent(start, connecting, transactional_db):
    with start(ALLOW_ANONYMOUS=1, ROTA_HEARTBEAT_TIMEOUT=2) as process:
        worker = connecting(process.port)
        worker.register()

        # Part of a text frame of 100 bytes, masked with zeros.
        worker.send_bytes(b"\x81\xe4\x00\x00\x00\x00" + b'{"type": "heart')

        assert worker.close_code() == 4408


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[]", None),
        ("{", None),
        ('{"type": "hello"}', "type"),
        ('{"type": "heartbeat", "wanted": -1}', "wanted"),
        ('{"type": "heartbeat", "status": {"cpu": 7}}', "status.cpu"),
        ('{"type": "heartbeat", "status": {"jobs": [{"job_id": 3}]}}', "status.jobs[0].job_id"),
        ('{"type": "heartbeat", "results": [{"job_id": "x"}]}', "results[0].job_id"),
        (
            '{"type": "heartbeat", "registration":'
            ' {"worker_id": "rota-1", "hostname": "h", "queues": ["default", "Not one"]}}',
            "registration.queues[1]",
        ),
    ],
    ids=["array", "broken", "type", "wanted", "cpu", "job", "result", "queue"],
)
def test_a_wrong_message_is_refused_where_it_is_wrong_and_the_worker_goes_on(connect, text, field):
    worker = connect()
    worker.register()

    worker.send(text)
    error = worker.hear("error")["error"]
    worker.say(wanted=0)

    assert error.get("details", {}).get("field") == field
    assert worker.hear("heartbeat")["state"] == "running"


def test_the_first_message_must_register(connect):
    worker = connect()

    worker.say(wanted=1)

    assert worker.hear("error")["error"]["details"]["field"] == "registration"
    with pytest.raises(websockets.ConnectionClosed):
        worker.hear("heartbeat")


def test_without_a_key_the_handshake_is_refused(start, connecting):
    _, key = make_key("rota", scopes=["work"])
    _, producer = make_key("shop", scopes=["produce"])

    with start() as process:
        connect = functools.partial(connecting, process.port)
        for header, status in (
            ({}, 401),
            ({"Authorization": "Bearer nonsense"}, 401),
            ({"Authorization": f"Bearer {producer}"}, 403),
        ):
            with pytest.raises(websockets.InvalidStatus) as refused:
                connect(**header)
            assert refused.value.response.status_code == status

        worker = connect(Authorization=f"Bearer {key}")
        assert worker.register()["registered"] == "rota-1"
        # And it stops cleanly, with a worker connected.
        assert process.terminate() == 0


def test_a_key_that_is_used_or_refused_leaves_its_trace(start, connecting):
    record, key = make_key("rota", scopes=["work"])
    _, late = make_key("late", scopes=["work"], expires_at=ago(60))
    _, bound = make_key("bound", scopes=["work"], worker_id="other")

    with start() as process:
        connecting(process.port, Authorization=f"Bearer {key}").register()
        for wrong in ("nonsense", late):
            with pytest.raises(websockets.InvalidStatus) as refused:
                connecting(process.port, Authorization=f"Bearer {wrong}")
        assert b"This API key expired at" in refused.value.response.body
        with pytest.raises((AssertionError, websockets.ConnectionClosed)):
            connecting(process.port, Authorization=f"Bearer {bound}").register()

    record.refresh_from_db()
    assert (record.last_used_protocol, record.last_used_address) == ("rota", "127.0.0.1")
    rows = OperatorAction.objects.filter(verb="refuse_request").order_by("pk")
    assert [(row.actor, row.address, row.selection) for row in rows] == [
        (actor, "127.0.0.1", {"protocol": "rota", "reason": reason, "call": call})
        for actor, reason, call in (
            ("unknown", "unknown_key", "handshake"),
            ("late", "expired_key", "handshake"),
            ("bound", "permission_denied", "message"),
        )
    ]


def test_behind_a_proxy_the_address_is_the_one_that_it_saw(start, connecting):
    _, key = make_key("rota", scopes=["work"])

    with start(PROXIES=1) as process:
        # A proxy may add a header of its own after the client's.
        forwarded = [("X-Forwarded-For", "10.1.1.1"), ("X-Forwarded-For", "203.0.113.9")]
        with pytest.raises(websockets.InvalidStatus):
            connecting(process.port, forwarded, Authorization=f"Bearer {key}x")

    assert OperatorAction.objects.get(verb="refuse_request").address == "203.0.113.9"


def test_the_documents_examples_follow_its_schema_and_are_understood():
    from_worker, from_server = SCHEMA_AND_EXAMPLES[1:4], SCHEMA_AND_EXAMPLES[4:]

    assert all(follows("from_server", example) for example in from_server)
    assert {example["type"] for example in from_server} == {"heartbeat", "assignment", "error"}
    for example in from_worker:
        VALIDATORS["from_worker"].validate(example)
        messages.read(json.dumps(example), "mail-1", timedelta(seconds=5))


LIMITS = [
    lambda text, count: {"registration": REGISTRATION | {"worker_id": text(255)}},
    lambda text, count: {"registration": REGISTRATION | {"os": text(255)}},
    lambda text, count: {"registration": REGISTRATION | {"labels": [text(255)]}},
    lambda text, count: {"registration": REGISTRATION | {"labels": ["x"] * count(1_000)}},
    lambda text, count: {"registration": REGISTRATION | {"queues": [text(128)]}},
    lambda text, count: {"registration": REGISTRATION | {"concurrency": count(1_000_000)}},
    lambda text, count: {"registration": REGISTRATION | {"pid": count(2**32)}},
    lambda text, count: {"status": {"jobs": [{"job_id": NOBODYS, "message": text(1000)}]}},
    lambda text, count: {"status": {"jobs": [{"job_id": NOBODYS}] * count(10_000)}},
    lambda text, count: {"status": {"logs": [{"job_id": NOBODYS, "message": text(65_536)}]}},
    lambda text, count: {"status": {"cpu": count(1)}},
    lambda text, count: {"results": [FAILED | {"attempt": count(2**31 - 1)}]},
    lambda text, count: {"wanted": count(1_000_000), "received": 2**53 - 1},
]
REGISTRATION = {"worker_id": "rota-1", "hostname": "box", "queues": ["default"]}
FAILED = {"job_id": NOBODYS, "outcome": "failed"}


@pytest.mark.parametrize("message", LIMITS, ids=range(len(LIMITS)))
@pytest.mark.parametrize("beyond", [0, 1])
def test_the_schema_promises_what_is_taken_and_no_more(message, beyond):
    document = message(lambda length: "x" * (length + beyond), lambda number: number + beyond)
    document |= {"type": "heartbeat"}

    if beyond:
        with pytest.raises(InvalidRequest):
            messages.read(json.dumps(document), "rota-1", timedelta(seconds=5))
    else:
        messages.read(json.dumps(document), "rota-1", timedelta(seconds=5))
    assert follows("from_worker", document) == (not beyond)


def test_what_the_server_says_follows_the_schema(connect):
    """Every message in this file is validated; here is one of each kind."""
    jobs.enqueue("email.send", [1])
    worker = connect()
    worker.register(wanted=1)
    assigned = worker.hear("assignment")["job"]
    wrong = {"job_id": NOBODYS, "outcome": "succeeded"}
    failed = {"job_id": assigned["id"], "outcome": "failed"}
    worker.say(results=[failed, wrong])
    done, refused = worker.hear("heartbeat")["results"]
    worker.send("{}")
    error = worker.hear("error")

    assert (done["state"], refused["error"]["code"]) == ("retryable", "not_found")
    assert not follows("from_server", error | {"error": {}})


@pytest.mark.postgres
def test_a_handshake_while_the_database_is_away_is_answered_503(
    start, connecting, transactional_db, tmp_path
):
    _, key = make_key("w", scopes=["work"])
    with processes.own_database(url_of_test_database(), tmp_path) as url:
        name = url.rpartition("/")[2]
        with start(url) as served, connection._nodb_cursor() as cursor:
            cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )
            with pytest.raises(websockets.InvalidStatus) as away:
                connecting(served.port, Authorization=f"Bearer {key}")

            cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
            with pytest.raises(websockets.InvalidStatus) as back:
                connecting(served.port, Authorization=f"Bearer {key}")

    assert [met.value.response.status_code for met in (away, back)] == [503, 401]
    # Unreachable or restarting, depending on what the connection met first.
    assert away.value.response.body.decode().startswith("The database is ")

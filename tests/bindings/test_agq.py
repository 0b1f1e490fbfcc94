"""AGQ against a real `runagq`, with a real Redis client (AGQ worker registration protocol)."""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.utils import timezone

from jobs import engine, schemas
from jobs.http.authentication import make_key, rotate_key
from jobs.models import ApiKey, Event, Job, OperatorAction, RefusedFinish
from jobs.spec.lifecycle import State
from jobs.spec.validation import new_job
from tests import processes
from tests.conftest import url_of_test_database
from tests.factories import ago
from tests.processes import PATIENCE, eventually
from workers.chores import reaper
from workers.lifecycle import WorkerState
from workers.models import Worker

redis = pytest.importorskip("redis")
Retry = redis.retry.Retry
NoBackoff = redis.backoff.NoBackoff
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture(scope="module")
def start(django_db_setup, tmp_path_factory):
    """Start `runagq` on the test database: `with start(ALLOW_ANONYMOUS=1) as port:`."""
    folder = tmp_path_factory.mktemp("agq")

    def begin(**options):
        port = processes.free_port()
        environment = processes.environment(url_of_test_database(), AGQ_PORT=port, **options)
        started = processes.manage(folder, environment, "runagq", name=f"runagq-{port}")
        return port, started

    return begin


@pytest.fixture(scope="module")
def served(start):
    """A server that is open to everyone, for the whole file: its port and its process."""
    port, started = start(ALLOW_ANONYMOUS=1)
    with started as process:
        process.wait_for("AGQ workers are served on")
        process.port = port
        yield process
        assert process.process.poll() is None, process.output
        assert "Traceback" not in process.output


@pytest.fixture(scope="module")
def guarded(start):
    """A server that requires keys."""
    port, started = start()
    with started as process:
        process.wait_for("AGQ workers are served on")
        process.port = port
        yield process


class Client:
    """A worker's connection."""

    def __init__(self, port: int, **options) -> None:
        # A refusal is final: no second try.
        options = {"retry": Retry(NoBackoff(), 0)} | options
        options = {"decode_responses": True, "socket_timeout": PATIENCE} | options
        self.redis = redis.Redis(port=port, single_connection_client=True, **options)

    def __call__(self, *words):
        return self.redis.execute_command(*words)

    def refused(self, *words) -> str:
        with pytest.raises(redis.RedisError) as refusal:
            self(*words)
        return str(refusal.value)

    def register(self, worker_id="worker-001", **changes):
        return self("WORKER.REGISTER", registration(worker_id, **changes))

    def pull(self, *queues, timeout=5):
        found = self.redis.brpop(queues or ["queue:ready"], timeout)
        return found and json.loads(found[1])

    def update(self, job_id, **said):
        return self("JOB.UPDATE", job_id, json.dumps(said))


def registration(worker_id="worker-001", tools=("sort", "jq"), units=(), **changes) -> str:
    document = {
        "worker_id": worker_id,
        "hostname": "macbook-pro.local",
        "platform": "darwin-arm64",
        "agw_version": "0.1.0",
        "capabilities": {"tools": list(tools), "agentic_units": list(units)},
        "max_concurrent_jobs": 4,
        "tags": {"environment": "local"},
    }
    return json.dumps(document | changes)


@pytest.fixture
def connect(served):
    clients = []

    def make(**options) -> Client:
        clients.append(Client(served.port, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.redis.close()


@pytest.fixture
def worker(connect) -> Client:
    client = connect()
    client.register()
    return client


def push(queue="ready", **document) -> Job:
    request = {"type": "email.send", "args": [1], "queue": queue} | document
    (job,) = engine.enqueue([new_job(request, timezone.now())])
    return Job.objects.get(pk=job.id)


def raw(port: int, data: bytes) -> bytes:
    """The server's answer to bytes, until it is silent or closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


# Registration (§2) and heartbeats (§3)


def test_a_worker_registers_is_heard_and_can_be_looked_up(connect):
    client = connect()

    said = client.register(units=["agx-ocr"])
    beat = client("WORKER.HEARTBEAT", "worker-001", '{"active_jobs": 2}')

    assert said == "OK worker_id=worker-001 heartbeat_interval=30"
    assert beat == "OK"
    assert client("KEYS", "worker:*:alive") == ["worker:worker-001:alive"]
    assert json.loads(client("GET", "worker:worker-001:stats")) == {"active_jobs": 2}
    assert json.loads(client("GET", "worker:worker-001:metadata"))["platform"] == "darwin-arm64"
    assert client("TTL", "worker:worker-001:metadata") == -1
    assert 0 < client("TTL", "worker:worker-001:stats") <= 120
    assert 0 < client("TTL", "worker:worker-001:alive") <= 90
    assert abs(int(client("GET", "worker:worker-001:alive")) - time.time()) < 60
    assert set(client("SMEMBERS", "capability:agx-ocr:workers")) == {"worker-001"}
    row = Worker.objects.get()
    assert (row.protocol, row.concurrency, row.labels) == ("agq", 4, ["environment:local"])


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_of_the_protocol_are_spoken(connect, version):
    client = connect(protocol=version)
    client.register()
    assert client.pull(timeout=0.05) is None
    client.redis.lpush("queue:ready", '{"plan": ["sort"]}')
    assert client.pull()["plan"] == ["sort"]


@pytest.mark.parametrize(
    ("document", "answer"),
    [
        (registration("worker 1"), "Invalid worker ID characters"),
        (registration("worker\n1"), "Invalid worker ID characters"),
        (registration("w" * 65), "Worker ID too long"),
        (registration(capabilities={}), "Invalid capabilities format"),
        (registration(capabilities={"tools": "sort"}), "Invalid capabilities format"),
        (registration(capabilities={"tools": [1]}), "Invalid capabilities format"),
        (registration(hostname=None), "The 'hostname' field is required."),
        (registration(motto="x" * 70_000), "The request may have at most 65536 bytes of JSON, not"),
        (registration(max_concurrent_jobs=0), "The 'max_concurrent_jobs' field must be between"),
        ("[]", "Invalid worker JSON: an object is needed"),
        ("{", "Invalid worker JSON"),
        ('{"worker_id": "w", "x": ' + "[" * 400 + "]" * 400 + "}", "Invalid worker JSON"),
    ],
    ids=lambda value: None,
)
def test_a_registration_that_breaks_a_rule_is_refused_in_words(connect, document, answer):
    assert answer in connect().refused("WORKER.REGISTER", document)
    assert not Worker.objects.exists()


def test_no_heartbeat_is_refused_for_its_statistics(worker):
    Worker.objects.update(last_heartbeat_at=ago(80))

    assert worker("WORKER.HEARTBEAT", "worker-001", json.dumps({"motto": "x" * 70_000})) == "OK"
    cut = json.loads(worker("GET", "worker:worker-001:stats"))
    assert worker("WORKER.HEARTBEAT", "worker-001", json.dumps({"loads": [1] * 70_000})) == "OK"
    omitted = json.loads(worker("GET", "worker:worker-001:stats"))

    assert cut == {"motto": "x" * 1_000}
    assert omitted == {"omitted": "140011 bytes of JSON"}
    assert worker("EXISTS", "worker:worker-001:alive") == 1


def test_an_id_belongs_to_one_active_worker(connect, worker):
    assert connect().refused("WORKER.REGISTER", registration()) == "Worker ID already registered"

    # Registering again on the same connection does not create a second worker.
    assert worker.register().startswith("OK worker_id=worker-001")
    Worker.objects.update(last_heartbeat_at=ago(91))
    assert connect().register().startswith("OK"), "a dead worker's id is free"


def test_a_worker_that_lost_its_connection_comes_back_to_its_jobs(connect, worker):
    job = push()
    assert worker.pull()["job_id"] == str(job.pk)
    worker.redis.close()

    again = connect()
    processes.eventually(lambda: _registers(again))

    assert again.update(str(job.pk), status="completed") == "OK"
    assert Worker.objects.get().incarnation == 1


def _registers(client) -> bool:
    """Once the server has noticed the end of the old connection."""
    try:
        return client.register().startswith("OK")
    except redis.ResponseError as refusal:
        assert str(refusal) == "Worker ID already registered"
        return False


def test_an_unknown_worker_is_refused(connect):
    client = connect()
    assert client.refused("WORKER.HEARTBEAT", "ghost") == "Worker not registered: ghost"
    assert client.refused("WORKER.UNREGISTER", "ghost") == "Worker not registered: ghost"
    assert "Worker not registered" in client.refused("BRPOP", "queue:ready", 1)


def test_a_worker_that_leaves_is_gone_and_its_jobs_are_recovered(worker):
    job = push()
    worker.pull()
    assert worker("WORKER.UNREGISTER", "worker-001") == "OK"
    reaper.sweep()

    job.refresh_from_db()
    assert job.state == State.AVAILABLE
    assert worker("KEYS", "worker:*:alive") == []
    assert worker("GET", "worker:worker-001:metadata") is None
    assert worker("QUIT") in ("OK", True)


# Jobs (§4)


def test_a_job_is_pulled_reported_on_and_completed(worker):
    worker.redis.lpush("queue:ready", '{"plan": {"tasks": ["sort"]}, "inputs": {"file": "a"}}')
    job = worker.pull()
    assert (job["plan"], job["inputs"], job["attempt"]) == ({"tasks": ["sort"]}, {"file": "a"}, 1)
    assert worker("GET", f"job:{job['job_id']}:worker") == "worker-001"
    assert 3590 <= worker("TTL", f"job:{job['job_id']}:worker") <= 3600

    assert worker.update(job["job_id"], status="running", worker_id="worker-001") == "OK"
    assert worker.update(job["job_id"], current_task=2, progress_percent=40) == "OK"
    assert engine.progress_of(uuid.UUID(job["job_id"])).value == pytest.approx(0.4)
    assert worker.update(job["job_id"], status="completed", task_results=[1, 2]) == "OK"

    done = Job.objects.get()
    assert (done.state, done.finished_by) == (State.COMPLETED, "worker-001")
    assert done.result == {"task_results": [1, 2]}


@pytest.mark.parametrize("status", [{}, {"status": "running"}], ids=["alone", "running"])
def test_a_task_that_is_too_large_to_keep_is_refused_by_name(worker, status):
    job = push()
    worker.pull()
    said = status | {"progress_percent": 10, "current_task": "z" * 70_000}

    refusal = worker.refused("JOB.UPDATE", str(job.pk), json.dumps(said))

    assert refusal == "The 'current_task' field may have at most 65536 bytes of JSON, not 70019."
    assert engine.progress_of(job.pk) == engine.ProgressState(job.pk, State.ACTIVE)
    assert not Event.objects.filter(type="job.progress").exists()
    assert worker.update(str(job.pk), **said | {"current_task": "z" * 60_000}) == "OK"


@pytest.mark.parametrize("more", [{}, {"type": "report.make"}, {"type": "agq.plan"}], ids=str)
@pytest.mark.parametrize("inputs", [{"inputs": {"a": 1}}, {}], ids=str)
def test_a_plan_is_pulled_as_it_was_pushed(worker, more, inputs):
    document = {"plan": ["sort"], "meta": {"by": "ada"}, "capabilities": ["jq"]}
    worker.redis.lpush("queue:ready", json.dumps(document | inputs | more))

    job = worker.pull()

    assert (job["plan"], job["inputs"]) == (["sort"], inputs.get("inputs", {}))
    assert job["type"] == more.get("type", "agq.plan")
    assert job["meta"].items() >= {"by": "ada", "capabilities": ["jq"]}.items()


def test_a_job_that_is_no_plan_has_its_type_and_args_as_plan_and_inputs(worker):
    push(type="report.make", args=[["sort"], {"a": 1}])

    job = worker.pull()

    assert (job["plan"], job["inputs"]) == ("report.make", [["sort"], {"a": 1}])


def test_a_failed_job_follows_its_retry_policy(worker):
    job = push(retry={"max_attempts": 2})
    worker.pull()

    said = {"status": "failed", "error": "Task 2 timed out", "task_results": [0]}
    assert worker.update(str(job.pk), **said) == "OK"

    job.refresh_from_db()
    assert job.state == State.RETRYABLE
    error = job.errors.get()
    assert (error.message, error.details) == ("Task 2 timed out", {"task_results": [0]})
    assert error.worker_id == "worker-001"


def test_only_the_worker_that_claimed_a_job_may_update_it(connect, worker):
    job = push()
    worker.pull()
    other = connect()
    other.register("worker-002")

    for said in (
        {"status": "completed"},
        {"status": "completed", "worker_id": "worker-001"},
        {"status": "failed", "worker_id": "worker-001"},
        {"status": "running"},
        {"progress_percent": 5},
    ):
        assert other.refused("JOB.UPDATE", str(job.pk), json.dumps(said)) == (
            "Worker worker-002 cannot update job claimed by worker-001"
        )
    job.refresh_from_db()
    assert job.state == State.ACTIVE
    assert engine.progress_of(job.pk).value is None
    refused = RefusedFinish.objects.order_by("pk").values_list("operation", "worker_id", "held_by")
    assert list(refused) == [
        ("ack", "worker-002", "worker-001"),
        ("ack", "worker-002", "worker-001"),
        ("fail", "worker-002", "worker-001"),
    ]


@pytest.mark.parametrize(
    "said",
    [
        {"status": "running"},
        {"status": "completed"},
        {"status": "failed"},
        {"progress_percent": 5},
    ],
    ids=lambda said: said.get("status", "progress"),
)
def test_a_worker_cannot_update_its_job_in_the_name_of_another(connect, worker, said):
    job = push()
    worker.pull()
    connect().register("worker-002")

    said |= {"worker_id": "worker-002"}
    refusal = worker.refused("JOB.UPDATE", str(job.pk), json.dumps(said))

    assert refusal == "Worker worker-002 cannot update job claimed by worker-001"
    job.refresh_from_db()
    assert job.state == State.ACTIVE
    assert engine.progress_of(job.pk).value is None
    assert worker.update(str(job.pk), status="completed", worker_id="worker-001") == "OK"
    finishes = said.get("status") in ("completed", "failed")
    refused = RefusedFinish.objects.values_list("worker_id", "held_by")
    assert list(refused) == [("worker-002", "worker-001")] * finishes
    assert worker.refused("JOB.UPDATE", str(job.pk), json.dumps(said)) == (
        "Worker worker-002 cannot update job that is completed"
    )


def test_a_result_that_is_too_large_is_refused_for_that_reason(worker):
    job = push()
    worker.pull()

    said = json.dumps({"status": "completed", "result": "x" * 2**21})
    refusal = worker.refused("JOB.UPDATE", str(job.pk), said)

    assert refusal == "RESULT_TOO_LARGE: The result may have at most 1048576 bytes of JSON."
    assert worker.update(str(job.pk), status="completed", result="elsewhere") == "OK"


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ('{"status": "done"}', "Invalid status: done"),
        ('{"progress_percent": 101}', "must be 0 to 100"),
        ('{"progress_percent": "half"}', "must be 0 to 100"),
        ("{}", "neither status nor progress"),
        ("nonsense", "Invalid update JSON"),
    ],
    ids=lambda value: None,
)
def test_an_update_that_says_nothing_we_know_is_refused(worker, said, answer):
    job = push()
    worker.pull()
    assert answer in worker.refused("JOB.UPDATE", str(job.pk), said)
    assert "Job not found" in worker.refused("JOB.UPDATE", "job-abc123", '{"status":"completed"}')


def test_queues_are_looked_at_in_the_order_given(worker):
    low, high = push("ready"), push("urgent")
    pulled = [worker.pull("queue:urgent", "queue:ready")["job_id"] for _ in range(2)]
    assert pulled == [str(high.pk), str(low.pk)]
    assert Worker.objects.get().queues == ["urgent", "ready"]


def test_a_pull_with_nothing_to_do_answers_nil_when_its_time_is_over(served, worker):
    assert worker.pull(timeout=0.05) is None
    answer = raw(served.port, b"BRPOP queue:ready x\r\nBRPOP queue:ready -1\r\nBRPOP ready 1\r\n")
    assert answer.splitlines() == [
        b"-ERR timeout is not a float or out of range",
        b"-ERR timeout is negative",
        b"-ERR keys to pop from and push to are queue:<name>",
    ]


def test_a_waiting_pull_gets_a_job_that_is_enqueued_elsewhere(worker):
    found = []
    waiting = threading.Thread(target=lambda: found.append(worker.pull(timeout=30)))
    waiting.start()
    # Until it waits, as far as visible: its queues have been stored.
    job = push()
    waiting.join(PATIENCE)
    assert found and found[0]["job_id"] == str(job.pk)


def test_a_quieted_worker_is_given_nothing_and_a_resumed_one_again(worker):
    push()
    assert Worker.objects.direct(WorkerState.QUIET) == 1
    assert worker.pull(timeout=0.05) is None
    assert worker("WORKER.HEARTBEAT", "worker-001") == "OK"
    assert Worker.objects.resume() == 1
    assert worker.pull() is not None


# Routing (capabilities, tags and pools)


def test_a_job_goes_only_to_a_worker_that_has_all_it_needs(connect, worker):
    needy = push(meta={"capabilities": ["jq", "agx-ocr"]})
    plain = push()
    assert worker.pull()["job_id"] == str(plain.pk), "jq alone is not enough"
    assert worker.pull(timeout=0.05) is None

    both = connect()
    both.register("worker-002", units=["agx-ocr"])
    assert both.pull()["job_id"] == str(needy.pk)


def test_a_tag_makes_a_pool(connect, worker):
    worker.redis.lpush("queue:ready", '{"plan": [], "capabilities": ["gpu:true"]}')
    assert worker.pull(timeout=0.05) is None
    pooled = connect()
    pooled.register("worker-002", tags={"gpu": True})
    assert pooled.pull() is not None


def test_members_of_the_client_do_not_replace_those_of_the_protocol(worker):
    job = push(job_id="another", plan="x", inputs="y", x_mine=1)

    given = worker.pull()

    assert (given["job_id"], given["plan"], given["inputs"]) == (str(job.pk), job.type, job.args)
    assert given["x_mine"] == 1


def test_workers_of_other_protocols_do_not_get_what_they_cannot_do(api):
    push("default", meta={"capabilities": ["jq"]})
    for name, labels in (("plain", []), ("able", ["jq"])):
        api.send("workers/heartbeat", {"worker_id": name, "labels": labels})

    assert api.fetch("default", worker_id="plain") == []
    assert api.fetch("default") == []
    assert len(api.fetch("default", worker_id="able")) == 1


def test_a_worker_proves_what_it_can_do(connect, worker):
    asked = connect()
    answers = []
    challenge = '{"command": "jq", "args": ["--version"]}'
    words = ("WORKER.VERIFY", "jq", challenge, "worker-001")
    asking = threading.Thread(target=lambda: answers.append(asked(*words)))
    asking.start()
    job = worker.pull(timeout=20)
    assert job["inputs"] == [json.loads(challenge)]
    worker.update(job["job_id"], status="completed", result={"output": "jq-1.7"})
    asking.join(PATIENCE)
    assert answers == ['OK output="jq-1.7"']
    assert "No active worker" in asked.refused("WORKER.VERIFY", "agx-ocr", challenge)


# Death, hanging, crashes (§5)


def test_a_silent_worker_is_dead_and_its_job_goes_to_another(connect, worker):
    job = push()
    worker.pull()
    Worker.objects.update(last_heartbeat_at=ago(89))
    reaper.sweep()
    assert Worker.objects.get().state == WorkerState.RUNNING
    Worker.objects.update(last_heartbeat_at=ago(91))
    reaper.sweep()

    assert worker.refused("WORKER.HEARTBEAT", "worker-001") == "Worker not registered: worker-001"
    assert "Worker not registered" in worker.refused("BRPOP", "queue:ready", 1)
    other = connect()
    other.register("worker-002")
    assert other.pull()["attempt"] == 2
    refusal = worker.refused("JOB.UPDATE", str(job.pk), '{"status": "completed"}')
    assert refusal == "Worker worker-001 cannot update job claimed by worker-002"
    assert worker("GET", "worker:worker-001:metadata"), "kept to show why"


def test_a_job_past_its_hour_is_taken_back_and_the_worker_flagged(worker):
    job = push()
    worker.pull()
    worker("WORKER.HEARTBEAT", "worker-001")
    job.refresh_from_db()
    assert 3590 <= (job.reserved_until - job.started_at).total_seconds() <= 3600
    Job.objects.update(reserved_until=ago(1))
    assert Worker.objects.get().flagged_at is None
    reaper.sweep()

    job.refresh_from_db()
    assert (job.state, job.attempt) == (State.AVAILABLE, 2)
    assert [error.type for error in job.errors.all()] == ["visibility_timeout"]
    assert Worker.objects.get().flagged_at is not None


WORKER = """
import json, sys, redis
r = redis.Redis(port=int(sys.argv[1]), single_connection_client=True)
r.execute_command("WORKER.REGISTER", sys.argv[2])
r.brpop("queue:ready", 0)
print("has a job", flush=True)
r.brpop("queue:nothing", 0)
"""


def test_the_worker_of_the_page_runs_what_its_line_pushes(connect, guarded, tmp_path, capsys):
    page = (processes.ROOT / "docs" / "protocols" / "agq.md").read_text()
    script = page.partition("```python\n")[2].partition("```\n")[0]
    (line,) = re.findall(r"^redis-cli -p 6380 (LPUSH .*)$", page, re.MULTILINE)
    call_command("createsessionkey", f"worker-{socket.gethostname().split('.')[0]}")
    key = capsys.readouterr().out.strip()
    producer = Client(guarded.port, password=make_key("shop", scopes=["produce"])[1])
    producer(*shlex.split(line))
    known = {"AGQ_PORT": str(guarded.port), "AGQ_SESSION_KEY": key}

    with processes.running([sys.executable, "-c", script], tmp_path / "page.log", known) as worker:
        worker.wait_for("['sort'] {'file': 'a.txt'}")
        eventually(lambda: Job.objects.get().state == State.COMPLETED)

    assert Job.objects.get().result == {"task_results": []}
    producer.redis.close()


def test_the_job_of_a_worker_that_was_killed_is_done_by_another(connect, served, tmp_path):
    job = push()
    command = [sys.executable, "-c", WORKER, str(served.port), registration("doomed")]
    with processes.running(command, tmp_path / "doomed.log", {}) as doomed:
        doomed.wait_for("has a job")
        doomed.process.kill()
        doomed.process.wait()
    survivor = connect()
    survivor.register("survivor")
    Worker.objects.filter(pk="doomed").update(last_heartbeat_at=ago(91))
    reaper.sweep()

    assert survivor.pull()["job_id"] == str(job.pk)
    survivor.update(str(job.pk), status="completed")
    job.refresh_from_db()
    assert (job.attempt, job.finished_by) == (2, "survivor")


def test_a_client_that_went_while_it_waited_takes_no_job_with_it(connect, worker):
    for number in range(5):
        gone = connect()
        gone.register(f"gone-{number}")
        gone.redis.connection.send_command("BRPOP", "queue:ready", 0)
        gone.redis.connection.disconnect()
    job = push()
    assert worker.pull(timeout=20)["job_id"] == str(job.pk)


# Permissions (§7)


def test_without_a_key_nothing_is_answered(guarded):
    client = Client(guarded.port, protocol=2)
    for words in (("PING",), ("KEYS", "*"), ("GET", "x"), ("WORKER.REGISTER", "{}"), ("NOPE",)):
        assert "Authentication required" in client.refused(*words)
    assert "Authentication required" in client.refused("BRPOP", "queue:ready", 1)
    assert "invalid session key" in client.refused("AUTH", "nonsense")


def test_a_session_key_speaks_for_its_worker_and_no_other(guarded, capsys):
    call_command("createsessionkey", "worker-001")
    key = capsys.readouterr().out.strip()
    assert len(bytes.fromhex(key)) == 32
    assert key not in str(ApiKey.objects.values())
    # The server may still be recording the previous refusal.
    action = OperatorAction.objects.exclude(verb="refuse_request").get()
    assert (action.verb, action.source, action.count) == ("manage_keys", "shell", 1)

    first = Client(guarded.port, password=key)
    assert first.register().startswith("OK")
    second = Client(guarded.port, username="worker-001", password=key)
    assert second("WORKER.HEARTBEAT", "worker-001") == "OK", "a second connection of the same"
    assert second.register().startswith("OK"), "the key alone identifies the worker"
    for words in (
        ("WORKER.REGISTER", registration("worker-002")),
        ("WORKER.HEARTBEAT", "worker-002"),
        ("WORKER.UNREGISTER", "worker-002"),
    ):
        assert first.refused(*words) == "This session key belongs to worker worker-001"
    assert "scope 'produce'" in first.refused("LPUSH", "queue:ready", '{"plan": 1}')
    assert key not in guarded.output


def test_an_api_key_may_what_its_scopes_say(guarded):
    _, producer = make_key("producer", scopes=["produce"])
    _, keeper = make_key("worker", scopes=["work"])
    client = Client(guarded.port, password=producer)
    assert client("LPUSH", "queue:ready", '{"plan": 1}', '{"plan": 2}') == 2
    assert "scope 'work'" in client.refused("WORKER.REGISTER", registration())
    assert "scope 'operate'" in client.refused("WORKER.VERIFY", "jq", "{}")
    mine = Client(guarded.port, password=keeper)
    mine.register()
    other = Client(guarded.port, password=make_key("other", scopes=["work"])[1])
    assert other.refused("WORKER.REGISTER", registration()) == "Worker ID already registered"


def test_a_worker_comes_back_with_the_new_secret_of_its_key(guarded, capsys):
    """The registration of its earlier connection blocks only other keys."""
    call_command("createsessionkey", "worker-001")
    earlier = Client(guarded.port, password=capsys.readouterr().out.strip())
    earlier.register()
    new = rotate_key(ApiKey.objects.get(), overlap=timedelta(hours=1))

    for _ in range(2):
        assert Client(guarded.port, password=new).register().startswith("OK")
        assert earlier.register().startswith("OK"), "for as long as both work"


def test_a_key_that_has_expired_says_so_and_is_audited(guarded):
    _, key = make_key("late", scopes=["work"], expires_at=ago(60))

    with pytest.raises(redis.AuthenticationError, match="This API key expired at"):
        Client(guarded.port, password=key)

    eventually(lambda: OperatorAction.objects.filter(actor="late").exists())
    row = OperatorAction.objects.get(actor="late")
    assert (row.verb, row.address) == ("refuse_request", "127.0.0.1")
    assert row.selection == {"protocol": "agq", "reason": "expired_key", "call": "AUTH"}


def test_what_a_key_may_not_is_audited_and_its_use_noted(guarded):
    record, key = make_key("narrow", scopes=["produce"])

    assert "scope 'work'" in Client(guarded.port, password=key).refused("BRPOP", "queue:ready", 1)

    eventually(lambda: OperatorAction.objects.filter(actor="narrow").exists())
    row = OperatorAction.objects.get(actor="narrow")
    assert (row.selection["reason"], row.selection["call"]) == ("permission_denied", "BRPOP")
    record.refresh_from_db()
    assert (record.last_used_protocol, record.last_used_address) == ("agq", "127.0.0.1")


def test_a_project_sees_its_own_jobs_and_workers_only(guarded, capsys):
    call_command("createsessionkey", "mine", project="acme")
    mine = Client(guarded.port, password=capsys.readouterr().out.strip())
    theirs = Client(guarded.port, password=make_key("theirs", scopes=["work"])[1])
    scopes = ["produce", "operate", "work"]
    acme = Client(guarded.port, password=make_key("acme", scopes=scopes, project="acme")[1])
    mine.register("mine")
    theirs.register("theirs")
    foreign = push()

    assert mine.pull(timeout=0.2) is None, "no worker holds the job"
    assert acme("LPUSH", "queue:ready", '{"plan": 1}') == 1
    own = mine.pull()
    assert Job.objects.get(pk=own["job_id"]).project == "acme"
    assert theirs.pull()["job_id"] == str(foreign.pk)
    for said in ({"status": "completed"}, {"status": "running"}, {"progress_percent": 5}):
        answer = mine.refused("JOB.UPDATE", str(foreign.pk), json.dumps(said))
        assert answer == f"Job not found: {foreign.pk}"
    assert acme("KEYS", "worker:*:alive") == ["worker:mine:alive"]
    assert acme("GET", "worker:theirs:metadata") is None
    assert acme("GET", f"job:{foreign.pk}:worker") is None
    assert acme("GET", f"job:{own['job_id']}:worker") == "mine"
    assert set(acme("SMEMBERS", "capability:jq:workers")) == {"mine"}
    assert "no capability jq" in acme.refused("WORKER.VERIFY", "jq", "{}", "theirs")
    for words in (("WORKER.HEARTBEAT", "theirs"), ("WORKER.UNREGISTER", "theirs")):
        assert acme.refused(*words) == "Worker not registered: theirs"
    assert mine.update(own["job_id"], status="completed") == "OK"


def test_a_push_is_all_or_nothing(worker):
    for wrong, answer in (
        ('{"inputs": 1}', "The 'plan' field is required."),
        ('{"plan": 1, "priority": 1000}', "must be between"),
        ('{"plan": 1, "type": "no type"}', "must match"),
        ("1", "Invalid job JSON"),
    ):
        assert answer in worker.refused("LPUSH", "queue:ready", '{"plan": 1}', wrong)
    assert not Job.objects.exists()


def test_a_push_that_does_not_match_its_schema_is_refused_with_the_place(worker):
    schemas.register(
        "report.build", "1.0.0", {"type": "array", "prefixItems": [{"type": "integer"}]}
    )
    schemas.set_mode("strict", type="report.build")

    answer = worker.refused("LPUSH", "queue:ready", '{"plan": "x", "type": "report.build"}')

    assert "/args/0: item 0 must be integer, got string" in answer
    assert worker("LPUSH", "queue:ready", '{"plan": 1, "type": "report.build"}') == 1


# What Redis clients do on their own: pipelines, scans, queries about keys


@pytest.fixture
def named(connect, worker):
    """A client whose connections all act for the worker: a pipeline takes its own connection."""
    return connect(client_name="worker-001")


def test_a_pipeline_is_a_transaction_unless_asked_otherwise(named):
    with named.redis.pipeline() as pipeline:
        for number in range(3):
            pipeline.lpush("queue:ready", json.dumps({"plan": number}))
        pipeline.llen("queue:ready")
        pipeline.get("worker:nobody:alive")
        assert pipeline.execute() == [1, 1, 1, 3, None]
    with named.redis.pipeline(transaction=False) as pipeline:
        pipeline.llen("queue:ready").brpop("queue:ready", 1).ping()
        length, popped, pong = pipeline.execute()
    assert (length, json.loads(popped[1])["plan"], pong) == (3, 0, True)


@pytest.mark.parametrize("version", [2, 3])
def test_what_fails_in_a_transaction_is_an_answer_among_the_others(connect, version):
    client = connect(protocol=version)
    with client.redis.pipeline() as pipeline:
        pipeline.lpush("queue:ready", '{"plan": 1}')
        pipeline.lpush("queue:ready", "nonsense")
        pipeline.execute_command("WORKER.HEARTBEAT", "ghost")
        pipeline.llen("queue:ready")
        first, second, third, fourth = pipeline.execute(raise_on_error=False)

    assert (first, fourth) == (1, 1)
    assert "Invalid job JSON" in str(second)
    assert str(third).endswith("Worker not registered: ghost")
    assert Job.objects.count() == 1


def test_a_pop_in_a_transaction_waits_for_nothing(named):
    with named.redis.pipeline() as pipeline:
        pipeline.brpop("queue:ready", 0)
        pipeline.lpush("queue:ready", '{"plan": 7}')
        pipeline.brpop("queue:ready", 0)
        empty, _, (queue, job) = pipeline.execute()

    assert empty is None
    assert (queue, json.loads(job)["plan"]) == ("queue:ready", 7)
    assert named.update(json.loads(job)["job_id"], status="completed") == "OK"


def said(port: int, *lines: str) -> list[str]:
    return raw(port, "".join(f"{line}\r\n" for line in lines).encode()).decode().splitlines()


TRANSACTIONS = {
    "carried out in order": (
        ["MULTI", "PING", "ECHO a", "PING b", "EXEC"],
        ["+OK", *["+QUEUED"] * 3, "*3", "+PONG", "$1", "a", "$1", "b"],
    ),
    "empty": (["MULTI", "EXEC"], ["+OK", "*0"]),
    "discarded": (
        ["MULTI", "LPUSH queue:ready '{\"plan\": 1}'", "DISCARD", "LLEN queue:ready"],
        ["+OK", "+QUEUED", "+OK", ":0"],
    ),
    "nothing to end": (
        ["EXEC", "DISCARD"],
        ["-ERR EXEC without MULTI", "-ERR DISCARD without MULTI"],
    ),
    "nested": (
        ["MULTI", "MULTI", "PING", "EXEC"],
        ["+OK", "-ERR MULTI calls can not be nested", "+QUEUED", "*1", "+PONG"],
    ),
    "an unknown command": (
        ["MULTI", "NOPE", "LPUSH queue:ready '{\"plan\": 1}'", "EXEC", "LLEN queue:ready"],
        [
            "+OK",
            "-ERR unknown command 'NOPE'",
            "+QUEUED",
            "-EXECABORT Transaction discarded because of previous errors.",
            ":0",
        ],
    ),
    "the wrong number of arguments": (
        ["MULTI", "TTL", "EXEC", "EXEC"],
        [
            "+OK",
            "-ERR wrong number of arguments for 'ttl' command",
            "-EXECABORT Transaction discarded because of previous errors.",
            "-ERR EXEC without MULTI",
        ],
    ),
    "what must wait": (
        ["MULTI", "WORKER.VERIFY jq {}", "EXEC"],
        [
            "+OK",
            "-ERR WORKER.VERIFY waits for an answer, and cannot be put off by MULTI",
            "-EXECABORT Transaction discarded because of previous errors.",
        ],
    ),
    "a key that is wrong": (
        ["MULTI", "AUTH nonsense", "PING", "EXEC", "PING"],
        ["+OK", "+QUEUED", "+QUEUED", "*2", "-WRONGPASS invalid session key", "+PONG", "+PONG"],
    ),
    "quit": (["MULTI", "PING", "QUIT", "EXEC"], ["+OK", "+QUEUED", "+OK"]),
    "reset": (
        ["MULTI", "PING", "RESET", "EXEC"],
        ["+OK", "+QUEUED", "+RESET", "-ERR EXEC without MULTI"],
    ),
}


@pytest.mark.parametrize("case", TRANSACTIONS)
def test_a_transaction_is_answered_as_redis_answers_it(served, case):
    lines, answers = TRANSACTIONS[case]
    assert said(served.port, *lines) == answers


def test_nothing_can_be_watched_and_the_refusal_says_so(worker):
    assert "WATCH is not supported" in worker.refused("WATCH", "queue:ready")
    assert worker("UNWATCH") in ("OK", True)
    assert said(worker.redis.connection.port, "MULTI", "WATCH a", "PING", "EXEC") == [
        "+OK",
        "-ERR WATCH inside MULTI is not allowed",
        "+QUEUED",
        "*1",
        "+PONG",
    ]


def test_a_transaction_has_bounds(served):
    answers = said(served.port, "MULTI", *["PING"] * 10_001, "EXEC", "PING")
    assert answers[10_000:10_002] == [
        "+QUEUED",
        "-ERR transaction too large: 10000 commands and 16777216 bytes at most; send them in "
        "several, or without MULTI",
    ]
    assert answers[10_002:] == [
        "-EXECABORT Transaction discarded because of previous errors.",
        "+PONG",
    ]


def test_what_a_transaction_answers_has_bounds_and_what_is_left_out_says_so(connect):
    client = connect()
    client.register(notes="x" * 60_000)
    with client.redis.pipeline() as pipeline:
        for _ in range(320):
            pipeline.get("worker:worker-001:metadata")
        answers = pipeline.execute(raise_on_error=False)

    whole = [answer for answer in answers if isinstance(answer, str)]
    assert whole == answers[: len(whole)] and 260 <= len(whole) <= 280
    assert {str(refusal)[:15] for refusal in answers[len(whole) :]} == {"not carried out"}


def test_a_client_that_ends_in_a_transaction_takes_no_job_with_it(connect, worker):
    job = push()
    gone = connect()
    gone.register("gone")
    with socket.create_connection(("127.0.0.1", worker.redis.connection.port)) as connection:
        lines = ["CLIENT SETNAME gone", "MULTI", "BRPOP queue:ready 0", *["KEYS *"] * 9000, "EXEC"]
        connection.sendall("".join(f"{line}\r\n" for line in lines).encode())
        eventually(lambda: Job.objects.get().state == State.ACTIVE)
    assert worker.pull(timeout=20)["job_id"] == str(job.pk)


def test_without_a_key_there_is_no_transaction(guarded):
    lines = ("MULTI", "EXEC", "RESET", "SCAN 0", "LLEN queue:a", "TYPE a", "PTTL a")
    answers = said(guarded.port, *lines)
    refusal = "-NOAUTH Authentication required."
    assert answers == [refusal, refusal, "+RESET", *[refusal] * 4]


def test_a_reset_forgets_who_was_there(guarded):
    client = Client(guarded.port, password=make_key("worker", scopes=["work"])[1], protocol=2)
    client.register()
    assert client("RESET") == "RESET"
    assert "Authentication required" in client.refused("PING")


def test_the_length_of_a_queue_is_the_number_of_available_jobs_paused_or_not(worker):
    for _ in range(3):
        push("mail.out")
    push("mail.out", scheduled_at="2100-01-01T00:00:00Z")
    assert worker.pull("queue:mail.out")
    assert worker.redis.llen("queue:mail.out") == 2
    engine.pause("mail.out")
    assert worker.pull("queue:mail.out", timeout=0.05) is None
    assert worker.redis.llen("queue:mail.out") == 2
    assert worker.redis.llen("queue:nothing") == 0
    assert worker.redis.llen("nonsense") == 0
    assert "WRONGTYPE" in worker.refused("LLEN", "worker:worker-001:alive")


def test_each_key_has_a_type_and_a_time(worker):
    worker("WORKER.HEARTBEAT", "worker-001", "{}")
    push()
    push()
    claim = f"job:{worker.pull()['job_id']}:worker"
    ask = worker.redis
    assert [
        ask.type(key)
        for key in (
            "worker:worker-001:alive",
            "worker:worker-001:metadata",
            "worker:worker-001:stats",
            claim,
            "capability:jq:workers",
            "queue:ready",
            "queue:nothing",
            "worker:nobody:alive",
        )
    ] == [*["string"] * 4, "set", "list", "none", "none"]
    assert 0 < ask.pttl("worker:worker-001:alive") <= 90_000
    assert 3_500_000 < ask.pttl(claim) <= 3_600_000
    assert [ask.pttl("queue:ready"), ask.pttl("queue:nothing")] == [-1, -2]
    assert ask.exists("queue:ready", "queue:nothing", claim) == 2
    for words in (("GET", "queue:ready"), ("SMEMBERS", claim), ("GET", "capability:jq:workers")):
        assert "WRONGTYPE" in worker.refused(*words)


@pytest.fixture
def many_keys(worker):
    """A thousand and more keys of all kinds; returns them."""
    worker("WORKER.HEARTBEAT", "worker-001", "{}")
    Worker.objects.bulk_create(
        Worker(worker_id=f"w-{number}", protocol="ojs", last_heartbeat_at=timezone.now())
        for number in range(1200)
    )
    push("mail")
    push("ready")
    job = worker.pull()["job_id"]
    parts = {f"worker:worker-001:{part}" for part in ("alive", "metadata", "stats")}
    tools = {f"capability:{tool}:workers" for tool in ("jq", "sort")}
    others = {f"worker:w-{number}:alive" for number in range(1200)}
    return parts | tools | others | {"queue:mail", f"job:{job}:worker"}


def test_a_scan_finds_every_key_once(worker, many_keys):
    found = list(worker.redis.scan_iter())
    assert (len(found), set(found)) == (len(many_keys), many_keys)
    assert set(worker("KEYS", "*")) == many_keys
    cursor, page = worker.redis.scan(0, count=1)
    assert 0 < len(page) < len(many_keys) and cursor


def test_a_scan_finds_what_was_there_all_the_time_whatever_comes_and_goes(worker, many_keys):
    cursor, found = worker.redis.scan(0)
    gone = {f"w-{number}" for number in range(0, 1200, 3)}
    Worker.objects.filter(pk__in=gone).delete()
    push("new")
    while cursor:
        cursor, page = worker.redis.scan(cursor)
        found += page
    stayed = many_keys - {f"worker:{name}:alive" for name in gone}
    assert stayed <= set(found)
    assert len(found) == len(set(found))


def test_a_scan_takes_a_pattern_and_a_type(worker, many_keys):
    scan = worker.redis.scan_iter
    assert len(list(scan(match="worker:w-1?:alive"))) == 10
    assert set(scan(match="*[^e]")) == many_keys - set(scan(match="*e"))
    assert set(scan(_type="list")) == {"queue:mail"}
    assert set(scan(_type="SET", match="*s*t*", count=5)) == {"capability:sort:workers"}
    assert not list(scan(_type="zset"))
    assert set(worker("KEYS", r"worker:worker-001:[\ma][l-e]*")) == {
        "worker:worker-001:alive",
        "worker:worker-001:metadata",
    }


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("SCAN x", "invalid cursor"),
        ("SCAN -1", "invalid cursor"),
        ("SCAN 0 COUNT 0", "syntax error"),
        ("SCAN 0 COUNT x", "not an integer"),
        ("SCAN 0 MATCH", "syntax error"),
        ("SCAN 0 LIMIT 1", "syntax error"),
        (f"KEYS {'*' * 1025}", "1024 bytes at most"),
    ],
    ids=lambda value: value[:20],
)
def test_a_scan_that_makes_no_sense_is_refused(worker, words, answer):
    assert answer in worker.refused(*words.split())


def test_a_project_scans_and_counts_its_own_alone(guarded):
    mine = Client(guarded.port, password=make_key("a", scopes=["work", "produce"], project="a")[1])
    theirs = Client(guarded.port, password=make_key("b", scopes=["produce", "work"])[1])
    mine("LPUSH", "queue:shared", '{"plan": 1}')
    for queue in ("shared", "shared", "theirs"):
        theirs("LPUSH", f"queue:{queue}", '{"plan": 1}')
    theirs.register("theirs")
    mine.register("mine", tools=["jq"])
    own = theirs.pull("queue:theirs")

    assert mine.redis.llen("queue:shared") == 1
    assert theirs.redis.llen("queue:shared") == 3
    assert set(mine.redis.scan_iter()) == {
        "queue:shared",
        "worker:mine:alive",
        "worker:mine:metadata",
        "capability:jq:workers",
    }
    assert mine.redis.type(f"job:{own['job_id']}:worker") == "none"
    assert mine.redis.pttl("worker:theirs:alive") == -2


# Hostile bytes


def test_pipelined_commands_are_answered_in_order(served):
    register = registration().encode()
    bulk = b"*2\r\n$15\r\nWORKER.REGISTER\r\n$%d\r\n%b\r\n" % (len(register), register)
    answer = raw(served.port, b"PING\r\n" + bulk + b"PING a\r\n" * 3000 + b"QUIT\r\nPING\r\n")
    lines = answer.split(b"\r\n")
    assert lines[:2] == [b"+PONG", b"+OK worker_id=worker-001 heartbeat_interval=30"]
    assert lines[2:-2] == [b"$1", b"a"] * 3000
    assert lines[-2:] == [b"+OK", b""], "nothing after QUIT"


def test_a_command_may_arrive_byte_by_byte(served):
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"*2\r\n$4\r\nECHO\r\n$5\r\na\r\nbc\r\n":
            connection.sendall(bytes([byte]))
        assert connection.recv(100) == b"$5\r\na\r\nbc\r\n"


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"*1000000000\r\n", b"invalid multibulk length"),
        (b"*2\r\n*1000000000\r\n", b"expected '$', got '*'"),
        (b"*x\r\n", b"invalid multibulk length"),
        (b"*1\r\n$99999999999\r\n", b"invalid bulk length"),
        (b"*1\r\n$-1\r\n", b"invalid bulk length"),
        (b"*1\r\n$4\r\nPINGxx", b"bulk string is longer than it says"),
        (b"*3\r\n$10000000\r\n" + b"x" * 10_000_000 + b"\r\n$10000000\r\n", b"command larger than"),
        (b"x" * 70_000, b"too big inline request"),
        (b"PING 'a\r\n", b"unbalanced quotes"),
        (b"PING 'a\\'\r\n", b"unbalanced quotes"),
        (b'PING "a"b\r\n', b"unbalanced quotes"),
    ],
    ids=lambda value: None,
)
def test_what_is_no_command_gets_one_clear_error_and_the_line_is_closed(served, data, answer):
    said = raw(served.port, b"PING\r\n" + data)
    assert said.startswith(b"+PONG\r\n-ERR Protocol error: "), said
    assert answer in said
    assert said.count(b"\r\n") == 2


@pytest.mark.parametrize(
    "said",
    [
        b"*1\r\n$0\r\n\r\n",
        b"*2\r\n$0\r\n\r\n$5\r\nhello\r\n",
        b"*2\r\n$0\r\n\r\n$1\r\n\xff\r\n",
        b'""\r\n',
    ],
)
def test_a_command_without_a_name_is_an_unknown_one(served, said):
    assert raw(served.port, said + b"PING\r\n") == b"-ERR unknown command ''\r\n+PONG\r\n"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        (rb'"a b\x41"', b"a bA"),
        (rb'"\n\r\t\b\a\\\""', b'\n\r\t\b\a\\"'),
        (rb'"\xff\xZ\q"', b"\xffxZq"),
        (rb"'a\'b\n'", rb"a'b\n"),
        (rb"a\b", rb"a\b"),
        (rb'a"b c"', b"ab c"),
        (rb'""', b""),
    ],
)
def test_a_typed_word_means_what_it_does_in_redis(served, word, meant):
    answer = b"$%d\r\n%b\r\n" % (len(meant), meant)
    assert raw(served.port, b"  ECHO \t" + word + b" \r\n") == answer


def test_strangers_may_not_send_much(guarded):
    data = b"*2\r\n$4\r\nAUTH\r\n$100000\r\n" + b"x" * 100_000 + b"\r\n"
    assert b"invalid bulk length" in raw(guarded.port, data)


def test_who_goes_on_sending_after_an_error_of_the_protocol_still_gets_the_reply(guarded):
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=PATIENCE) as connection:
        connection.sendall(b"*1\r\n$none\r\n")
        answer = connection.recv(1024)
        for _ in range(20):
            connection.sendall(b"x" * 10_000)
        assert connection.recv(1024) == b"", "nothing more comes, and the connection is not reset"
    assert b"Protocol error" in answer


def test_random_and_mutated_bytes_neither_crash_nor_hang_it(served, request):
    """OJS_FUZZ_SECONDS=60 makes it a minute; by default, a fixed number of messages."""
    import os

    chance = random.Random(20251117)
    good = [
        b"*1\r\n$4\r\nPING\r\n",
        b"*3\r\n$5\r\nBRPOP\r\n$11\r\nqueue:ready\r\n$4\r\n0.01\r\n",
        b"*2\r\n$15\r\nWORKER.REGISTER\r\n$%d\r\n%b\r\n"
        % (len(registration()), registration().encode()),
        b"*3\r\n$16\r\nWORKER.HEARTBEAT\r\n$10\r\nworker-001\r\n$2\r\n{}\r\n",
        b'*3\r\n$5\r\nLPUSH\r\n$11\r\nqueue:ready\r\n$10\r\n{"plan":1}\r\n',
        b"*2\r\n$4\r\nKEYS\r\n$14\r\nworker:*:alive\r\n",
        b"HELLO 3\r\n",
        b"MULTI\r\n",
        b"EXEC\r\n",
        b"SCAN 0 MATCH w[^a-c]*\\x?\r\n",
        b"RESET\r\n",
        b"*2\r\n$0\r\n\r\n$1\r\n\xff\r\n",
    ]
    deadline = time.monotonic() + float(os.environ.get("OJS_FUZZ_SECONDS", "0"))
    count = 0
    while count < 150 or time.monotonic() < deadline:
        count += 1
        data = bytearray(b"".join(chance.choices(good, k=chance.randint(1, 4))))
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[at] = chance.randrange(256)
                case 1:
                    del data[at : at + chance.randint(1, 5)]
                case 2:
                    data[at:at] = chance.randbytes(chance.randint(1, 9))
                case 3:
                    data[at:at] = data[: chance.randint(1, 20)]
            data = data or bytearray(b"*")
        if count % 10 == 0:
            data = bytearray(chance.randbytes(chance.randint(1, 300)))
        answer = raw(served.port, bytes(data))
        assert b"the server failed" not in answer, (bytes(data), answer)
    assert raw(served.port, b"PING\r\n") == b"+PONG\r\n"


def test_a_thousand_idle_connections_cost_little(served):
    import psutil

    server = psutil.Process(served.process.pid)
    before = server.memory_info().rss
    idle = [
        socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE) for _ in range(1000)
    ]
    try:
        for connection in idle:
            connection.sendall(b"PING\r\n")
        assert all(connection.recv(10) == b"+PONG\r\n" for connection in idle)
        grown = server.memory_info().rss - before
        assert grown < 40 * 2**20, f"{grown / 1000:.0f} bytes for each"
        assert raw(served.port, b"PING\r\n") == b"+PONG\r\n"
    finally:
        for connection in idle:
            connection.close()


def test_a_client_that_never_reads_holds_up_itself_alone(served, worker):
    import psutil

    server = psutil.Process(served.process.pid)
    before = server.memory_info().rss
    command = b"*2\r\n$4\r\nECHO\r\n$60000\r\n" + b"x" * 60_000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", served.port)) as greedy:
        greedy.settimeout(0.5)
        sent = 0
        try:
            while sent < 200 * 2**20:
                sent += greedy.send(command * 20)
        except TimeoutError:
            pass
        assert sent < 200 * 2**20, "it stopped reading"
        assert worker("PING") is True
        assert server.memory_info().rss - before < 40 * 2**20


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="needs redis-cli")
def test_redis_cli_can_be_used(served, worker):
    def cli(*words: str) -> str:
        command = ["redis-cli", "-p", str(served.port), *words]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE
        ).stdout.strip()

    assert cli("PING") == "PONG"
    assert cli("KEYS", "worker:*:alive") == "worker:worker-001:alive"
    assert cli("SMEMBERS", "capability:jq:workers") == "worker-001"
    assert cli("LPUSH", "queue:ready", '{"plan": 1}') == "1"
    assert cli("WORKER.HEARTBEAT", "nobody") == "ERR Worker not registered: nobody"
    assert cli("--scan", "--pattern", "w?rker:*[es]") == "worker:worker-001:alive"
    assert cli("TYPE", "queue:ready") == "list"
    assert cli("LLEN", "queue:ready") == "1"


def test_the_server_ends_in_order_with_workers_waiting(start):
    port, started = start(ALLOW_ANONYMOUS=1)
    with started as process:
        process.wait_for("AGQ workers are served on")
        client = Client(port)
        client.register()
        client.redis.connection.send_command("BRPOP", "queue:ready", 0)
        assert process.terminate() == 0, process.output
        assert "The AGQ server stops." in process.output
        assert "Traceback" not in process.output

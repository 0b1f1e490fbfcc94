"""API keys of workers: scopes, and keys bound to one worker or to a label (OJS HTTP §5)."""

from __future__ import annotations

from uuid import uuid4

import pytest

from jobs.http.authentication import make_key
from jobs.models import Job
from jobs.spec.lifecycle import State
from tests.factories import JobFactory, WorkerFactory, ago
from tests.ojs_client import OJSClient, refusal
from workers.models import Worker

ERROR = {"code": "handler_error", "message": "SMTP connection refused"}
REGISTRATION = {"hostname": "host-1", "pid": 1, "queues": ["default"], "concurrency": 10}

pytestmark = pytest.mark.django_db


WORKER_CALLS = [
    ("workers/register", REGISTRATION | {"worker_id": "w"}),
    ("workers/heartbeat", {"worker_id": "w"}),
    ("workers/fetch", {"worker_id": "w", "queues": ["default"]}),
    ("workers/ack", {"worker_id": "w", "job_id": str(uuid4())}),
    ("workers/nack", {"worker_id": "w", "job_id": str(uuid4()), "error": ERROR}),
    ("workers/ack", {"worker_id": "w", "acks": [{"job_id": str(uuid4())}]}),
    ("workers/ack", {"acks": [{"worker_id": "w", "job_id": str(uuid4())}]}),
    ("workers/deregister", {"worker_id": "w"}),
]
EACH_CALL = pytest.mark.parametrize(
    ("path", "body"), WORKER_CALLS, ids=[f"{path} {sorted(body)[0]}" for path, body in WORKER_CALLS]
)


@pytest.fixture
def with_key(db, settings):
    """Clients of a server that requires keys: `with_key(scopes=["work"])`."""
    settings.OJS = {}

    def client(**fields):
        return OJSClient(make_key("test", **fields)[1])

    client.without = OJSClient()
    return client


@EACH_CALL
def test_every_worker_endpoint_wants_a_key_that_may_work(with_key, path, body):
    unknown = with_key.without.send(path, body)
    assert unknown.status_code == 401
    assert unknown.headers["WWW-Authenticate"].startswith("Bearer")

    for scopes in (["produce"], ["operate"], []):
        reply = with_key(scopes=scopes).send(path, body)
        assert reply.status_code == 403
        assert refusal(reply)["details"]["scope"] == "work"

    assert with_key(scopes=["work"]).send(path, body).status_code in (200, 404)


@EACH_CALL
def test_a_key_of_one_worker_speaks_for_no_other(with_key, path, body):
    WorkerFactory(worker_id="w", last_heartbeat_at=ago(20))

    reply = with_key(worker_id="another").send(path, body)

    assert reply.status_code == 403
    assert refusal(reply)["code"] == "permission_denied"
    assert Worker.objects.get().last_heartbeat_at < ago(15), "nothing was done"
    assert with_key(worker_id="w").send(path, body).status_code in (200, 404)


def test_a_key_of_one_worker_says_who_it_is(with_key, settings):
    settings.OJS = {"REQUIRE_WORKER_ID": True}
    client = with_key(worker_id="w")
    JobFactory()

    assert client.send("workers/heartbeat", {}).status_code == 200
    (job,) = client.fetch()
    assert Job.objects.get().reserved_by == "w"
    assert client.ack(job["id"]).status_code == 200
    done = Job.objects.get()
    assert (done.finished_by, done.unfenced) == ("w", False)


def test_a_key_of_one_worker_fences_its_finishes(with_key):
    job = JobFactory(active=True, reserved_by="another")

    assert with_key(worker_id="w").ack(job.pk).status_code == 409


LABELLED = {"labels": ["canary", "v2.1"]}


@pytest.mark.parametrize("labels", [None, [], ["stable"]])
def test_a_key_for_a_label_registers_no_worker_without_it(with_key, labels):
    arriving = REGISTRATION | {"worker_id": "w"}

    reply = with_key(label="canary").send("workers/register", arriving | {"labels": labels})

    assert reply.status_code == 403
    assert not Worker.objects.exists()


@pytest.mark.parametrize("labels", [{}, {"labels": ["stable"]}], ids=str)
def test_a_key_for_a_label_makes_no_other_worker_known(with_key, labels):
    client = with_key(label="canary")

    assert client.send("workers/heartbeat", {"worker_id": "w"} | labels).status_code == 403
    assert client.send("workers/heartbeat", {"worker_id": "w"} | LABELLED).status_code == 200
    assert client.send("workers/heartbeat", {"worker_id": "w"}).status_code == 200, "it is known"


@EACH_CALL
@pytest.mark.parametrize("labels", [None, ["stable"]])
def test_a_key_for_a_label_cannot_act_for_other_workers(with_key, path, body, labels):
    """Neither without sending labels, nor by giving the label to another's worker."""
    if labels is not None or path in ("workers/register", "workers/heartbeat"):
        WorkerFactory(worker_id="w", labels=labels or [], last_heartbeat_at=ago(20))

    reply = with_key(label="canary").send(path, body | LABELLED)

    assert reply.status_code == 403
    assert not Worker.objects.filter(last_heartbeat_at__gt=ago(15)).exists()


@EACH_CALL
def test_a_key_for_a_label_speaks_for_those_that_carry_it(with_key, path, body):
    WorkerFactory(worker_id="w", **LABELLED)

    assert with_key(label="canary").send(path, body | LABELLED).status_code in (200, 404)


@pytest.mark.parametrize("path", ["workers/ack", "workers/nack"])
def test_a_key_for_a_label_does_not_settle_without_saying_for_whom(with_key, path):
    job = JobFactory(active=True, reserved_by="w")
    body = {"job_id": str(job.pk), "error": ERROR}

    assert with_key(label="canary").send(path, body).status_code == 403
    assert Job.objects.get().state == State.ACTIVE

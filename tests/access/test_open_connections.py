"""Keys of connections that stay open: on AGQ and Rota, with real servers."""

from __future__ import annotations

import json

import pytest
from django.utils import timezone

from jobs import engine
from jobs.http.authentication import make_key
from jobs.models import ApiKey, Job, OperatorAction
from jobs.spec.lifecycle import State
from tests.factories import JobFactory, WorkerFactory
from tests.processes import eventually
from workers.lifecycle import WorkerState
from workers.models import Worker

from .kinds import expire, narrow, revoke

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

SECRET = "correct horse"


def key(*scopes: str, **bound: str) -> str:
    return make_key("key", scopes=list(scopes or ["work"]), **bound)[1]


def registration(worker_id: str, **more) -> str:
    said = {"worker_id": worker_id, "hostname": "box", "platform": "linux", "agw_version": "1"}
    return json.dumps(said | {"capabilities": {"tools": ["jq"]}} | more)


# A key for workers with a label


@pytest.fixture
def plain():
    """A worker without the label, and jobs: one that it holds, and one that waits."""
    WorkerFactory(worker_id="plain-worker", labels=["cpu"], protocol="agq")
    JobFactory(queue="ready", args=[SECRET])
    return JobFactory(queue="ready", active=True, reserved_by="plain-worker")


def test_over_agq_a_key_for_a_label_speaks_for_no_other_worker(agq, plain):
    line = agq(key(label="gpu:true"))
    line("CLIENT", "SETNAME", "plain-worker")
    forged = json.dumps({"status": "completed", "worker_id": "plain-worker", "result": "forged"})

    answers = [
        line("WORKER.HEARTBEAT", "plain-worker"),
        line("BRPOP", "queue:ready", "0.1"),
        line("JOB.UPDATE", str(plain.pk), forged),
        line("WORKER.UNREGISTER", "plain-worker"),
        line("WORKER.REGISTER", registration("plain-worker")),
        line("WORKER.REGISTER", registration("plain-worker", tags={"gpu": True})),
        line("WORKER.REGISTER", registration("new-worker")),
    ]

    refused = "-NOPERM This API key is for workers labelled 'gpu:true' only."
    assert answers == [refused] * len(answers)
    plain.refresh_from_db()
    assert (plain.state, plain.result) == (State.ACTIVE, None)
    assert Worker.objects.get().state == WorkerState.RUNNING


def test_over_agq_a_key_for_a_label_speaks_for_workers_with_it(agq):
    job = JobFactory(queue="ready")
    line = agq(key(label="gpu:true"))

    assert line("WORKER.REGISTER", registration("w", tags={"gpu": True})).startswith("OK")
    assert line("WORKER.HEARTBEAT", "w") == "OK"
    assert json.loads(line("BRPOP", "queue:ready", "5")[1])["job_id"] == str(job.pk)
    assert line("JOB.UPDATE", str(job.pk), '{"status": "completed"}') == "OK"


def test_over_agq_the_use_of_a_key_for_another_worker_is_in_the_audit(agq):
    job = JobFactory(queue="ready", active=True, reserved_by="other")
    uses = {
        "AUTH": ("other",),
        "WORKER.REGISTER": (registration("other"),),
        "WORKER.HEARTBEAT": ("other",),
        "WORKER.UNREGISTER": ("other",),
        "JOB.UPDATE": (str(job.pk), json.dumps({"status": "completed", "worker_id": "other"})),
    }

    for word, arguments in uses.items():
        # A row counts what one key was refused in a minute.
        _, secret = make_key(word, scopes=["work"], worker_id="mine")
        if word == "AUTH":
            assert "belongs to another worker" in agq()(word, *arguments, secret)
        else:
            assert "belongs to worker mine" in agq(secret)(word, *arguments)

    rows = OperatorAction.objects.filter(verb="refuse_request")
    eventually(lambda: rows.count() == len(uses))
    assert {row.actor: row.selection for row in rows} == {
        word: {"protocol": "agq", "reason": "permission_denied", "call": word} for word in uses
    }


def test_over_agq_each_worker_of_a_connection_has_the_queues_that_it_pulls_from(agq):
    line = agq(key())
    for worker_id in ("w1", "w2"):
        line("WORKER.REGISTER", registration(worker_id))
        line("BRPOP", "queue:a", "0.01")
        line("WORKER.UNREGISTER", worker_id)

    assert [worker.queues for worker in Worker.objects.all()] == [["a"], ["a"]]


# Reading over AGQ


def test_over_agq_a_bound_key_reads_of_its_own_worker_only(agq, plain):
    WorkerFactory(worker_id="mine", labels=["gpu:true"], protocol="agq", capabilities=["jq"])
    for line in (agq(key(worker_id="mine")), agq(key(label="gpu:true"))):
        assert line("KEYS", "worker:*:alive") == ["worker:mine:alive"]
        assert line("SMEMBERS", "capability:jq:workers") == ["mine"]
        assert line("GET", "worker:plain-worker:alive") is None
        assert line("TTL", "worker:plain-worker:alive") == -2
        assert line("EXISTS", "worker:plain-worker:alive", "worker:mine:alive") == 1
        assert line("GET", f"job:{plain.pk}:worker") is None
    everybody = agq(key())
    assert everybody("GET", f"job:{plain.pk}:worker") == "plain-worker"


def test_over_agq_reading_takes_a_scope(agq, plain):
    line = agq(key("produce"))

    for words in (("KEYS", "*"), ("GET", "worker:plain-worker:alive"), ("SMEMBERS", "x")):
        assert line(*words) == (
            "-NOPERM This API key may not do that: it needs the scope 'work' or 'operate'."
        )


# Registration is required


@pytest.mark.parametrize("known", [False, True])
def test_a_worker_that_never_registered_is_given_no_job(agq, known):
    """The death of an unknown worker would be detected only after the job's full hour."""
    if known:
        WorkerFactory(worker_id="ghost", registered_at=None)
    job = JobFactory(queue="ready")
    line = agq(key())
    line("CLIENT", "SETNAME", "ghost")

    assert line("BRPOP", "queue:ready", "1") == "-ERR Worker not registered: ghost"
    job.refresh_from_db()
    assert (job.state, job.attempt) == (State.AVAILABLE, 0)


# Keys that change while a connection is open


@pytest.mark.parametrize("happened", [revoke, expire])
@pytest.mark.parametrize("waiting", [False, True], ids=["idle", "blocked"])
def test_over_agq_the_connection_of_a_key_that_opens_nothing_is_closed(agq, happened, waiting):
    line = agq(key())
    line("WORKER.REGISTER", registration("w"))
    if waiting:
        line.send("BRPOP", "queue:ready", "0")

    happened(ApiKey.objects.all())

    assert line.hear() == "-NOAUTH This session key is not valid any more."
    assert line.hear() == "", "closed"


def test_over_agq_a_worker_that_waits_is_refused_when_its_key_is_narrowed(agq):
    line = agq(key())
    line("WORKER.REGISTER", registration("w"))
    line.send("BRPOP", "queue:ready", "0")

    narrow(ApiKey.objects.all())

    assert line.hear() == "-NOPERM This API key may not do that: it needs the scope 'work'."
    job = JobFactory(queue="ready")
    assert "NOPERM" in line("BRPOP", "queue:ready", "0.1")
    job.refresh_from_db()
    assert job.state == State.AVAILABLE


def test_over_agq_a_key_that_is_bound_to_another_worker_speaks_for_that_one(agq):
    line = agq(key())
    line("WORKER.REGISTER", registration("w"))

    ApiKey.objects.update(worker_id="other")

    belongs = "-ERR This session key belongs to worker other"
    assert line("WORKER.HEARTBEAT", "w") == belongs
    assert line("BRPOP", "queue:ready", "0.1") == belongs


def test_over_agq_a_connection_may_follow_a_change_of_keys(agq):
    line = agq(key())
    line("WORKER.REGISTER", registration("w"))
    fresh = key()

    assert line("AUTH", fresh) == "OK"
    ApiKey.objects.order_by("pk").filter(pk=ApiKey.objects.earliest("pk").pk).update(
        revoked_at=timezone.now()
    )

    assert line("PING") == "PONG"


def rota_registration(worker_id: str = "w", **more) -> dict:
    specs = [{"id": "email.send", "checksum": "v1"}]
    said = {"worker_id": worker_id, "hostname": "box", "queues": ["default"], "specs": specs}
    return said | more


@pytest.mark.parametrize("happened", [revoke, expire, narrow])
def test_over_rota_a_worker_that_waits_is_given_nothing_any_more(rota, happened):
    engine.register_specs({"email.send": "v1"})
    line = rota(key())
    line(registration=rota_registration(), wanted=1)

    happened(ApiKey.objects.all())

    assert line.is_closed()
    JobFactory()
    assert Job.objects.get().state == State.AVAILABLE


def test_over_rota_a_worker_that_wants_nothing_is_closed_too(rota):
    line = rota(key())
    line(registration=rota_registration(), wanted=0)

    revoke(ApiKey.objects.all())

    assert line.is_closed()


def test_over_rota_a_key_that_is_bound_to_another_worker_is_refused(rota):
    line = rota(key())
    line(registration=rota_registration(), wanted=0)

    ApiKey.objects.update(worker_id="other")

    (refusal,) = line(status={"state": "running"})
    assert refusal["error"]["code"] == "permission_denied"
    (refusal,) = line(status={"state": "running"})
    assert refusal["error"]["code"] == "permission_denied", "still"

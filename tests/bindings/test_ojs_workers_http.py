"""Worker endpoints over HTTP (OJS HTTP §10, worker protocol §3 to §6)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from jobs.http import waiting
from jobs.models import Job
from jobs.spec.timestamps import parse_timestamp
from tests.factories import JobFactory, WorkerFactory, ago, ahead
from tests.ojs_client import V1, refusal
from workers.chores import reaper
from workers.models import Worker

REGISTRATION = {
    "worker_id": "worker_019539a4-b68c-7def",
    "hostname": "web-server-1",
    "pid": 12345,
    "queues": ["email", "default"],
    "concurrency": 10,
    "labels": ["canary", "v2.1"],
    "started_at": "2025-06-01T08:00:00Z",
}
"""The example of §3.2."""
ERROR = {"code": "handler_error", "message": "SMTP connection refused"}

pytestmark = pytest.mark.django_db


def held(**traits) -> Job:
    return JobFactory(active=True, reserved_by="w", **traits)


def state_of(job: Job) -> str:
    job.refresh_from_db()
    return job.state


# Registration (§3.2, §3.3)


def test_the_registration_of_the_document_is_accepted(api):
    reply = api.send("workers/register", REGISTRATION)

    assert reply.status_code == 200
    document = reply.json()
    assert parse_timestamp(document.pop("server_time")) == pytest.approx(
        timezone.now(), abs=timedelta(seconds=10)
    )
    assert document == {
        "ok": True,
        "worker_id": REGISTRATION["worker_id"],
        "heartbeat_interval": 5,
        "heartbeat_timeout": 30,
        "visibility_timeout_default": 1800,
    }
    worker = Worker.objects.get(pk=REGISTRATION["worker_id"])
    assert worker.labels == ["canary", "v2.1"]
    assert worker.started_at == datetime(2025, 6, 1, 8, tzinfo=UTC)


def test_the_reply_says_what_the_site_configured(api, settings):
    settings.OJS = settings.OJS | {
        "HEARTBEAT_INTERVAL": 1,
        "HEARTBEAT_TIMEOUT": 7.5,
        "VISIBILITY_TIMEOUT": 60,
    }

    document = api.send("workers/register", REGISTRATION).json()

    assert document["heartbeat_interval"] == 1
    assert document["heartbeat_timeout"] == 7.5
    assert document["visibility_timeout_default"] == 60


@pytest.mark.parametrize("name", ["worker_id", "hostname", "pid", "queues", "concurrency"])
@pytest.mark.parametrize("how", ["absent", "null"])
def test_a_registration_must_have_the_required_fields(api, name, how):
    body = {key: value for key, value in REGISTRATION.items() if key != name}

    reply = api.send("workers/register", body | ({name: None} if how == "null" else {}))

    assert reply.status_code == 400
    error = refusal(reply)
    assert (error["code"], error["details"]["field"]) == ("invalid_request", name)
    assert not Worker.objects.exists()


def test_labels_and_start_may_be_left_out(api):
    body = {key: REGISTRATION[key] for key in REGISTRATION if key not in ("labels", "started_at")}

    assert api.send("workers/register", body).status_code == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("worker_id", 7),
        ("worker_id", ""),
        ("worker_id", "w" * 256),
        ("hostname", 7),
        ("pid", "12345"),
        ("pid", 1.5),
        ("pid", True),
        ("pid", -1),
        ("queues", "default"),
        ("queues", []),
        ("queues", [7]),
        ("queues", [None]),
        ("queues", ["email", ""]),
        ("concurrency", 0),
        ("concurrency", "10"),
        ("labels", "canary"),
        ("labels", [{}]),
        ("started_at", "yesterday"),
        ("started_at", "2025-06-01T08:00:00"),
        ("started_at", 1748764800),
    ],
)
def test_a_registration_with_a_field_of_the_wrong_form_is_refused(api, name, value):
    reply = api.send("workers/register", REGISTRATION | {name: value})

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"].startswith(name)
    assert not Worker.objects.exists()


def test_fields_we_do_not_know_are_no_error(api):
    assert api.send("workers/register", REGISTRATION | {"zone": "b"}).status_code == 200


def test_a_registration_that_names_no_start_is_that_of_a_new_process(api):
    """For example a container's replacement, with the same host name and pid."""
    anonymous = {
        name: it for name, it in REGISTRATION.items() if name not in ("started_at", "labels")
    }
    worker_id = REGISTRATION["worker_id"]
    api.send("workers/register", anonymous | {"labels": ["old"]})
    job = JobFactory(active=True, reserved_by=worker_id)
    api.send("workers/heartbeat", {"worker_id": worker_id, "state": "terminate", "sequence": 9})

    assert api.send("workers/register", anonymous).status_code == 200

    assert state_of(job) == "available"
    worker = Worker.objects.get(pk=worker_id)
    assert (worker.state, worker.incarnation, worker.labels) == ("running", 2, [])


def test_a_registration_that_names_the_same_start_is_of_the_same_process(api):
    api.send("workers/register", REGISTRATION)
    job = JobFactory(active=True, reserved_by=REGISTRATION["worker_id"])

    api.send("workers/register", REGISTRATION)

    assert state_of(job) == "active"
    assert Worker.objects.get().incarnation == 1


def test_a_worker_met_by_its_heartbeat_keeps_its_jobs_when_it_registers(api):
    api.send("workers/heartbeat", {"worker_id": REGISTRATION["worker_id"]})
    job = JobFactory(active=True, reserved_by=REGISTRATION["worker_id"])

    api.send("workers/register", REGISTRATION)

    assert state_of(job) == "active"


# Deregistration (§3.4)


@pytest.mark.parametrize("how", ["post", "delete"])
def test_a_worker_deregisters_by_either_door_and_twice_is_no_error(api, how):
    WorkerFactory(worker_id="pool/w_1")

    def deregister():
        if how == "post":
            return api.send("workers/deregister", {"worker_id": "pool/w_1"})
        return api.delete(f"{V1}/workers/pool/w_1")

    replies = [deregister(), deregister()]

    assert [reply.status_code for reply in replies] == [200, 200]
    assert [reply.json()["deregistered"] for reply in replies] == [True, False]
    assert replies[0].json()["ok"] is True
    assert not Worker.objects.live().exists()


def test_a_deregistration_must_say_who_leaves(api):
    assert refusal(api.send("workers/deregister", {}))["details"]["field"] == "worker_id"


# Heartbeat (§4; HTTP §10.4)


def dialects(job_id: str) -> dict[str, dict]:
    return {
        "worker protocol": {
            "state": "running",
            "active_jobs": 1,
            "active_job_ids": [job_id],
            "started_at": "2025-06-01T08:00:00Z",
            "hostname": "web-server-1",
            "pid": 12345,
            "queues": ["email", "default"],
            "concurrency": 10,
            "labels": ["canary", "v2.1"],
        },
        "short document": {"state": "running", "active_job_ids": [job_id]},
        "HTTP binding": {"active_jobs": [job_id]},
        "OpenAPI": {"job_id": job_id},
    }


@pytest.mark.parametrize("dialect", dialects(""))
@pytest.mark.parametrize("path", ["heartbeat", "beat"])
def test_a_heartbeat_is_understood_in_every_dialect(api, dialect, path):
    job = held(reserved_until=ahead(1))

    reply = api.send(f"workers/{path}", {"worker_id": "w"} | dialects(str(job.pk))[dialect])

    assert reply.status_code == 200
    document = reply.json()
    assert document["state"] == document["directive"] == "running"
    assert document["jobs_extended"] == [str(job.pk)]
    assert document["jobs_lost"] == []
    assert document["visibility_timeout"] == 1800
    assert document["acknowledged"] is True
    assert "stale" not in document
    assert parse_timestamp(document["server_time"]) == pytest.approx(
        timezone.now(), abs=timedelta(seconds=10)
    )
    job.refresh_from_db()
    assert job.reserved_until > ahead(1700)
    assert Worker.objects.get(pk="w").active_job_ids == [str(job.pk)]


def test_a_number_of_jobs_without_their_ids_extends_nothing(api):
    deadline = ahead(60)
    job = held(reserved_until=deadline)

    document = api.send("workers/heartbeat", {"worker_id": "w", "active_jobs": 1}).json()

    assert document["jobs_extended"] == []
    job.refresh_from_db()
    assert job.reserved_until == deadline


@pytest.mark.parametrize(
    "asked",
    [{"visibility_timeout_ms": 60_000}, {"visibility_timeout": 60}, {"visibility_timeout": "PT1M"}],
    ids=str,
)
def test_a_heartbeat_may_ask_for_its_own_extension(api, asked):
    job = held()

    api.send("workers/heartbeat", {"worker_id": "w", "active_jobs": [str(job.pk)]} | asked)

    job.refresh_from_db()
    assert job.reserved_until == pytest.approx(ahead(60), abs=timedelta(seconds=10))


@pytest.mark.parametrize(
    ("said", "desired"),
    [("running", "running"), ("quiet", "quiet"), ("terminate", "terminate"), ("drain", "quiet")],
)
def test_the_reply_says_which_state_is_desired(api, said, desired):
    document = api.send("workers/heartbeat", {"worker_id": "w", "state": said}).json()

    assert document["state"] == desired


@pytest.mark.parametrize("directive", ["quiet", "terminate"])
def test_a_directive_is_relayed_in_the_reply(api, directive):
    WorkerFactory(worker_id="w", directive=directive)

    document = api.send("workers/heartbeat", {"worker_id": "w", "state": "running"}).json()

    assert document["state"] == document["directive"] == directive


def test_a_heartbeat_lists_lost_jobs(api):
    lost = str(uuid4())

    document = api.send("workers/heartbeat", {"worker_id": "w", "active_jobs": [lost]}).json()

    assert (document["jobs_extended"], document["jobs_lost"]) == ([], [lost])


def test_a_heartbeat_that_was_overtaken_is_called_stale(api):
    for sequence in (2, 1):
        reply = api.send("workers/heartbeat", {"worker_id": "w", "sequence": sequence})

    assert reply.status_code == 200
    assert (reply.json()["stale"], reply.json()["state"]) == (True, "running")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("worker_id", None),
        ("worker_id", 7),
        ("state", "asleep"),
        ("state", "terminated"),
        ("state", 1),
        ("active_jobs", "one"),
        ("active_jobs", -1),
        ("active_jobs", [7]),
        ("active_job_ids", "j1"),
        ("active_job_ids", [7]),
        ("job_id", 7),
        ("sequence", "1"),
        ("sequence", -1),
        ("visibility_timeout_ms", 0),
        ("visibility_timeout_ms", "1"),
        ("concurrency", 0),
    ],
)
def test_a_heartbeat_with_a_field_of_the_wrong_form_is_refused(api, name, value):
    WorkerFactory(worker_id="w", last_heartbeat_at=ago(20))

    reply = api.send("workers/heartbeat", {"worker_id": "w"} | {name: value})

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"].startswith(name)
    assert Worker.objects.get().last_heartbeat_at < ago(15), "nothing was recorded"


# Fetch (§6; HTTP §10.1)


def test_a_fetch_answers_with_the_jobs(api):
    job = JobFactory(type="email.send", args=["user@example.com"], meta={"trace_id": "t"})

    reply = api.send("workers/fetch", {"queues": ["default"], "worker_id": "w"})

    assert reply.status_code == 200
    (document,) = reply.json()["jobs"]
    assert document["id"] == str(job.pk)
    assert (document["state"], document["attempt"]) == ("active", 1)
    assert document["args"] == ["user@example.com"]
    assert document["meta"] == {"trace_id": "t"}
    assert "started_at" in document


def test_an_empty_queue_is_an_empty_list_and_no_error(api):
    reply = api.send("workers/fetch", {"queues": ["default"]})

    assert (reply.status_code, reply.json()) == (200, {"jobs": []})


@pytest.mark.parametrize("name", ["count", "batch_size", "max_jobs"])
def test_how_many_may_be_said_in_the_words_of_every_client(api, name):
    JobFactory.create_batch(4)

    assert len(api.fetch(**{name: 3})) == 3


def test_no_more_are_given_at_once_than_the_site_allows(api, settings):
    settings.OJS = settings.OJS | {"MAX_FETCH": 2}
    JobFactory.create_batch(4)

    assert len(api.fetch(count=4)) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queues", None),
        ("queues", []),
        ("queues", [""]),
        ("queues", "default"),
        ("queues", [7]),
        ("queues[1]", ["default", "Not a queue"]),
        ("queues[0]", ["q" * 256]),
        ("queues[1].name", ["default", {"name": "_low", "weight": 1}]),
        ("count", 0),
        ("count", -1),
        ("count", "2"),
        ("worker_id", 7),
        ("types", "email.send"),
        ("visibility_timeout_ms", 0),
        ("visibility_timeout_ms", "30000"),
        ("wait_ms", -1),
        ("wait_ms", "1"),
    ],
)
def test_a_fetch_with_a_field_of_the_wrong_form_takes_nothing(api, name, value):
    JobFactory()

    member = name.partition("[")[0]
    reply = api.send("workers/fetch", {"queues": ["default"]} | {member: value})

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"].startswith(name)
    assert not Job.objects.active().exists()


def test_a_fetch_may_name_types_and_a_visibility_timeout(api):
    JobFactory(type="video.transcode")
    JobFactory(type="email.send")

    (document,) = api.fetch(count=5, types=["email.send"], visibility_timeout_ms=30_000)

    assert document["type"] == "email.send"
    job = Job.objects.active().get()
    assert job.reserved_for == timedelta(seconds=30)


def test_more_waiting_fetches_than_there_are_places_for_are_answered_at_once(
    api, settings, monkeypatch
):
    settings.OJS = settings.OJS | {"MAX_WAIT": 3600}
    monkeypatch.setattr(waiting, "PLACES", 0)

    assert api.fetch(wait_ms=3_600_000) == []


@pytest.mark.parametrize("path", ["register", "heartbeat"])
def test_what_is_no_queues_name_is_refused_with_its_place(api, path):
    reply = api.send(f"workers/{path}", REGISTRATION | {"queues": ["default", "Not a queue"]})

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"] == "queues[1]"
    assert not Worker.objects.exists()


@pytest.mark.parametrize("ids", [{}, {"active_job_ids": []}], ids=["alone", "beside the ids"])
@pytest.mark.parametrize(
    ("value", "place"),
    [("3", "active_jobs"), ({}, "active_jobs"), (-1, "active_jobs"), ([7], "active_jobs[0]")],
)
def test_active_jobs_is_a_number_or_a_list_of_ids(api, value, place, ids):
    reply = api.send("workers/heartbeat", {"worker_id": "w", "active_jobs": value} | ids)

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"] == place
    assert not Worker.objects.exists()


@pytest.mark.parametrize("method", ["get", "head", "post", "put", "patch"])
@pytest.mark.parametrize("path", ["unknown", "w/1", "fetch/", "register/more"])
def test_what_is_not_there_below_workers_is_not_found(api, method, path):
    reply = getattr(api, method)(f"{V1}/workers/{path}")

    assert reply.status_code == 404
    if method != "head":
        assert refusal(reply)["details"]["resource_type"] == "path"


def test_what_is_there_below_workers_says_how_it_is_asked(api):
    reply = api.get(f"{V1}/workers/fetch")

    assert (reply.status_code, reply.headers["Allow"]) == (405, "POST")


def test_an_unknown_worker_is_not_found_with_a_hint_about_workers(api):
    hints = {
        refusal(api.see(f"{place}workers/nobody{more}"))["hint"]
        for place, more in (("", "/health"), ("admin/", ""))
    }

    assert hints == {
        "Check the identifier; workers that left are deleted when their retention has passed."
    }


@pytest.mark.parametrize(
    ("path", "field", "named", "most"),
    [
        ("fetch", "queues", ["q"], 1_000),
        ("fetch", "queues", [{"name": "q"}], 1_000),
        ("fetch", "types", ["t"], 10_000),
        ("register", "queues", ["q"], 1_000),
        ("heartbeat", "queues", ["q"], 1_000),
        ("register", "labels", ["l"], 1_000),
        ("heartbeat", "labels", ["l"], 1_000),
    ],
)
def test_a_worker_names_a_limited_number_of_queues_types_and_labels(api, path, field, named, most):
    body = REGISTRATION | {field: named * (most + 1)}

    reply = api.send(f"workers/{path}", body)

    assert reply.status_code == 400
    what = f"The '{field}' field may name at most {most} {field}, not {most + 1}."
    assert refusal(reply)["message"] == what
    assert refusal(reply)["details"]["limit"] == most
    assert api.send(f"workers/{path}", body | {field: named * most}).status_code == 200


# Ids with control characters, which no URL matches


@pytest.mark.parametrize("character", ["\n", "\t", "\x7f", "\x85", "\u2028"], ids=ascii)
@pytest.mark.parametrize(
    ("path", "body"),
    [("workers/register", REGISTRATION), ("workers/heartbeat", {"state": "running"})],
)
def test_no_new_worker_has_a_control_character_in_its_id(api, path, body, character):
    reply = api.send(path, body | {"worker_id": f"a{character}b"})

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"] == "worker_id"
    assert not Worker.objects.exists()


@pytest.mark.parametrize("path", ["register", "heartbeat", "deregister"])
def test_a_worker_that_already_has_one_goes_on(api, path):
    WorkerFactory(worker_id="a\nb")

    assert api.send(f"workers/{path}", REGISTRATION | {"worker_id": "a\nb"}).status_code == 200


# Health (OJS HTTP §8.1): without a reaper, jobs of dead workers wait


def test_health_is_open_and_ok_while_a_reaper_runs(api, settings):
    settings.OJS = {}
    reaper.sign_of_life("host:1")

    reply = api.see("health")

    assert reply.status_code == 200
    assert reply.json()["status"] == "ok"
    assert reply.json()["reaper"]["status"] == "healthy"
    assert parse_timestamp(reply.json()["reaper"]["last_seen_at"])


def test_health_says_so_when_no_reaper_ever_ran(api):
    document = api.see("health").json()

    assert document["status"] == "degraded"
    assert document["backend"]["status"] == "healthy"
    assert document["reaper"] == {"status": "unhealthy", "message": "No reaper has ever run."}


def test_health_says_for_how_long_the_reaper_has_been_silent(api):
    reaper.sign_of_life("host:1")
    reaper.Reaper.objects.update(seen_at=ago(40))

    reply = api.see("health")

    assert reply.status_code == 200, "the server itself still serves"
    assert reply.json()["status"] == "degraded"
    assert reply.json()["reaper"]["message"].startswith("The reaper has not run for 40")


# Queries (docs/architecture.md)


@pytest.mark.postgres
def test_the_hot_endpoints_stay_within_their_statements(api, django_assert_max_num_queries):
    WorkerFactory(worker_id="w", queues=["a", "b"], concurrency=100)
    JobFactory.create_batch(20, queue="b")
    api.send("workers/heartbeat", REGISTRATION | {"worker_id": "w"})

    with django_assert_max_num_queries(2):
        jobs = api.fetch("a", "b", worker_id="w", count=10)
    assert len(jobs) == 10
    with django_assert_max_num_queries(2):
        api.fetch("a", "b", count=1)
    with django_assert_max_num_queries(2):
        assert api.fetch("empty", worker_id="w") == []

    ids = [job["id"] for job in jobs]
    with django_assert_max_num_queries(3):
        beat = api.send(
            "workers/heartbeat",
            REGISTRATION | {"worker_id": "w", "state": "running", "active_job_ids": ids},
        )
    assert beat.json()["jobs_extended"] == ids

    with django_assert_max_num_queries(1):
        api.ack(ids[0], worker_id="w")
    acks = [{"job_id": one} for one in ids[1:]]
    with django_assert_max_num_queries(1):
        settled = api.send("workers/ack", {"worker_id": "w", "acks": acks})
    assert {answer["status"] for answer in settled.json()["acks"]} == {200}

"""ACK and FAIL over HTTP: single, in lists, and as part of a fetch (OJS HTTP §10.2, §10.3)."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import uuid4

import pytest
from django.urls import resolve

from jobs.models import Job, RefusedFinish
from jobs.spec.lifecycle import State
from jobs.spec.timestamps import parse_timestamp
from tests.factories import JobFactory, WorkerFactory, ahead
from tests.ojs_client import V1, refusal

ERROR = {"code": "handler_error", "message": "SMTP connection refused"}

pytestmark = pytest.mark.django_db

NOBODY = "00000000-0000-7000-8000-000000000000"
"""The id of no job; the same in every test process, because it is part of test names."""


def held(**traits) -> Job:
    return JobFactory(active=True, reserved_by="w", **traits)


def state_of(job: Job) -> str:
    job.refresh_from_db()
    return job.state


# Acks and nacks in a fetch


def test_a_fetch_carries_the_outcomes_of_finished_jobs(api):
    worker = WorkerFactory(worker_id="w", concurrency=2)
    done, failed = held(), held()
    waiting = JobFactory()

    document = api.send(
        "workers/fetch",
        {
            "queues": ["default"],
            "worker_id": worker.pk,
            "acks": [{"job_id": str(done.pk), "result": 1}],
            "nacks": [{"job_id": str(failed.pk), "error": ERROR}],
        },
    ).json()

    assert [answer["state"] for answer in document["acks"]] == ["completed"]
    assert [answer["state"] for answer in document["nacks"]] == ["retryable"]
    assert [job["id"] for job in document["jobs"]] == [str(waiting.pk)], (
        "settled first: otherwise the worker would have had no place"
    )


def test_the_outcomes_are_fenced_by_the_worker_that_fetches(api):
    foreign = JobFactory(active=True, reserved_by="another")

    document = api.send(
        "workers/fetch",
        {"queues": ["default"], "worker_id": "w", "acks": [{"job_id": str(foreign.pk)}]},
    ).json()

    (answer,) = document["acks"]
    assert (answer["status"], answer["error"]["code"]) == (409, "conflict")
    assert state_of(foreign) == State.ACTIVE


@pytest.mark.parametrize(
    "wrong",
    [
        {"acks": "all"},
        {"acks": ["x"]},
        {"acks": [{"job_id": "x"}]},
        {"nacks": [{"job_id": NOBODY}]},
        {"nacks": {}},
    ],
    ids=str,
)
def test_one_wrong_outcome_and_nothing_at_all_is_done(api, wrong):
    job = held()
    JobFactory()
    body = {"queues": ["default"], "worker_id": "w", "acks": [{"job_id": str(job.pk)}]}

    reply = api.send("workers/fetch", body | wrong)

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"].startswith(next(iter(wrong)))
    assert state_of(job) == State.ACTIVE
    assert Job.objects.active().count() == 1


# ACK (HTTP §10.2)


def test_an_ack_is_answered_as_documented(api):
    job = held()

    reply = api.ack(job.pk, worker_id="w", result={"delivered": True})

    assert reply.status_code == 200
    document = reply.json()
    assert document["acknowledged"] is True
    assert document["job_id"] == document["id"] == str(job.pk)
    assert document["state"] == "completed"
    assert parse_timestamp(document["completed_at"])
    job.refresh_from_db()
    assert job.result == {"delivered": True}


@pytest.mark.parametrize("result", [None, 0, "done", [1], {"a": 1}, False])
def test_a_result_may_be_anything(api, result):
    job = held()

    assert api.ack(job.pk, result=result).status_code == 200
    job.refresh_from_db()
    assert job.result == result


@pytest.mark.parametrize("path", ["jobs/{}/ack", "workers/ack"])
def test_an_ack_may_name_its_job_in_the_path(api, path):
    job = held()
    body = {} if "{}" in path else {"job_id": str(job.pk)}

    reply = api.send(path.format(job.pk), body)

    assert reply.status_code == 200
    assert state_of(job) == State.COMPLETED
    about = {"id": str(job.pk), "state": "completed", "attempt": job.attempt}
    assert reply.json()["job"] == about


@pytest.mark.parametrize("path", ["jobs/{}/nack", "jobs/{}/fail", "workers/nack", "workers/fail"])
def test_a_failure_has_four_paths(api, path):
    job = held()

    reply = api.send(path.format(job.pk), {"job_id": str(job.pk), "error": ERROR})

    assert reply.status_code == 200
    assert state_of(job) == State.RETRYABLE


@pytest.mark.parametrize("path", ["jobs/{}/ack", "jobs/{}/nack", "jobs/{}/fail"])
@pytest.mark.parametrize(
    ("field", "other"),
    [("job_id", NOBODY), ("acks", [{"job_id": NOBODY}]), ("nacks", [{"job_id": NOBODY}])],
)
def test_a_path_that_names_a_job_is_about_no_other(api, path, field, other):
    job = held()

    reply = api.send(path.format(job.pk), {"error": ERROR, field: other})

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"] == field
    assert state_of(job) == State.ACTIVE


def test_every_path_of_the_two_families_is_one_of_the_same_actions():
    families = [
        ("workers/fetch", "jobs/fetch"),
        ("workers/heartbeat", "workers/beat"),
        ("workers/ack", "jobs/x/ack"),
        ("workers/nack", "workers/fail", "jobs/x/nack", "jobs/x/fail"),
    ]
    for family in families:
        actions = {tuple(resolve(f"{V1}/{path}").func.actions.items()) for path in family}
        assert len(actions) == 1


def test_an_ack_of_what_is_not_active_is_a_conflict(api):
    job = JobFactory(completed=True)

    reply = api.ack(job.pk)

    assert reply.status_code == 409
    error = refusal(reply)
    assert error["code"] == "conflict"
    assert error["details"]["job_id"] == str(job.pk)
    assert error["details"]["current_state"] == "completed"
    assert error["details"]["expected_state"] == "active"


@pytest.mark.parametrize("path", ["workers/ack", "workers/nack"])
def test_a_worker_that_does_not_hold_the_job_is_refused(api, path):
    job = JobFactory(active=True, reserved_by="another")
    body = {"job_id": str(job.pk), "worker_id": "w", "error": ERROR}

    reply = api.send(path, body)

    assert reply.status_code == 409
    assert refusal(reply)["code"] == "conflict"
    assert state_of(job) == State.ACTIVE
    assert RefusedFinish.objects.get().worker_id == "w"


@pytest.mark.parametrize("path", ["workers/ack", "workers/nack"])
def test_an_older_attempt_is_refused(api, path):
    job = held(attempt=2)
    body = {"job_id": str(job.pk), "worker_id": "w", "error": ERROR}

    assert api.send(path, body | {"attempt": 1}).status_code == 409
    assert api.send(path, body | {"attempt": 2}).status_code == 200


@pytest.mark.parametrize("path", ["workers/ack", "workers/nack"])
@pytest.mark.parametrize(
    ("job_id", "status"), [(NOBODY, 404), ("job_1", 400), ("", 400), (7, 400), (None, 400)]
)
def test_a_malformed_job_id_is_distinguished_from_an_unknown_one(api, path, job_id, status):
    reply = api.send(path, {"job_id": job_id, "error": ERROR})

    assert reply.status_code == status
    details = refusal(reply)["details"]
    assert details.get("resource_id") == job_id if status == 404 else details["field"] == "job_id"


# FAIL (HTTP §10.3)


def test_a_failure_that_will_be_retried_is_answered_as_documented(api):
    job = held(retry={"max_attempts": 5, "initial_interval": "PT10S", "jitter": False})
    Job.objects.update(max_attempts=5)

    document = api.nack(job.pk).json()

    assert document["job_id"] == str(job.pk)
    assert (document["state"], document["attempt"]) == ("retryable", 1)
    assert document["max_attempts"] == 5
    assert document["retry_delay_ms"] == 10_000
    assert parse_timestamp(document["next_attempt_at"]) == pytest.approx(
        ahead(10), abs=timedelta(seconds=10)
    )


def test_a_failure_that_exhausts_the_job_is_answered_as_documented(api):
    document = api.nack(held(attempt=3).pk).json()

    assert (document["state"], document["attempt"], document["max_attempts"]) == ("discarded", 3, 3)
    assert parse_timestamp(document["discarded_at"])
    assert "next_attempt_at" not in document


def test_a_failure_and_its_job_tell_the_same_times(api):
    last, again = held(attempt=3), held()

    for job, name in ((last, "discarded_at"), (again, "next_attempt_at")):
        answered = api.nack(job.pk).json()[name]
        assert api.see(f"jobs/{job.pk}").json()["job"][name] == answered


def test_shutdown_is_an_error_like_any_other_and_follows_the_policy(api):
    """§11.5, Appendix B."""
    job = held()

    document = api.nack(job.pk, type="shutdown", message="worker shutting down").json()

    assert document["state"] == "retryable"
    assert [error.type for error in job.errors.all()] == ["shutdown"]


def test_a_job_given_back_gets_its_attempt_back(api):
    job = held(attempt=3)

    document = api.send("workers/nack", {"job_id": str(job.pk), "requeue": True}).json()

    assert document["state"] == "available"
    assert not job.errors.exists()
    (again,) = api.fetch()
    assert again["attempt"] == 3


@pytest.mark.parametrize(
    ("error", "recorded"),
    [
        ("it broke", ("handler_error", "", "it broke")),
        ({"code": "timeout", "message": "m"}, ("timeout", "timeout", "m")),
        ({"type": "SMTPError", "message": "m"}, ("SMTPError", "", "m")),
        (
            {"code": "handler_error", "message": "m", "details": {"error_class": "SMTPError"}},
            ("SMTPError", "handler_error", "m"),
        ),
    ],
    ids=["text", "code", "type", "class in details"],
)
def test_an_error_is_understood_in_every_dialect(api, error, recorded):
    job = held()

    assert api.send("workers/nack", {"job_id": str(job.pk), "error": error}).status_code == 200
    (kept,) = job.errors.all()
    assert (kept.type, kept.code, kept.message) == recorded


@pytest.mark.parametrize(
    "error",
    [None, {}, 7, [], {"code": 7}, {"message": ["x"]}, {"code": "boom"}, {"message": "it broke"}],
)
def test_a_failure_must_say_what_went_wrong(api, error):
    job = held()

    reply = api.send("workers/nack", {"job_id": str(job.pk), "error": error})

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"].startswith("error")
    assert state_of(job) == State.ACTIVE


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ({"message": ""}, "error: The 'code' field is required."),
        ({"type": "", "message": ""}, "error: The 'type' field must not be empty."),
        ({"code": "", "message": "it broke"}, "error: The 'code' field must not be empty."),
    ],
)
def test_the_refusal_says_which_member_is_empty(api, error, said):
    body = {"job_id": str(held().pk), "error": error}

    assert refusal(api.send("workers/nack", body))["message"] == said


LONG = "x" * 2**20


@pytest.mark.parametrize(
    "error",
    [
        LONG + "x",
        ERROR | {"message": LONG + "x"},
        ERROR | {"details": {"sql": LONG}},
        ERROR | {"backtrace": LONG + "x"},
        ERROR | {"backtrace": [LONG + "x"]},
    ],
    ids=["text", "message", "details", "backtrace", "line"],
)
def test_no_part_of_an_error_is_kept_beyond_a_megabyte(api, error):
    """It is cut: a refusal would lose the error, and leave the job active."""
    job = held()

    reply = api.send("workers/nack", {"job_id": str(job.pk), "error": error})

    assert reply.status_code == 200
    assert state_of(job) == State.RETRYABLE
    kept = job.errors.get()
    assert len(json.dumps([kept.message, kept.details, kept.backtrace])) < 2**20 + 100


def test_a_text_of_a_megabyte_is_kept_as_it_is(api):
    job = held()

    assert api.send("workers/nack", {"job_id": str(job.pk), "error": LONG}).status_code == 200
    assert job.errors.get().message == LONG


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("nack", {"error": 5}, "The 'error' field must be an object or a string, not integer."),
        ("nack", {"error": {"code": "boom"}}, "error: The 'message' field is required."),
        (
            "heartbeat",
            {"worker_id": "w", "handlers": [{"type": "a"}, {}]},
            "handlers[1]: The 'type' field is required.",
        ),
        ("fetch", {"queues": ["a", {}]}, "queues[1]: The 'name' field is required."),
    ],
)
def test_the_message_of_a_refusal_says_where_the_mistake_is(api, path, body, message):
    reply = api.send(f"workers/{path}", {"job_id": NOBODY} | body)

    assert refusal(reply)["message"] == message


def test_null_says_nothing_about_whether_an_error_is_retryable(api):
    job = held()

    reply = api.nack(job.pk, retryable=None, details=None, backtrace=None)

    assert reply.json()["state"] == "retryable"


# Lists of outcomes: an extension declared in the manifest


def test_each_ack_of_a_list_has_its_own_answer_in_order(api):
    mine, foreign = held(), JobFactory(active=True, reserved_by="v")
    done = JobFactory(completed=True)
    missing = str(uuid4())
    ids = [str(mine.pk), str(foreign.pk), missing, str(done.pk)]

    reply = api.send("workers/ack", {"worker_id": "w", "acks": [{"job_id": one} for one in ids]})

    assert reply.status_code == 200
    answers = reply.json()["acks"]
    assert [answer["job_id"] for answer in answers] == ids
    assert [answer["status"] for answer in answers] == [200, 409, 404, 409]
    assert [answer["acknowledged"] for answer in answers] == [True, False, False, False]
    for answer in answers[1:]:
        assert answer["error"]["request_id"] == reply.headers["X-Request-Id"]
        assert answer["error"]["retryable"] is False


def test_each_nack_of_a_list_has_its_own_answer_in_order(api):
    again, last = held(), held(attempt=3)
    nacks = [{"job_id": str(job.pk), "error": ERROR} for job in (again, last, again)]

    answers = api.send("workers/nack", {"worker_id": "w", "nacks": nacks}).json()["nacks"]

    assert [answer["status"] for answer in answers] == [200, 200, 409]
    assert [answer.get("state") for answer in answers] == ["retryable", "discarded", None]


def test_an_outcome_of_a_list_may_name_another_worker_and_its_attempt(api):
    mine, others = held(), JobFactory(active=True, reserved_by="v", attempt=2)
    acks = [{"job_id": str(mine.pk)}, {"job_id": str(others.pk), "worker_id": "v", "attempt": 2}]

    answers = api.send("workers/ack", {"worker_id": "w", "acks": acks}).json()["acks"]

    assert [answer["status"] for answer in answers] == [200, 200]


def test_an_empty_list_settles_nothing_and_null_is_no_list(api):
    job = held()

    assert api.send("workers/ack", {"acks": []}).json() == {"acks": []}
    assert api.send("workers/ack", {"acks": None, "job_id": str(job.pk)}).status_code == 200
    assert state_of(job) == State.COMPLETED


def test_a_list_has_a_longest_length(api, settings):
    settings.OJS = settings.OJS | {"MAX_BATCH": 2}
    acks = [{"job_id": str(uuid4())}] * 3

    assert refusal(api.send("workers/ack", {"acks": acks}))["details"]["field"] == "acks"


def test_the_place_of_a_wrong_outcome_is_named(api):
    acks = [{"job_id": str(uuid4())}, {"job_id": "x"}]

    error = refusal(api.send("workers/ack", {"acks": acks}))

    assert error["details"]["field"] == "acks[1].job_id"


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"attempt": 0}, "attempt"),
        ({"attempt": 2**31}, "attempt"),
        ({"attempt": True}, "attempt"),
        ({"attempt": "1"}, "attempt"),
        ({"worker_id": 7}, "worker_id"),
        ({"job_id": None}, "job_id"),
        ({"job_id": f"{{{NOBODY}}}"}, "job_id"),
    ],
)
def test_each_outcome_of_a_list_is_held_to_the_form(api, said, field):
    job = held()
    acks = [{"job_id": str(job.pk)}, {"job_id": NOBODY} | said]

    error = refusal(api.send("workers/ack", {"worker_id": "w", "acks": acks}))

    assert error["details"]["field"] == f"acks[1].{field}"
    assert state_of(job) == State.ACTIVE


def test_an_older_attempt_of_a_list_settles_nothing(api):
    job = held(attempt=2)
    acks = [{"job_id": str(job.pk), "attempt": 1}]

    (answer,) = api.send("workers/ack", {"worker_id": "w", "acks": acks}).json()["acks"]

    assert (answer["status"], answer["job_id"]) == (409, str(job.pk))
    assert state_of(job) == State.ACTIVE


def test_the_manifest_declares_the_extensions(api):
    manifest = api.get("/ojs/manifest").json()

    ours = [name for name in manifest["extensions"] if name.startswith("urn:ojs:ext:x:")]
    names = ["batch-ack", "fetch-with-acks", "fetch-wait", "jobs-lost", "autoscaling"]
    names += ["graceful-shutdown", "saga", "timeouts"]
    assert ours == [f"urn:ojs:ext:x:django-ojs:{name}" for name in names]
    assert all(name.startswith("urn:ojs:ext:") for name in manifest["extensions"])
    assert manifest["conformance_tier"] == "runtime"


@pytest.mark.parametrize(("recorded", "events"), [(True, "at-least-once"), (False, "best-effort")])
def test_the_manifest_declares_what_is_delivered_how_often(api, settings, recorded, events):
    """OJS events §9.1; delivery guarantees DG-015."""
    settings.OJS = settings.OJS | {"RECORD_EVENTS": recorded}

    declared = api.get("/ojs/manifest").json()["delivery_guarantees"]

    assert declared == {"jobs": "at-least-once", "events": events}


# Settling without a worker id (§5.6; docs/architecture.md)


def settle(client, path, job, **said):
    return client.send(path, {"job_id": str(job.pk), "error": ERROR} | said)


@pytest.mark.parametrize("path", ["workers/ack", "workers/nack"])
def test_a_site_may_refuse_finishes_that_do_not_say_whose_they_are(api, settings, path):
    settings.OJS = settings.OJS | {"REQUIRE_WORKER_ID": True}
    job = held()

    reply = settle(api, path, job)

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"] == "worker_id"
    assert state_of(job) == State.ACTIVE
    assert settle(api, path, job, worker_id="w").status_code == 200


def test_in_a_list_the_sender_of_the_request_is_enough(api, settings):
    settings.OJS = settings.OJS | {"REQUIRE_WORKER_ID": True}
    acks = [{"job_id": str(held().pk)}]

    assert refusal(api.send("workers/ack", {"acks": acks}))["details"]["field"].startswith(
        "acks[0]"
    )
    answers = api.send("workers/ack", {"worker_id": "w", "acks": acks}).json()["acks"]
    assert answers[0]["status"] == 200


@pytest.mark.parametrize("empty", ["", None])
@pytest.mark.parametrize("path", ["workers/ack", "workers/nack", "workers/fetch"])
def test_an_empty_worker_id_in_a_list_is_that_of_the_sender(api, path, empty):
    foreign = JobFactory(active=True, reserved_by="another")
    name = "nacks" if path == "workers/nack" else "acks"
    outcome = {"job_id": str(foreign.pk), "worker_id": empty, "error": ERROR}

    reply = api.send(path, {"worker_id": "w", "queues": ["none"], name: [outcome]})

    assert [answer["status"] for answer in reply.json()[name]] == [409]
    assert state_of(foreign) == State.ACTIVE


@pytest.mark.parametrize("empty", ["", None])
def test_an_empty_worker_id_is_none(api, settings, empty):
    job = held()
    assert settle(api, "workers/ack", job, worker_id=empty).status_code == 200
    job.refresh_from_db()
    assert job.unfenced

    settings.OJS = settings.OJS | {"REQUIRE_WORKER_ID": True}
    assert settle(api, "workers/ack", held(), worker_id=empty).status_code == 400

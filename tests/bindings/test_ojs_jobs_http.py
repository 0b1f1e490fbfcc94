"""Jobs over HTTP: enqueue, batch, info, cancel, activate (HTTP §7, §9)."""

from __future__ import annotations

import json
from typing import Any

import pytest

import jobs
from jobs.http.authentication import make_key
from jobs.models import Event, Job, Queue
from jobs.spec.identifiers import UUID7_PATTERN, uuid7
from jobs.spec.lifecycle import State
from jobs.spec.validation import Envelope, Options
from tests.factories import JobErrorFactory, JobFactory, ago
from tests.ojs_client import V1, OJSClient, refusal
from workers.openapi.document import current

NEVER = {"max_attempts": 1}

# Enqueue (§9.1)


@pytest.mark.parametrize("name", ["max_attempts", "maxAttempts"])
def test_no_attempt_is_one_attempt_wherever_a_policy_comes_from(api, name):
    """Retry §2.2 counts the first execution: there is always one."""
    none = {name: 0, "jitter": False}
    api.put(
        f"{V1}/queues/once/config", data={"default_retry": none}, content_type="application/json"
    )
    dead = JobFactory(state=State.DISCARDED, finished_at=ago(1), dead_letter=True)

    made = [
        api.pushed(options={"retry": none}),
        api.pushed(options={"max_attempts": 0}),
        api.pushed(options={"queue": "once"}),
        jobs.enqueue("email.send", [], max_attempts=0).id,
        dead.pk,
    ]
    api.send(f"dead-letter/{dead.pk}/retry", {"override": {"retry": none}})

    for job_id in made:
        job = api.job(job_id)
        assert (job["max_attempts"], job["retry"].get(name, 1)) == (1, 1)
        assert job["retry"].get("max_attempts", 1) == 1


def test_a_job_is_enqueued_and_its_whole_envelope_comes_back(api):
    reply = api.push(
        type="email.send",
        args=["user@example.com", "welcome", {"locale": "en"}],
        meta={"trace_id": "trace_abc123"},
        options={
            "queue": "email",
            "priority": 5,
            "timeout_ms": 30_000,
            "retry": {"max_attempts": 5, "initial_interval_ms": 1000, "jitter": True},
            "tags": ["onboarding", "email"],
        },
    )

    assert reply.status_code == 201
    job = reply.json()["job"]
    assert UUID7_PATTERN.fullmatch(job["id"])
    assert reply.headers["Location"] == f"/ojs/v1/jobs/{job['id']}"
    answer = {name: job[name] for name in ("type", "state", "queue", "priority", "attempt")}
    assert answer == {
        "type": "email.send",
        "state": "available",
        "queue": "email",
        "priority": 5,
        "attempt": 0,
    }
    assert job["args"] == ["user@example.com", "welcome", {"locale": "en"}]
    assert job["meta"] == {"trace_id": "trace_abc123"}
    assert (job["max_attempts"], job["timeout_ms"]) == (5, 30_000)
    assert job["retry"] == {"max_attempts": 5, "initial_interval_ms": 1000, "jitter": True}
    assert job["tags"] == ["onboarding", "email"]
    assert api.job(job["id"]) == job


def test_the_location_leads_to_the_job(api):
    reply = api.push()

    assert api.get(reply.headers["Location"]).json()["job"]["id"] == reply.json()["job"]["id"]


SCHEMAS = current()["components"]["schemas"]


def members_of(schema: dict[str, Any]) -> dict[str, Any]:
    """The members that a schema of the OpenAPI document defines, with the schema of each."""
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    found = dict(schema.get("properties", {}))
    for part in schema.get("allOf", ()):
        found |= members_of(part)
    return found


def defined_for_a_job() -> set[str]:
    """The members that answers define for a job, in its place and at the top level."""
    found: set[str] = set()
    for name, schema in SCHEMAS.items():
        answer = members_of(schema) if name.endswith("Reply") else {}
        job = members_of(answer.get("job", {}))
        if "args" in answer | job:
            found |= answer.keys() | job.keys()
    return found


ALWAYS_THERE = {"job", "metadata", "retry_policy"}
"""Where an answer defines them, it has them, whatever the client has sent."""


def test_members_that_answers_define_cannot_be_forged(api):
    """Core §5.3."""
    operator = OJSClient(make_key("on-call", scopes=["ojs:admin:read"])[1])
    defined = defined_for_a_job()
    forged = dict.fromkeys(defined - Envelope.names - Options.names - ALWAYS_THERE, "forged")
    assert forged.keys() > {"worker_id", "deduplicated", "previous_state", "checkpoint", "state"}
    made = api.push(**forged, x_mine="mine", options=forged | {"x_too": "mine"}, retry=NEVER)
    job_id = made.json()["job"]["id"]
    other = api.pushed(**forged)
    answers = [
        made.json(),
        api.send("jobs/batch", {"jobs": [{"type": "a", "args": []} | forged]}).json(),
        api.send("jobs/bulk", {"jobs": [{"type": "a", "args": []} | forged]}).json(),
        api.see(f"jobs/{job_id}").json(),
        api.see("jobs").json(),
        operator.see(f"admin/jobs/{job_id}").json(),
        api.fetch(worker_id="w", max_jobs=1),
        api.see(f"jobs/{job_id}").json(),
        api.nack(job_id, code="x", message="y").json(),
        api.see("dead-letter").json(),
        operator.see(f"admin/dead-letter/{job_id}").json(),
        api.patch(f"/ojs/v1/jobs/{other}", {"priority": 1}, "application/json").json(),
        api.delete(f"/ojs/v1/jobs/{other}").json(),
    ]

    assert [answer for answer in answers if "forged" in json.dumps(answer)] == []
    assert {name: api.job(job_id)[name] for name in ("x_mine", "x_too")} == {
        "x_mine": "mine",
        "x_too": "mine",
    }


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ({}, "available"),
        ({"delay_until": "2999-01-01T00:00:00Z"}, "scheduled"),
        ({"delay_until": "2001-01-01T00:00:00Z"}, "available"),
        ({"pending": True}, "pending"),
    ],
)
def test_the_reply_says_in_which_state_the_job_is(api, options, state):
    job = api.push(options=options).json()["job"]

    assert job["state"] == state
    assert api.job(job["id"])["state"] == state


def test_the_clients_id_is_kept_and_a_repeated_one_refused(api):
    job_id = str(uuid7())
    assert api.push(id=job_id).json()["job"]["id"] == job_id

    reply = api.push(id=job_id)

    assert reply.status_code == 409
    error = refusal(reply)
    assert (error["code"], error["details"]) == ("duplicate", {"existing_job_id": job_id})
    assert Job.objects.count() == 1


def test_unknown_fields_survive_the_whole_round(api):
    """Core §5.5.4, through enqueue, info, fetch, ack and info again."""
    sent = {"x_team": {"a": [1, None, "ü"]}, "version": 2, "ext_note": "hi"}
    job_id = api.pushed(**sent)

    (fetched,) = api.fetch()
    api.ack(job_id)

    for document in (fetched, api.job(job_id)):
        assert {name: document[name] for name in sent} == sent


def test_what_the_client_says_of_the_jobs_state_is_ignored(api):
    job = api.push(state="completed", attempt=9, created_at="x", result=1, error={}).json()["job"]

    assert (job["state"], job["attempt"]) == ("available", 0)
    assert "result" not in job
    assert "error" not in job


@pytest.mark.parametrize("path", ["jobs", "jobs/batch"])
@pytest.mark.parametrize("body", [None, b"", b"  \n"])
def test_a_request_without_a_body_has_no_job(api, path, body):
    """The reference runner's L0-OPS-015: 400 `invalid_payload` (conformance README)."""
    reply = api.send(path, body, content_type="")

    assert reply.status_code == 400
    assert refusal(reply)["code"] == "invalid_payload"


# Batch (§9.2)


def test_a_batch_comes_back_in_its_order(api):
    documents = [{"type": f"job.n{number}", "args": [number]} for number in range(5)]

    reply = api.send("jobs/batch", {"jobs": documents})

    assert reply.status_code == 201
    body = reply.json()
    assert [job["type"] for job in body["jobs"]] == [document["type"] for document in documents]
    assert {job["state"] for job in body["jobs"]} == {"available"}
    assert (body["count"], body["enqueued"], body["failed"]) == (5, 5, 0)
    assert Job.objects.count() == 5


def test_a_batch_mixes_queues_and_states(api):
    documents = [
        {"type": "a", "args": [], "options": {"queue": "q1", "pending": True}},
        {"type": "b", "args": [], "queue": "q2", "delay_until": "+PT1H"},
        {"type": "c", "args": []},
    ]

    jobs = api.send("jobs/batch", {"jobs": documents}).json()["jobs"]

    assert [(job["queue"], job["state"]) for job in jobs] == [
        ("q1", "pending"),
        ("q2", "scheduled"),
        ("default", "available"),
    ]
    assert set(Queue.objects.values_list("name", flat=True)) == {"q1", "q2", "default"}


@pytest.mark.parametrize(
    ("broken", "status", "code"),
    [
        ({"args": []}, 400, "invalid_request"),
        ({"type": "a", "args": {}}, 400, "invalid_request"),
        ("not a job", 400, "invalid_request"),
        ({"type": "a", "args": [], "retry": {"jitter": 1}}, 422, "invalid_request"),
        ({"type": "a", "args": [], "specversion": "3"}, 422, "unsupported"),
    ],
)
def test_one_bad_job_refuses_the_batch_and_is_named(api, broken, status, code):
    good = {"type": "a", "args": []}

    reply = api.send("jobs/batch", {"jobs": [good, good, broken, good]})

    assert reply.status_code == status
    error = refusal(reply)
    assert (error["code"], error["details"]["index"]) == (code, 2)
    assert "index 2" in error["message"]
    assert not Job.objects.exists()
    assert not Queue.objects.exists()
    assert not Event.objects.exists()


def test_a_repeated_id_refuses_the_batch(api):
    taken = JobFactory()
    documents = [{"type": "a", "args": []}, {"type": "a", "args": [], "id": str(taken.pk)}]

    reply = api.send("jobs/batch", {"jobs": documents})

    assert reply.status_code == 409
    assert refusal(reply)["details"] == {"existing_job_id": str(taken.pk)}
    assert Job.objects.count() == 1


@pytest.mark.parametrize("config", [{}, {"max_size": 9}])
def test_an_id_twice_in_a_batch_is_said_and_names_no_stored_job(api, config):
    api.put("/ojs/v1/queues/default/config", config, content_type="application/json")
    twice = {"type": "a", "args": [], "id": str(uuid7())}
    job = {"type": "a", "args": [], "id": str(uuid7())}

    reply = api.send("jobs/batch", {"jobs": [job, twice, twice]})

    error = refusal(reply)
    assert (error["code"], error["details"]) == ("duplicate", {})
    assert "Two jobs" in error["message"] and twice["id"] in error["message"]
    assert not Job.objects.exists()


@pytest.mark.parametrize("body", [{}, {"jobs": None}, {"jobs": {}}, {"jobs": "x"}, {"jobs": []}])
def test_a_batch_is_a_list_of_at_least_one(api, body):
    reply = api.send("jobs/batch", body)

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"] == "jobs"


def test_a_batch_may_be_as_big_as_the_site_says(api, settings):
    settings.OJS = {**settings.OJS, "MAX_BATCH": 3}
    job = {"type": "a", "args": []}

    assert api.send("jobs/batch", {"jobs": [job] * 3}).status_code == 201
    assert api.send("jobs/batch", {"jobs": [job] * 4}).status_code == 400
    assert Job.objects.count() == 3


def test_a_thousand_jobs_fit_in_one_request(api):
    """JSON format §8.3: MUST."""
    job = {"type": "a", "args": [], "options": {"queue": "bulk"}}

    assert api.send("jobs/batch", {"jobs": [job] * 1000}).json()["count"] == 1000


# Info (§9.3)


@pytest.mark.parametrize("state", list(State))
def test_a_job_can_be_looked_at_in_every_state_and_looking_changes_nothing(api, state):
    job = JobFactory(**({} if state == "available" else {str(state): True}))
    before = Job.objects.values().get()

    assert api.job(job.pk)["state"] == state
    assert api.job(str(job.pk).upper())["id"] == str(job.pk)
    assert Job.objects.values().get() == before


def test_a_failed_job_shows_its_newest_error_and_its_history(api):
    job_id = api.pushed(retry={"max_attempts": 3, "jitter": False})
    api.fetch()
    api.nack(job_id, code="smtp", message="No answer", details={"port": 587}, retryable=True)

    job = api.job(job_id)

    assert (job["state"], job["attempt"], job["retry_delay_ms"]) == ("retryable", 1, 1000)
    assert job["next_attempt_at"] == job["next_retry_at"]
    (error,) = job["errors"]
    assert job["error"] == error
    assert (error["attempt"], error["code"], error["type"]) == (1, "smtp", "smtp")
    assert (error["message"], error["details"]) == ("No answer", {"port": 587})
    assert error["retryable"] is True
    assert error["occurred_at"] == error["timestamp"]


def test_a_long_history_shows_the_newest_fifty(api):
    job = JobFactory(retryable=True, attempt=60)
    for attempt in range(1, 61):
        JobErrorFactory(job=job, attempt=attempt)

    attempts = [error["attempt"] for error in api.job(job.pk)["errors"]]

    assert attempts == list(range(11, 61))


def test_a_completed_job_shows_its_result_and_no_error(api):
    job_id = api.pushed(retry={"initial_interval_ms": 1, "max_interval_ms": 1})
    api.fetch()
    api.nack(job_id)
    Job.objects.update(scheduled_at=ago(1))
    api.fetch()
    api.ack(job_id, result={"delivered": True})

    job = api.job(job_id)

    assert (job["state"], job["attempt"], job["result"]) == ("completed", 2, {"delivered": True})
    assert "error" not in job
    assert len(job["errors"]) == 1
    assert job["created_at"] <= job["enqueued_at"] <= job["started_at"] <= job["completed_at"]


# Cancel (§9.4) and activate (§9.5)


@pytest.mark.parametrize("by_delete", [True, False])
@pytest.mark.parametrize("state", ["available", "scheduled", "pending", "retryable", "active"])
def test_a_job_is_cancelled(api, by_delete, state):
    job = JobFactory(**({} if state == "available" else {state: True}))
    path = f"/ojs/v1/jobs/{job.pk}"

    reply = api.delete(path) if by_delete else api.post(f"{path}/cancel")

    assert reply.status_code == 200
    document = reply.json()["job"]
    assert (document["state"], document["previous_state"]) == ("cancelled", state)
    assert document["cancelled_at"]
    assert api.job(job.pk)["state"] == "cancelled"


@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
def test_a_finished_job_is_in_conflict_with_cancelling(api, state):
    job = JobFactory(**{state: True})

    reply = api.delete(f"/ojs/v1/jobs/{job.pk}")

    assert reply.status_code == 409
    error = refusal(reply)
    assert error["code"] == "conflict"
    assert error["details"] == {"job_id": str(job.pk), "current_state": state}


def test_a_pending_job_is_activated_and_can_be_fetched(api):
    job_id = api.pushed(options={"pending": True})
    assert api.fetch() == []

    reply = api.send(f"jobs/{job_id}/activate")

    assert reply.status_code == 200
    document = reply.json()["job"]
    assert (document["state"], document["previous_state"]) == ("available", "pending")
    assert document["activated_at"] == document["enqueued_at"]
    assert [job["id"] for job in api.fetch()] == [job_id]


@pytest.mark.django_db
def test_the_events_of_an_intervention_say_by_whom():
    api = OJSClient(make_key("on call", scopes=["produce", "ojs:admin:write"])[1])
    job_id = api.pushed(options={"pending": True})

    api.send(f"jobs/{job_id}/activate")
    for place, priority in (("jobs", 1), ("admin/jobs", 2)):
        change, path = {"priority": priority}, f"{V1}/{place}/{job_id}"
        assert api.patch(path, change, content_type="application/json").status_code == 200

    activated = Event.objects.get(type="job.enqueued").data
    assert activated["activated_by"] == "on call"
    changed = Event.objects.filter(type="priority.changed").values_list("data", flat=True)
    assert [data["changed_by"] for data in changed] == ["on call", "on call"]


def test_activating_twice_is_a_conflict(api):
    job_id = api.pushed(options={"pending": True})
    api.send(f"jobs/{job_id}/activate")

    reply = api.send(f"jobs/{job_id}/activate")

    assert reply.status_code == 409
    assert refusal(reply)["details"] == {"job_id": job_id, "current_state": "available"}


# What a type and an id may be called (core §5.1)

CAPITALS = {"type": "Email.Send", "args": []}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("jobs", CAPITALS),
        ("jobs/batch", {"jobs": [CAPITALS]}),
        ("workflows", {"type": "chain", "steps": [CAPITALS]}),
        (
            "workflows",
            {"type": "batch", "jobs": [CAPITALS], "callbacks": {"on_complete": CAPITALS}},
        ),
        ("cron", {"name": "a", "cron": "@daily"} | CAPITALS),
        ("cron", {"name": "a", "cron": "@daily", "job_template": CAPITALS}),
        ("jobs", CAPITALS | {"type": "email.send", "id": "019461A8-1A2B-7C3D-8E4F-5A6B7C8D9E0F"}),
    ],
)
def test_types_and_ids_in_capitals_are_refused(api, path, body):
    reply = api.send(path, body)

    assert reply.status_code in (400, 422)
    assert refusal(reply)["details"]["field"].rpartition(".")[2] in ("type", "id")
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_a_sites_own_code_names_types_as_it_likes(api):
    made = jobs.enqueue("Shop.SendMail")
    jobs.chain(jobs.job("Shop.First"), jobs.job("Shop.Second")).enqueue()

    assert api.job(made.id)["type"] == "Shop.SendMail"
    (first,) = [job for job in api.fetch(count=9) if job["type"] == "Shop.First"]
    assert api.ack(first["id"]).status_code == 200
    assert [job["type"] for job in api.fetch(count=9)] == ["Shop.Second"]

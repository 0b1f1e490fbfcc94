"""The OJS HTTP binding, producer side: paths, codes, headers, bodies, pages (HTTP §3 to §21)."""

from __future__ import annotations

import re

import pytest

from jobs import engine
from jobs.identifiers import UUID7_PATTERN, uuid7
from jobs.lifecycle import State
from jobs.models import Event, Job, Queue
from tests.factories import JobErrorFactory, JobFactory, QueueFactory, ago, ahead
from tests.ojs_client import OJSClient, refusal

OJS = "application/openjobspec+json"
FOR_SDKS = 'application/openjobspec+json; profile="application/json"'
NOBODYS = "019414d4-0000-7000-8000-000000000000"


# Enqueue (§9.1)


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
    told = {name: job[name] for name in ("type", "state", "queue", "priority", "attempt")}
    assert told == {
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
    assert api.push(id=job_id.upper()).json()["job"]["id"] == job_id

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


# Errors (§16)


def test_a_validation_error_says_what_is_wrong_and_where(api):
    reply = api.push(args={"to": "user@example.com"})

    assert reply.status_code == 400
    error = refusal(reply)
    assert error["code"] == "invalid_request"
    assert error["message"] == "The 'args' field must be an array, not object."
    assert error["details"]["field"] == "args"
    assert error["details"]["expected"] == "array"
    assert error["details"]["received"] == "object"
    (problem,) = error["details"]["validation_errors"]
    assert problem["path"] == "$.args"
    assert error["docs_url"] == error["doc_url"]
    assert error["docs_url"].startswith("https://")


def test_a_bad_retry_policy_is_unprocessable(api):
    """The public cases decide (conformance README, row 5)."""
    reply = api.push(options={"retry": {"max_attempts": -1}})

    assert reply.status_code == 422
    error = refusal(reply)
    assert (error["code"], error["type"]) == ("invalid_request", "validation_error")
    assert error["details"]["rule"] == "validation.retry_policy_invalid"
    assert error["details"]["field"] == "retry.max_attempts"


def test_another_major_version_of_the_envelope_is_unsupported(api):
    reply = api.push(specversion="2.0")

    assert reply.status_code == 422
    assert refusal(reply)["code"] == "unsupported"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"jobs/{NOBODYS}"),
        ("DELETE", f"jobs/{NOBODYS}"),
        ("POST", f"jobs/{NOBODYS}/cancel"),
        ("POST", f"jobs/{NOBODYS}/activate"),
        ("GET", "jobs/not-a-uuid"),
        ("DELETE", "jobs/not-a-uuid"),
    ],
)
def test_a_job_that_does_not_exist_is_not_found(api, method, path):
    reply = api.generic(method, f"/ojs/v1/{path}")

    assert reply.status_code == 404
    error = refusal(reply)
    assert error["code"] == "not_found"
    assert error["details"] == {"resource_type": "job", "resource_id": path.split("/")[1]}


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "path",
    ["/ojs", "/ojs/", "/ojs/v1", "/ojs/v1/", "/ojs/v2/jobs", "/ojs/v1/jobs/", "/ojs/v1/cron"],
)
def test_what_is_no_endpoint_is_not_found_in_the_ojs_form(api, method, path):
    reply = api.generic(method, path)

    assert reply.status_code == 404
    error = refusal(reply)
    assert (error["code"], error["details"]["resource_id"]) == ("not_found", path)


@pytest.mark.parametrize("path", ["/ojs/v1/jobs", "/ojs/v1/cron", "/ojs/v1/workers/fetch"])
def test_no_csrf_token_is_asked_for(api, path):
    """A client is no browser: Django's page about tokens would mean nothing to it."""
    reply = OJSClient().post(path)
    strict = type(api)()
    strict.handler.enforce_csrf_checks = True

    assert strict.post(path).status_code == reply.status_code
    assert reply.headers["Content-Type"] == OJS


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("jobs", "POST"),
        ("jobs/batch", "POST"),
        (f"jobs/{NOBODYS}", "GET, HEAD, DELETE"),
        ("queues", "GET, HEAD"),
        ("dead-letter", "GET, HEAD"),
        ("events", "GET, HEAD"),
        ("health", "GET, HEAD"),
        ("workers/fetch", "POST"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "TRACE", "ASSERT", "push"])
def test_other_methods_are_refused_and_the_right_ones_named(api, path, allowed, method):
    reply = api.generic(method, f"/ojs/v1/{path}")

    assert reply.status_code == 405
    assert sorted(reply.headers["Allow"].split(", ")) == sorted(allowed.split(", "))
    assert refusal(reply)["code"] == "invalid_request"


def test_a_head_request_has_headers_and_no_body(api):
    reply = api.head("/ojs/v1/queues")

    assert (reply.status_code, reply.content) == (200, b"")
    assert reply.headers["OJS-Version"] == "1.0"


# Headers (§3.2, §4, §6.5, §19)


@pytest.mark.parametrize("path", ["/ojs/manifest", "/ojs/v1/health", "/ojs/v1/queues", "/ojs/v1/x"])
def test_every_reply_has_the_standard_headers(api, path):
    headers = api.get(path).headers

    assert headers["OJS-Version"] == "1.0"
    assert headers["Content-Type"] == OJS
    assert re.fullmatch(r"req_[0-9a-f-]{36}", headers["X-Request-Id"])


@pytest.mark.parametrize("given", ["req_client-0194", "0e6ee2a8-6b3c-4d0e-8a6c-1", "a", "x" * 128])
def test_the_clients_request_id_is_used(api, given):
    reply = api.get(f"/ojs/v1/jobs/{NOBODYS}", headers={"X-Request-Id": given})

    assert reply.headers["X-Request-Id"] == given
    assert refusal(reply)["request_id"] == given


@pytest.mark.parametrize(
    "given", ["", " ", "a b", "a\tb", "a\r\nX-Evil: 1", "\x00", "ümlaut", "x" * 129, "\x7f"]
)
def test_a_request_id_that_does_not_belong_into_a_header_is_replaced(api, given):
    reply = api.get(f"/ojs/v1/jobs/{NOBODYS}", headers={"X-Request-Id": given})

    assert reply.headers["X-Request-Id"].startswith("req_")
    assert "X-Evil" not in reply.headers
    assert refusal(reply)["request_id"] == reply.headers["X-Request-Id"]


def test_two_requests_have_two_ids(api):
    assert api.see("queues").headers["X-Request-Id"] != api.see("queues").headers["X-Request-Id"]


@pytest.mark.parametrize("version", ["1.0", "1", "1.0.0", "1.0.3", "1.0.0-rc.1", "1.0.0-rc.27", ""])
def test_versions_we_speak(api, version):
    reply = api.get("/ojs/v1/queues", headers={"OJS-Version": version})

    assert reply.status_code == 200
    assert reply.headers["OJS-Version"] == "1.0"


@pytest.mark.parametrize("version", ["2.0", "0.9", "1.1", "2", "latest", "1.0; drop", "١"])
@pytest.mark.parametrize("path", ["/ojs/v1/queues", "/ojs/manifest", "/ojs/v1/health"])
def test_versions_we_do_not_speak_are_unprocessable(api, path, version):
    reply = api.get(path, headers={"OJS-Version": version})

    assert reply.status_code == 422
    error = refusal(reply)
    assert (error["code"], error["details"]) == ("unsupported", {"supported": ["1.0"]})


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, OJS),
        ({"Accept": OJS}, OJS),
        ({"Accept": "*/*"}, OJS),
        ({"Accept": "text/html"}, OJS),
        ({"Accept": "application/json"}, "application/json"),
        ({"Accept": f"application/json, {OJS}"}, OJS),
        ({"OJS-Version": "1.0"}, FOR_SDKS),
        ({"OJS-Version": "1.0", "Accept": OJS}, FOR_SDKS),
        ({"OJS-Version": "1.0", "Accept": "application/json"}, "application/json"),
    ],
)
def test_the_media_type_suits_the_client(api, headers, expected):
    """CLIENTS D1."""
    assert api.get("/ojs/v1/queues", headers=headers).headers["Content-Type"] == expected
    error = api.get("/ojs/v1/nothing", headers=headers)
    assert error.headers["Content-Type"] == expected


@pytest.mark.parametrize(
    "content_type",
    [
        OJS,
        "application/json",
        "Application/JSON",
        f"{OJS}; charset=utf-8",
        "application/json;x=y",
        "",
    ],
)
def test_media_types_we_read(api, content_type):
    reply = api.send("jobs", {"type": "a", "args": []}, content_type=content_type)

    assert reply.status_code == 201


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/xml",
        "multipart/form-data; boundary=x",
        "application/jsonx",
        "junk",
    ],
)
def test_other_media_types_are_refused(api, content_type):
    reply = api.send("jobs", {"type": "a", "args": []}, content_type=content_type)

    assert reply.status_code == 400
    error = refusal(reply)
    assert error["code"] == "invalid_request"
    assert error["details"]["supported"] == ["application/json", OJS]
    assert not Job.objects.exists()


def test_sdks_get_the_job_flat_and_wrapped_and_others_only_wrapped(api):
    """CLIENTS D5: the Ruby SDK reads the fields at the top level."""
    job_id = api.pushed()

    plain = api.see(f"jobs/{job_id}").json()
    for_sdks = api.get(f"/ojs/v1/jobs/{job_id}", headers={"OJS-Version": "1.0"}).json()

    assert set(plain) == {"job"}
    assert for_sdks == plain["job"] | {"job": plain["job"]}


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


def test_activating_twice_is_a_conflict(api):
    job_id = api.pushed(options={"pending": True})
    api.send(f"jobs/{job_id}/activate")

    reply = api.send(f"jobs/{job_id}/activate")

    assert reply.status_code == 409
    assert refusal(reply)["details"] == {"job_id": job_id, "current_state": "available"}


# Queues (§11.1)


def test_queues_are_listed_by_name(api):
    QueueFactory(name="email")
    QueueFactory(name="billing", paused=True)
    QueueFactory(name="archive", paused=True, paused_until=ago(1))

    body = api.see("queues").json()

    assert [(queue["name"], queue["status"]) for queue in body["queues"]] == [
        ("archive", "active"),
        ("billing", "paused"),
        ("email", "active"),
    ]
    assert all(queue["created_at"] for queue in body["queues"])
    assert body["pagination"] == {"total": 3, "limit": 50, "offset": 0, "has_more": False}


def test_a_queue_is_listed_once_it_was_used(api):
    api.pushed(queue="billing")

    assert [queue["name"] for queue in api.see("queues").json()["queues"]] == ["billing"]


# Dead letter (§12)


def test_the_dead_letter_lists_the_newest_first_with_their_errors(api):
    old, new = (JobFactory(dead=True, finished_at=ago(age)) for age in (60, 1))
    JobErrorFactory(job=new, attempt=1, type="First")
    JobErrorFactory(job=new, attempt=2, type="Second")
    JobFactory(discarded=True)
    JobFactory(retryable=True)

    body = api.see("dead-letter").json()

    assert [job["id"] for job in body["jobs"]] == [str(new.pk), str(old.pk)]
    assert body["jobs"][0]["error"]["type"] == "Second"
    assert [error["type"] for error in body["jobs"][0]["errors"]] == ["First", "Second"]
    assert body["jobs"][0]["discarded_at"]
    assert (body["total"], body["pagination"]["total"]) == (2, 2)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"queue": "email"}, {"a", "b"}),
        ({"type": "b"}, {"b"}),
        ({"queue": "email", "type": "c"}, set()),
        ({"queue": ""}, {"a", "b", "c"}),
    ],
)
def test_the_dead_letter_can_be_searched(api, filters, expected):
    """DLQ-006."""
    JobFactory(dead=True, queue="email", type="a")
    JobFactory(dead=True, queue="email", type="b")
    JobFactory(dead=True, queue="billing", type="c")

    body = api.see("dead-letter", **filters).json()

    assert {job["type"] for job in body["jobs"]} == expected
    assert body["pagination"]["total"] == len(expected)


def test_a_dead_letter_job_can_be_looked_at(api):
    dead, discarded = JobFactory(dead=True), JobFactory(discarded=True)

    assert api.see(f"dead-letter/{dead.pk}").json()["job"]["id"] == str(dead.pk)
    assert api.see(f"dead-letter/{discarded.pk}").status_code == 404


def test_a_dead_letter_job_is_retried_with_its_history(api):
    job = JobFactory(dead=True, attempt=3, expires_at=ahead(60), attributes={"expires_at": "soon"})
    JobErrorFactory(job=job, attempt=3, type="Boom")

    reply = api.send(f"dead-letter/{job.pk}/retry")

    assert reply.status_code == 200
    document = reply.json()["job"]
    assert (document["id"], document["state"], document["attempt"]) == (
        str(job.pk),
        "available",
        0,
    )
    assert document["re_enqueued_at"] == document["enqueued_at"]
    assert [error["type"] for error in document["errors"]] == ["Boom"]
    assert "error" not in document
    assert "expires_at" not in document
    assert api.see("dead-letter").json()["jobs"] == []
    assert [fetched["attempt"] for fetched in api.fetch()] == [1]


def test_a_dead_letter_job_is_deleted_for_good(api):
    job = JobFactory(dead=True)

    reply = api.delete(f"/ojs/v1/dead-letter/{job.pk}")

    assert (reply.status_code, reply.json()) == (200, {"deleted": True, "job_id": str(job.pk)})
    assert api.see(f"jobs/{job.pk}").status_code == 404
    assert api.delete(f"/ojs/v1/dead-letter/{job.pk}").status_code == 404


@pytest.mark.parametrize("state", ["available", "active", "completed"])
@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/retry"), ("DELETE", "")])
def test_living_jobs_are_not_found_in_the_dead_letter(api, state, method, path):
    job = JobFactory(**({} if state == "available" else {state: True}))

    reply = api.generic(method, f"/ojs/v1/dead-letter/{job.pk}{path}")

    assert reply.status_code == 404
    assert refusal(reply)["details"] == {
        "resource_type": "dead_letter_job",
        "resource_id": str(job.pk),
    }
    assert Job.objects.get().state == state


# Pages (§17)


def walk(api, path: str, key: str, between=lambda: None, **parameters) -> list[str]:
    """Read page after page to the end; return the names or ids in the order they came."""
    found: list[str] = []
    cursor = {}
    for _ in range(50):
        body = api.see(path, **parameters, **cursor).json()
        assert len(body[key]) <= parameters["limit"]
        found += [item.get("name") or item["id"] for item in body[key]]
        page = body["pagination"]
        assert page["has_more"] is ("next_cursor" in page)
        if not page["has_more"]:
            return found
        cursor = {"cursor": page["next_cursor"]}
        between()
    raise AssertionError("There is no end.")


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_walking_the_pages_visits_every_row_once(api, limit):
    for number in range(7):
        QueueFactory(name=f"q{number}")
        JobFactory(dead=True, finished_at=ago(number))

    assert walk(api, "queues", "queues", limit=limit) == [f"q{number}" for number in range(7)]
    dead = walk(api, "dead-letter", "jobs", limit=limit)
    newest_first = Job.objects.order_by("-finished_at").values_list("pk", flat=True)
    assert dead == [str(job_id) for job_id in newest_first]


def test_rows_that_died_in_the_same_moment_are_not_lost_between_pages(api):
    moment = ago(5)
    ids = {str(JobFactory(dead=True, finished_at=moment).pk) for _ in range(9)}

    found = walk(api, "dead-letter", "jobs", limit=2)

    assert len(found) == 9
    assert set(found) == ids


def test_pages_are_stable_while_rows_come_in(api):
    """§17: no skipped and no repeated rows under concurrent writes."""
    for number in range(6):
        JobFactory(dead=True, type=f"old {number}", finished_at=ago(100 - number))
    before = walk(api, "dead-letter", "jobs", limit=10)

    during = walk(api, "dead-letter", "jobs", lambda: JobFactory(dead=True), limit=2)

    assert during == before


def test_pages_are_stable_while_rows_go(api):
    jobs = [JobFactory(dead=True, finished_at=ago(number)) for number in range(6)]
    gone = iter(jobs)

    found = walk(api, "dead-letter", "jobs", lambda: engine.delete_dead([next(gone).pk]), limit=2)

    assert found == [str(job.pk) for job in jobs]


def test_older_clients_may_use_an_offset(api):
    for number in range(5):
        QueueFactory(name=f"q{number}")

    body = api.see("queues", limit=2, offset=3).json()

    assert [queue["name"] for queue in body["queues"]] == ["q3", "q4"]
    assert body["pagination"] == {"total": 5, "limit": 2, "offset": 3, "has_more": False}


@pytest.mark.parametrize(
    ("path", "most"), [("queues", 200), ("dead-letter", 100), ("events", 1000)]
)
def test_a_limit_is_a_whole_number_within_bounds(api, path, most):
    for good in ("1", str(most)):
        assert api.see(path, limit=good).status_code == 200
    for bad in ("0", "-1", str(most + 1), "1.5", "abc", "", " 1", "1e2", "9" * 40, "١", "%00"):
        reply = api.see(path, limit=bad)
        assert reply.status_code == 400, bad
        assert refusal(reply)["details"]["field"] == "limit"


@pytest.mark.parametrize("path", ["queues", "dead-letter"])
@pytest.mark.parametrize("offset", ["-1", "x", "1.5", "99999999", ""])
def test_a_bad_offset_is_refused(api, path, offset):
    reply = api.see(path, offset=offset)

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"] == "offset"


@pytest.mark.parametrize(
    "cursor", ["x", "!!!", "eyJvZmYiOjUwfQ", "AAAA", "Zm9v", "%", "é", "a" * 4000]
)
def test_a_cursor_this_server_did_not_give_out_is_refused(api, cursor):
    reply = api.see("dead-letter", cursor=cursor)

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"] == "cursor"


# Events (OJS events §6.4)


def test_what_happened_is_told_in_order(api):
    job_id = api.pushed(type="email.send", queue="email")
    api.fetch("email", worker_id="worker-1")
    api.ack(job_id, worker_id="worker-1")

    body = api.see("events").json()

    assert [event["type"] for event in body["events"]] == [
        "job.enqueued",
        "job.started",
        "job.completed",
    ]
    for event in body["events"]:
        assert event["specversion"] == "1.0"
        assert event["subject"] == job_id
        assert event["data"]["job_type"] == "email.send"
        assert event["data"]["queue"] == "email"
        assert event["id"].startswith("evt_")
        assert event["time"].endswith("Z")
    started, completed = (event["data"] for event in body["events"][1:])
    assert (started["worker_id"], started["attempt"]) == ("worker-1", 1)
    assert completed["duration_ms"] >= 0
    assert body["cursor"] == body["events"][-1]["id"]
    assert body["has_more"] is False


def test_reading_on_from_the_cursor_misses_nothing_and_repeats_nothing(api):
    for _ in range(5):
        api.pushed()
    everything = [event["id"] for event in api.see("events").json()["events"]]

    seen, after = [], None
    for _ in range(4):
        body = api.see("events", limit=2, **({"after": after} if after else {})).json()
        seen += [event["id"] for event in body["events"]]
        after = body["cursor"]

    assert seen == everything
    assert body == {"events": [], "cursor": after, "has_more": False}

    api.pushed()
    (news,) = api.see("events", after=after).json()["events"]
    assert news["id"] not in everything


def test_an_event_id_is_a_cursor_too(api):
    for _ in range(3):
        api.pushed()
    ids = [event["id"] for event in api.see("events").json()["events"]]

    body = api.see("events", cursor=ids[0]).json()

    assert [event["id"] for event in body["events"]] == ids[1:]


def test_an_empty_record_has_no_cursor(api):
    assert api.see("events").json() == {"events": [], "cursor": None, "has_more": False}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"types": "job.started"}, ["job.started"]),
        ({"types": "job.started,job.cancelled"}, ["job.started", "job.cancelled"]),
        (
            {"event_types": "job.*"},
            ["job.enqueued", "job.enqueued", "job.started", "job.cancelled"],
        ),
        ({"types": "queue.*"}, ["queue.paused"]),
        ({"queues": "email"}, ["job.enqueued", "job.started"]),
        ({"queues": "email,billing", "types": "job.enqueued"}, ["job.enqueued"] * 2),
        ({"job_types": "invoice.send"}, ["job.enqueued", "job.cancelled"]),
        ({"worker_id": "worker-1"}, ["job.started"]),
        ({"types": "job.started", "queues": "billing"}, []),
        ({"types": ""}, None),
        ({"types": "%"}, []),
        ({"types": "job._tarted"}, []),
        ({"subject": "billing"}, ["queue.paused"]),
    ],
)
def test_events_are_filtered(api, filters, expected):
    """All filters must hold; within one, any of its values (events §6.1)."""
    api.pushed(type="email.send", queue="email")
    cancelled = api.pushed(type="invoice.send", queue="billing")
    api.fetch("email", worker_id="worker-1")
    api.delete(f"/ojs/v1/jobs/{cancelled}")
    engine.pause("billing")
    everything = [event["type"] for event in api.see("events").json()["events"]]

    found = [event["type"] for event in api.see("events", **filters).json()["events"]]

    assert found == (everything if expected is None else expected)


def test_the_events_of_one_job(api):
    api.pushed()
    mine = api.pushed()

    events = api.see("events", job_id=mine).json()["events"]

    assert [event["subject"] for event in events] == [mine]


@pytest.mark.parametrize(
    "after", ["x", "evt_", "evt_1-1", "019414d4", "evt_zzzzzzzzzzzz-000000000001"]
)
def test_a_bad_event_cursor_is_refused(api, after):
    reply = api.see("events", after=after)

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"] == "cursor"


# Manifest and health (§8, §21)


def test_the_manifest_says_what_works(api):
    body = api.get("/ojs/manifest").json()

    assert (body["ojs_version"], body["specversion"]) == ("1.0", "1.0")
    assert body["implementation"]["name"] == "django-ojs"
    assert body["implementation"]["language"] == "python"
    assert "http" in body["protocols"]
    assert body["backend"] in ("postgres", "sqlite")
    assert body["conformance_level"] == 1
    assert all(type(value) is bool for value in body["capabilities"].values())
    assert body["endpoints"]["base_url"] == "http://testserver/ojs/v1"


PROMISES = {
    "batch_enqueue": ("POST", "/ojs/v1/jobs/batch"),
    "dead_letter": ("GET", "/ojs/v1/dead-letter"),
    "events": ("GET", "/ojs/v1/events"),
    "cron_jobs": ("GET", "/ojs/v1/cron"),
    "workflows": ("POST", "/ojs/v1/workflows"),
    "schema_validation": ("GET", "/ojs/v1/schemas"),
    "pause_resume": ("POST", "/ojs/v1/queues/default/pause"),
}


@pytest.mark.parametrize("capability", list(PROMISES))
def test_the_manifest_promises_an_endpoint_exactly_if_there_is_one(api, capability):
    promised = api.get("/ojs/manifest").json()["capabilities"][capability]
    method, path = PROMISES[capability]

    assert (api.generic(method, path).status_code != 404) is promised


def test_health_says_ok_once_a_reaper_runs(api):
    from workers import reaper

    body = api.see("health").json()
    assert body["status"] == "degraded"
    assert body["reaper"]["status"] == "unhealthy"

    reaper.sign_of_life("here:1")

    reply = api.see("health")
    body = reply.json()
    assert (reply.status_code, body["status"], body["version"]) == (200, "ok", "1.0")
    assert type(body["uptime_seconds"]) is int
    assert body["backend"]["status"] == "healthy"
    assert type(body["backend"]["latency_ms"]) is int
    assert body["reaper"]["status"] == "healthy"


# Test hooks


def test_nobody_can_reset_a_real_server(api):
    JobFactory()

    assert api.send("admin/reset").status_code == 404
    assert Job.objects.count() == 1


def test_the_public_cases_may_reset_their_server(api, settings):
    settings.OJS = {**settings.OJS, "CONFORMANCE_MODE": True}
    api.pushed()

    assert api.send("admin/reset").json() == {"reset": True}
    assert not Job.objects.exists()
    assert not Queue.objects.exists()
    api.pushed()
    assert Queue.objects.exists()

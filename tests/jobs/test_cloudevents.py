"""CloudEvents: events of this server written as such, and jobs made of those of others."""

from __future__ import annotations

import json

import orjson
import pytest
from django.core.checks import run_checks

from jobs.http.authentication import make_key
from jobs.models import Job
from jobs.spec import cloudevents
from tests.factories import ago
from tests.ojs_client import OJSClient, refusal
from tests.once import once_is_enough

pytestmark = pytest.mark.django_db

STRIPE = {
    "specversion": "1.0",
    "id": "evt_stripe_abc123",
    "type": "com.stripe.charge.succeeded",
    "source": "https://api.stripe.com/v1",
    "time": "2026-02-15T14:22:00.000Z",
    "subject": "ch_3abc123",
    "datacontenttype": "application/json",
    "data": {"id": "ch_3abc123", "amount": 2000, "metadata": {"order_id": "ord_456"}},
}
TRIGGERS = [
    {
        "match": {"type": "com.stripe.charge.succeeded"},
        "job_type": "billing.process_charge",
        "queue": "billing",
        "transform": "pass-through",
    },
    {
        "match": {
            "type": "com.github.*",
            "source": "https://github.com/myorg/*",
            "subject": "*/m?in",
        },
        "job_type": "ci.run_pipeline",
        "options": {"queue": "ci", "priority": 5},
    },
]


@pytest.fixture(autouse=True)
def triggers(settings):
    settings.OJS = settings.OJS | {
        "CLOUDEVENTS_TRIGGERS": TRIGGERS,
        "CLOUDEVENTS_SOURCE": "ojs://shop/prod",
    }


def structured(api, event, **headers):
    return api.send("jobs", event, content_type=cloudevents.STRUCTURED, headers=headers)


def binary(api, event, content_type="application/json"):
    headers = {f"ce-{name}": event[name] for name in event if name != "data"}
    return api.send("jobs", event["data"], content_type=content_type, headers=headers)


@pytest.mark.parametrize("send", [structured, binary])
@pytest.mark.parametrize("fast", [True, False])
def test_a_cloudevent_makes_a_job_once(api, settings, send, fast):
    settings.OJS = settings.OJS | {"FAST_PATH": fast}

    first, again = send(api, STRIPE), send(api, STRIPE)

    assert (first.status_code, again.status_code) == (201, 200)
    job = Job.objects.get()
    assert first.json()["job"]["id"] == again.json()["job"]["id"] == str(job.pk)
    assert again.json()["deduplicated"] is True
    assert (job.type, job.queue, job.args) == (
        "billing.process_charge",
        "billing",
        [STRIPE["data"]],
    )
    assert job.meta == {
        "trigger_event_id": STRIPE["id"],
        "trigger_source": STRIPE["source"],
        "trigger_subject": STRIPE["subject"],
        "trigger_time": STRIPE["time"],
    }
    assert send(api, STRIPE | {"source": "https://elsewhere.example"}).status_code == 201


@pytest.mark.parametrize("send", [structured, binary])
def test_a_job_is_in_the_trace_of_its_cloudevent_if_that_is_valid(api, send):
    given = f"00-{'a' * 32}-{'b' * 16}-01"
    for number, traceparent in enumerate((given, given + "-x")):
        send(api, STRIPE | {"id": f"evt-{number}", "traceparent": traceparent})

    assert [job.meta.get("traceparent") for job in Job.objects.order_by("pk")] == [given, None]


def test_a_cloudevent_may_come_again_when_the_window_is_over_or_from_another_project(api):
    assert structured(api, STRIPE).status_code == 201
    other = OJSClient(make_key("other", project="other", scopes=["produce"])[1])
    assert structured(other, STRIPE).status_code == 201
    Job.objects.update(created_at=ago(2 * 86_400), state="completed", finished_at=ago(86_400))

    assert structured(api, STRIPE).status_code == 201
    assert structured(api, STRIPE).status_code == 200


def test_the_prefix_of_a_type_is_stripped_and_the_bridges_own_events_make_no_jobs(api):
    own = STRIPE | {"type": "org.openjobspec.trigger.email.send"}
    assert structured(api, own).json()["job"]["type"] == "email.send"

    for kind in ("org.openjobspec.job.completed", "org.openjobspec.trigger.", "com.stripe.charge"):
        assert "No job is triggered" in refusal(structured(api, own | {"type": kind}))["message"]


@pytest.mark.parametrize(
    ("changes", "is_taken"),
    [
        ({}, True),
        ({"source": "https://github.com/other/repo"}, False),
        ({"subject": "refs/heads/topic"}, False),
        ({"type": "com.gitlab.push"}, False),
    ],
)
def test_triggers_match_by_type_source_and_subject(api, changes, is_taken):
    event = {
        "specversion": "1.0",
        "id": "1",
        "type": "com.github.push",
        "source": "https://github.com/myorg/repo",
        "subject": "refs/heads/main",
    }

    reply = structured(api, event | changes)

    assert (reply.status_code == 201) == is_taken
    if is_taken:
        job = Job.objects.get()
        assert (job.type, job.queue, job.priority, job.args) == ("ci.run_pipeline", "ci", 5, [])


@pytest.mark.parametrize(
    ("transform", "args"),
    [
        ({"mode": "jsonpath", "path": "$.data.metadata"}, [{"order_id": "ord_456"}]),
        (
            {"mode": "template", "mapping": {"order": "$.data.metadata.order_id", "by": "$.id"}},
            [{"order": "ord_456", "by": "evt_stripe_abc123"}],
        ),
    ],
)
def test_data_is_transformed(api, settings, transform, args):
    pytest.importorskip("jsonpath")
    settings.OJS = settings.OJS | {"CLOUDEVENTS_TRIGGERS": [TRIGGERS[0] | {"transform": transform}]}

    assert structured(api, STRIPE).status_code == 201
    assert Job.objects.get().args == args
    missing = structured(api, STRIPE | {"id": "2", "data": {"amount": 1}})
    assert "nothing at $.data.metadata" in refusal(missing)["message"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"specversion": "0.3"}, "specversion"),
        ({"id": ""}, "id"),
        ({"source": None}, "source"),
        ({"type": 7}, "type"),
        ({"time": "yesterday"}, "time"),
        ({"time": ""}, "time"),
        ({"data_base64": "AAAA"}, "data_base64"),
        ({"subject": "x" * 2000}, "subject"),
    ],
)
def test_what_is_no_cloudevent_is_refused_with_the_attribute(api, changes, field):
    assert refusal(structured(api, STRIPE | changes))["details"]["field"] == field
    assert not Job.objects.exists()


@pytest.mark.parametrize("name", ["id", "source", "subject", "traceparent"])
def test_a_nul_is_refused_however_the_event_is_sent(api, name):
    for send, nul in ((structured, "x\0"), (binary, "x%00")):
        error = refusal(send(api, STRIPE | {name: nul}))
        assert error["details"]["field"] == name
        assert "NUL" in error["message"]
    assert not Job.objects.exists()


def test_an_empty_subject_is_refused_however_the_event_is_sent(api):
    event = STRIPE | {"subject": ""}

    for send in (structured, binary):
        assert refusal(send(api, event))["details"]["field"] == "subject"
    (result,) = api.send("jobs", [event], content_type=cloudevents.BATCHED).json()["results"]
    assert result["error"]["details"]["field"] == "subject"
    assert structured(api, STRIPE | {"subject": None}).status_code == 201


@pytest.mark.parametrize(
    "content_type", [cloudevents.STRUCTURED, cloudevents.BATCHED, "application/openjobspec+json"]
)
def test_an_empty_body_is_refused_as_such_whatever_it_claims_to_be(api, content_type):
    reply = api.post("/ojs/v1/jobs", b"", content_type=content_type)

    assert refusal(reply)["message"] == "The request body is empty; it must be a JSON object."


def test_in_a_batch_each_stands_for_itself(api):
    other = STRIPE | {"id": "2"}
    batch = [STRIPE, {"id": "bad"}, 17, other, STRIPE]

    reply = api.send("jobs", batch, content_type=cloudevents.BATCHED)

    assert reply.status_code == 207
    found = reply.json()
    assert (found["accepted"], found["failed"]) == (3, 2)
    first, bad, number, second, again = found["results"]
    assert first["job_id"] == again["job_id"] != second["job_id"]
    assert again["deduplicated"] is True
    assert bad["error"]["details"]["field"] == "specversion"
    assert number["error"]["code"] == "invalid_request"
    assert number["error"]["message"] == "The '[2]' field must be an object, not integer."
    assert number["error"]["details"]["validation_errors"][0]["path"] == "$[2]"
    assert Job.objects.count() == 2


def test_the_answer_to_a_batch_says_how_much_more_may_come(api, settings):
    """As the answer to one event does."""
    rate = {"key": "ci", "rate": {"limit": 5, "period": "PT1H"}}
    (trigger,) = [each for each in TRIGGERS if each["job_type"] == "ci.run_pipeline"]
    limited = trigger | {"name": "limited", "options": {"rate_limit": rate}, "match": {}}
    settings.OJS = settings.OJS | {"CLOUDEVENTS_TRIGGERS": [limited]}

    single = structured(api, STRIPE)
    several = api.send("jobs", [STRIPE | {"id": "2"}, 17], content_type=cloudevents.BATCHED)

    assert (single.status_code, several.status_code) == (201, 207)
    assert single["X-RateLimit-Limit"] == several["X-RateLimit-Limit"] == "5"


def test_a_request_of_the_binding_itself_stays_one_whatever_its_headers(api):
    job = {"type": "email.send", "args": []}

    reply = api.send("jobs", job, headers={"ce-type": "com.stripe.charge.succeeded"})

    assert reply.json()["job"]["type"] == "email.send"


def test_events_are_read_as_cloudevents(api):
    job_id = api.pushed()
    api.fetch()
    api.ack(job_id, result={"message_id": "m"})
    plain = api.see("events").json()

    reply = api.get("/ojs/v1/events", headers={"Accept": cloudevents.BATCHED})

    assert reply["Content-Type"] == cloudevents.BATCHED
    found = json.loads(reply.content)
    assert [event["id"] for event in found] == [event["id"] for event in plain["events"]]
    assert (reply["OJS-Cursor"], reply["OJS-Has-More"]) == (plain["cursor"], "false")
    (done,) = (event for event in found if event["type"] == "org.openjobspec.job.completed")
    (same,) = (event for event in plain["events"] if event["type"] == "job.completed")
    assert done == {
        "specversion": "1.0",
        "id": same["id"],
        "type": "org.openjobspec.job.completed",
        "source": "ojs://shop/prod",
        "time": same["time"],
        "subject": job_id,
        "datacontenttype": "application/json",
        "data": same["data"],
    }
    after = {"Accept": cloudevents.BATCHED}
    rest = api.get(f"/ojs/v1/events?after={reply['OJS-Cursor']}", headers=after)
    assert orjson.loads(rest.content) == []


@pytest.mark.parametrize("query", ["", "?page=1"])
@pytest.mark.parametrize(
    ("accept", "is_batch"),
    [
        (cloudevents.BATCHED, True),
        (f"{cloudevents.BATCHED}; charset=UTF-8, */*", True),
        (f"application/json;q=0.5, {cloudevents.BATCHED}", True),
        (f"{cloudevents.BATCHED};q=0.5, application/json", False),
        (f"{cloudevents.BATCHED};q=0.5, application/openjobspec+json", False),
        (f"{cloudevents.BATCHED};q=0, */*", False),
        ("application/*", False),
    ],
)
def test_events_are_read_as_the_client_prefers(api, query, accept, is_batch):
    reply = api.get(f"/ojs/v1/events{query}", headers={"Accept": accept})

    assert (reply["Content-Type"] == cloudevents.BATCHED) == is_batch


@once_is_enough
@pytest.mark.parametrize(
    "trigger",
    [
        {"match": {"type": "a"}},
        {"job_type": "a.b"},
        {"match": {"colour": "red"}, "job_type": "a.b"},
        {"match": {"type": "a"}, "job_type": "a.b", "transform": "sideways"},
        {"match": {"type": "a"}, "job_type": "a.b", "transform": {"mode": "jsonpath"}},
        {"match": {"type": "a"}, "job_type": "a.b", "quue": "x"},
    ],
)
def test_a_trigger_that_cannot_work_is_reported_before_it_is_needed(settings, trigger):
    assert not [problem for problem in run_checks() if problem.id == "ojs.E026"]

    settings.OJS = settings.OJS | {"CLOUDEVENTS_TRIGGERS": [trigger]}

    assert [problem for problem in run_checks() if problem.id == "ojs.E026"]

"""Unique jobs: what counts as a duplicate, and what happens to it (OJS unique jobs)."""

from __future__ import annotations

import hashlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jobs
from jobs.errors import DuplicateJob
from jobs.models import Event, Job
from jobs.spec.identifiers import uuid7
from jobs.spec.lifecycle import State
from jobs.spec.unique_policy import canonical, number, unique_key
from tests.factories import ago
from tests.ojs_client import refusal

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def turned(value):
    """The same JSON, with the members of its objects in reverse order."""
    if isinstance(value, dict):
        return {name: turned(value[name]) for name in reversed(value)}
    return [turned(item) for item in value] if isinstance(value, list) else value


# The key (§4)


def test_the_key_is_the_hash_of_the_canonical_form_of_the_document():
    dimensions = {"type": "email.send", "queue": "notifications", "args": {"user_id": 42}}
    text = '{"args":{"user_id":42},"queue":"notifications","type":"email.send"}'

    assert unique_key(dimensions) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        # RFC 8785, appendix B, and the example of its §3.2.2
        (0.0, "0"),
        (-0.0, "0"),
        (5e-324, "5e-324"),
        (-5e-324, "-5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (9007199254740992.0, "9007199254740992"),
        (295147905179352830000.0, "295147905179352830000"),
        (9.999999999999997e22, "9.999999999999997e+22"),
        (1e23, "1e+23"),
        (1e21, "1e+21"),
        (999999999999999700000.0, "999999999999999700000"),
        (333333333.3333333, "333333333.3333333"),
        (0.000001, "0.000001"),
        (9.999999999999997e-7, "9.999999999999997e-7"),
        (1e-27, "1e-27"),
        (4.50, "4.5"),
        (2e-3, "0.002"),
        (1e30, "1e+30"),
        (333333333.33333329, "333333333.3333333"),
        (42, "42"),
        (-7, "-7"),
        (10**20, "100000000000000000000"),
        (10**21, "1e+21"),
    ],
)
def test_numbers_are_written_as_ecmascript_writes_them(value, text):
    assert number(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_reads_back_as_itself(value):
    assert math.isclose(float(number(value)), value, rel_tol=0, abs_tol=0)


def test_strings_and_names_are_in_nfc_and_sorted_by_utf16_code_units():
    given = {"\uff21": 1, "\U0001f600": 2, "\r": 3, "e\u0301": "e\u0301"}

    # By code points the emoji would come last.
    wanted = '{"\\r":3,"\u00e9":"\u00e9","\U0001f600":2,"\uff21":1}'
    assert canonical(given) == wanted


@given(JSON)
def test_the_order_of_members_does_not_change_the_key(value):
    assert canonical(value) == canonical(turned(value))


@given(JSON)
def test_the_canonical_form_is_json_of_the_same_meaning(value):
    again = canonical(json.loads(canonical(value)))

    assert again == canonical(value)


# Valid policies (§2.2)

pytestmark = pytest.mark.django_db


def push(api, unique, args=({"user": 1},), **fields):
    body = {"type": "email.send", "args": list(args), "options": {"unique": unique}} | fields
    return api.send("jobs", body)


@pytest.mark.parametrize(
    ("unique", "field"),
    [
        ("type", "unique"),
        ({"keys": ["argz"]}, "unique.keys"),
        ({"keys": ["Type"]}, "unique.keys"),
        ({"keys": "type"}, "unique.keys"),
        ({"keys": ["type", "type"]}, "unique.keys"),
        ({"keys": ["meta"]}, "unique.meta_keys"),
        ({"keys": ["meta"], "meta_keys": []}, "unique.meta_keys"),
        ({"keys": ["args"], "args_keys": ["nobody"]}, "unique.args_keys"),
        ({"keys": [5]}, "unique.keys[0]"),
        ({"states": ["sleeping"]}, "unique.states"),
        ({"period": "1 hour"}, "unique.period"),
        ({"period": 5}, "unique.period"),
        ({"period_ms": 0}, "unique.period_ms"),
        ({"within": "soon"}, "unique.within"),
        ({"on_conflict": "explode"}, "unique.on_conflict"),
        ({"key": 5}, "unique.key"),
        ({"key": ["nobody"]}, "unique.key"),
        ({"perod": "PT1H"}, "unique.perod"),
    ],
)
def test_a_bad_policy_is_refused_and_the_member_is_named(api, unique, field):
    reply = push(api, unique)

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"] == field
    assert not Job.objects.exists()


def test_the_refusal_of_a_strategy_names_all_that_there_are(api):
    message = refusal(push(api, {"on_conflict": "explode"}))["message"]

    known = message.rpartition("there are ")[2].rstrip(".").split(", ")
    assert {"reject", "ignore", "use_existing"} < set(known)
    for strategy in known:
        reply = push(api, {"on_conflict": strategy}, type=f"a.{strategy}")
        assert reply.status_code == 201


# Dimensions (§3)

TYPE_AND_ARGS = {"keys": ["type", "args"]}


@pytest.mark.parametrize(
    ("unique", "first", "second", "same"),
    [
        ({}, {}, {"args": [2]}, True),
        ({}, {}, {"type": "sms.send"}, False),
        ({"keys": ["args"]}, {}, {"type": "sms.send"}, False),
        (TYPE_AND_ARGS, {}, {}, True),
        (TYPE_AND_ARGS, {}, {"args": [{"user": 2}]}, False),
        (TYPE_AND_ARGS, {"args": [1]}, {"args": [1.0]}, True),
        (TYPE_AND_ARGS, {"args": ["e\u0301"]}, {"args": ["\u00e9"]}, True),
        (TYPE_AND_ARGS, {"args": [{"a": 1, "b": 2}]}, {"args": [{"b": 2, "a": 1}]}, True),
        (
            TYPE_AND_ARGS | {"args_keys": ["user"]},
            {"args": [{"user": 1, "x": 1}]},
            {"args": [{"user": 1, "x": 2}]},
            True,
        ),
        ({"keys": ["type"]}, {"queue": "a"}, {"queue": "b"}, True),
        ({"keys": ["queue"]}, {"queue": "a"}, {"queue": "b"}, False),
        (
            {"keys": ["meta"], "meta_keys": ["t"]},
            {"meta": {"t": 1, "x": 1}},
            {"meta": {"t": 1}},
            True,
        ),
        ({"keys": ["meta"], "meta_keys": ["t"]}, {"meta": {"t": 1}}, {"meta": {"t": 2}}, False),
        ({"key": ["type", "args"]}, {}, {"args": [{"user": 2}]}, False),
        ({"key": ["user"]}, {"args": [{"user": 1, "x": 1}]}, {"args": [{"user": 1}]}, True),
        ({"key": "order-7"}, {"args": [1]}, {"args": [2]}, True),
    ],
)  # fmt: skip
def test_the_dimensions_say_what_is_the_same(api, unique, first, second, same):
    assert push(api, unique, **first).status_code == 201

    assert push(api, unique, **second).status_code == (409 if same else 201)


def test_a_duplicate_that_is_rejected_names_the_job_there_is(api):
    first = push(api, TYPE_AND_ARGS).json()["job"]

    reply = push(api, TYPE_AND_ARGS)

    error = refusal(reply)
    assert (reply.status_code, error["code"]) == (409, "duplicate")
    assert error["details"]["existing_job_id"] == first["id"]
    assert error["details"]["existing_job_state"] == "available"
    assert error["details"]["uniqueness_key"] == Job.objects.get().unique_key
    assert first["unique"] == TYPE_AND_ARGS, "echoed as it was sent"


def test_a_job_without_a_policy_is_never_a_duplicate(api):
    api.pushed()
    api.pushed()

    assert push(api, {}, args=[]).status_code == 201
    assert Job.objects.filter(unique_key=None).count() == 2


# States and periods (§6, §7, §9)


@pytest.mark.parametrize("state", [state.value for state in State])
@pytest.mark.parametrize("listed", [False, True])
def test_only_jobs_in_the_states_listed_count(api, state, listed):
    states = [state] if listed else [other.value for other in State if other != state]
    push(api, {})
    finished = ago(0) if state in ("completed", "cancelled", "discarded") else None
    reserved = ago(-60) if state == "active" else None
    Job.objects.update(state=state, finished_at=finished, reserved_until=reserved)

    assert push(api, {"states": states}).status_code == (409 if listed else 201)


@pytest.mark.parametrize("state", [state.value for state in State])
def test_unfinished_jobs_count_by_default(api, state):
    push(api, {})
    finished = ago(0) if state in ("completed", "cancelled", "discarded") else None
    reserved = ago(-60) if state == "active" else None
    Job.objects.update(state=state, finished_at=finished, reserved_until=reserved)

    assert push(api, {}).status_code == (201 if finished else 409)


def test_the_period_counts_from_the_creation_of_the_job_there_is(api):
    push(api, {"period": "PT1H"})
    Job.objects.update(created_at=ago(3590))
    assert push(api, {"period": "PT1H"}).status_code == 409

    Job.objects.update(created_at=ago(3601))
    assert push(api, {"period": "PT1H"}).status_code == 201


def test_a_period_may_have_weeks_and_days(api):
    """§13."""
    push(api, {"period": "P1W2D"})

    Job.objects.update(created_at=ago(8 * 86_400))
    assert push(api, {"period": "P1W2D"}).status_code == 409
    Job.objects.update(created_at=ago(10 * 86_400))
    assert push(api, {"period": "P1W2D"}).status_code == 201


@pytest.mark.parametrize("period", [{"period": "PT2S"}, {"period_ms": 2000}, {"within": "2s"}])
def test_every_spelling_of_the_period(api, period):
    push(api, period)
    Job.objects.update(created_at=ago(2.5))

    assert push(api, period).status_code == 201


# Conflicts (§5)


def test_replace_cancels_the_job_there_is_and_stores_the_new_one(api):
    first = push(api, {}).json()["job"]

    reply = push(api, {"on_conflict": "replace"}, args=[2])

    assert reply.status_code == 201 and reply.json()["job"]["args"] == [2]
    assert api.job(first["id"])["state"] == "cancelled"
    assert Event.objects.filter(type="job.cancelled", subject=first["id"]).exists()
    assert [job["args"] for job in api.fetch()] == [[2]]


def test_replace_takes_an_active_job_from_its_worker(api):
    first = push(api, {}).json()["job"]
    api.fetch(worker_id="w")

    assert push(api, {"on_conflict": "replace"}).status_code == 201

    assert api.job(first["id"])["state"] == "cancelled"
    assert api.ack(first["id"], worker_id="w").status_code == 409


def test_replace_leaves_a_finished_job_what_it_is(api):
    first = push(api, {}).json()["job"]
    api.fetch(worker_id="w")
    api.ack(first["id"], worker_id="w")

    reply = push(api, {"on_conflict": "replace", "states": ["completed"]})

    assert reply.status_code == 201
    assert api.job(first["id"])["state"] == "completed"


def test_replace_except_schedule_keeps_the_time_that_was_planned(api):
    unique = {"on_conflict": "replace_except_schedule"}
    planned = "2099-02-12T17:00:00+01:00"
    push(api, unique, scheduled_at=planned, args=[1])

    reply = push(api, unique, scheduled_at="2099-02-12T18:00:00Z", args=[2])

    job = reply.json()["job"]
    assert reply.status_code == 201
    assert (job["args"], job["state"], job["scheduled_at"]) == ([2], "scheduled", planned)
    assert Job.objects.get(pk=job["id"]).scheduled_at.isoformat() == "2099-02-12T16:00:00+00:00"
    assert sorted(Job.objects.values_list("state", flat=True)) == ["cancelled", "scheduled"]


def test_replace_except_schedule_of_a_job_that_waits_for_nothing_is_replace(api):
    push(api, {}, args=[1])

    reply = push(api, {"on_conflict": "replace_except_schedule"}, scheduled_at="+PT1H")

    assert reply.json()["job"]["state"] == "scheduled"


@pytest.mark.parametrize("word", ["ignore", "use_existing"])
def test_ignore_answers_with_the_job_there_is(api, word):
    first = push(api, {}, args=[1]).json()["job"]

    reply = push(api, {"on_conflict": word}, args=[2])

    assert reply.status_code == 200 and reply.json()["deduplicated"] is True
    assert reply.json()["job"]["id"] == first["id"] and reply.json()["job"]["args"] == [1]
    assert Job.objects.count() == 1


def test_a_retry_does_not_ask_again(api):
    push(api, {"states": ["available"]})
    (job,) = api.fetch(worker_id="w")
    push(api, {"states": ["available"]})
    api.nack(job["id"], worker_id="w")
    Job.objects.filter(pk=job["id"]).update(scheduled_at=ago(1))

    assert len(api.fetch(count=5)) == 2


# Batches


def batch(api, *uniques):
    jobs = [
        {"type": "a", "args": [number], "options": {"unique": unique} if unique is not None else {}}
        for number, unique in enumerate(uniques)
    ]
    return api.send("jobs/batch", {"jobs": jobs})


def test_a_batch_with_a_rejected_duplicate_makes_no_job(api):
    assert batch(api, {}, None, {}).status_code == 409
    assert not Job.objects.exists()


def test_of_two_equal_jobs_of_a_batch_the_answer_names_their_places_and_no_job(api):
    """The first one is rolled back with the second: its id would name nothing (§5.1)."""
    reply = refusal(batch(api, None, {}, None, {}))

    assert reply["code"] == "duplicate" and "index 1 and 3" in reply["message"]
    assert (reply["details"]["first_index"], reply["details"]["index"]) == (1, 3)
    assert "existing_job_id" not in reply["details"]


def test_of_a_batch_like_a_stored_job_the_answer_names_the_stored_one(api):
    known = push(api, {}, type="a").json()["job"]["id"]

    assert refusal(batch(api, {}, {}))["details"]["existing_job_id"] == known


def test_an_atomic_bulk_request_names_the_place_of_the_equal_job_too(api):
    unique = {"type": "a", "args": [], "unique": {"keys": ["type"]}}
    same_id = {"type": "b", "args": [], "id": str(uuid7())}
    request = {"atomicity": "atomic", "jobs": [unique, same_id, unique, same_id]}

    items = api.send("jobs/bulk", request).json()["items"]

    errors = [item["error"] for item in items]
    codes = [error["code"] for error in errors]
    assert codes == ["conflict", "conflict", "duplicate", "duplicate"]
    assert [error["details"]["first_index"] for error in errors[2:]] == [0, 1]
    assert not Job.objects.exists()


def test_a_batch_answers_ignored_jobs_with_the_first_of_them(api):
    found = batch(api, {"on_conflict": "ignore"}, None, {"on_conflict": "ignore"}).json()

    assert found["jobs"][2]["id"] == found["jobs"][0]["id"]
    assert found["jobs"][2]["deduplicated"] is True
    assert (found["count"], found["enqueued"], found["failed"]) == (3, 2, 0)
    assert Job.objects.count() == 2


def test_in_a_batch_the_last_of_those_that_replace_each_other_is_left(api):
    reply = batch(api, *[{"on_conflict": "replace"}] * 3)

    answered = [(job["state"], "cancelled_at" in job) for job in reply.json()["jobs"]]
    assert answered == [("cancelled", True), ("cancelled", True), ("available", False)]
    assert [job["args"] for job in api.fetch(count=5)] == [[2]]
    assert Job.objects.filter(state="cancelled").count() == 2


# From Python, and the manifest


def test_enqueue_from_python_acts_on_the_policy():
    first = jobs.enqueue("a", [1], unique={"keys": ["type"], "period": "PT1H"})

    with pytest.raises(DuplicateJob):
        jobs.enqueue("a", [1], unique={"keys": ["type"]})
    again = jobs.enqueue("a", [2], unique={"on_conflict": "ignore"})
    assert again.id == first.id and again.existing.pk == first.id


def test_the_manifest_says_how_strong_it_is(api):
    manifest = api.get("/ojs/manifest").json()

    assert manifest["capabilities"]["unique_jobs"] and manifest["unique_job_strength"] == "strong"

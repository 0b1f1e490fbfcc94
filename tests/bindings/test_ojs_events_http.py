"""Record of events over HTTP: in order, filtered, and from a cursor (OJS events §6)."""

from __future__ import annotations

import pytest

from jobs import engine
from jobs.models import Event
from tests.ojs_client import refusal

# Events (OJS events §6.4)


def test_events_are_listed_in_order(api):
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
    """All filters must match; within one, any of its values (events §6.1)."""
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
@pytest.mark.parametrize("name", ["after", "cursor"])
def test_a_bad_event_cursor_is_refused(api, after, name):
    reply = api.see("events", **{name: after})

    assert reply.status_code == 400
    error = refusal(reply)
    assert error["details"]["field"] == name
    assert name in error["message"] and after in error["message"]


def id_of(position):
    return f"evt_{0:012x}-{position:012x}"


def position_in(cursor):
    return int(cursor.rpartition("-")[2], 16)


@pytest.mark.parametrize("name", ["after", "cursor"])
@pytest.mark.parametrize("ahead", [1, 0xFFFFFF])
def test_a_cursor_ahead_of_the_record_is_refused_for_the_record_was_restored(api, name, ahead):
    api.pushed()
    last = position_in(api.see("events").json()["cursor"])

    reply = api.see("events", **{name: id_of(last + ahead)})

    assert reply.status_code == 400
    error = refusal(reply)
    assert error["details"]["field"] == name
    assert "backup" in error["message"]


def test_the_cursor_of_a_record_that_was_emptied_since_is_kept(api):
    """Retention deletes events, but does not turn time back."""
    api.pushed()
    cursor = api.see("events").json()["cursor"]
    Event.objects.all().delete()

    assert api.see("events", after=cursor).json() == {
        "events": [],
        "cursor": cursor,
        "has_more": False,
    }

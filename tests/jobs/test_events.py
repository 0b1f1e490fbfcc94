"""The durable record of what happened, and reading on where one stopped (OJS events §2, §6)."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
import pytest
from django.utils import timezone

from jobs import engine, events
from jobs.models import Event, Job
from jobs.validation import new_job
from tests.database import atomic, connection
from tests.factories import JobFactory

MOMENT = datetime(2026, 2, 12, 10, 30, 5, 123_456, tzinfo=UTC)


def record(kind: str = "job.started", subject: str = "s", **fields) -> Event:
    return Event.objects.create(type=kind, subject=subject, time=timezone.now(), **fields)


# One event on the wire


def test_a_job_event_has_the_envelope_of_the_document(db):
    event = Event.objects.create(
        type="job.completed",
        subject="019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
        queue="email",
        job_type="email.send",
        worker_id="worker-1",
        attempt=2,
        time=MOMENT,
        data={"duration_ms": 1333},
    )
    event.refresh_from_db()

    document = events.event_document(event)

    assert document["specversion"] == "1.0"
    assert document["type"] == "job.completed"
    assert document["source"].startswith("ojs://")
    assert document["time"] == "2026-02-12T10:30:05.123Z"
    assert document["subject"] == event.subject
    assert document["data"] == {
        "job_id": event.subject,
        "job_type": "email.send",
        "queue": "email",
        "worker_id": "worker-1",
        "attempt": 2,
        "duration_ms": 1333,
    }


def test_worker_and_queue_events_name_their_subject(db):
    worker = events.event_document(
        Event.objects.create(
            type="worker.started", subject="worker-1", worker_id="worker-1", time=MOMENT, txid=1
        )
    )
    queue = events.event_document(
        Event.objects.create(
            type="queue.paused", subject="email", queue="email", time=MOMENT, txid=1
        )
    )

    assert (worker["subject"], worker["data"]) == ("worker-1", {"worker_id": "worker-1"})
    assert worker["source"] == "ojs://server/workers/worker-1"
    assert (queue["subject"], queue["data"]) == ("email", {"queue": "email"})


def test_ids_are_unique_and_are_the_cursor(db):
    for _ in range(3):
        record()

    rows = Event.objects.order_by("txid", "id")
    ids = [events.cursor_of(event) for event in rows]
    assert len(set(ids)) == 3
    assert ids == sorted(ids)
    assert [events.parse_cursor(text) for text in ids] == [(row.txid, row.pk) for row in rows]


@pytest.mark.parametrize(
    "text",
    ["", "evt_", "evt_1-2", "x", "evt_000000000001000000000001", "EVT_000000000001-000000000001"],
)
def test_what_is_no_cursor(text):
    assert events.parse_cursor(text) is None


def test_reading_goes_on_after_the_cursor(db):
    first, second, third = (record(subject=str(number)) for number in range(3))
    for event in (first, second, third):
        event.refresh_from_db()

    following = events.after(Event.objects.order_by("txid", "id"), (second.txid, second.pk))

    assert list(following) == [third]


# Written in the transaction of the change


@pytest.mark.django_db(transaction=True)
def test_what_was_rolled_back_did_not_happen():
    job = JobFactory()

    with pytest.raises(ZeroDivisionError), atomic():
        engine.claim(["default"])
        engine.complete([engine.Completion(job.pk)])
        raise ZeroDivisionError

    assert not Event.objects.exists()
    assert Job.objects.get().state == "available"


@pytest.mark.parametrize("backwards", [False, True])
def test_a_jobs_life_is_told_in_order(db, backwards):
    document = {"type": "email.send", "args": [], "retry": {"jitter": False, "max_attempts": 2}}
    engine.enqueue([new_job(document, timezone.now())])
    (job,) = engine.claim(["default"], worker_id="worker-1")
    engine.fail([engine.Failure(job.id, worker_id="worker-1")])
    Job.objects.update(scheduled_at=timezone.now())
    engine.claim(["default"], worker_id="worker-1")
    if backwards:
        engine.fail([engine.Failure(job.id, worker_id="worker-1")])
    else:
        engine.complete([engine.Completion(job.id, worker_id="worker-1")])

    told = [event.type for event in events.settled().order_by("txid", "id")]

    assert told == [
        "job.enqueued",
        "job.started",
        "job.failed",
        "job.retrying",
        "job.enqueued",
        "job.started",
        *(["job.failed", "job.discarded"] if backwards else ["job.completed"]),
    ]


# The horizon: nothing may appear behind a reader's cursor


@pytest.fixture
def another_writer(transactional_db):
    """A connection of its own, with a transaction open that has already written an event."""
    parameters = dict(connection.get_connection_params())
    for ours in ("cursor_factory", "context", "prepare_threshold"):
        parameters.pop(ours, None)
    with psycopg.connect(**parameters) as writer:
        writer.execute(
            "INSERT INTO ojs_jobs_event (type, subject, queue, job_type, worker_id, time)"
            " VALUES ('job.started', 'early', '', '', '', now())"
        )
        yield writer
        writer.rollback()


@pytest.mark.postgres
def test_events_wait_for_an_older_transaction_that_still_writes(another_writer):
    """Else a reader that saw the later one would never see the earlier one: it is behind."""
    record(subject="late")

    assert list(events.settled()) == []

    another_writer.commit()

    rows = events.settled().order_by("txid", "id")
    assert [event.subject for event in rows] == ["early", "late"]


@pytest.mark.postgres
def test_a_reader_misses_nothing_whatever_the_order_of_commits(another_writer):
    record(subject="before the cursor was drawn")
    seen: list[str] = []
    cursor = (0, 0)

    def read_on() -> None:
        nonlocal cursor
        for event in events.after(events.settled().order_by("txid", "id"), cursor):
            seen.append(event.subject)
            cursor = (event.txid, event.pk)

    read_on()
    record(subject="after")
    read_on()
    another_writer.commit()
    read_on()

    assert seen == ["early", "before the cursor was drawn", "after"]


@pytest.mark.postgres
def test_a_writer_that_gave_up_holds_nobody_back(another_writer):
    record(subject="late")

    another_writer.rollback()

    assert [event.subject for event in events.settled()] == ["late"]


@pytest.mark.postgres
def test_a_transaction_sees_its_own_events(transactional_db):
    with atomic():
        record(subject="mine")

        assert [event.subject for event in events.settled()] == ["mine"]

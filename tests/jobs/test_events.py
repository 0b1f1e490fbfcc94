"""Durable record of events, and reading it from a cursor (OJS events §2, §6)."""

from __future__ import annotations

import ast
import re
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from django.utils import timezone

from jobs import engine, signals
from jobs.models import Event, Job
from jobs.record import events, vocabulary
from jobs.spec.validation import new_job
from jobs.store import rows
from tests.database import another_connection, atomic, connection
from tests.factories import JobFactory
from tests.processes import ROOT

MOMENT = datetime(2026, 2, 12, 10, 30, 5, 123_456, tzinfo=UTC)

FAILED_FOR_GOOD = ["job.failed", "job.retry_exhausted", "job.discarded", "job.dead_lettered"]


def record(kind: str = "job.started", subject: str = "s", **fields) -> Event:
    return Event.objects.create(type=kind, subject=subject, time=timezone.now(), **fields)


# The document of an event


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

    rows = Event.objects.order_by("id")
    ids = [events.cursor_of(event) for event in rows]
    assert len(set(ids)) == 3
    assert ids == sorted(ids)
    assert [events.parse_cursor(text) for text in ids] == [(0, row.pk) for row in rows]


@pytest.mark.parametrize(
    "text",
    ["", "evt_", "evt_1-2", "x", "evt_000000000001000000000001", "EVT_000000000001-000000000001"],
)
def test_what_is_no_cursor(text):
    assert events.parse_cursor(text) is None


def test_reading_goes_on_after_the_cursor(db):
    first, second, third = (record(subject=str(number)) for number in range(3))

    following = events.after(Event.objects.order_by("id"), events.Cursor(0, second.pk))

    assert first.pk < second.pk
    assert list(following) == [third]


def test_a_cursor_from_before_the_order_of_ids_skips_nothing(db):
    """Those read by transaction: events a later transaction had written first were still due."""
    overtaken, read, new = (
        record(subject=str(number), txid=txid) for number, txid in enumerate((7, 6, 8))
    )

    following = events.after(Event.objects.order_by("id"), events.Cursor(6, read.pk))

    assert list(following) == [overtaken, new]


# Written in the transaction of the change


def test_events_that_are_recorded_together_are_kept_as_they_are_and_in_their_order(db, monkeypatch):
    monkeypatch.setattr(rows, "BATCH", 2)
    job = JobFactory(type="email.send", queue="email")
    told = [
        events.job_event("job.failed", job, time=MOMENT, worker_id="w", data={"error": "zwölf \\"}),
        events.job_event(
            "job.retrying", job, time=MOMENT, data={"until": [None, 1.5, {"a": "\n"}]}
        ),
        events.worker_event("worker.started", "worker-1"),
        events.queue_event("queue.paused", "email", reason='"so"'),
        events.job_event("job.started", job, time=MOMENT),
    ]

    events.record(iter(told))

    kept = list(Event.objects.order_by("pk"))
    names = ("pk", "type", "subject", "queue", "job_type", "worker_id", "attempt", "time", "data")
    assert [[getattr(event, name) for name in names] for event in kept] == [
        [getattr(event, name) for name in names] for event in told
    ]
    assert Event.objects.filter(data__isnull=True).count() == 2


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
def test_the_events_of_a_job_are_in_order(db, backwards):
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

    recorded = [event.type for event in events.settled().order_by("id")]

    assert recorded == [
        "job.enqueued",
        "job.started",
        "job.failed",
        "job.retrying",
        "job.enqueued",
        "job.started",
        *(FAILED_FOR_GOOD if backwards else ["job.completed"]),
    ]


# The horizon: nothing may appear behind a reader's cursor


def write(writer: psycopg.Connection[Any], subject: str) -> None:
    writer.execute(
        "INSERT INTO ojs_jobs_event (type, subject, queue, job_type, worker_id, time)"
        " VALUES ('job.started', %s, '', '', '', now())",
        [subject],
    )


@pytest.fixture
def another_writer(transactional_db):
    """An open transaction that has already written an event."""
    with another_connection() as writer:
        write(writer, "early")
        yield writer


def subjects() -> list[str]:
    return [event.subject for event in events.settled().order_by("id")]


@pytest.mark.postgres
def test_events_wait_for_an_older_transaction_that_still_writes(another_writer):
    """Otherwise a reader of the later one would never see the earlier one behind its cursor."""
    record(subject="late")

    assert subjects() == []

    another_writer.commit()

    assert subjects() == ["early", "late"]


@pytest.mark.postgres
def test_a_reader_misses_nothing_whatever_the_order_of_commits(another_writer):
    record(subject="before the cursor was drawn")
    seen: list[str] = []
    cursor = events.Cursor(0, 0)

    def read_on() -> None:
        nonlocal cursor
        for event in events.after(events.settled().order_by("id"), cursor):
            seen.append(event.subject)
            cursor = events.Cursor(0, event.pk)

    read_on()
    record(subject="after")
    read_on()
    another_writer.commit()
    read_on()

    assert seen == ["early", "before the cursor was drawn", "after"]


@pytest.mark.postgres
def test_a_writer_that_rolled_back_delays_no_reader(another_writer):
    record(subject="late")

    another_writer.rollback()

    assert subjects() == ["late"]


@pytest.mark.postgres
def test_what_was_settled_stays_so_while_a_later_writer_is_at_work(transactional_db):
    record(subject="before")
    with another_connection() as writer:
        write(writer, "under way")
        record(subject="late")

        assert subjects() == ["before"]


@pytest.mark.postgres
def test_a_writer_that_took_a_part_back_holds_back_what_follows_the_rest(transactional_db):
    with another_connection() as writer:
        write(writer, "early")
        with pytest.raises(ZeroDivisionError), writer.transaction():
            write(writer, "taken back")
            raise ZeroDivisionError
        record(subject="late")

        assert subjects() == []
        writer.commit()

    assert subjects() == ["early", "late"]


@pytest.mark.postgres
def test_events_after_a_part_that_was_taken_back_are_announced_anew(transactional_db):
    """The lock is released with the savepoint, so it must be acquired again."""
    with another_connection() as writer:
        writer.execute("SELECT 1")
        with pytest.raises(ZeroDivisionError), writer.transaction():
            write(writer, "taken back")
            raise ZeroDivisionError
        write(writer, "early")
        record(subject="late")

        assert subjects() == []


@pytest.mark.postgres
def test_a_transaction_that_began_long_ago_may_still_write_its_first_event(transactional_db):
    """Its number is old, but not its position in the record."""
    with another_connection() as writer:
        writer.execute("SELECT pg_current_xact_id()")
        record(subject="meanwhile")
        assert subjects() == ["meanwhile"]

        write(writer, "late")
        writer.commit()

    assert subjects() == ["meanwhile", "late"]


@pytest.mark.postgres
@pytest.mark.parametrize("where", [{}, {"dbname": "postgres"}], ids=["here", "elsewhere"])
def test_an_open_transaction_on_another_table_holds_back_nothing(transactional_db, where):
    with another_connection(**where) as neighbour:
        neighbour.execute("CREATE TABLE open_for_an_hour (id integer)")
        neighbour.execute("INSERT INTO open_for_an_hour VALUES (1)")
        engine.enqueue([new_job({"type": "email.send", "args": []}, timezone.now())])

        assert [event.type for event in events.settled()] == ["job.enqueued"]


@pytest.mark.postgres
def test_locks_of_others_hold_back_nothing(transactional_db):
    with another_connection() as neighbour:
        neighbour.execute("SELECT pg_advisory_lock(1), pg_advisory_lock_shared(2, 3)")
        neighbour.execute("SELECT pg_advisory_lock('ojs_jobs_event'::regclass::oid::int8)")
        record(subject="late")

        assert subjects() == ["late"]


@pytest.mark.postgres
def test_ids_beyond_what_a_lock_can_carry(transactional_db):
    """A lock's key has 32 bits."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM ojs_jobs_event_id_seq")
        (before,) = cursor.fetchone()
        for start in (2**31 - 2, 2**32 - 2, 2**40 - 2):
            cursor.execute("SELECT setval('ojs_jobs_event_id_seq', %s)", [start])
            with another_connection() as writer:
                settled = subjects()
                write(writer, f"early {start}")
                for _ in range(4):
                    record(subject="late")
                assert subjects() == settled
            assert len(subjects()) == len(settled) + 4
        cursor.execute("SELECT setval('ojs_jobs_event_id_seq', %s)", [before])


@pytest.mark.postgres
def test_one_lock_is_enough_for_a_transaction(another_writer):
    """Each lock takes shared memory of the whole server."""
    for number in range(3):
        write(another_writer, str(number))

    locks = another_writer.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    )
    assert locks.fetchone() == (1,)


@pytest.mark.postgres
def test_a_role_that_may_only_write_events_may_write_events(transactional_db):
    with another_connection() as owner:
        owner.execute("CREATE ROLE producer_only")
        owner.execute("GRANT INSERT ON ojs_jobs_event TO producer_only")
        owner.execute("SET ROLE producer_only")
        write(owner, "mine")


@pytest.mark.postgres
def test_a_transaction_sees_its_own_events(transactional_db):
    with atomic():
        record(subject="mine")

        assert subjects() == ["mine"]


# The vocabulary


KIND = r"(?:job|queue|workflow|cron|worker|priority|progress|backpressure|rate_limit)\.[a-z_]+"


def written_kinds() -> set[str]:
    """The types of events that the code writes: in calls like `job_event("job.started", …)`."""
    found: set[str] = set()
    for file in [*(ROOT / "jobs").rglob("*.py"), *(ROOT / "workers").rglob("*.py")]:
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("_event"):
                names = [
                    node.value
                    for argument in call.args[:1]
                    for node in ast.walk(argument)
                    if isinstance(node, ast.Constant) and isinstance(node.value, str)
                ]
                found |= {name for name in names if re.fullmatch(KIND, name)}
    for file in (ROOT / "jobs" / "store").rglob("*.sql"):
        found |= set(re.findall(f"'({KIND})'", file.read_text()))
    return found


@pytest.mark.slow
def test_every_type_of_event_that_is_written_is_in_the_vocabulary():
    assert len(written_kinds()) > 30
    assert written_kinds() <= vocabulary.TYPES.keys()


def test_every_type_of_the_vocabulary_is_written_somewhere():
    code = "".join(
        file.read_text()
        for app in ("jobs", "workers")
        for kind in ("py", "sql")
        for file in (ROOT / app).rglob(f"*.{kind}")
        if file.name != "vocabulary.py"
    )
    # Those of a workflow's jobs are put together from two parts.
    parts = {
        f"workflow.{of}_{what}"
        for of in ("job", "step", "compensation")
        for what in ("completed", "failed")
    }

    assert {
        kind
        for kind in vocabulary.TYPES
        if f'"{kind}"' not in code and f"'{kind}'" not in code and kind not in parts
    } == set()
    assert all(name in vocabulary.TYPES for name in (*signals.SENT, *events.STATE_OF))

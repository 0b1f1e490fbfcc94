"""Waiting fetches are woken immediately, in this process and in others (worker §6.5)."""

from __future__ import annotations

import threading
from datetime import timedelta

import psycopg
import pytest
from django.utils import timezone

from jobs import engine
from jobs.models import Job, Listener
from jobs.spec.validation import new_job
from jobs.store import wakeup
from tests import poolers
from tests.database import atomic, connection
from tests.factories import JobFactory, ago
from tests.listening import end_listeners, end_the_listener
from tests.processes import PATIENCE, eventually

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("nobody_polls"),
]


@pytest.fixture(autouse=True)
def this_process_is_known_to_listen(transactional_db):
    """The previous test emptied the table; a listener updates its row only after seconds."""
    Listener.objects.create(name="tests:0", seen_at=timezone.now())


@pytest.fixture
def another_process(transactional_db):
    """A connection outside of Django, like that of another server process."""
    with psycopg.connect(**wakeup._connection_parameters(), autocommit=True) as other:
        yield other


def push(queue: str, **options) -> None:
    document = {"type": "email.send", "args": [], "options": {"queue": queue} | options}
    engine.enqueue([new_job(document, timezone.now())])


# In this process


def test_what_happens_between_looking_and_waiting_is_not_missed():
    with wakeup.subscription(["billing"]) as bell:
        push("billing")

        assert bell.wait(PATIENCE)


def test_a_bell_rings_once_for_the_same_queues():
    with wakeup.subscription(["billing"]) as bell:
        push("billing")
        bell.wait(PATIENCE)

        assert not bell.wait(0)


def test_only_the_queues_asked_for_ring():
    with wakeup.subscription(["billing"]) as billing, wakeup.subscription(["email"]) as email:
        push("email")

        assert email.wait(PATIENCE)
        assert not billing.wait(0)


def test_those_who_wait_for_a_queue_are_woken_when_it_was_last_said():
    with wakeup.subscription(["billing"]) as billing, wakeup.subscription(["email"]) as email:
        wakeup.remind("email", 10 * PATIENCE)
        wakeup.remind("billing", 10 * PATIENCE)
        wakeup.remind("billing", 0.01)

        eventually(lambda: billing.wait(1))
        assert not email.wait(0)


def test_everybody_who_waits_for_a_queue_is_woken():
    with wakeup.subscription(["a", "b"]) as first, wakeup.subscription(["b", "c"]) as second:
        push("b")

        assert first.wait(PATIENCE)
        assert second.wait(PATIENCE)


def test_no_notification_of_work_that_was_rolled_back():
    with wakeup.subscription(["billing"]) as bell, wakeup.subscription(["after"]) as after:
        with pytest.raises(ZeroDivisionError), atomic():
            push("billing")
            raise ZeroDivisionError
        push("after")

        assert after.wait(PATIENCE)
        assert not bell.wait(0)


def test_no_notification_before_the_commit():
    with wakeup.subscription(["billing"]) as bell, wakeup.subscription(["other"]) as other:
        with atomic():
            push("billing")
            assert not bell.wait(0)
        assert bell.wait(PATIENCE)
        assert not other.wait(0)


@pytest.mark.parametrize("options", [{"pending": True}, {"delay_until": "+PT1H"}])
def test_jobs_that_cannot_be_fetched_yet_wake_no_waiter(options):
    with wakeup.subscription(["billing"]) as bell, wakeup.subscription(["after"]) as after:
        push("billing", **options)
        push("after")

        assert after.wait(PATIENCE)
        assert not bell.wait(0)


WAYS_BACK = {
    "activate": lambda: engine.activate(JobFactory(pending=True).pk),
    "retry": lambda: engine.retry([JobFactory(dead=True).pk]),
    "promote": lambda: (JobFactory(scheduled=True, scheduled_at=ago(5)), engine.promote_due()),
    "expire": lambda: (JobFactory(active=True, reserved_until=ago(1)), engine.expire()),
    "release": lambda: engine.fail([engine.Failure(JobFactory(active=True).pk, release=True)]),
    "resume": lambda: (engine.pause("default"), engine.resume("default")),
}


@pytest.mark.parametrize("way", list(WAYS_BACK))
def test_every_way_back_into_a_queue_rings(way):
    with wakeup.subscription(["default"]) as bell:
        WAYS_BACK[way]()

        assert bell.wait(PATIENCE)


def test_a_waiter_that_stopped_waiting_is_removed():
    with wakeup.subscription(["billing"]):
        pass

    assert wakeup._subscriptions == set()


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL notifies")
def test_where_the_database_cannot_notify_waiters_look_again_soon():
    with wakeup.subscription(["billing"]) as bell:
        assert not bell.wait(PATIENCE)


# Between processes


@pytest.mark.postgres
def test_work_of_another_process_wakes_waiters_here(another_process):
    with wakeup.subscription(["billing"]) as bell:
        another_process.execute("SELECT pg_notify('ojs_jobs', 'billing')")

        assert bell.wait(PATIENCE)


@pytest.mark.postgres
def test_other_processes_hear_of_work_made_here_if_one_of_them_listens(
    another_process, monkeypatch
):
    """And only then: a NOTIFY serializes the commits of the whole cluster."""
    # The thread of an earlier test would register itself again as a listener.
    monkeypatch.setattr(wakeup, "LINGER", 0)
    eventually(lambda: wakeup._listener is None or not wakeup._listener.is_alive())
    Listener.objects.all().delete()
    another_process.execute("LISTEN ojs_jobs")

    push("nobody-listens")
    engine.activate(JobFactory(pending=True, queue="nobody-listens").pk)
    JobFactory(active=True, queue="nobody-listens", reserved_until=ago(1))
    engine.expire()
    Listener.objects.create(name="other:1", seen_at=timezone.now())
    push("one-listens")

    (heard,) = another_process.notifies(timeout=PATIENCE, stop_after=1)
    assert heard.payload == "one-listens"


@pytest.mark.postgres
def test_many_jobs_of_one_queue_ring_once(another_process):
    Listener.objects.create(name="other:1", seen_at=timezone.now())
    another_process.execute("LISTEN ojs_jobs")
    documents = [new_job({"type": "a", "args": []}, timezone.now()) for _ in range(50)]

    engine.enqueue(documents)
    push("next")

    heard = [
        message.payload for message in another_process.notifies(timeout=PATIENCE, stop_after=2)
    ]
    assert heard == ["default", "next"]


@pytest.mark.postgres
def test_a_listener_that_lost_its_connection_connects_again(another_process, caplog):
    with wakeup.subscription(["billing"]) as bell:
        end_listeners(another_process)

        for _ in range(10 * PATIENCE):
            another_process.execute("SELECT pg_notify('ojs_jobs', 'billing')")
            if bell.wait(0.1):
                break
        else:
            pytest.fail("Nobody listens any more.")

    assert "Lost the connection" in caplog.text


@pytest.mark.postgres
def test_who_waits_looks_again_after_the_connection_was_lost(another_process):
    """Nothing is sent, or heard, until the listener is connected again."""
    with wakeup.subscription(["billing"]) as bell:
        end_listeners(another_process)

        assert bell.wait(PATIENCE)


@pytest.mark.postgres
def test_who_waits_looks_again_when_the_listener_is_late(monkeypatch):
    end_the_listener()
    monkeypatch.setattr(wakeup, "READY", 0)
    connected, may_connect = wakeup._Ear.connected, threading.Event()

    def late(ear):
        may_connect.wait(PATIENCE)
        return connected(ear)

    monkeypatch.setattr(wakeup._Ear, "connected", late)

    with wakeup.subscription(["billing"]) as bell:
        assert not bell.wait(0)
        may_connect.set()

        assert bell.wait(PATIENCE)


@pytest.mark.postgres
def test_listeners_that_were_killed_are_forgotten():
    Listener.objects.create(name="killed:1", seen_at=timezone.now() - timedelta(minutes=6))
    Listener.objects.create(name="alive:2", seen_at=timezone.now())

    engine.prune_events()

    names = set(Listener.objects.values_list("name", flat=True))
    assert "killed:1" not in names
    assert "alive:2" in names


def test_a_waiter_that_was_woken_finds_the_job():
    with wakeup.subscription(["billing"]) as bell:
        push("billing")
        bell.wait(PATIENCE)

        assert len(engine.claim(["billing"])) == 1
    assert Job.objects.count() == 1


# Behind a pooler


needs_pgbouncer = pytest.mark.skipif(not poolers.is_installed(), reason="needs pgbouncer")


@pytest.fixture
def pooled(request, monkeypatch):
    """The listening thread connects through PgBouncer, in the mode that the test names."""
    end_the_listener()
    with poolers.pgbouncer(request.param) as parameters:
        monkeypatch.setattr(wakeup, "_connection_parameters", lambda: parameters)
        yield parameters
        end_the_listener()


@pytest.mark.postgres
@needs_pgbouncer
@pytest.mark.parametrize("pooled", ["transaction"], indirect=True)
def test_behind_a_pooler_of_transactions_waiters_look_by_themselves(pooled, caplog):
    """PgBouncer accepts LISTEN and drops it; nothing may remain that makes others notify."""
    Listener.objects.all().delete()

    with wakeup.subscription(["billing"]), wakeup.subscription(["email"]):
        assert wakeup._listener is not None
        assert wakeup._listener.is_alive(), "it tries again, less often"
        assert not Listener.objects.exists()

    (warning,) = [record for record in caplog.records if record.name == "jobs.wakeup"]
    assert "LISTEN does not work" in warning.getMessage()


@pytest.mark.postgres
@needs_pgbouncer
@pytest.mark.parametrize("pooled", ["session"], indirect=True)
def test_a_pooler_of_sessions_is_no_hindrance(pooled):
    with wakeup.subscription(["billing"]) as bell:
        push("billing")

        assert bell.wait(PATIENCE)


@pytest.mark.postgres
@needs_pgbouncer
@pytest.mark.parametrize("pooled", ["session"], indirect=True)
def test_a_pooler_that_refuses_does_not_end_the_thread_that_listens(pooled, caplog, monkeypatch):
    monkeypatch.setattr(
        wakeup, "_connection_parameters", lambda: pooled | {"dbname": "not served here"}
    )

    with wakeup.subscription(["billing"]):
        assert wakeup._listener is not None
        assert wakeup._listener.is_alive()

    assert "Lost the connection" in caplog.text

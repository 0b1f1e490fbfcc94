"""Cells: complete deployments in schemas of one database, which do not hear of one another."""

from __future__ import annotations

import contextlib

import pytest
from django.core.management import call_command
from django.db import connections, router
from django.test.utils import override_settings
from django.utils import timezone

from jobs import engine
from jobs.models import Event, Job
from jobs.record import events
from jobs.spec.validation import new_job
from jobs.store.database import alias, atomic, run
from jobs.store.sql import CHANNEL
from jobs.store.stores import store
from tests.database import another_connection
from tests.factories import JobFactory, ago
from tests.jobs.test_sql_files import FILES
from tests.processes import PATIENCE

CELL = "cell_a"
OPTIONS = {"options": f"-csearch_path={CELL}"}

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.one_database,
    pytest.mark.django_db(transaction=True, databases=["default", CELL]),
]


class ToTheCell:
    def db_for_read(self, model, **hints):
        return CELL

    db_for_write = db_for_read


@contextlib.contextmanager
def in_the_cell():
    """Be a server whose `DATABASE_URL` names the cell's schema."""
    with override_settings(DATABASE_ROUTERS=[f"{__name__}.ToTheCell"]):
        router.routers = [ToTheCell()]
        try:
            assert alias() == CELL
            engine.forget_queues()
            yield
        finally:
            vars(router).pop("routers")
            engine.forget_queues()


@pytest.fixture(scope="module", autouse=True)
def cell(django_db_setup, django_db_blocker):
    """A schema beside `public`, in which the tests have their tables."""
    with django_db_blocker.unblock():
        execute(f"CREATE SCHEMA {CELL}")
        settings = connections[alias()].settings_dict
        connections.settings[CELL] = settings | {"OPTIONS": settings["OPTIONS"] | OPTIONS}
        try:
            call_command("migrate", database=CELL, verbosity=0)
            yield
        finally:
            connections[CELL].close()
            del connections[CELL], connections.settings[CELL]
            execute(f"DROP SCHEMA {CELL} CASCADE")


def execute(statement):
    with connections[alias()].cursor() as cursor:
        cursor.execute(statement)


def push(queue="default"):
    engine.enqueue(
        [new_job({"type": "a", "args": [], "options": {"queue": queue}}, timezone.now())]
    )


@contextlib.contextmanager
def listening(**parameters):
    with another_connection(autocommit=True, **parameters) as line:
        ((channel,),) = line.execute(f"SELECT {CHANNEL}").fetchall()
        line.execute(f"LISTEN {channel}")
        line.execute("INSERT INTO ojs_jobs_listener VALUES ('another:1', now())")
        yield line
        line.execute("DELETE FROM ojs_jobs_listener")


def heard(line, count):
    return [message.payload for message in line.notifies(timeout=PATIENCE, stop_after=count)]


def test_jobs_of_a_cell_are_not_in_another():
    with in_the_cell():
        push()
        assert Event.objects.count() == 1

    assert engine.claim(["default"]) == []
    assert not Event.objects.exists()

    with in_the_cell():
        (job,) = engine.claim(["default"])
        engine.complete([engine.Completion(job.id)])
        assert Job.objects.get().state == "completed"


@pytest.mark.parametrize("choice", ["postgresql", "citus", "portable"])
def test_a_cell_wakes_its_own_listeners_alone(settings, choice):
    settings.OJS = {"STORE": choice}
    with listening() as here, listening(**OPTIONS) as there:
        with in_the_cell():
            push("billing")
            engine.activate(JobFactory(pending=True, queue="pending").pk)
            JobFactory(active=True, queue="stalled", reserved_until=ago(1))
            engine.expire()
        push("email")

        assert heard(here, 1) == ["email"]
        assert heard(there, 3) == ["billing", "pending", "stalled"]


def test_the_channel_in_public_is_that_of_earlier_releases():
    """So that servers of both hear each other during an upgrade."""
    ((channel,),) = run(f"SELECT {CHANNEL}", [])
    assert channel == "ojs_jobs"

    with in_the_cell():
        ((channel,),) = run(f"SELECT {CHANNEL}", [])
        assert channel.startswith("ojs_jobs") and channel != "ojs_jobs"


def test_every_file_names_the_channel_of_its_cell():
    texts = ["".join(file.read_text().split()) for file in FILES]
    told = [text for text in texts if "pg_notify(" in text]

    assert told
    for text in told:
        assert text.count("pg_notify(") == text.count("pg_notify(" + "".join(CHANNEL.split()))


def test_a_lock_of_a_cell_is_not_one_of_another():
    with another_connection() as other, in_the_cell(), atomic():
        store().lock_keys({7})
        locked = "SELECT pg_try_advisory_xact_lock(7)"
        assert other.execute(locked).fetchone() == (True,)
        # And in public it is the key of earlier releases.
        vars(router).pop("routers")
        router.routers = []
        with pytest.raises(Exception, match="lock timeout"), atomic():
            run("SELECT set_config('lock_timeout', '50ms', true)", [])
            store().lock_keys({7})


def test_who_writes_events_in_one_cell_does_not_hold_back_readers_of_another():
    events.record([events.queue_event("queue.paused", "here")])
    with in_the_cell(), atomic():
        events.record([events.queue_event("queue.paused", "there")])
        router.routers = []
        assert [event.subject for event in events.settled()] == ["here"]

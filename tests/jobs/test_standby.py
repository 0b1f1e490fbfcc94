"""Pages and figures may be read from a standby; what changes anything is not."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from django.core.checks import run_checks
from django.db import OperationalError, connections
from django.http import HttpResponse
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobs import engine
from jobs.models import Event, Job
from jobs.record import events
from jobs.store import event_order, standby
from jobs.store.database import alias, run
from tests.campaign import surroundings
from tests.database import connection
from tests.factories import JobFactory
from tests.processes import eventually

STANDBY = "standby"
READ_ONLY = {"options": "-cdefault_transaction_read_only=on"}

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True, databases=sorted({"default", alias(), STANDBY})),
]


@pytest.fixture(scope="module", autouse=True)
def standby_database(django_db_setup):
    """A second entry for the tests' database, through which nothing can be written."""
    if connection.vendor != "postgresql":
        yield
        return
    found = connections[alias()].settings_dict
    connections.settings[STANDBY] = found | {
        "OPTIONS": found["OPTIONS"] | READ_ONLY,
        "TEST": found["TEST"] | {"MIRROR": alias()},
    }
    yield
    del connections.settings[STANDBY]


@pytest.fixture(autouse=True)
def site(settings, monkeypatch):
    settings.OJS = {"READ_DATABASE": STANDBY, "ALLOW_ANONYMOUS": True}
    monkeypatch.setattr(standby, "_away_until", 0.0)
    monkeypatch.setattr(standby, "_is_away", False)
    event_order._points.clear()
    yield
    if STANDBY in connections:
        connections[STANDBY].close()
        del connections[STANDBY]


@pytest.fixture
def some_job():
    job = JobFactory(type="email.send")
    events.record([events.job_event("job.enqueued", job, time=job.created_at)])
    return job


def of(events_reply):
    return [event["subject"] for event in events_reply.json()["events"]]


def test_the_record_is_read_from_the_standby(client, some_job):
    with CaptureQueriesContext(connections[STANDBY]) as there:
        reply = client.get("/ojs/v1/events")

    assert of(reply) == [str(some_job.pk)]
    assert reply.headers["OJS-Standby-Lag"] == "0.000"
    assert any("ojs_jobs_event" in query["sql"] for query in there)


def test_the_standby_shows_no_event_that_another_may_still_precede(client, some_job, monkeypatch):
    """It has no locks of those who write; the primary says how far the record is settled."""
    client.get("/ojs/v1/events")
    ((position, _horizon),) = event_order._points
    events.record([events.queue_event("queue.paused", "later")])

    monkeypatch.setattr(event_order, "REPLAYED", f"SELECT {position}")
    assert of(client.get("/ojs/v1/events")) == [str(some_job.pk)]

    monkeypatch.undo()
    assert of(client.get("/ojs/v1/events")) == [str(some_job.pk), "later"]


def test_a_standby_that_is_behind_has_nothing_for_a_cursor_and_does_not_call_it_lost(
    client, some_job, monkeypatch
):
    """Another process read on, from the primary."""
    client.get("/ojs/v1/events")
    ((position, _horizon),) = event_order._points
    events.record([events.queue_event("queue.paused", "later")])
    ahead = events.cursor_of(Event.objects.latest("id"))
    monkeypatch.setattr(event_order, "REPLAYED", f"SELECT {position}")

    reply = client.get("/ojs/v1/events", {"after": ahead})

    assert reply.json() == {"events": [], "cursor": ahead, "has_more": False}
    assert "OJS-Standby-Lag" in reply.headers


def test_before_the_standby_is_known_to_have_caught_up_the_primary_answers(
    client, some_job, monkeypatch, caplog
):
    monkeypatch.setattr(event_order, "REPLAYED", "SELECT 0")

    reply = client.get("/ojs/v1/events")

    assert of(reply) == [str(some_job.pk)]
    assert "OJS-Standby-Lag" not in reply.headers
    assert not caplog.records


@pytest.mark.parametrize(
    "name",
    [
        "admin:ojs_workers_dashboard_changelist",
        "admin:ojs_jobs_job_changelist",
        "admin:ojs_jobs_event_changelist",
        "admin:ojs_workers_worker_changelist",
    ],
)
def test_a_large_list_is_read_from_the_standby(admin_client, some_job, name):
    with CaptureQueriesContext(connections[alias()]) as here:
        reply = admin_client.get(reverse(name))

    assert reply.headers["OJS-Standby-Lag"] == "0.000"
    ours = [query["sql"] for query in here if '"ojs_' in query["sql"]]
    assert not ours


def test_metrics_are_read_from_the_standby(client):
    reply = client.get("/ojs/v1/metrics")

    assert reply.status_code == 200
    assert "OJS-Standby-Lag" in reply.headers


def test_without_the_standby_the_primary_answers_and_one_line_says_so(client, some_job, caplog):
    connections.settings[STANDBY]["PORT"], before = "1", connections.settings[STANDBY]["PORT"]
    try:
        replies = [client.get("/ojs/v1/events") for _ in range(3)]
    finally:
        connections.settings[STANDBY]["PORT"] = before

    for reply in replies:
        assert of(reply) == [str(some_job.pk)]
        assert "OJS-Standby-Lag" not in reply.headers
    (line,) = [line.getMessage() for line in caplog.records if line.name == "jobs.standby"]
    assert line.startswith("The standby 'standby' is not read")


def test_a_standby_that_came_back_is_read_again(client, some_job, monkeypatch, caplog):
    def is_away():
        raise OperationalError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(standby, "_lag", is_away)
        client.get("/ojs/v1/events")
    assert "OJS-Standby-Lag" not in client.get("/ojs/v1/events").headers

    monkeypatch.setattr(standby, "_away_until", 0.0)

    assert "OJS-Standby-Lag" in client.get("/ojs/v1/events").headers
    assert "is read again" in caplog.text


def test_a_standby_that_is_far_behind_is_not_read(client, some_job, monkeypatch, caplog):
    monkeypatch.setattr(standby, "_lag", lambda: standby.LONGEST_LAG + 1)

    reply = client.get("/ojs/v1/events")

    assert of(reply) == [str(some_job.pk)]
    assert "OJS-Standby-Lag" not in reply.headers
    assert "61 seconds behind" in caplog.text


def test_who_would_write_is_answered_by_the_primary(some_job):
    def respond():
        Job.objects.using(alias()).update(priority=7)
        return HttpResponse()

    response = standby.answer(respond)

    assert "OJS-Standby-Lag" not in response.headers
    assert Job.objects.get().priority == 7


def test_jobs_are_claimed_from_the_primary_while_another_page_is_read(some_job):
    def respond():
        assert Event.objects.db == STANDBY
        assert run("SHOW default_transaction_read_only", []) == [("on",)]
        return HttpResponse()

    assert "OJS-Standby-Lag" in standby.answer(respond).headers
    (claimed,) = engine.claim(["default"])
    assert claimed.id == some_job.pk


@pytest.mark.parametrize(
    ("name", "problem"), [("nowhere", "ojs.E031"), (alias(), "ojs.W030"), ("", None)]
)
def test_what_is_no_standby_is_reported(settings, name, problem):
    settings.OJS = {"READ_DATABASE": name}

    found = [one.id for one in run_checks() if one.id in ("ojs.E031", "ojs.W030")]

    assert found == ([problem] if problem else [])


# With a real one


def postmaster():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_read_file('postmaster.pid')")
        return int(cursor.fetchone()[0].split()[0])


@pytest.fixture
def real_standby(tmp_path_factory, monkeypatch):
    """Follows the server of the tests, until the test ends."""
    if os.environ.get("DATABASE_URL", "").startswith("postgres"):
        pytest.skip("needs the server that the tests start")
    found = connections[alias()].settings_dict
    # Only its own user may enter the folder with the socket.
    owner = os.stat(str(found["HOST"]))
    if not os.geteuid():
        whom = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
        monkeypatch.setattr(surroundings, "unprivileged", lambda: whom)
    with tempfile.TemporaryDirectory(prefix="ojs-standby-") as folder:
        os.chmod(folder, 0o755)
        server = surroundings.Postgres(Path(folder) / "standby")
        server.programs = Path(psutil.Process(postmaster()).exe()).parent
        primary = SimpleNamespace(host=str(found["HOST"]), port=int(found["PORT"] or 5432))
        try:
            server.standby_of(primary)
            server.start()
            there = {"HOST": "127.0.0.1", "PORT": str(server.port)}
            monkeypatch.setitem(connections.settings, STANDBY, found | there)
            connections[STANDBY].close()
            del connections[STANDBY]
            yield server
        finally:
            server.stop()


@pytest.mark.slow
@pytest.mark.one_database
def test_a_standby_shows_what_it_has_replayed(real_standby, client, some_job, caplog):
    def shown():
        # Not what is only written to go on: a page has a hundred events.
        reply = client.get("/ojs/v1/events?types=job.enqueued,queue.paused")
        return of(reply), "OJS-Standby-Lag" in reply.headers

    def goes_on():
        events.record([events.queue_event("queue.resumed", "any")])

    first = str(some_job.pk)
    eventually(lambda: goes_on() or shown()[1])
    before = events.Event.objects.count()

    with real_standby.connect() as there:
        there.execute("SELECT pg_wal_replay_pause()")
        eventually(
            lambda: (
                there.execute("SELECT pg_get_wal_replay_pause_state()").fetchone() == ("paused",)
            )
        )
        events.record([events.queue_event("queue.paused", "later")])
        found, is_from_standby = shown()
        assert connections[STANDBY].settings_dict["PORT"] == str(real_standby.port)
        assert is_from_standby and found[0] == first
        assert "later" not in found and len(found) <= before

        there.execute("SELECT pg_wal_replay_resume()")
    eventually(lambda: goes_on() or "later" in shown()[0])
    assert shown()[1]

    real_standby.stop()
    found, is_from_standby = shown()
    assert "later" in found and not is_from_standby
    assert "is not read" in caplog.text

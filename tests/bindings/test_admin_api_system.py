"""Maintenance, configuration and the scopes of the Admin API (admin API §12, §13)."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.utils.dateparse import parse_datetime

from jobs import engine
from jobs.http.authentication import make_key
from jobs.models import CronJob, Job, Maintenance, OperatorAction
from jobs.spec.lifecycle import State
from tests.factories import JobFactory, ago
from tests.ojs_client import OJSClient, refusal
from workers.chores import reaper

pytestmark = pytest.mark.django_db


def holder(*scopes):
    return OJSClient(make_key("on-call", scopes=list(scopes))[1])


@pytest.fixture
def operator():
    return holder("ojs:admin:read", "ojs:admin:write")


@pytest.fixture
def clients():
    return holder("produce", "work")


# Maintenance (§12.1)


def test_in_maintenance_jobs_are_taken_and_none_is_handed_out(operator, clients):
    asked = {"enabled": True, "reason": "Migration", "estimated_duration": "PT30M"}

    body = operator.send("admin/system/maintenance", asked).json()

    assert (body["maintenance"], body["reason"]) == (True, "Migration")
    lasts = parse_datetime(body["estimated_end"]) - parse_datetime(body["enabled_at"])
    assert timedelta(minutes=29) < lasts < timedelta(minutes=31)
    assert (body["until"], body["enabled_by"]) == (None, "on-call")
    clients.pushed()
    assert clients.fetch() == []
    assert operator.see("admin/system/maintenance").json() == body

    ended = operator.send("admin/system/maintenance", {"enabled": False, "reason": "Done"}).json()

    assert (ended["maintenance"], ended["estimated_end"]) == (False, None)
    assert len(clients.fetch()) == 1
    rows = OperatorAction.objects.order_by("id").values_list("actor", "source", "verb", "reason")
    assert list(rows) == [
        ("on-call", "api", "maintenance", "Migration"),
        ("on-call", "api", "maintenance", "Done"),
    ]


def test_a_migration_that_takes_longer_than_expected_does_not_find_the_workers_running(
    operator, clients
):
    operator.send("admin/system/maintenance", {"enabled": True, "estimated_duration": "PT1S"})
    Maintenance.objects.update(estimated_until=ago(60))
    clients.pushed()

    assert clients.fetch() == []
    assert operator.see("admin/system/maintenance").json()["maintenance"] is True


def test_maintenance_ends_automatically_only_with_an_end(operator, clients):
    operator.send("admin/system/maintenance", {"enabled": True, "until": "+PT1H"})
    clients.pushed()
    assert clients.fetch() == []

    Maintenance.objects.update(until=ago(1))

    assert len(clients.fetch()) == 1
    assert operator.see("admin/system/maintenance").json()["maintenance"] is False


def test_maintenance_may_refuse_new_jobs_too(operator, clients):
    operator.send("admin/system/maintenance", {"enabled": True, "refuse_jobs": True})

    assert clients.push().status_code == 503


def test_neither_timers_nor_schedules_run_in_maintenance_and_both_do_afterwards(operator, clients):
    JobFactory(scheduled=True, scheduled_at=ago(60))
    clients.send("cron", {"name": "report", "cron": "0 9 * * *", "type": "report.make"})
    CronJob.objects.update(next_run_at=ago(1), anchored_at=ago(3600))
    operator.send("admin/system/maintenance", {"enabled": True})

    reaper.sweep()
    assert list(Job.objects.values_list("state", flat=True)) == [State.SCHEDULED]

    operator.send("admin/system/maintenance", {"enabled": False})
    reaper.sweep()
    assert list(Job.objects.values_list("state", flat=True)) == [State.AVAILABLE] * 2


def test_ending_what_has_not_begun_is_no_error_and_no_action(operator):
    reply = operator.send("admin/system/maintenance", {"enabled": False})

    assert (reply.status_code, reply.json()["maintenance"]) == (200, False)
    assert not OperatorAction.objects.exists()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "enabled"),
        ({"enabled": None}, "enabled"),
        ({"enabled": "yes"}, "enabled"),
        ({"enabled": True, "estimated_duration": "soon"}, "estimated_duration"),
        ({"enabled": True, "estimated_duration": "PT0S"}, "estimated_duration"),
        ({"enabled": True, "until": "soon"}, "until"),
        ({"enabled": True, "until": "2020-01-01T00:00:00Z"}, "until"),
        ({"enabled": True, "reason": 5}, "reason"),
        ({"enabled": True, "refuse_jobs": "no"}, "refuse_jobs"),
    ],
    ids=str,
)
def test_an_invalid_field_of_maintenance_is_refused_by_name(operator, body, field):
    reply = operator.send("admin/system/maintenance", body)

    assert (reply.status_code, refusal(reply)["details"]["field"]) == (400, field)
    assert not Maintenance.objects.exists()


# Configuration (§12.2)


def test_the_configuration_is_shown_in_plain_values(operator, settings):
    settings.OJS = {**settings.OJS, "HEARTBEAT_TIMEOUT": 45, "ENQUEUE_MIDDLEWARE": []}

    body = operator.see("admin/system/config").json()

    assert body["options"]["HEARTBEAT_TIMEOUT"] == 45
    assert body["options"]["AGQ"]["PORT"] == 6380
    assert body["backend"] in ("postgres", "sqlite")
    assert body["capabilities"]["batch_enqueue"] is True and body["specversion"] == "1.0"


def test_no_secret_is_part_of_the_configuration(operator, settings):
    from jobs.api.admin.system import plain

    settings.SECRET_KEY = "hush-hush"
    shown = plain({"WEBHOOK_SECRET": "a", "inner": {"db_password": "b", "API_KEY_CACHE": 10}})

    assert shown == {"inner": {"API_KEY_CACHE": 10}}
    text = operator.see("admin/system/config").content.decode()
    assert "hush-hush" not in text and "ojs_" not in text.replace("django_ojs", "")


# Scopes (§13.1)

READ, WRITE, PURGE = "ojs:admin:read", "ojs:admin:write", "ojs:admin:purge"


def test_a_key_that_may_read_changes_nothing():
    job = JobFactory(dead=True)
    reader = holder(READ)

    assert reader.see("admin/jobs").status_code == 200
    assert reader.send(f"admin/jobs/{job.pk}/retry").status_code == 403
    assert reader.delete(f"/ojs/v1/admin/dead-letter/{job.pk}").status_code == 403
    assert Job.objects.get().state == State.DISCARDED


def test_a_key_that_may_write_deletes_nothing_for_good_and_sees_nothing():
    job = JobFactory(dead=True)
    writer, sure = holder(WRITE), json.dumps({"confirm": True})

    for path in (f"dead-letter/{job.pk}", "dead-letter"):
        reply = writer.delete(f"/ojs/v1/admin/{path}", data=sure, content_type="application/json")
        assert refusal(reply)["details"] == {"scope": PURGE}
    assert writer.see("admin/jobs").status_code == 403
    assert writer.send(f"admin/dead-letter/{job.pk}/retry").status_code == 200


def test_who_operates_administers_but_sees_no_arguments_that_are_hidden_from_others():
    from jobs.models import Scope

    assert all(
        scope.is_opened_by(["operate"], reads=True)
        for scope in (READ, WRITE, PURGE)
        for scope in (Scope(scope),)
    )
    assert not Scope.ADMIN_ARGS.is_opened_by(["operate", READ, WRITE, PURGE], reads=True)


def test_the_scopes_of_the_data_plane_tell_reading_from_writing():
    job = JobFactory()
    reader, writer = holder("ojs:data:read"), holder("ojs:data:write")

    assert reader.see(f"jobs/{job.pk}").status_code == 200
    assert reader.push().status_code == 403
    assert writer.push().status_code == 201
    (fetched, *_) = writer.fetch()
    assert writer.ack(fetched["id"]).status_code == 200
    assert writer.see(f"jobs/{job.pk}").status_code == 403
    assert holder("ojs:data:read", "ojs:data:write").see("admin/jobs").status_code == 403


def test_keys_of_producers_and_workers_do_not_administer(clients):
    assert clients.see("admin/jobs").status_code == 403
    assert OJSClient().see("admin/jobs").status_code == 401


def test_retry_is_for_sets_too(operator):
    """The engine does for many jobs what the single endpoints do: the bulk endpoints call it."""
    jobs = [JobFactory(cancelled=True), JobFactory(dead=True), JobFactory(completed=True)]

    assert engine.retry([job.pk for job in jobs]) == 1
    assert engine.retry([job.pk for job in jobs], cancelled=True) == 1

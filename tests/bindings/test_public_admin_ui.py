"""What the public admin UI asks for, in its words."""

from __future__ import annotations

import pytest

from jobs.http.authentication import make_key
from jobs.models import Job, OperatorAction
from tests.factories import JobFactory
from tests.ojs_client import OJSClient, refusal

pytestmark = pytest.mark.django_db


def change(api, path, body):
    return api.patch(f"/ojs/v1/{path}", data=body, content_type="application/json")


def shown(reply):
    assert reply.status_code == 200, reply.content
    body = reply.json()
    assert body["items"] == body["events"]
    return [event["id"] for event in body["items"]], body["pagination"]


def test_events_have_numbered_pages_newest_first(api):
    for _ in range(5):
        api.pushed()
    in_order = [event["id"] for event in api.see("events").json()["events"]]

    first, pagination = shown(api.see("events", page=1, per_page=2))
    last, rest = shown(api.see("events", page=3, per_page=2))

    assert (first, last) == (in_order[:2:-1], in_order[:1])
    assert pagination == {"total": 5, "page": 1, "per_page": 2, "has_more": True}
    assert rest["has_more"] is False


def test_a_page_of_events_says_where_newer_ones_begin(api):
    api.pushed()
    cursor = api.see("events", page=1, per_page=50).json()["cursor"]
    api.pushed()

    (newer,) = api.see("events", after=cursor).json()["events"]

    assert newer["id"] == api.see("events", page=1).json()["items"][0]["id"]


def test_events_are_filtered_by_one_type(api):
    api.pushed()
    api.fetch()

    found = api.see("events", page=1, per_page=50, type="job.started").json()

    assert [event["type"] for event in found["items"]] == ["job.started"]
    assert found["pagination"]["total"] == 1


def test_a_page_of_events_by_number_has_no_cursor(api):
    api.pushed()
    cursor = api.see("events").json()["cursor"]

    assert refusal(api.see("events", page=1, after=cursor))["details"]["field"] == "page"


def test_the_key_of_a_project_gets_pages_of_its_own_events():
    anyone, own = (OJSClient(make_key(name, project=name)[1]) for name in ("other", "acme"))
    for client in (anyone, own, anyone, own):
        client.pushed()
    in_order = [event["id"] for event in own.see("events").json()["events"]]

    first, pagination = shown(own.see("events", page=1, per_page=1))

    assert first == in_order[:0:-1]
    assert pagination == {"total": 2, "page": 1, "per_page": 1, "has_more": True}


def test_maintenance_has_a_beginning_and_an_end(api):
    off = api.see("admin/system/maintenance").json()
    assert (off["enabled"], off["started_at"], off["ends_at"]) == (False, None, None)

    api.send("admin/system/maintenance", {"enabled": True, "duration": "1h"})

    on = api.see("admin/system/maintenance").json()
    assert on["enabled"] is True
    assert (on["started_at"], on["ends_at"]) == (on["enabled_at"], on["estimated_end"])
    assert on["started_at"] < on["ends_at"]


def test_priorities_of_a_queue_are_a_list_too(api):
    for priority in (0, 5, 5):
        api.pushed(queue="email", options={"priority": priority})

    stats = api.see("queues/email/priority-stats").json()

    assert stats["distribution"] == [{"priority": 0, "count": 1}, {"priority": 5, "count": 2}]


def test_pools_are_listed_under_their_name(api):
    pool = {"queues": ["email"], "strategy": "strict"}
    api.put("/ojs/v1/admin/pools/critical", data=pool, content_type="application/json")

    body = api.see("admin/pools").json()

    assert [pool["name"] for pool in body["pools"]] == ["critical"]
    assert body["pools"] == body["items"]


def test_an_operator_changes_the_priority_of_a_waiting_job_and_it_is_audited(api):
    job = JobFactory(priority=1)

    reply = change(api, f"admin/jobs/{job.pk}", {"priority": 7, "reason": "waits"})

    assert reply.status_code == 200, reply.content
    assert (reply.json()["priority"], reply.json()["previous_priority"]) == (7, 1)
    assert Job.objects.get().priority == 7
    action = OperatorAction.objects.get()
    assert (action.verb, action.reason) == ("change_job", "waits")
    assert action.selection == {"priority": 7, "ids": [str(job.pk)]}


def test_the_priority_of_a_job_that_runs_stays_and_nothing_is_audited(api):
    job = JobFactory(active=True)

    assert change(api, f"admin/jobs/{job.pk}", {"priority": 7}).status_code == 409

    assert not OperatorAction.objects.exists()

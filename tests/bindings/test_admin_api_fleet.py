"""Many workers through the Admin API: one order to all that match a label or another filter."""

from __future__ import annotations

import pytest

from jobs.http.authentication import make_key
from jobs.models import OperatorAction
from tests.factories import JobFactory, WorkerFactory
from tests.ojs_client import OJSClient, refusal
from workers.lifecycle import WorkerState
from workers.models import Directive, Worker

pytestmark = pytest.mark.django_db

BULK = "admin/workers/bulk"


@pytest.fixture
def operator():
    return OJSClient(make_key("on-call", scopes=["ojs:admin:read", "ojs:admin:write"])[1])


@pytest.fixture
def fleet():
    WorkerFactory(worker_id="a", labels=["blue", "eu"], queues=["mail"])
    WorkerFactory(worker_id="b", labels=["blue"], queues=["mail", "web"], hostname="host-2")
    WorkerFactory(worker_id="c", labels=["green"], queues=["web"])
    WorkerFactory(worker_id="gone", labels=["blue"], left=True)
    JobFactory(active=True, reserved_by="a")


def directed():
    rows = Worker.objects.exclude(directive="").order_by("pk")
    return dict(rows.values_list("pk", "directive"))


def test_a_label_is_quieted_and_the_next_fetch_and_heartbeat_of_each_obey(operator, fleet):
    JobFactory(queue="mail")
    process = OJSClient(make_key("process", scopes=["work"])[1])
    body = {"filter": {"label": "blue"}, "confirm": True, "reason": "Release 42"}

    reply = operator.send(f"{BULK}/quiet", body)

    assert reply.status_code == 200
    assert reply.json() == {
        "action": "quiet",
        "matched": 2,
        "signalled": 2,
        "active_jobs": 1,
        "workers": ["a", "b"],
        "unserved_queues": ["mail"],
        "has_more": False,
    }
    assert directed() == {"a": "quiet", "b": "quiet"}
    fetched = process.send("workers/fetch", {"worker_id": "b", "queues": ["mail"]})
    assert fetched.json()["jobs"] == []
    beat = process.send("workers/heartbeat", {"worker_id": "b", "state": "running"})
    assert beat.json()["state"] == "quiet"
    action = OperatorAction.objects.get()
    assert (action.verb, action.actor, action.source) == ("quiet_worker", "on-call", "api")
    assert (action.count, action.reason) == (2, "Release 42")
    assert action.selection == {"filter": {"label": "blue"}, "ids": ["a", "b"]}
    assert Directive.objects.filter(action_id=action.pk).count() == 2


def test_they_are_resumed_and_terminated_the_same_way(operator, fleet):
    for verb in ("quiet", "resume", "terminate"):
        reply = operator.send(f"{BULK}/{verb}", {"all": True, "confirm": True})
        assert (reply.json()["matched"], reply.json()["signalled"]) == (3, 3), verb

    assert set(directed().values()) == {"terminate"}
    again = operator.send(f"{BULK}/terminate", {"all": True, "confirm": True}).json()
    assert (again["matched"], again["signalled"]) == (3, 0)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"label": ["blue", "eu"]}, ["a"]),
        ({"queue": "web"}, ["b", "c"]),
        ({"queue": ["mail", "web"], "hostname": "host-2"}, ["b"]),
        ({"worker_id": ["a", "c", "nobody"]}, ["a", "c"]),
        ({"state": "running", "label": "green"}, ["c"]),
        ({"state": ["quiet", "stale"]}, []),
        ({"version": "9"}, []),
    ],
    ids=str,
)
def test_a_dry_run_lists_the_workers_that_match_and_sends_no_directive(
    operator, fleet, wanted, expected
):
    reply = operator.send(f"{BULK}/quiet", {"filter": wanted, "dry_run": True}).json()

    assert (reply["workers"], reply["matched"], reply["dry_run"]) == (expected, len(expected), True)
    assert directed() == {} and not OperatorAction.objects.exists()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"confirm": True}, "filter"),
        ({"filter": {}, "confirm": True}, "filter"),
        ({"filter": {"label": None}, "confirm": True}, "filter"),
        ({"filter": {"label": ""}, "confirm": True}, "filter.label"),
        ({"filter": {"label": []}, "confirm": True}, "filter.label"),
        ({"filter": {"label": [1]}, "confirm": True}, "filter.label[0]"),
        ({"filter": {"label": 7}, "confirm": True}, "filter.label"),
        ({"filter": {"colour": "blue"}, "confirm": True}, "filter.colour"),
        ({"filter": {"state": "happy"}, "confirm": True}, "filter.state"),
        ({"filter": "blue", "confirm": True}, "filter"),
        ({"filter": {"label": "blue"}}, "confirm"),
        ({"filter": {"label": "blue"}, "all": "yes", "confirm": True}, "all"),
    ],
    ids=str,
)
def test_an_order_that_does_not_say_whom_it_means_is_refused(operator, fleet, body, field):
    reply = operator.send(f"{BULK}/quiet", body)

    assert reply.status_code in (400, 422)
    assert refusal(reply)["details"]["field"] == field
    assert directed() == {}


def test_the_key_of_a_project_orders_its_own_workers_only(fleet):
    Worker.objects.filter(pk="a").update(project="acme")
    scopes = ["ojs:admin:read", "ojs:admin:write"]
    acme = OJSClient(make_key("acme", scopes=scopes, project="acme")[1])

    acme.send(f"{BULK}/quiet", {"all": True, "confirm": True})

    assert directed() == {"a": "quiet"}


def test_a_worker_that_is_called_bulk_can_be_ordered_all_the_same(operator):
    WorkerFactory(worker_id="bulk")

    reply = operator.send("admin/workers/bulk/directive", {"directive": "quiet"})

    assert reply.json()["signalled"] is True
    assert Worker.objects.get().directive == WorkerState.QUIET

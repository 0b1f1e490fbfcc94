"""Marks of charts: deployments that workers bring, notes of operators, and what the audit knows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs import engine
from jobs.access.audit import Actor
from jobs.engine import maintenance
from jobs.http.authentication import make_key
from jobs.models import OperatorAction, Rollup, Source
from tests.concurrency.threads import together
from tests.database import connection
from tests.factories import QueueFactory, WorkerFactory, ago
from tests.ojs_client import OJSClient
from tests.operators import answer, choose, staff
from workers import protocol
from workers.fleet import drain, marks
from workers.liveness import deployments
from workers.models import FleetSample, Mark, Worker
from workers.protocol import Description

pytestmark = pytest.mark.django_db

OPS = Actor("ops", Source.ADMIN)
DASHBOARD = "/admin/ojs_workers/dashboard/"
BREAKDOWN = f"{DASHBOARD}breakdown/"


def registers(worker_id: str, version: str, project: str = "") -> None:
    about = Description(hostname="h", pid=1, version=version, project=project or None)
    protocol.register(worker_id, about)


def deployed() -> list[tuple[str, str]]:
    found = Mark.objects.filter(kind="deployment").order_by("pk")
    return list(found.values_list("project", "text"))


def test_the_first_worker_with_a_version_marks_a_deployment():
    registers("a", "shop/1")
    registers("b", "shop/1")
    registers("a", "shop/2")
    registers("c", "")
    registers("b", "shop/2")
    registers("a", "shop/1")

    assert deployed() == [("", "shop/1"), ("", "shop/2")]
    assert Mark.objects.get(text="shop/2").by == "a"


def test_each_project_has_deployments_of_its_own():
    registers("a", "shop/1", "acme")
    registers("b", "shop/1", "other")

    assert deployed() == [("acme", "shop/1"), ("other", "shop/1")]


def test_a_worker_that_is_discovered_by_its_heartbeat_counts_and_later_ones_cost_nothing():
    about = Description(hostname="h", pid=1, version="shop/7")
    protocol.beat("w", description=about)
    assert deployed() == [("", "shop/7")]

    about = Description(hostname="h", pid=1, version="shop/8")
    protocol.beat("w", description=about)

    assert deployed() == [("", "shop/7")], "only arrivals are looked at"


def test_a_version_that_an_operator_has_announced_is_not_marked_again():
    marks.add(OPS, "deployment", "shop/1")

    registers("a", "shop/1", "acme")

    assert deployed() == [("", "shop/1")]


def test_versions_that_differ_for_each_worker_are_not_all_marked(monkeypatch):
    monkeypatch.setattr(deployments, "MOST", 3)

    for number in range(5):
        registers(f"w{number}", f"shop (pid {number})")

    assert len(deployed()) == 3


def test_marks_are_forgotten_when_no_chart_shows_them_unless_their_version_runs():
    registers("a", "shop/1")
    registers("b", "shop/0")
    Worker.objects.filter(pk="b").delete()
    marks.add(OPS, "note", "long ago")
    Mark.objects.update(at=ago(36 * 86_400))
    marks.add(OPS, "note", "now")

    assert marks.prune() == 2

    assert sorted(Mark.objects.values_list("text", flat=True)) == ["now", "shop/1"]


def test_what_the_audit_knows_is_read_from_there():
    ops = staff("view_queue", "pause_queue")
    for name in ("mail", "web"):
        question = choose(ops, "ojs_jobs_queue", "pause", QueueFactory(name=name))
        answer(ops, question, reason="Deploy")
    maintenance.begin(actor=OPS, reason="New disks")
    maintenance.end(actor=OPS)
    WorkerFactory(worker_id="w")
    operation = drain.start(["w"], actor=OPS)
    drain.abort(operation.pk, actor=OPS)
    registers("a", "shop/1")

    found = marks.entries(ago(60))
    of_mail = marks.entries(ago(60), queue="mail")

    def short(entry: marks.Entry) -> tuple[str, str, str]:
        return entry.kind, entry.change, entry.text

    assert sorted(map(short, found)) == [
        ("deployment", "", "shop/1"),
        ("drain", "", ""),
        ("drain", "aborted", ""),
        ("maintenance", "off", ""),
        ("maintenance", "on", "New disks"),
        ("pause", "", "Deploy"),
        ("pause", "", "Deploy"),
    ]
    assert found == sorted(found, key=lambda entry: entry.at, reverse=True)
    assert {entry.operation_id for entry in found if entry.kind == "drain"} == {operation.pk}
    assert [entry.targets for entry in of_mail if entry.kind == "pause"] == [("mail",)]
    assert len(of_mail) == 6
    assert marks.entries(ago(60), ago(30)) == []
    assert [entry.kind for entry in marks.entries(ago(60), kinds=["deployment"])] == ["deployment"]
    assert {entry.kind for entry in marks.entries(ago(60), kinds=["pause"])} == {"pause"}


def test_charts_show_marks_and_a_list_leads_to_what_was_done(admin_client):
    QueueFactory(name="mail")
    engine.pause("mail")
    OperatorAction.objects.create(
        done_at=ago(600),
        actor="ops",
        source="admin",
        verb="pause_queue",
        target_kind="queue",
        count=1,
        selection={"ids": ["mail"]},
        reason="<b>Disk</b>",
    )
    mark = marks.add(OPS, "deployment", "shop/2")
    # Not in the same point of a chart as the pause.
    Mark.objects.update(at=ago(7200))
    Rollup.objects.create(resolution=60, start=ago(600), completed=1, waits={"10": 1}, available=1)
    FleetSample.objects.create(resolution=60, start=ago(600), running=1)

    page = admin_client.get(DASHBOARD, {"range": "24h"}).content.decode()

    assert page.count('class="ojs-mark ojs-mark-deployment"') == 4
    assert "Deployed: shop/2</title>" in page
    assert "Paused mail: &lt;b&gt;Disk&lt;/b&gt;" in page and "<b>Disk" not in page
    assert f'href="/admin/ojs_workers/mark/{mark.pk}/change/"' in page
    assert 'href="/admin/ojs_jobs/queue/mail/change/"' in page
    assert 'href="/admin/ojs_workers/mark/add/"' in page
    looker = (
        staff("view_dashboard")
        .get(DASHBOARD, {"range": "24h"})
        .content.decode()
        .split('class="ojs-marks"')[1]
    )
    assert "Deployed: shop/2" in looker and "<a" not in looker.split("</ul>")[0]


def test_an_operator_adds_a_mark_in_the_admin():
    ops = staff("view_mark", "add_mark")

    reply = ops.post(
        "/admin/ojs_workers/mark/add/", {"kind": "note", "text": "Black Friday", "project": ""}
    )

    assert reply.status_code == 302
    mark = Mark.objects.get()
    assert (mark.kind, mark.text, mark.by, mark.source) == ("note", "Black Friday", "ops", "admin")
    assert abs(mark.at - timezone.now()) < timedelta(minutes=5)
    action = OperatorAction.objects.get()
    assert (action.verb, action.selection["text"]) == ("add_mark", "Black Friday")
    page = ops.get(f"/admin/ojs_workers/mark/{mark.pk}/change/").content.decode()
    assert "Black Friday" in page and "<select" not in page.split('id="content-main"')[1]


# The Admin API


def client(*scopes: str, project: str = "") -> OJSClient:
    return OJSClient(make_key("ci", scopes=scopes or ["operate"], project=project)[1])


def test_a_pipeline_marks_its_deployment_and_reads_all_marks():
    ci = client()
    maintenance.begin(actor=OPS, reason="New disks")

    made = ci.send("admin/marks", {"text": "v2.1"})
    found = ci.see("admin/marks").json()

    assert made.status_code == 201
    mark = made.json()
    assert (mark["kind"], mark["text"], mark["by"], mark["source"]) == (
        "deployment",
        "v2.1",
        "ci",
        "api",
    )
    assert found["items"][0] == mark
    assert found["items"][1]["kind"] == "maintenance"
    assert found["items"][1]["action"]["change"] == "on"
    assert found["has_more"] is False
    assert ci.see("admin/marks", limit=1).json()["has_more"] is True
    assert ci.see("admin/marks", kind="note").json()["items"] == []


def test_the_key_of_a_project_has_the_marks_of_its_project():
    maintenance.begin(actor=OPS)
    client().send("admin/marks", {"text": "everywhere"})
    theirs = client(project="acme")

    made = theirs.send("admin/marks", {"kind": "note", "text": "Sale"}).json()

    assert made["project"] == "acme"
    assert [mark["text"] for mark in theirs.see("admin/marks").json()["items"]] == ["Sale"]
    assert client("ojs:admin:read").send("admin/marks", {"text": "x"}).status_code == 403


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "text", "text"),
        ({"text": ""}, "text", "empty"),
        ({"text": "x" * 256}, "text", "255"),
        ({"text": 7}, "text", "string"),
        ({"text": "x", "kind": "pause"}, "kind", "must be one of deployment, note"),
    ],
)
def test_a_mark_that_cannot_be_made_is_refused_with_the_reason(body, field, words):
    reply = client().send("admin/marks", body)

    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["details"]["field"] == field and words in error["message"]
    assert not Mark.objects.exists()


@pytest.mark.parametrize(
    "query",
    [
        {"since": "yesterday"},
        {"kind": "x"},
        {"limit": "0"},
        {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
        {"form": "x"},
    ],
)
def test_a_list_of_marks_that_is_asked_for_wrongly_is_refused(query):
    assert client().see("admin/marks", **query).status_code == 400


@pytest.mark.django_db(transaction=True)
def test_of_many_that_register_at_once_with_a_new_version_one_makes_the_mark():
    if connection.vendor == "sqlite":
        for number in range(8):
            registers(f"w{number}", "shop/3")
    else:
        together(*(lambda n=number: registers(f"w{n}", "shop/3") for number in range(8)))

    assert deployed() == [("", "shop/3")]
    assert Worker.objects.count() == 8

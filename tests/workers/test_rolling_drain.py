"""A rolling drain: few workers at a time, never below the floor, and no job is lost."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone, translation

from jobs.access.audit import Actor
from jobs.errors import Conflict, InvalidRequest
from jobs.models import Job, OperatorAction, Source
from tests.factories import WorkerFactory, ago
from tests.operators import answer, choose, operator, press
from tests.workers.fleets import Fleet, directives
from workers.admin.operation import waits_for
from workers.chores import reaper
from workers.fleet import drain
from workers.models import FleetOperation, OperationStep, Worker

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

OPS = Actor("ops", Source.SHELL)
WORKER = "ojs_workers_worker"


def begin(fleet, names=None, **how):
    return drain.start(names or fleet.names, actor=OPS, **how)


def phases(operation):
    return dict(operation.steps.values_list("worker_id", "phase"))


def test_it_quiets_few_at_a_time_waits_until_they_are_idle_and_terminates_them(api):
    fleet = Fleet(api, 4)
    held = fleet.give("w000")
    operation = begin(fleet, max_unavailable="50%")

    fleet.sweep()
    assert list(directives().values()) == ["quiet", "quiet", "", ""]
    fleet.beat()
    fleet.round()
    assert directives()["w000"] == "quiet", "it still has a job in its hands"
    assert directives()["w001"] == "terminate"

    api.send("workers/ack", {"job_id": str(held.pk), "worker_id": "w000"})
    for _ in range(8):
        fleet.round()

    operation.refresh_from_db()
    assert operation.state == "completed"
    assert set(phases(operation).values()) == {"gone"}
    assert Job.objects.get().state == "completed"
    assert OperatorAction.objects.filter(verb="drain_fleet").count() == 1


def test_two_hundred_workers_are_drained_two_heartbeats_after_the_last_one_is_idle(api):
    fleet = Fleet(api, 200)
    held = [fleet.give(name) for name in fleet.names[::2]]
    operation = begin(fleet, max_unavailable="100%")
    fleet.sweep()
    fleet.round()
    fleet.round()
    fleet.round()
    assert sorted(fleet.in_state("gone")) == fleet.names[1::2]

    acks = [{"job_id": str(job.pk), "worker_id": job.reserved_by} for job in held]
    for ack in acks:
        api.send("workers/ack", ack)
    fleet.round()
    fleet.round()

    operation.refresh_from_db()
    assert len(fleet.in_state("gone")) == 200
    assert operation.state == "completed"


def test_the_floor_holds_at_every_moment(api):
    fleet = Fleet(api, 10, concurrency=2)
    mail = Fleet(api, 0)
    WorkerFactory(worker_id="mail", queues=["mail", "default"], concurrency=1)
    mail.names, mail.states = ["mail"], {"mail": "running"}
    operation = begin(fleet, [*fleet.names, "mail"], max_unavailable="4", floor="default=7 mail=1")

    for _ in range(30):
        mail.beat()
        fleet.round()

    operation.refresh_from_db()
    assert min(found["default"] for found in fleet.capacities) == 7
    assert min(found["mail"] for found in fleet.capacities) == 1
    assert operation.state == "running"
    assert "never under" in operation.waits_for

    for number in range(4):
        WorkerFactory(worker_id=f"new{number}", queues=["mail", "default"], concurrency=2)
    for _ in range(20):
        Worker.objects.filter(pk__startswith="new").update(last_heartbeat_at=ago(0))
        mail.beat()
        fleet.round()
    operation.refresh_from_db()
    assert operation.state == "completed"
    assert min(found["default"] for found in fleet.capacities) == 7


def test_abort_resumes_those_it_quieted_and_only_them(api):
    fleet = Fleet(api, 5)
    Worker.objects.filter(pk="w000").update(directive="quiet", directed_at=ago(60))
    fleet.give("w001")
    operation = begin(fleet, max_unavailable="3")
    fleet.sweep()
    fleet.beat()
    fleet.round()
    assert directives()["w001"] == "quiet"

    assert drain.abort(operation.pk, actor=OPS, reason="No")

    for _ in range(3):
        fleet.round()
    assert fleet.states["w001"] == "running"
    assert {fleet.states["w003"], fleet.states["w004"]} == {"running"}
    operation.refresh_from_db()
    assert operation.state == "aborted"
    assert not OperationStep.objects.filter(is_open=True).exists()
    assert not drain.abort(operation.pk, actor=OPS)


def test_abort_leaves_alone_what_was_quiet_before(api):
    fleet = Fleet(api, 2)
    for name in fleet.names:
        fleet.give(name)
    Worker.objects.filter(pk="w000").update(directive="quiet", directed_at=ago(60))
    operation = begin(fleet, max_unavailable="2")
    fleet.sweep()

    drain.abort(operation.pk, actor=OPS)

    assert directives()["w000"] == "quiet"
    assert directives()["w001"] == ""


def test_a_paused_operation_takes_no_further_worker_and_goes_on_when_continued(api):
    fleet = Fleet(api, 3)
    operation = begin(fleet)
    fleet.sweep()
    drain.pause(operation.pk, actor=OPS)

    for _ in range(4):
        fleet.round()
    assert fleet.in_state("quiet") == ["w000"]
    assert fleet.in_state("running") == ["w001", "w002"]

    drain.go_on(operation.pk, actor=OPS)
    for _ in range(12):
        fleet.round()
    assert len(fleet.in_state("gone")) == 3


def test_a_worker_that_an_operator_resumes_is_left_alone(api):
    fleet = Fleet(api, 1)
    fleet.give("w000")
    operation = begin(fleet)
    fleet.sweep()
    fleet.beat()

    Worker.objects.filter(pk="w000").resume()
    Job.objects.all().delete()
    for _ in range(4):
        fleet.round()

    assert fleet.states["w000"] == "running"
    assert phases(operation) == {"w000": "left alone"}


def test_a_worker_has_one_operation_at_a_time(api):
    fleet = Fleet(api, 3)
    begin(fleet, ["w000", "w001"])

    with pytest.raises(Conflict, match="w001"):
        begin(fleet, ["w001", "w002"])

    assert FleetOperation.objects.count() == 1
    assert begin(fleet, ["w002"])


def test_a_worker_that_takes_too_long_is_terminated_when_its_time_is_up(api):
    fleet = Fleet(api, 1)
    fleet.give("w000")
    begin(fleet, idle_limit=timedelta(minutes=5))
    fleet.sweep()
    fleet.beat()
    fleet.round()
    assert directives()["w000"] == "quiet"

    OperationStep.objects.update(quieted_at=ago(301))
    fleet.sweep()

    assert directives()["w000"] == "terminate"


@pytest.mark.parametrize(
    ("speaks", "is_sure"),
    [
        ({"protocol": "ojs"}, False),
        ({"protocol": "rota", "reports_state": True}, False),
        ({"protocol": "rota"}, True),
        ({"protocol": "agq"}, True),
    ],
)
def test_an_idle_worker_is_waited_for_until_it_reports_quiet_if_it_can(speaks, is_sure):
    worker = WorkerFactory(**speaks)
    operation = drain.start([worker.pk], actor=OPS, terminates=False)
    reaper.sweep()
    reaper.sweep()
    assert phases(operation) == {worker.pk: "draining"}, "not heard since"

    Worker.objects.update(last_heartbeat_at=timezone.now())
    reaper.sweep()
    assert phases(operation) == {worker.pk: "held" if is_sure else "draining"}

    Worker.objects.update(state="quiet")
    reaper.sweep()
    assert phases(operation) == {worker.pk: "held"}


def test_drained_workers_may_be_held_quiet(api):
    fleet = Fleet(api, 2)
    operation = begin(fleet, terminates=False)

    for _ in range(6):
        fleet.round()

    operation.refresh_from_db()
    assert operation.state == "completed"
    assert fleet.in_state("quiet") == fleet.names


def test_it_waits_until_replacements_run(api):
    fleet = Fleet(api, 2)
    operation = begin(fleet, replacement_label="green")
    for _ in range(5):
        fleet.round()
    assert fleet.in_state("gone") == ["w000"]
    assert fleet.in_state("running") == ["w001"]
    operation.refresh_from_db()
    assert operation.waits_for == "0 of 1 replacements “green” run"
    with translation.override("de"):
        assert waits_for(operation) == "0 von 1 Ersatz-Workern „green“ laufen"

    WorkerFactory(labels=["green"], registered_at=ago(-1))
    for _ in range(4):
        fleet.round()
    assert len(fleet.in_state("gone")) == 2


def test_replacements_may_have_come_before_the_drain_began(api):
    """As in a deployment: first the new workers, then the drain of the old ones."""
    fleet = Fleet(api, 2, labels=["release-1"])
    WorkerFactory(labels=["release-2"], registered_at=ago(60))
    operation = begin(fleet, replacement_label="release-2")
    for _ in range(12):
        fleet.round()

    operation.refresh_from_db()
    assert operation.state == "completed"


def test_those_with_the_label_of_the_drained_are_replacements_only_if_they_came_since(api):
    fleet = Fleet(api, 2, labels=["blue"])
    WorkerFactory(labels=["blue"], registered_at=ago(60))
    begin(fleet, replacement_label="blue")
    for _ in range(6):
        fleet.round()
    assert len(fleet.in_state("gone")) == 1

    WorkerFactory(labels=["blue"], registered_at=ago(-1))
    for _ in range(6):
        fleet.round()
    assert len(fleet.in_state("gone")) == 2


def test_a_worker_that_dies_on_the_way_does_not_hold_it_up(api):
    fleet = Fleet(api, 2)
    operation = begin(fleet)
    fleet.sweep()
    Worker.objects.filter(pk="w000").update(last_heartbeat_at=ago(3600))

    for _ in range(6):
        fleet.round("w001")

    operation.refresh_from_db()
    assert operation.state == "completed"


def test_no_job_is_handed_to_a_worker_that_is_being_drained(api):
    fleet = Fleet(api, 1)
    api.pushed(queue="default")
    begin(fleet)
    reaper.sweep()

    assert api.fetch("default", worker_id="w000") == []


@pytest.mark.parametrize("bad", ["x", "-1", "101%", "1.5", ""])
def test_an_amount_that_cannot_be_read_is_refused(api, bad):
    with pytest.raises(InvalidRequest, match="max_unavailable"):
        begin(Fleet(api, 1), max_unavailable=bad)
    assert not FleetOperation.objects.exists()


def test_an_operator_drains_a_selection_in_the_admin_and_aborts_it(api):
    fleet = Fleet(api, 2)
    fleet.give("w000")
    ops = operator()
    page = choose(ops, WORKER, "drain", *Worker.objects.all())
    assert "w000" in page.content.decode()
    bad = answer(ops, page, max_unavailable="many", floor="", terminates="terminate")
    assert "must be a number or a percentage" in bad.content.decode()

    shown = answer(ops, bad, max_unavailable="1", terminates="terminate", reason="Deploy")
    fleet.sweep()
    url = reverse("admin:ojs_workers_fleetoperation_change", args=[FleetOperation.objects.get().pk])
    shown = ops.get(url)
    content = shown.content.decode()
    assert "finishes its jobs" in content and "waiting for its turn" in content
    assert shown.context["refresh"]
    assert (
        "0 of 2" in ops.get(reverse("admin:ojs_workers_fleetoperation_changelist")).content.decode()
    )

    answer(ops, press(ops, shown, "abort"), reason="No")
    assert FleetOperation.objects.get().state == "aborted"
    assert directives()["w000"] == ""
    assert OperatorAction.objects.filter(verb="drain_fleet").count() == 2

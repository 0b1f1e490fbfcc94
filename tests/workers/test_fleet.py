"""Orders to a fleet: their targets, records and outcomes."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse
from django.utils import timezone

from jobs.models import OperatorAction
from tests.factories import JobFactory, WorkerFactory, ago
from tests.operators import answer, choose, confirm, list_of, operator, staff, viewer
from tests.workers.fleets import Fleet, directives
from workers.chores import reaper
from workers.models import Directive

pytestmark = pytest.mark.django_db

WORKER = "ojs_workers_worker"


def words(client, action):
    page = client.get(reverse("admin:ojs_workers_worker_order", args=[action.pk]))
    return page.context["words"]


def test_an_order_to_several_leads_to_a_page_that_says_how_far_they_are(api):
    ops, workers = operator(), Fleet(api, 3)
    done = confirm(ops, WORKER, "quiet", *_rows(workers), reason="Deploy")

    assert done.resolver_match.url_name == "ojs_workers_worker_order"
    assert done.context["words"].startswith("0 of 3 report “quiet”")
    assert done.context["refresh"]

    workers.beat("w000", "w001")
    workers.beat("w000", "w001")
    action = OperatorAction.objects.get()
    assert words(ops, action).startswith("2 of 3 report “quiet”, 1 has not been heard for")

    workers.beat("w002")
    workers.beat("w002")
    assert words(ops, action) == "3 of 3 report “quiet”"


def _rows(fleet):
    from workers.models import Worker

    return list(Worker.objects.filter(pk__in=fleet.names).order_by("pk"))


def test_the_page_of_an_order_is_for_those_who_may_see_workers(api):
    ops = operator()
    confirm(ops, WORKER, "quiet", *_rows(Fleet(api, 2)))
    url = reverse("admin:ojs_workers_worker_order", args=[OperatorAction.objects.get().pk])

    assert viewer().get(url).status_code == 200
    assert staff("view_job", username="else").get(url).status_code == 403
    assert ops.get(url.replace(str(OperatorAction.objects.get().pk), "999")).status_code == 404


def test_the_history_of_a_worker_says_who_asked_why_and_when_it_reported(api):
    fleet = Fleet(api, 1)
    confirm(operator(), WORKER, "quiet", *_rows(fleet), reason="Too hot")
    fleet.beat()

    reaper.sweep()
    assert Directive.objects.get().answer == "waiting", "told, and not yet confirmed"

    fleet.round()
    directive = Directive.objects.get()
    assert (directive.asked_by, directive.reason, directive.state, directive.answer) == (
        "ops",
        "Too hot",
        "quiet",
        "reported",
    )
    assert directive.asked_at <= directive.answered_at


@pytest.mark.parametrize(("leaves", "outcome"), [(True, "reported"), (False, "gone")])
def test_what_became_of_an_order_to_terminate(api, leaves, outcome):
    worker = WorkerFactory(worker_id="w")
    confirm(operator(), WORKER, "terminate", worker)

    if leaves:
        api.send("workers/deregister", {"worker_id": "w"})
    else:
        type(worker).objects.update(last_heartbeat_at=ago(3600))
    reaper.sweep()
    reaper.sweep()

    assert Directive.objects.get().answer == outcome


@pytest.mark.parametrize(
    ("speaks", "state", "outcome", "said"),
    [
        ({"protocol": "ojs"}, "running", "waiting", "0 of 1 report “quiet”"),
        ({"protocol": "ojs"}, "quiet", "reported", "1 of 1 report “quiet”"),
        ({"protocol": "rota", "reports_state": True}, "running", "waiting", "0 of 1 report"),
        ({"protocol": "rota", "reports_state": True}, "quiet", "reported", "1 of 1 report"),
        ({"protocol": "rota"}, "running", "relayed", ", relayed to 1 that report no state"),
        ({"protocol": "flare"}, "running", "enforced", ", enforced at fetch for 1"),
        ({"protocol": "agq"}, "running", "enforced", ", enforced at fetch for 1"),
        ({"protocol": "removed"}, "running", "enforced", ", enforced at fetch for 1"),
    ],
)
def test_an_order_counts_as_reported_only_if_the_worker_reported_it(speaks, state, outcome, said):
    worker = WorkerFactory(**speaks)
    ops = operator()
    confirm(ops, WORKER, "quiet", worker)
    reaper.sweep()
    assert Directive.objects.get().answer == "waiting", "not heard yet"

    type(worker).objects.update(last_heartbeat_at=timezone.now(), state=state)
    page = words(ops, OperatorAction.objects.get())
    reaper.sweep()

    assert Directive.objects.get().answer == outcome
    assert said in page


def test_a_later_order_ends_the_wait_for_an_earlier_one():
    worker = WorkerFactory()
    ops = operator()
    for action in ("quiet", "terminate"):
        confirm(ops, WORKER, action, worker)

    answers = dict(Directive.objects.values_list("state", "answer"))
    assert answers == {"quiet": "superseded", "terminate": "waiting"}


def test_an_order_is_one_row_of_the_audit():
    workers = [WorkerFactory(worker_id="a", labels=["eu"]), WorkerFactory(worker_id="b")]
    ops = operator()
    page = choose(ops, WORKER, "quiet", workers[0], query="?label=eu")
    answer(ops, page, reason="Deploy 42")

    row = OperatorAction.objects.get()
    assert (row.actor, row.source, row.verb, row.target_kind, row.count, row.reason) == (
        "ops",
        "admin",
        "quiet_worker",
        "worker",
        1,
        "Deploy 42",
    )
    assert row.selection == {"filter": {"label": "eu"}, "ids": ["a"]}
    assert LogEntry.objects.count() == 1
    assert "Deploy 42" in ops.get(list_of("ojs_jobs_operatoraction")).content.decode()


def test_the_confirmation_warns_of_a_queue_without_a_running_worker():
    alone = WorkerFactory(queues=["mail", "default"])
    WorkerFactory(queues=["default"])
    WorkerFactory(queues=["mail"], silent=True)
    ops = operator()

    assert choose(ops, WORKER, "quiet", alone).context["unserved"] == ["mail"]
    assert "without a running worker" in choose(ops, WORKER, "quiet", alone).content.decode()
    WorkerFactory(queues=["mail"])
    assert choose(ops, WORKER, "quiet", alone).context["unserved"] == []


def test_all_that_a_filter_matches_is_one_press_away_and_nothing_is_without_a_filter():
    ops = operator()
    WorkerFactory(labels=["eu"])

    assert "select_across" not in _whole(ops.get(list_of(WORKER)))
    assert "select_across" in _whole(ops.get(list_of(WORKER), {"label": "eu"}))
    assert "select_across" in _whole(ops.get(list_of(WORKER), {"q": "eu"}))
    assert "select_across" not in _whole(ops.get(list_of(WORKER), {"group": "host"}))
    assert "select_across" not in _whole(viewer().get(list_of(WORKER), {"label": "eu"}))


def _whole(page):
    content = page.content.decode()
    return content.partition('class="ojs-note ojs-whole"')[2].partition("</div>")[0]


@pytest.mark.parametrize(
    "query",
    [
        {"desired": "quiet"},
        {"version": "py/2"},
        {"protocol": "agq"},
        {"stale": "yes"},
    ],
)
def test_a_worker_is_found_by_its(query):
    wanted = WorkerFactory(
        directive="quiet", version="py/2", protocol="agq", last_heartbeat_at=ago(15)
    )
    WorkerFactory(version="py/1")
    WorkerFactory(directive="terminate", state="quiet")

    found = viewer().get(list_of(WORKER), query).context["cl"].result_list
    assert [worker.pk for worker in found] == [wanted.pk]


def test_workers_are_added_up_by_host_and_by_label():
    busy = WorkerFactory(hostname="a", labels=["eu", "blue"], jobs_done=5, jobs_failed=1)
    JobFactory(active=True, reserved_by=busy.pk)
    WorkerFactory(hostname="b", labels=["eu"], directive="quiet", concurrency=2)

    def groups(by):
        rows = viewer_client.get(list_of(WORKER), {"group": by}).context["groups"]
        return {
            row.name: (row.workers, row.running, row.busy, row.capacity, row.done, row.failed)
            for row in rows
        }

    viewer_client = viewer()
    assert groups("host") == {"a": (1, 1, 1, 10, 5, 1), "b": (1, 0, 0, 2, 0, 0)}
    assert groups("label") == {"blue": (1, 1, 1, 10, 5, 1), "eu": (2, 1, 1, 12, 5, 1)}


def test_jobs_done_and_failed_are_counted_once_by_several_reapers(api):
    from workers.chores import tallies

    WorkerFactory(worker_id="w")
    for _ in range(3):
        api.pushed()
    done, failed, _ = api.fetch("default", worker_id="w", count=3)
    api.send("workers/ack", {"job_id": done["id"], "worker_id": "w"})
    error = {"type": "x", "message": "y"}
    api.send("workers/nack", {"job_id": failed["id"], "worker_id": "w", "error": error})

    for _ in range(2):
        tallies.count()

    (worker,) = type(WorkerFactory.build()).objects.all()
    assert (worker.jobs_done, worker.jobs_failed) == (1, 1)


def test_two_operators_at_once_leave_each_worker_with_one_open_order(api):
    fleet = Fleet(api, 4)
    one, other = operator(username="one"), operator(username="other")
    first = choose(one, WORKER, "quiet", *_rows(fleet))
    second = choose(other, WORKER, "terminate", *_rows(fleet)[:2])

    answer(other, second)
    answer(one, first)

    assert list(directives().values()) == ["terminate"] * 2 + ["quiet"] * 2
    waiting = Directive.objects.filter(answer="waiting").values_list("worker_id", flat=True)
    assert sorted(waiting) == fleet.names

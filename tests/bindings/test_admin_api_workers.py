"""Workers through the Admin API: list, direct, and remove dead ones (admin API §9)."""

from __future__ import annotations

import pytest

from jobs.http.authentication import make_key
from jobs.models import Job, OperatorAction
from jobs.spec.lifecycle import State
from tests.factories import JobErrorFactory, JobFactory, WorkerFactory, ago
from tests.ojs_client import OJSClient, refusal
from workers.chores import reaper
from workers.fleet import orders as fleet
from workers.lifecycle import WorkerState
from workers.models import Directive, Worker

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator():
    return OJSClient(make_key("on-call", scopes=["ojs:admin:read", "ojs:admin:write"])[1])


@pytest.fixture
def worker():
    """A worker process over HTTP."""
    return OJSClient(make_key("worker", scopes=["work"])[1])


def beat(client, worker_id, state="running", **body):
    reply = client.send("workers/heartbeat", {"worker_id": worker_id, "state": state} | body)
    assert reply.status_code == 200, reply.content
    return reply.json()["state"]


def actions():
    rows = OperatorAction.objects.order_by("id")
    return list(rows.values_list("actor", "source", "verb", "count", "reason"))


# The list (§9.1)


def test_the_fleet_is_listed_with_its_load_and_added_up_by_state(operator):
    WorkerFactory(worker_id="a", queues=["default", "email"], labels=["blue"], version="1.2.0")
    WorkerFactory(worker_id="b", state=WorkerState.QUIET)
    WorkerFactory(worker_id="c", silent=True)
    WorkerFactory(worker_id="d", dead=True)
    WorkerFactory(worker_id="e", left=True)
    WorkerFactory(worker_id="f", state=WorkerState.TERMINATE)
    for _ in range(2):
        JobFactory(active=True, reserved_by="a")

    body = operator.see("admin/workers").json()

    first = body["items"][0]
    assert [(item["id"], item["state"]) for item in body["items"]] == [
        ("a", "running"),
        ("b", "quiet"),
        ("c", "stale"),
        ("d", "stale"),
        ("f", "terminate"),
    ]
    assert (first["hostname"], first["concurrency"], first["active_jobs"]) == ("host-1", 10, 2)
    assert (first["queues"], first["labels"]) == (["default", "email"], ["blue"])
    assert first["started_at"] and first["last_heartbeat_at"] and first["version"] == "1.2.0"
    assert first["metadata"] == {}
    assert body["summary"] == {
        "total": 5,
        "running": 1,
        "quiet": 1,
        "terminate": 1,
        "stale": 2,
    }
    assert body["pagination"]["total"] == 5


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"state": "running"}, "ab"),
        ({"state": "stale"}, "c"),
        ({"label": "blue"}, "a"),
        ({"label": "bl"}, ""),
        ({"queue": "mail"}, "bc"),
        ({"hostname": "host-2"}, "b"),
        ({"label": "blue", "state": "stale"}, ""),
    ],
    ids=str,
)
def test_the_fleet_can_be_narrowed(operator, filters, expected):
    WorkerFactory(worker_id="a", labels=["blue", "v2"], queues=["default"])
    WorkerFactory(worker_id="b", labels=["green"], queues=["mail"], hostname="host-2")
    WorkerFactory(worker_id="c", queues=["mail", "x"], silent=True)

    body = operator.see("admin/workers", **filters).json()

    assert [item["id"] for item in body["items"]] == list(expected)
    assert body["pagination"]["total"] == len(expected)


def test_the_fleet_comes_in_pages_and_a_page_costs_three_queries(
    operator, django_assert_num_queries
):
    names = [f"w{number:02}" for number in range(25)]
    for name in names:
        WorkerFactory(worker_id=name)
    first = operator.see("admin/workers").json()

    with django_assert_num_queries(3):
        second = operator.see("admin/workers", page=2).json()
    third = operator.see("admin/workers", cursor=first["pagination"]["next_cursor"]).json()

    assert [item["id"] for item in first["items"]] == names[:20]
    assert [item["id"] for item in second["items"]] == names[20:]
    assert third["items"] == second["items"]
    assert second["summary"]["total"] == second["pagination"]["total"] == 25


def test_a_state_there_is_not_is_refused(operator):
    error = refusal(operator.see("admin/workers", state="happy"))

    assert error["details"]["field"] == "state"


# One worker (§9.2)


@pytest.mark.parametrize("worker_id", ["web_1", "host/web:1", "wörker 1", "a%b"])
def test_a_worker_is_shown_with_the_jobs_in_its_hands_and_its_orders(operator, worker_id):
    WorkerFactory(worker_id=worker_id)
    job = JobFactory(active=True, reserved_by=worker_id, type="email.send")
    path = f"admin/workers/{worker_id.replace('%', '%25')}"
    operator.send(f"{path}/quiet", {"reason": "Deployment"})

    body = operator.see(path).json()

    assert (body["id"], body["state"], body["active_jobs"]) == (worker_id, "running", 1)
    assert (body["directive"], body["desired_state"]) == ("quiet", "quiet")
    assert [(held["id"], held["type"]) for held in body["jobs"]] == [(str(job.pk), "email.send")]
    (order,) = body["directives"]
    assert (order["directive"], order["asked_by"], order["answer"]) == (
        "quiet",
        "on-call",
        "waiting",
    )
    assert order["reason"] == "Deployment"


def test_a_worker_that_left_can_still_be_looked_at(operator):
    WorkerFactory(worker_id="w", left=True)

    assert operator.see("admin/workers/w").json()["state"] == "terminated"


@pytest.mark.parametrize("verb", ["", "/quiet", "/resume", "/directive"])
def test_an_unknown_worker_is_not_found(operator, verb):
    path = f"admin/workers/nobody{verb}"
    body = {"directive": "quiet"}

    reply = operator.send(path, body) if verb else operator.see(path)

    assert (reply.status_code, refusal(reply)["code"]) == (404, "not_found")
    assert refusal(reply)["details"] == {"resource_type": "worker", "resource_id": "nobody"}
    assert actions() == []


# Directives (§9.3)


def test_quiet_reaches_the_next_heartbeat_and_resume_takes_it_back(operator, worker):
    beat(worker, "w")
    JobFactory()

    reply = operator.send("admin/workers/w/quiet", {"reason": "Deployment"})

    assert (reply.status_code, reply.json()["signalled"]) == (200, True)
    assert (reply.json()["directive"], reply.json()["state"]) == ("quiet", "running")
    assert worker.fetch(worker_id="w") == [], "enforced before the worker has heard of it"
    assert beat(worker, "w") == "quiet"
    beat(worker, "w", "quiet")
    assert operator.see("admin/workers/w").json()["state"] == "quiet"

    resumed = operator.send("admin/workers/w/resume")

    assert resumed.json()["signalled"] is True
    assert beat(worker, "w", "quiet") == "running"
    beat(worker, "w")
    assert len(worker.fetch(worker_id="w")) == 1
    assert actions() == [
        ("on-call", "api", "quiet_worker", 1, "Deployment"),
        ("on-call", "api", "resume_worker", 1, ""),
    ]
    assert Directive.objects.filter(source="api").count() == 2


@pytest.mark.parametrize(
    ("asked", "told"), [("quiet", "quiet"), ("terminate", "terminate"), ("running", "running")]
)
def test_a_directive_says_what_the_worker_shall_be(operator, worker, asked, told):
    beat(worker, "w")

    reply = operator.send("admin/workers/w/directive", {"directive": asked})

    assert reply.status_code == 200
    assert reply.json()["signalled"] is (asked != "running"), "it runs already"
    assert beat(worker, "w") == told


def test_a_worker_may_be_asked_to_terminate_by_that_word(operator, worker):
    beat(worker, "w")

    reply = operator.send("admin/workers/w/terminate", {"reason": "new version"})

    assert (reply.status_code, reply.json()["signalled"]) == (200, True)
    assert beat(worker, "w") == "terminate"


@pytest.mark.parametrize(
    "body", [{}, {"directive": ""}, {"directive": "dance"}, {"directive": 1}], ids=str
)
def test_a_directive_there_is_not_is_refused_by_name(operator, body):
    WorkerFactory(worker_id="w")

    reply = operator.send("admin/workers/w/directive", body)

    assert (reply.status_code, refusal(reply)["details"]["field"]) == (400, "directive")
    assert Worker.objects.get().directive == ""


def test_asking_twice_is_no_error(operator):
    WorkerFactory(worker_id="w")

    assert operator.send("admin/workers/w/quiet").json()["signalled"] is True
    again = operator.send("admin/workers/w/quiet")

    assert (again.status_code, again.json()["signalled"]) == (200, False)


@pytest.mark.parametrize(
    ("trait", "verb", "why"),
    [
        ({"left": True}, "quiet", "gone"),
        ({"dead": True}, "quiet", "gone"),
        ({"dead": True}, "resume", "gone"),
        ({"state": "terminate"}, "resume", "nothing leads back"),
        ({"directive": "terminate"}, "resume", "nothing leads back"),
        ({"state": "quiet"}, "resume", "by itself"),
    ],
    ids=str,
)
def test_a_refused_directive_is_answered_with_the_reason(operator, trait, verb, why):
    WorkerFactory(worker_id="w", **trait)

    reply = operator.send(f"admin/workers/w/{verb}")

    assert (reply.status_code, refusal(reply)["code"]) == (409, "conflict")
    assert why in refusal(reply)["message"]


# Deregistering (§9.4)


def forget(client, worker_id, body=None):
    return client.delete(
        f"/ojs/v1/admin/workers/{worker_id}", data=body or b"", content_type="application/json"
    )


def test_a_silent_worker_is_forgotten_and_its_jobs_run_elsewhere(operator, worker):
    WorkerFactory(worker_id="w", silent=True)
    job = JobFactory(active=True, reserved_by="w", attempt=1)
    last = JobFactory(active=True, reserved_by="w", attempt=3, max_attempts=3)

    reply = forget(operator, "w", b'{"reason": "The machine burned"}')

    assert (reply.status_code, reply.json()) == (
        200,
        {"id": "w", "deregistered": True, "removed": True, "jobs_rescheduled": 2},
    )
    assert not Worker.objects.exists()
    (taken,) = worker.fetch(worker_id="other")
    assert (taken["id"], taken["attempt"]) == (str(job.pk), 2)
    assert taken["errors"][0]["type"] == "worker_death"
    last.refresh_from_db()
    assert last.state == State.DISCARDED
    assert actions() == [("on-call", "api", "delete_worker", 1, "The machine burned")]
    late = worker.send("workers/ack", {"job_id": str(job.pk), "worker_id": "w"})
    assert late.status_code == 409, "its reservations are lost"


@pytest.mark.parametrize("trait", ["dead", "left"])
def test_a_worker_that_is_gone_is_forgotten(operator, trait):
    WorkerFactory(worker_id="w", **{trait: True})
    JobFactory(active=True, reserved_by="w")

    assert forget(operator, "w").json()["jobs_rescheduled"] == 1
    assert not Worker.objects.exists()
    assert Job.objects.get().state == State.AVAILABLE


@pytest.mark.parametrize("state", ["running", "quiet", "terminate"])
def test_a_worker_that_is_heard_is_not_forgotten_and_keeps_its_jobs(operator, state):
    WorkerFactory(worker_id="w", state=state)
    job = JobFactory(active=True, reserved_by="w")

    reply = forget(operator, "w")

    assert (reply.status_code, refusal(reply)["code"]) == (409, "conflict")
    assert "terminate" in refusal(reply)["hint"]
    job.refresh_from_db()
    assert (job.state, job.reserved_by) == (State.ACTIVE, "w")
    assert Worker.objects.get().state == state and actions() == []


def test_a_forgotten_worker_cannot_be_forgotten_again(operator):
    WorkerFactory(worker_id="w", dead=True)

    assert [forget(operator, "w").status_code for _ in range(2)] == [200, 404]


def test_a_forgotten_worker_that_speaks_again_is_met_as_a_new_one(operator, worker):
    WorkerFactory(worker_id="w", silent=True, directive="quiet")
    forget(operator, "w")

    assert beat(worker, "w") == "running"
    assert Worker.objects.get().died_at is None


def test_a_rolling_drain_goes_on_without_a_forgotten_worker(operator):
    from jobs.access.audit import of_shell
    from workers.fleet import drain, rolling
    from workers.models import FleetOperation

    WorkerFactory(worker_id="w", silent=True)
    drain.start(["w"], actor=of_shell())
    forget(operator, "w")

    rolling.drive()

    assert FleetOperation.objects.get().state == "completed"


# Statistics (§10.1)


def test_the_statistics_add_the_whole_server_up(operator, django_assert_max_num_queries):
    JobFactory.create_batch(2)
    for trait in ("active", "scheduled", "retryable", "completed", "dead", "cancelled", "pending"):
        JobFactory(**{trait: True})
    JobFactory(completed=True, finished_at=ago(3600))
    JobErrorFactory(job=JobFactory())
    OJSClient(make_key("p", scopes=["produce"])[1]).pushed(queue="mail")
    WorkerFactory()
    WorkerFactory(dead=True)
    operator.see("admin/stats")

    with django_assert_max_num_queries(9):
        body = operator.see("admin/stats").json()

    assert (body["queues"], body["workers"]) == (1, 1)
    assert body["jobs"] == {
        "available": 4,
        "active": 1,
        "scheduled": 1,
        "retryable": 1,
        "completed": 2,
        "discarded": 1,
        "cancelled": 1,
        "pending": 1,
    }
    assert body["throughput"] == {"processed_per_minute": 0.4, "failed_per_minute": 0.2}
    assert type(body["uptime_seconds"]) is int


def test_counts_that_were_slow_are_remembered_and_quick_ones_are_not(monkeypatch):
    from jobs.record import counts

    counts.forget_counts()
    calls = []

    def count():
        calls.append(1)
        return len(calls)

    assert [counts.remembered("quick", count) for _ in range(2)] == [1, 2]
    monkeypatch.setattr(counts, "SLOW", -1)
    monkeypatch.setattr(counts, "PATIENCE", 10**9)
    assert [counts.remembered("slow", count) for _ in range(3)] == [3, 3, 3]
    counts.forget_counts()


def test_an_error_of_a_worker_that_was_forgotten_stays_with_its_job(operator):
    WorkerFactory(worker_id="w", silent=True)
    job = JobFactory(active=True, reserved_by="w")
    JobErrorFactory(job=job, attempt=1, worker_id="w")
    forget(operator, "w")

    errors = operator.see(f"admin/jobs/{job.pk}").json()["errors"]

    assert [error["worker_id"] for error in errors] == ["w", "w"]


def test_what_the_reaper_does_meanwhile_does_no_harm(operator):
    WorkerFactory(worker_id="w", silent=True)
    JobFactory(active=True, reserved_by="w", attempt=1)
    reaper.declare_dead_workers()
    forget(operator, "w")
    reaper.reclaim_orphans()
    fleet.note_answers()

    job = Job.objects.get()
    assert (job.state, job.attempt, job.errors.count()) == (State.AVAILABLE, 2, 1)

"""Jobs that wait for other jobs (OJS HTTP §14.1)."""

from __future__ import annotations

import math
from datetime import timedelta

import orjson
import pytest
from django.utils import timezone

from jobs import engine
from jobs.engine import Completion, Failure
from jobs.engine.dependencies import is_waiting
from jobs.errors import Conflict, InvalidRequest, InvalidTransition
from jobs.models import Dependency, Event, Job
from jobs.spec.envelope import envelope
from jobs.spec.identifiers import uuid7
from jobs.spec.lifecycle import State
from jobs.spec.timestamps import format_timestamp
from jobs.spec.validation import new_job
from jobs.store import clock, pace
from jobs.store.expressions import Among
from tests.factories import JobFactory, ago, ahead

pytestmark = pytest.mark.django_db


def new(name="step", **fields):
    return new_job({"type": name, "args": [], **fields}, timezone.now())


def enqueue(edges: dict[str, list[str]], **rules):
    """Enqueue the jobs of a graph; return their ids by name."""
    jobs = {name: new(name) for name in edges}
    ids = {name: job.id for name, job in jobs.items()}
    engine.enqueue_after(
        list(jobs.values()),
        {ids[name]: [ids[other] for other in others] for name, others in edges.items()},
        **rules,
    )
    return ids


def states(ids):
    found = dict(Job.objects.filter(pk__in=ids.values()).values_list("pk", "state"))
    return {name: found[job_id] for name, job_id in ids.items()}


def run(job_id, result=None):
    (claimed,) = [job for job in engine.claim(["default"], count=100) if job.id == job_id]
    (outcome,) = engine.complete([Completion(job_id, result=result)])
    assert outcome.error is None
    return claimed


def test_a_job_waits_until_all_it_depends_on_completed_and_gets_their_results():
    ids = enqueue({"a": [], "b": [], "c": ["b", "a"]})
    assert states(ids) == {"a": "available", "b": "available", "c": "pending"}
    assert len(engine.claim(["default"], count=9)) == 2

    engine.complete([Completion(ids["a"], result=1)])
    assert states(ids)["c"] == State.PENDING
    engine.complete([Completion(ids["b"], result={"two": 2})])

    assert states(ids)["c"] == State.AVAILABLE
    assert orjson.loads(orjson.dumps(run(ids["c"]).parent_results)) == [{"two": 2}, 1]


def test_a_job_whose_turn_comes_before_its_time_is_scheduled():
    at = ahead(3600)
    early, late = new(), new(scheduled_at=at.isoformat())
    past, free = new(scheduled_at=ago(60).isoformat()), new()
    jobs = [late, past, free]
    engine.enqueue_after([early, *jobs], {job.id: [early.id] for job in jobs})

    run(early.id)

    ids = {"late": late.id, "past": past.id, "free": free.id}
    assert states(ids) == {"late": "scheduled", "past": "available", "free": "available"}
    assert Job.objects.get(pk=late.id).scheduled_at == at
    (event,) = Event.objects.filter(subject=str(late.id))
    assert (event.type, event.data) == (
        "job.scheduled",
        {"scheduled_at": at.isoformat(), "previous_state": "pending"},
    )
    assert {job.id for job in engine.claim(["default"], count=9)} == {past.id, free.id}


def test_a_delay_of_a_job_that_waits_for_others_begins_when_its_turn_comes():
    first, second = new(), new(scheduled_at="+PT1H")
    engine.enqueue_after([first, second], {second.id: [first.id]})
    Job.objects.update(scheduled_at=ago(5))
    waiting = envelope(Job.objects.get(pk=second.id))

    before = clock.now()
    run(first.id)
    after = clock.now()

    job = Job.objects.get(pk=second.id)
    assert (waiting["state"], job.state) == ("pending", "scheduled")
    assert before + timedelta(hours=1) <= job.scheduled_at <= after + timedelta(hours=1)
    assert "scheduled_at" not in waiting
    assert envelope(job)["scheduled_at"] == format_timestamp(job.scheduled_at)


def test_a_step_of_a_graph_starts_neither_before_its_turn_nor_before_its_time(api):
    at = format_timestamp(ahead(3600))
    steps = [
        {"id": "a", "type": "a", "args": []},
        {"id": "b", "type": "b", "args": [], "depends_on": ["a"], "scheduled_at": at},
        {"id": "c", "type": "c", "args": [], "depends_on": ["a"], "scheduled_at": "+PT10M"},
    ]
    api.send("workflows", {"steps": steps})

    (job,) = api.fetch("default", count=9, worker_id="w")
    api.ack(job["id"], worker_id="w")

    assert api.fetch("default", count=9, worker_id="w") == []
    b, c = Job.objects.filter(type__in=["b", "c"]).order_by("type")
    assert (b.state, c.state) == ("scheduled", "scheduled")
    assert api.see(f"jobs/{b.pk}").json()["job"]["scheduled_at"] == at
    assert c.scheduled_at > ahead(300)


def test_one_batch_of_acks_frees_what_waits_for_all_of_them():
    ids = enqueue({"a": [], "b": [], "c": ["a", "b"], "d": ["a"]})
    engine.claim(["default"], count=9)

    engine.complete([Completion(ids["b"]), Completion(ids["a"])])

    assert states(ids) == {"a": "completed", "b": "completed", "c": "available", "d": "available"}


def test_a_failure_cancels_all_that_wait_for_it_and_nothing_else():
    ids = enqueue({"a": [], "b": ["a"], "c": ["b"], "d": [], "e": ["d"]})
    engine.claim(["default"], count=9)

    engine.fail([Failure(ids["a"], retryable=False)])

    after = {"a": "discarded", "b": "cancelled", "c": "cancelled", "d": "active", "e": "pending"}
    assert states(ids) == after


def test_a_failure_with_attempts_left_changes_nothing_for_those_that_wait():
    ids = enqueue({"a": [], "b": ["a"]})
    engine.claim(["default"])

    engine.fail([Failure(ids["a"])])

    assert states(ids) == {"a": "retryable", "b": "pending"}


def test_with_the_condition_settled_any_end_will_do():
    ids = enqueue({"a": [], "b": [], "c": ["a", "b"]}, condition="settled")
    engine.claim(["default"], count=2)

    engine.fail([Failure(ids["a"], retryable=False, message="no")])
    engine.cancel(ids["b"])

    job = Job.objects.get(pk=ids["c"])
    assert job.state == State.AVAILABLE
    assert job.parent_results[0]["error"]["message"] == "no"
    assert job.parent_results[1]["state"] == State.CANCELLED
    assert job.parent_results[1]["error"]["code"] == "job_cancelled"


@pytest.mark.parametrize("end", ["cancel", "expire", "reclaim"])
def test_every_way_to_end_reaches_those_that_wait(end):
    ids = enqueue({"a": [], "b": ["a"]})
    job = Job.objects.filter(pk=ids["a"])

    if end == "cancel":
        engine.cancel(ids["a"])
    elif end == "expire":
        job.update(expires_at=ago(1))
        engine.discard_expired()
    else:
        engine.claim(["default"], worker_id="w")
        job.update(reserved_until=ago(1), max_attempts=1)
        engine.expire()

    assert states(ids)["b"] == State.CANCELLED


def test_a_job_may_wait_for_one_that_exists_already():
    older = JobFactory(active=True, reserved_by="w")
    waiter = new()

    engine.enqueue_after([waiter], {waiter.id: [older.pk]})
    engine.complete([Completion(older.pk, "w", result="done")])

    job = Job.objects.get(pk=waiter.id)
    assert (job.state, job.parent_results) == (State.AVAILABLE, ["done"])


@pytest.mark.parametrize(
    ("end", "state"), [("completed", State.AVAILABLE), ("discarded", State.CANCELLED)]
)
def test_a_job_that_waits_for_one_that_has_ended_is_decided_at_once(end, state):
    older = JobFactory(**{end: True})
    waiter = new()

    engine.enqueue_after([waiter], {waiter.id: [older.pk]})

    assert Job.objects.get(pk=waiter.id).state == state


def test_an_unknown_predecessor_is_refused_and_nothing_is_stored():
    waiter = new()

    with pytest.raises(InvalidRequest, match="does not exist"):
        engine.enqueue_after([waiter], {waiter.id: [uuid7()]})

    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "edges", [{"a": ["a"]}, {"a": ["b"], "b": ["a"]}, {"a": ["c"], "b": ["a"], "c": ["b"], "d": []}]
)
def test_a_circle_is_refused(edges):
    with pytest.raises(InvalidRequest, match="circle"):
        enqueue(edges)

    assert not Job.objects.exists()


def test_a_job_that_waits_for_another_cannot_be_activated():
    ids = enqueue({"a": [], "b": ["a"]})

    with pytest.raises(InvalidTransition, match="waits for other jobs"):
        engine.activate(ids["b"])


def test_the_ack_of_a_plain_job_is_still_one_statement(django_assert_num_queries):
    job = JobFactory(active=True, reserved_by="w")
    from tests.database import connection

    if connection.vendor != "postgresql":
        pytest.skip("SQLite takes several")
    with django_assert_num_queries(1):
        engine.complete([Completion(job.pk, "w")])


@pytest.mark.postgres
def test_each_job_is_looked_up_for_what_it_waits_for_whatever_the_statistics_say():
    """In a join, PostgreSQL may read all open edges for each of a thousand jobs."""
    ids = enqueue({"a": [], "b": ["a"], "c": ["b"]}).values()

    plan = Job.objects.filter(is_waiting(), Among("pk", ids)).values("pk").explain()

    assert "SubPlan" in plan
    assert "Join" not in plan


@pytest.mark.slow
def test_ten_thousand_jobs_that_wait_for_one_are_freed_in_sets(
    django_assert_max_num_queries, monkeypatch
):
    # In one turn, for a slow machine takes more of them, and each begins with a query.
    monkeypatch.setattr(pace, "TURN", math.inf)
    first = new()
    waiters = [new() for _ in range(10_000)]
    engine.enqueue_after([first, *waiters], {job.id: [first.id] for job in waiters})
    engine.claim(["default"])

    with django_assert_max_num_queries(250):
        engine.complete([Completion(first.id, result=1)])
        while engine.release_more():
            pass

    assert Job.objects.filter(state=State.AVAILABLE, parent_results=[1]).count() == 10_000


def test_a_dead_job_whose_failure_is_waited_for_cannot_be_deleted():
    ids = enqueue({"a": [], "b": [], "c": ["a", "b"]}, condition=Dependency.SETTLED)
    engine.claim(["default"], count=2)
    engine.fail([Failure(ids["a"], retryable=False)])

    with pytest.raises(Conflict, match="wait for"):
        engine.delete_dead([ids["a"]])

    engine.complete([Completion(ids["b"], result=1)])
    assert Job.objects.get(pk=ids["c"]).parent_results[0]["state"] == State.DISCARDED
    assert engine.delete_dead([ids["a"]]) == 1


def test_the_sweep_finishes_what_was_left_undone():
    ids = enqueue({"a": [], "b": ["a"]})
    # The host site's own SQL ended the job.
    Job.objects.filter(pk=ids["a"]).update(state=State.COMPLETED, finished_at=ago(60))

    assert engine.repair() == 1

    assert states(ids)["b"] == State.AVAILABLE
    assert not Dependency.objects.filter(settled=False).exists()
    assert engine.repair() == 0

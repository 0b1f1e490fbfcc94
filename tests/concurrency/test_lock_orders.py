"""No deadlocks: jobs are locked in the order of ids, before workflows and queues.

Each test stops a transaction that locks several rows in the middle, and then requests a lock that
it may hold already.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs import engine
from jobs.engine import Completion, Failure
from jobs.models import Job, PendingRelease, Queue, RateLimit, Workflow
from jobs.spec.batches import new_jobs
from jobs.spec.lifecycle import State
from jobs.spec.workflow_plans import plan_of

from .threads import while_it_waits

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.postgres,
]


def enqueue(*documents) -> list[Job]:
    new = new_jobs([{"type": "a", "args": []} | fields for fields in documents], timezone.now())
    return [Job.objects.get(pk=job.id) for job in engine.enqueue(new)]


def graph(**steps) -> dict[str, Job]:
    """Start a graph of steps with their dependencies; return their jobs."""
    document = {
        "type": "dag",
        "steps": [
            {"id": name, "type": name, "args": [], "depends_on": others}
            for name, others in steps.items()
        ],
    }
    engine.create_workflow(plan_of(document, timezone.now()))
    return {job.type: job for job in Job.objects.all()}


def lock(model, pk) -> None:
    assert model.objects.select_for_update().get(pk=pk)


def test_a_workflow_is_cancelled_while_one_of_its_jobs_ends():
    jobs = graph(left=[], right=[], last=["left", "right"])
    engine.claim(["default"])

    while_it_waits(
        lambda: lock(Job, jobs["last"].pk),
        lambda: engine.cancel_workflow(Workflow.objects.get().pk),
        then=lambda: engine.complete([Completion(jobs["left"].pk)]),
    )

    states = {job.type: job.state for job in Job.objects.all()}
    assert states == {"left": "completed", "right": "cancelled", "last": "cancelled"}


def test_a_job_given_back_while_its_workflow_is_cancelled_is_cancelled_with_it():
    jobs = graph(only=[])
    engine.claim(["default"])

    while_it_waits(
        lambda: engine.fail([Failure(jobs["only"].pk)]),
        lambda: engine.cancel_workflow(Workflow.objects.get().pk),
    )

    assert Job.objects.get().state == State.CANCELLED


def test_a_nested_workflow_that_begins_while_the_one_around_it_is_cancelled_is_cancelled_too():
    group = {"type": "group", "jobs": [{"type": "b", "args": []}, {"type": "c", "args": []}]}
    steps = [{"type": "a", "args": []}, group]
    chain = engine.create_workflow(plan_of({"type": "chain", "steps": steps}, timezone.now()))
    (first,) = engine.claim(["default"])

    while_it_waits(
        lambda: engine.complete([Completion(first.id)]),
        lambda: engine.cancel_workflow(chain.pk),
    )

    assert set(Workflow.objects.values_list("type", "state")) == {
        ("chain", "cancelled"),
        ("group", "cancelled"),
    }
    states = {job.type: job.state for job in Job.objects.all()}
    assert states == {"a": "completed", "b": "cancelled", "c": "cancelled"}


def test_a_dead_job_is_not_retried_while_its_workflow_is_cancelled():
    jobs = graph(dies=[], other=[])
    engine.claim(["default"], count=2)
    engine.fail([Failure(jobs["dies"].pk, retryable=False)])

    while_it_waits(
        lambda: engine.cancel_workflow(Workflow.objects.get().pk),
        lambda: engine.retry([jobs["dies"].pk]),
    )

    assert Job.objects.get(type="dies").state == State.DISCARDED


def test_a_dead_job_retried_while_its_workflow_is_cancelled_is_cancelled_with_it():
    jobs = graph(dies=[], other=[])
    engine.claim(["default"], count=2)
    engine.fail([Failure(jobs["dies"].pk, retryable=False)])

    while_it_waits(
        lambda: engine.retry([jobs["dies"].pk]),
        lambda: engine.cancel_workflow(Workflow.objects.get().pk),
    )

    assert Job.objects.get(type="dies").state == State.CANCELLED


def test_a_job_ends_while_it_is_cancelled_with_those_that_wait_for_it():
    jobs = graph(last=["middle"], middle=["first"], first=[])
    engine.claim(["default"])

    while_it_waits(
        lambda: lock(Job, jobs["first"].pk),
        lambda: engine.cancel_jobs([job.pk for job in jobs.values()]),
        then=lambda: engine.complete([Completion(jobs["first"].pk)]),
    )

    assert Job.objects.get(type="first").state == State.COMPLETED
    assert set(Job.objects.exclude(type="first").values_list("state", flat=True)) == {"cancelled"}


def test_a_full_queue_drops_a_job_while_its_oldest_is_locked():
    engine.queues.configure("default", {"max_depth": 2, "strategy": "drop_oldest"})
    oldest, _ = enqueue({}, {})

    while_it_waits(
        lambda: lock(Job, oldest.pk),
        lambda: enqueue({"type": "b"}),
        then=lambda: lock(Queue, "default"),
    )

    available = Job.objects.filter(state=State.AVAILABLE)
    assert sorted(available.values_list("type", flat=True)) == ["a", "b"]
    assert oldest in available


def test_failures_of_several_rate_limits_hold_them_in_one_order():
    limit = {"concurrency": 5}
    jobs = enqueue({"rate_limit": {"key": "b"} | limit}, {"rate_limit": {"key": "a"} | limit})
    engine.claim(["default"], worker_id="w", count=2)
    later = timezone.now() + timedelta(hours=1)

    while_it_waits(
        lambda: lock(RateLimit, "a"),
        lambda: engine.fail([Failure(job.pk, "w", rate_limit_until=later) for job in jobs]),
        then=lambda: lock(RateLimit, "b"),
    )

    assert set(RateLimit.objects.values_list("held_until", flat=True)) == {later}


def test_a_batch_of_unique_jobs_replaces_others_in_the_order_of_their_ids():
    unique = {"keys": ["type"], "on_conflict": "replace"}
    first, second = enqueue({"type": "a", "unique": unique}, {"type": "b", "unique": unique})

    while_it_waits(
        lambda: lock(Job, first.pk),
        lambda: enqueue({"type": "b", "unique": unique}, {"type": "a", "unique": unique}),
        then=lambda: lock(Job, second.pk),
    )

    assert Job.objects.filter(state=State.CANCELLED).count() == 2
    assert Job.objects.filter(state=State.AVAILABLE).count() == 2


LIVE = ["available", "active", "scheduled", "retryable", "pending"]


def test_the_end_of_a_job_begins_a_step_under_the_key_under_which_the_job_is_replaced():
    unique = {"keys": ["type"], "on_conflict": "replace", "states": LIVE}
    steps = [{"type": "a", "args": [n], "options": {"unique": unique}} for n in (1, 2)]
    engine.create_workflow(plan_of({"type": "chain", "steps": steps}, timezone.now()))
    (first,) = engine.claim(["default"])

    while_it_waits(
        lambda: lock(Job, first.id),
        lambda: enqueue({"args": [3], "unique": unique}),
        then=lambda: engine.complete([Completion(first.id)]),
    )

    states = {job.args[0]: job.state for job in Job.objects.all()}
    assert states == {1: "completed", 2: "cancelled", 3: "available"}


def waiter_and_predecessor() -> tuple[Job, Job]:
    """Make a running job, and one created before it that waits for it."""
    (waiter,) = new_jobs([{"type": "waiter", "args": []}], timezone.now())
    (predecessor,) = enqueue({})
    assert waiter.id < predecessor.pk
    engine.enqueue_after([waiter], {waiter.id: [predecessor.pk]})
    engine.claim(["default"])
    return Job.objects.get(pk=waiter.id), predecessor


def test_a_job_ends_while_it_is_cancelled_with_one_that_waits_for_it_and_is_older():
    waiter, predecessor = waiter_and_predecessor()

    while_it_waits(
        lambda: lock(Job, predecessor.pk),
        lambda: engine.cancel_jobs([predecessor.pk, waiter.pk]),
        then=lambda: engine.complete([Completion(predecessor.pk)]),
    )
    engine.release_more()

    assert Job.objects.get(pk=predecessor.pk).state == State.COMPLETED
    assert Job.objects.get(pk=waiter.pk).state == State.CANCELLED
    assert not PendingRelease.objects.exists()


def test_an_older_job_that_is_locked_when_what_it_waits_for_ends_is_released_afterwards():
    waiter, predecessor = waiter_and_predecessor()

    while_it_waits(
        lambda: lock(Job, waiter.pk), lambda: engine.complete([Completion(predecessor.pk)])
    )
    assert Job.objects.get(pk=waiter.pk).state == State.PENDING
    engine.release_more()

    assert Job.objects.get(pk=waiter.pk).state == State.AVAILABLE
    assert not PendingRelease.objects.exists()


@pytest.mark.parametrize(
    ("atomicity", "status", "stored"), [("atomic", 422, 0), ("partial", 207, 2)]
)
def test_a_bulk_request_of_which_a_job_is_refused_holds_its_queues_in_one_order(
    api, atomicity, status, stored
):
    for name in ("a", "b"):
        engine.queues.configure(name, {"max_depth": 10})
    unique = {"keys": ["type"]}
    enqueue({"type": "only", "unique": unique})
    documents = [
        {"type": "a", "args": [], "options": {"queue": "b"}},
        {"type": "a", "args": [], "options": {"queue": "a"}},
        {"type": "only", "args": [], "unique": unique},
    ]
    # With a key, a partial request is one transaction too.
    body = {"jobs": documents, "atomicity": atomicity, "idempotency_key": "k"}

    reply = while_it_waits(
        lambda: lock(Queue, "a"),
        lambda: api.send("jobs/bulk", body),
        then=lambda: lock(Queue, "b"),
    )

    assert reply.status_code == status
    assert Job.objects.exclude(type="only").count() == stored


def test_queues_are_marked_for_a_limited_tenant_in_the_order_of_fetches():
    new = new_jobs(
        [{"type": "a", "args": [], "options": {"queue": name}} for name in ("b", "a")],
        timezone.now(),
    )
    for job in new:
        job.project = "t"
        # One after the other: an UPDATE reads the rows in the order in which they were written.
        engine.enqueue([job])

    while_it_waits(
        lambda: lock(Queue, "a"),
        lambda: engine.tenants.configure("t", {"max_concurrency": 1}),
        then=lambda: lock(Queue, "b"),
    )

    assert set(Queue.objects.values_list("pk", "has_tenants")) == {("a", True), ("b", True)}


def test_a_queue_is_marked_for_a_rate_limit_in_the_order_of_fetches():
    engine.queues.configure("a", {"concurrency": 5})
    engine.queues.configure("b", {"concurrency": 5, "max_depth": 10})
    limit = {"key": "k", "concurrency": 1}

    while_it_waits(
        lambda: lock(Queue, "a"),
        lambda: enqueue(
            {"options": {"queue": "b"}}, {"options": {"queue": "a"}, "rate_limit": limit}
        ),
        then=lambda: lock(Queue, "b"),
    )

    assert Queue.objects.get(pk="a").has_limits
    assert Job.objects.count() == 2

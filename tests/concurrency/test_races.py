"""Several transactions on one job: exactly one wins, none waits forever (docs/architecture.md)."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from jobs import engine
from jobs.errors import Conflict
from jobs.models import Job, JobError, RefusedFinish
from jobs.spec.lifecycle import State
from tests.factories import WorkerFactory, ago, many_jobs
from workers import protocol
from workers.chores import reaper
from workers.models import Worker
from workers.protocol import Completion, Description, Failure

from .threads import in_step, together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

ROUNDS = 700


def held(count: int, **traits) -> list[UUID]:
    return many_jobs(count, **({"active": True, "reserved_by": "w"} | traits))


def ack(job_id: UUID) -> bool:
    (outcome,) = protocol.ack([Completion(job_id, "w")])
    return outcome.error is None


def ack_unfenced(job_id: UUID) -> bool:
    (outcome,) = protocol.ack([Completion(job_id)])
    return outcome.error is None


def fail(job_id: UUID) -> bool:
    (outcome,) = protocol.fail([Failure(job_id, "w")])
    return outcome.error is None


def cancel(job_id: UUID) -> bool:
    try:
        engine.cancel(job_id)
    except Conflict:
        return False
    return True


LEADS_TO = {
    ack: State.COMPLETED,
    ack_unfenced: State.COMPLETED,
    fail: State.RETRYABLE,
    cancel: State.CANCELLED,
}


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("one", "other"),
    [(ack, ack), (ack, ack_unfenced), (ack, fail), (fail, fail), (ack, cancel)],
    ids=lambda verb: verb.__name__,
)
def test_of_two_finishers_of_one_job_exactly_one_wins(one, other):
    jobs = held(ROUNDS)

    results = in_step(ROUNDS, lambda n: one(jobs[n]), lambda n: other(jobs[n]))

    states = dict(Job.objects.values_list("pk", "state"))
    for job_id, won in zip(jobs, results, strict=True):
        if cancel in (one, other) and all(won):
            pytest.fail("both won")
        assert sum(won) == 1, f"{won} for {job_id}"
        assert states[job_id] == LEADS_TO[one if won[0] else other]
    failures = sum(
        won[index] for won in results for index, verb in enumerate((one, other)) if verb is fail
    )
    assert JobError.objects.count() == failures
    if one is other:
        assert {won.index(True) for won in results} == {0, 1}, "it was a race"


@pytest.mark.postgres
@pytest.mark.parametrize("verb", [ack, fail], ids=lambda verb: verb.__name__)
def test_a_finish_and_the_reaper_never_both_have_a_job(verb):
    jobs = held(800, reserved_until=ago(1))
    random.shuffle(jobs)

    def finish() -> list[bool]:
        return [verb(job_id) for job_id in jobs]

    def recover() -> list[int]:
        taken = []
        while Job.objects.active().exists():
            taken.append(engine.expire())
        return taken

    finished, taken = together(finish, recover)

    for job in Job.objects.prefetch_related("errors"):
        story = (job.state, job.attempt, [error.type for error in job.errors.all()])
        if finished[jobs.index(job.pk)]:
            expected = (
                (State.COMPLETED, 1, []) if verb is ack else (State.RETRYABLE, 1, ["handler_error"])
            )
        else:
            expected = (State.AVAILABLE, 2, ["visibility_timeout"])
        assert story == expected
    assert sum(taken) + sum(finished) == len(jobs)
    assert RefusedFinish.objects.count() == len(jobs) - sum(finished)


@pytest.mark.postgres
def test_batches_that_share_their_jobs_never_deadlock():
    """Heartbeats, acks, nacks, the reaper and an operator, each in a different order."""
    jobs = held(300)

    def shuffled() -> list[UUID]:
        return random.sample(jobs, 100)

    def beat(number: int) -> None:
        protocol.beat("w", active_job_ids=[str(job_id) for job_id in shuffled()])

    def many_acks(number: int) -> None:
        protocol.ack([Completion(job_id, "w") for job_id in shuffled()[:20]])

    def many_nacks(number: int) -> None:
        protocol.fail([Failure(job_id, "w", release=True) for job_id in shuffled()[:20]])

    def take_back(number: int) -> None:
        # One by one: an UPDATE of several would lock them in an order of its own.
        for job_id in shuffled()[:5]:
            Job.objects.active().filter(pk=job_id).update(reserved_until=ago(1))
        engine.expire()

    def start_again(number: int) -> None:
        protocol.fetch(["default"], worker_id="w", count=100)
        engine.retry(shuffled()[:20])

    WorkerFactory(worker_id="w", concurrency=None)
    in_step(120, beat, beat, many_acks, many_nacks, take_back, start_again)

    assert Job.objects.count() == 300
    assert not Job.objects.filter(attempt__gt=3).exists()


@pytest.mark.postgres
def test_a_heartbeat_and_a_death_never_both_happen():
    """Either the worker is alive and its job extended, or it is dead and is notified (§10.3)."""
    for _ in range(80):
        Worker.objects.all().delete()
        Job.objects.all().delete()
        WorkerFactory(worker_id="w", silent=True)
        (job_id,) = held(1)

        reply, _ = together(
            lambda ids=(str(job_id),): protocol.beat("w", active_job_ids=ids),
            lambda: reaper.sweep(["dead-workers", "orphaned-jobs"]),
        )

        job = Job.objects.get()
        if reply.jobs_extended:
            assert (job.state, job.attempt, job.errors.count()) == (State.ACTIVE, 1, 0)
        else:
            assert reply.jobs_lost == [str(job_id)]
            assert (job.state, job.attempt, job.errors.count()) == (State.AVAILABLE, 2, 1)
        assert Worker.objects.live().exists(), "it speaks, so it lives"


def test_a_worker_discovered_by_several_heartbeats_at_once_is_one_worker():
    for number in range(10):
        name = f"w{number}"
        (job_id,) = held(1, reserved_by=name)

        replies = together(
            *[lambda name=name, ids=(str(job_id),): protocol.beat(name, active_job_ids=ids)] * 4
        )

        assert [reply.stale for reply in replies] == [False] * 4
        assert [reply.jobs_extended for reply in replies] == [[str(job_id)]] * 4
    assert Worker.objects.count() == 10


def test_a_worker_that_registers_several_times_at_once_is_one_worker():
    description = Description(hostname="h", pid=1, queues=["default"], concurrency=1)

    together(*[lambda: protocol.register("w", description)] * 4)

    assert Worker.objects.get().incarnation == 1

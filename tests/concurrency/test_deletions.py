"""What is deleted is decided once its lock is held: a job may have changed, or be needed, by then.

Each test lets another transaction commit while the one that deletes waits for a job.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs import engine
from jobs.engine import Completion, Failure, bulk, retention
from jobs.errors import Conflict
from jobs.models import Job, Workflow
from jobs.spec.batches import new_jobs
from jobs.spec.lifecycle import State
from jobs.spec.workflow_plans import plan_of
from tests.factories import JobFactory, ago

from .threads import while_it_waits

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.postgres,
]

ONCE = {"options": {"retry": {"max_attempts": 1, "on_exhaustion": "discard"}}}


def finished_group() -> tuple[Job, Job]:
    """Make a group past its retention; return its job that failed and the one that completed."""
    jobs = [{"type": "fails", "args": []} | ONCE, {"type": "completes", "args": []}]
    engine.create_workflow(plan_of({"type": "group", "jobs": jobs}, timezone.now()))
    engine.claim(["default"], worker_id="w", count=2)
    fails, completes = Job.objects.get(type="fails"), Job.objects.get(type="completes")
    engine.complete([Completion(completes.pk, "w")])
    engine.fail([Failure(fails.pk, "w")])
    Workflow.objects.update(finished_at=timezone.now() - timedelta(days=4000))
    return fails, completes


def test_a_job_retried_while_its_workflow_is_deleted_goes_on_without_it():
    retried, _ = finished_group()

    while_it_waits(lambda: engine.retry([retried.pk]), engine.prune_workflows)

    engine.prune_workflows()
    assert not Workflow.objects.exists()
    (left,) = Job.objects.all()
    assert (left.pk, left.workflow_id, left.state) == (retried.pk, None, State.AVAILABLE)
    engine.claim(["default"], worker_id="w")
    engine.complete([Completion(retried.pk, "w")])
    assert Job.objects.get().state == State.COMPLETED


LONG_AGO = ago(400 * 86_400)


def wait_for(*predecessors: Job, condition: str = "success") -> Job:
    """Enqueue a job that waits for these."""
    (new,) = new_jobs([{"type": "waits", "args": []}], timezone.now())
    ids = [job.pk for job in predecessors]
    engine.enqueue_after([new], {new.id: ids}, condition=condition)
    return Job.objects.get(pk=new.id)


def ended(**fields) -> Job:
    return JobFactory(finished_at=LONG_AGO, **fields)


@pytest.mark.parametrize(
    ("trait", "delete"),
    [
        ("completed", lambda job: bulk.delete(Job.objects.filter(pk=job.pk))),
        ("completed", lambda job: bulk.purge(Job.objects.filter(pk=job.pk), [State.COMPLETED])),
        ("dead", lambda job: engine.delete_dead([job.pk])),
        ("dead", lambda job: engine.prune_jobs()),
    ],
    ids=["bulk deletion", "purge", "dead letter", "retention"],
)
@pytest.mark.parametrize("followed", [False, True])
def test_a_job_that_another_one_begins_to_wait_for_is_not_deleted(trait, delete, followed):
    job, running = ended(**{trait: True}, followed=followed), JobFactory(active=True)

    def attempt() -> object:
        try:
            return delete(job)
        except Conflict:
            return 0

    deleted = while_it_waits(lambda: wait_for(job, running, condition="settled"), attempt)

    assert not deleted
    assert Job.objects.filter(pk=job.pk).exists()


@pytest.mark.parametrize("limit", ["DEAD_LETTER_RETENTION", "DEAD_LETTER_MAX"])
@pytest.mark.parametrize("dies", [False, True], ids=["completes", "dies again"])
def test_a_dead_job_that_is_retried_and_ends_again_keeps_its_new_outcome(settings, limit, dies):
    value = timedelta(hours=1) if limit == "DEAD_LETTER_RETENTION" else 1
    settings.OJS = settings.OJS | {limit: value}
    job = JobFactory(dead=True, finished_at=ago(7200))
    JobFactory(dead=True, finished_at=ago(60))

    def live_again() -> None:
        engine.retry([job.pk])
        engine.claim([job.queue], worker_id="w")
        if dies:
            engine.fail([Failure(job.pk, "w", retryable=False)])
        else:
            engine.complete([Completion(job.pk, "w", result=1)])

    deleted = while_it_waits(live_again, engine.prune_jobs)

    assert not deleted
    job.refresh_from_db()
    assert (job.state, job.dead_letter) == ("discarded" if dies else "completed", dies)


def test_a_result_that_another_job_begins_to_wait_for_is_kept():
    job = ended(completed=True, result=1, result_ttl=timedelta(seconds=1), followed=True)
    running = JobFactory(active=True, reserved_by="w")
    waiting = []

    while_it_waits(lambda: waiting.append(wait_for(job, running)), engine.prune_results)

    engine.complete([Completion(running.pk, "w", result=2)])
    (waiter,) = waiting
    waiter.refresh_from_db()
    assert waiter.parent_results == [1, 2]


def test_a_job_that_another_one_begins_to_wait_for_outlives_the_workflow_it_was_in():
    _, completed = finished_group()

    while_it_waits(lambda: wait_for(completed, JobFactory(active=True)), engine.prune_workflows)

    engine.prune_workflows()
    assert not Workflow.objects.exists()
    assert Job.objects.get(pk=completed.pk).workflow_id is None


def test_what_retention_found_is_kept_if_another_job_waits_for_it_by_then(monkeypatch):
    job, other = ended(completed=True, followed=True), ended(completed=True)
    find = retention.removal.delete_oldest

    def find_late(jobs, most):
        found = find(jobs, most)
        wait_for(job, JobFactory(active=True))
        return found

    monkeypatch.setattr(retention.removal, "delete_oldest", find_late)

    assert engine.prune_jobs() == 1

    assert Job.objects.filter(pk=job.pk).exists()
    assert not Job.objects.filter(pk=other.pk).exists()

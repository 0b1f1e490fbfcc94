"""What is deleted is decided once its lock is held: a job may have changed, or be needed, by then.

Each test lets another transaction commit while the one that deletes waits for a job.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs import engine
from jobs.engine import Completion, Failure
from jobs.models import Job, Workflow
from jobs.spec.batches import new_jobs
from jobs.spec.lifecycle import State
from jobs.spec.workflow_plans import plan_of

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

"""The routine of a busy worker: reporting finished jobs and fetching more in one request."""

from __future__ import annotations

import pytest

from jobs.engine import Completion
from jobs.errors import InvalidRequest, ReservationLost
from jobs.models import Job
from jobs.spec.lifecycle import State
from tests.database import atomic
from tests.factories import JobFactory
from workers import protocol
from workers.liveness.heartbeats import Description

pytestmark = pytest.mark.django_db


def test_what_is_finished_is_settled_and_more_is_given():
    held = JobFactory(active=True, reserved_by="w")
    waiting = JobFactory()

    (outcome,), (job,) = protocol.exchange(
        [Completion(held.pk, "w", result=7)], [held.queue], worker_id="w"
    )

    assert (outcome.state, job.id) == (State.COMPLETED, waiting.pk)
    assert Job.objects.get(pk=held.pk).result == 7
    assert Job.objects.get(pk=waiting.pk).state == State.ACTIVE


def test_the_place_of_a_finished_job_is_free_at_once():
    protocol.register("w", Description(queues=["default"], concurrency=1))
    held = JobFactory(active=True, reserved_by="w")
    JobFactory()

    _, jobs = protocol.exchange([Completion(held.pk, "w")], [held.queue], worker_id="w")

    assert len(jobs) == 1


def test_a_refused_outcome_keeps_no_worker_from_new_jobs():
    foreign = JobFactory(active=True, reserved_by="other")
    JobFactory()

    (outcome,), jobs = protocol.exchange(
        [Completion(foreign.pk, "w")], [foreign.queue], worker_id="w"
    )

    assert isinstance(outcome.error, ReservationLost)
    assert len(jobs) == 1


def test_the_outcomes_keep_their_order_where_only_some_are_of_the_project():
    own, foreign = (
        JobFactory(active=True, reserved_by="w", project=project) for project in ("mine", "theirs")
    )
    JobFactory(project="mine")
    items = [Completion(foreign.pk, "w"), Completion(own.pk, "w")]

    outcomes, jobs = protocol.exchange(items, [own.queue], worker_id="w", project="mine")

    assert [outcome.state for outcome in outcomes] == [None, State.COMPLETED]
    assert len(jobs) == 1


def test_nothing_is_settled_where_no_queue_is_named():
    held = JobFactory(active=True, reserved_by="w")

    with pytest.raises(InvalidRequest):
        protocol.exchange([Completion(held.pk, "w")], [], worker_id="w")

    assert Job.objects.get().state == State.ACTIVE


def test_a_result_that_is_too_large_keeps_no_worker_from_new_jobs(settings):
    settings.OJS = {**settings.OJS, "MAX_RESULT_SIZE": 10}
    held = JobFactory(active=True, reserved_by="w")
    JobFactory()

    (outcome,), jobs = protocol.exchange(
        [Completion(held.pk, "w", result="x" * 20)], [held.queue], worker_id="w"
    )

    assert outcome.error is not None
    assert len(jobs) == 1


@pytest.mark.postgres
def test_it_is_two_statements_and_no_more(django_assert_num_queries):
    held = JobFactory(active=True, reserved_by="w")
    JobFactory()

    with atomic(), django_assert_num_queries(4):  # including a savepoint
        protocol.exchange([Completion(held.pk, "w")], [held.queue], worker_id="w")

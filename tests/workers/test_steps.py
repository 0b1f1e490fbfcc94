"""Steps of a handler: done once, whatever attempt comes after (OJS durable execution)."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from jobs import engine
from jobs.errors import CheckpointTooLarge, InvalidRequest
from jobs.models import Checkpoint, Job
from tests.database import alias
from tests.factories import JobFactory
from workers.runtime import JobContext
from workers.runtime.context import WorkerLink

pytestmark = pytest.mark.django_db


class Link(WorkerLink):
    """Saves checkpoints as the worker that holds the job."""

    def keep(self, context: JobContext, state: Any) -> None:
        engine.save_checkpoint(context.id, state, worker_id="worker-1")


def attempt(job: Job) -> JobContext:
    """The context of the job's next attempt."""
    kept = Checkpoint.objects.filter(pk=job.pk).first()
    context = JobContext(
        id=job.pk,
        type=job.type,
        queue=job.queue,
        args=job.args,
        meta=job.meta,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        checkpoint=kept and {"state": kept.state, "sequence": kept.sequence},
    )
    context.line = Link()
    return context


@pytest.fixture
def job() -> Job:
    return JobFactory(active=True)


def test_an_attempt_goes_on_behind_the_steps_that_are_done(job):
    calls: list[str] = []

    def call(name: str) -> dict[str, str]:
        calls.append(name)
        if calls == ["charge", "ship"]:
            raise OSError("no connection")
        return {"done": name}

    def handle(context: JobContext) -> list[Any]:
        return [context.step(name, call, name) for name in ("charge", "ship")]

    with pytest.raises(OSError):
        handle(attempt(job))
    results = handle(attempt(job))

    assert calls == ["charge", "ship", "ship"]
    assert results == [{"done": "charge"}, {"done": "ship"}]


def test_steps_and_a_checkpoint_of_the_handlers_own_are_kept_together(job):
    first = attempt(job)
    first.checkpoint({"page": 1})
    first.step("charge", lambda: 17)
    first.checkpoint({"page": 2})

    second = attempt(job)

    assert (second.has_checkpoint, second.last_checkpoint) == (True, {"page": 2})
    assert second.step("charge", pytest.fail, "again") == 17


def test_without_a_checkpoint_of_its_own_the_handler_has_none(job):
    attempt(job).step("nothing", lambda: None)

    second = attempt(job)

    assert (second.has_checkpoint, second.last_checkpoint) == (False, None)
    assert second.step("nothing", pytest.fail, "again") is None


def test_a_step_of_an_async_handler_may_be_async(job):
    async def charge(amount: int) -> int:
        return amount

    async def handle(context: JobContext) -> Any:
        return [
            await context.astep("charge", charge, 17),
            await context.astep("count", lambda: 2),
        ]

    link = Link()
    saved: list[Any] = []
    link.keep = lambda context, state: saved.append(state)  # type: ignore[method-assign]
    context = attempt(job)
    context.line = link

    assert async_to_sync(handle)(context) == [17, 2]
    assert saved[-1] == {"ojs.steps": {"charge": 17, "count": 2}}


def test_what_a_step_wrote_and_that_it_is_done_are_committed_together_or_not_at_all(job):
    context = attempt(job)
    with pytest.raises(OSError), transaction.atomic(using=alias()):
        context.step("charge", lambda: str(JobFactory().pk))
        raise OSError

    assert (Checkpoint.objects.count(), Job.objects.count()) == (0, 1)


def test_a_name_is_used_once_in_an_attempt(job):
    context = attempt(job)
    context.step("charge", lambda: 1)

    with pytest.raises(ValueError, match="'charge' was called before"):
        context.step("charge", lambda: 2)


@pytest.mark.parametrize(
    ("result", "refusal"), [(object(), InvalidRequest), ("x" * 1_048_576, CheckpointTooLarge)]
)
def test_a_result_that_cannot_be_kept_is_an_error_and_loses_no_other(job, result, refusal):
    context = attempt(job)
    context.step("charge", lambda: 17)

    with pytest.raises(refusal):
        context.step("ship", lambda: result)

    assert attempt(job).step("charge", pytest.fail, "again") == 17

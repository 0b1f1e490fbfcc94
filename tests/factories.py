"""Rows for tests: `JobFactory(active=True, reserved_until=ago(1))`.

A factory creates the *given* rows of a test; the tested behaviour goes through the public API.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import factory
from django.forms.models import model_to_dict
from django.utils import timezone
from factory.django import DjangoModelFactory

from jobs.models import Job, JobError, Queue
from jobs.spec.identifiers import first_id, uuid7
from jobs.spec.lifecycle import State
from workers.lifecycle import WorkerState
from workers.models import Worker


def ago(seconds: float) -> datetime:
    """The moment `seconds` before now."""
    return timezone.now() - timedelta(seconds=seconds)


def ahead(seconds: float) -> datetime:
    """The moment `seconds` after now."""
    return timezone.now() + timedelta(seconds=seconds)


class JobFactory(DjangoModelFactory):
    """An available job; each state is a trait, and `dead=True` is one in the dead letter."""

    type = "email.send"
    queue = "default"
    args = factory.LazyFunction(lambda: ["user@example.com"])
    created_at = factory.LazyFunction(timezone.now)
    enqueued_at = factory.SelfAttribute("created_at")

    class Meta:
        model = Job
        skip_postgeneration_save = True

    class Params:
        pending = factory.Trait(state=State.PENDING)
        scheduled = factory.Trait(
            state=State.SCHEDULED, scheduled_at=factory.LazyFunction(lambda: ahead(3600))
        )
        active = factory.Trait(
            state=State.ACTIVE,
            attempt=1,
            started_at=factory.LazyFunction(timezone.now),
            reserved_by="worker-1",
            reserved_for=timedelta(minutes=30),
            reserved_until=factory.LazyFunction(lambda: ahead(1800)),
        )
        retryable = factory.Trait(
            state=State.RETRYABLE,
            attempt=1,
            started_at=factory.LazyFunction(timezone.now),
            retry_delay=timedelta(minutes=1),
            scheduled_at=factory.LazyFunction(lambda: ahead(60)),
        )
        completed = factory.Trait(
            state=State.COMPLETED,
            attempt=1,
            started_at=factory.LazyFunction(timezone.now),
            finished_at=factory.LazyFunction(timezone.now),
            finished_by="worker-1",
        )
        cancelled = factory.Trait(
            state=State.CANCELLED, finished_at=factory.LazyFunction(timezone.now)
        )
        discarded = factory.Trait(
            state=State.DISCARDED,
            attempt=3,
            started_at=factory.LazyFunction(timezone.now),
            finished_at=factory.LazyFunction(timezone.now),
            finished_by="worker-1",
        )
        dead = factory.Trait(discarded=True, dead_letter=True)


def job_of(moment: datetime, **traits: Any) -> Job:
    """A job created at `moment`, also by its id: jobs of a time are found by their ids."""
    own_id = UUID(int=first_id(moment).int | uuid7().int & (1 << 62) - 1)
    return JobFactory(**({"id": own_id, "created_at": moment} | traits))


def many_jobs(count: int, **traits: Any) -> list[UUID]:
    """Store `count` jobs that differ only in their ids; return the ids.

    For thousands: a factory takes milliseconds for each.
    """
    pattern = model_to_dict(JobFactory.build(**traits)) | {"created_at": timezone.now()}
    jobs = [Job(**(pattern | {"id": uuid7()})) for _ in range(count)]
    Job.objects.bulk_create(jobs, batch_size=1000)
    return [job.pk for job in jobs]


class JobErrorFactory(DjangoModelFactory):
    """A failed attempt of a job."""

    job = factory.SubFactory(JobFactory, retryable=True)
    attempt = 1
    type = "handler_error"
    message = "The mail server did not answer."
    occurred_at = factory.LazyFunction(timezone.now)

    class Meta:
        model = JobError


class QueueFactory(DjangoModelFactory):
    """A queue; `paused=True` is one from which nothing is fetched."""

    name = factory.Sequence(lambda number: f"queue-{number}")

    class Meta:
        model = Queue

    class Params:
        paused = factory.Trait(
            paused_at=factory.LazyFunction(timezone.now),
            paused_by="ops",
            pause_reason="Maintenance",
        )


class WorkerFactory(DjangoModelFactory):
    """A registered, running worker with a recent heartbeat."""

    worker_id = factory.Sequence(lambda number: f"worker_{number}")
    hostname = "host-1"
    pid = factory.Sequence(lambda number: 1000 + number)
    queues = factory.LazyFunction(lambda: ["default"])
    concurrency = 10
    started_at = factory.LazyFunction(lambda: ago(3600))
    registered_at = factory.SelfAttribute("started_at")
    last_heartbeat_at = factory.LazyFunction(timezone.now)

    class Meta:
        model = Worker

    class Params:
        silent = factory.Trait(last_heartbeat_at=factory.LazyFunction(lambda: ago(3600)))
        dead = factory.Trait(
            silent=True,
            state=WorkerState.TERMINATED,
            died_at=factory.LazyFunction(lambda: ago(3500)),
        )
        left = factory.Trait(
            state=WorkerState.TERMINATED, left_at=factory.LazyFunction(timezone.now)
        )

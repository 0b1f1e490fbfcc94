"""Events of jobs while a client listens."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from jobs import engine
from jobs.access.projects import assign_project
from jobs.engine import ClaimedJob
from jobs.models import Job
from jobs.record import events
from jobs.spec.validation import new_job
from jobs.store import clock
from workers import protocol

WORKER = "worker-1"


def enqueue(queue: str = "default", *, project: str = "", **more: Any) -> UUID:
    document = {"type": "email.send", "args": [], "options": {"queue": queue}} | more
    (job,) = engine.enqueue(assign_project([new_job(document, now=clock.now())], project))
    return job.id


def enqueue_many(count: int, queue: str = "default", *, project: str = "") -> list[UUID]:
    document = {"type": "email.send", "args": [], "options": {"queue": queue}}
    new = [new_job(document, now=clock.now()) for _ in range(count)]
    return [job.id for job in engine.enqueue(assign_project(new, project))]


def fetch(queue: str = "default") -> ClaimedJob:
    (job,) = protocol.fetch([queue], worker_id=WORKER, count=1)
    return job


def ack(job: ClaimedJob) -> None:
    protocol.ack([engine.Completion(job.id, WORKER, job.attempt)])


def run(queue: str = "default") -> None:
    ack(fetch(queue))


def fail(job: ClaimedJob, **more: Any) -> None:
    protocol.fail([engine.Failure(job.id, WORKER, job.attempt, **more)])


def finish(queue: str = "default") -> UUID:
    job_id = enqueue(queue)
    run(queue)
    return job_id


def beat(job: ClaimedJob) -> None:
    protocol.beat(WORKER, state="running", active_job_ids=[str(job.id)])


def report_progress(job_id: UUID, count: int) -> None:
    """The record gets `count` reports of a job's progress."""
    job, now = Job.objects.get(pk=job_id), clock.now()
    events.record(
        [
            events.job_event("job.progress", job, time=now, data={"progress_percent": each})
            for each in range(count)
        ]
    )


def lose() -> None:
    """The reservations of all active jobs expire."""
    Job.objects.filter(state="active").update(reserved_until=clock.now() - timedelta(seconds=1))
    engine.expire()

"""Server-sent events of jobs, queues and everything (OJS realtime §2, §4, §5)."""

from __future__ import annotations

import pytest

from jobs import engine
from jobs.spec.validation import new_job
from jobs.store import clock
from workers import protocol

from .loops import listen, on_loop

pytestmark = pytest.mark.django_db(transaction=True)


def enqueue(queue="default", **more):
    (job,) = engine.enqueue(
        [
            new_job(
                {"type": "email.send", "args": [], "options": {"queue": queue} | more},
                now=clock.now(),
            )
        ]
    )
    return job.id


def fetch(queue="default"):
    (job,) = protocol.fetch([queue], worker_id="w-1", count=1)
    return job


def ack(job):
    protocol.ack([engine.Completion(job.id, "w-1", job.attempt)])


def test_a_stream_of_a_job_tells_each_transition_and_ends_with_the_job():
    async def story(loop):
        job_id = await loop.in_thread(enqueue)
        reader = await listen(loop, f"job:{job_id}")
        await loop.in_thread(lambda: ack(fetch()))
        return job_id, await reader.rest(), reader

    job_id, events, reader = on_loop(story)

    assert [(one.event, one.data["from"], one.data["to"]) for one in events] == [
        ("job.state_changed", "available", "active"),
        ("job.state_changed", "active", "completed"),
    ]
    assert set(events[0].data) == {"job_id", "queue", "type", "from", "to", "timestamp"}
    assert events[0].data["job_id"] == str(job_id)
    assert reader.retry == 3000

"""Waiting on an event loop for a job to end."""

from __future__ import annotations

import threading

import pytest
from django.db import connections

from jobs import engine
from jobs.engine import Completion
from jobs.http import job_watch
from jobs.http.verbs import VerbResponse
from jobs.models import Job, Listener
from jobs.store import awaited, wakeup
from tests.factories import JobFactory
from tests.processes import PATIENCE, eventually
from tests.realtime.loops import on_loop

pytestmark = pytest.mark.django_db(transaction=True)


def wait_for(job_id, meanwhile):
    """Wait on a loop for a job that ends `meanwhile`; return the response, and how many looks."""
    looks = []

    def look():
        job = Job.objects.get(pk=job_id)
        looks.append(job.state)
        return None if job.finished_at is None else VerbResponse({"state": job.state})

    def otherwise():
        raise AssertionError("it has not ended")

    async def story(loop):
        waiting = job_watch.WaitingForJob(job_id, look, PATIENCE, otherwise)
        return await waiting.on_loop(loop, lambda attempt: attempt())

    def act():
        try:
            eventually(lambda: len(looks) >= 2)
            meanwhile()
        finally:
            connections.close_all()

    thread = threading.Thread(target=act)
    thread.start()
    try:
        return on_loop(story), looks
    finally:
        thread.join()


@pytest.mark.postgres
def test_it_is_notified_when_the_job_ends_and_looks_no_more_often_than_it_must(
    settings, monkeypatch
):
    settings.OJS = {"WAIT_POLL_INTERVAL": 10 * PATIENCE}
    monkeypatch.setattr(job_watch, "ANYWAY", 10 * PATIENCE)
    job = JobFactory(active=True)

    found, looks = wait_for(
        job.pk, lambda: engine.complete([Completion(job.pk, worker_id=job.reserved_by)])
    )

    assert found.document == {"state": "completed"}
    # At first, when it was announced, and when it was notified.
    assert looks == ["active", "active", "completed"]
    assert not Listener.objects.filter(name=awaited.job_name(job.pk)).exists()
    assert not wakeup._subscriptions

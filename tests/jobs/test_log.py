"""Log lines about jobs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import timedelta

import pytest

import jobs
from jobs import engine
from jobs.engine import Completion, Failure
from jobs.record import log
from tests.factories import JobFactory
from workers.json_log import JSONFormatter

pytestmark = pytest.mark.django_db

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("release", "said", "unsaid"),
    [(True, "was released", "failed"), (False, "failed attempt 1", "released")],
    ids=["snoozed", "failed"],
)
def test_a_snoozed_job_is_not_said_to_have_failed(
    caplog, django_capture_on_commit_callbacks, release, said, unsaid
):
    job = JobFactory(active=True, reserved_by="w", attempt=1)

    with caplog.at_level(logging.INFO), django_capture_on_commit_callbacks(execute=True):
        engine.fail([Failure(job.pk, "w", release=release, retry_in=timedelta(hours=1))])

    assert said in caplog.text and unsaid not in caplog.text
    assert "1:00:00" in caplog.text


@pytest.mark.parametrize(
    ("attempts", "level", "state"), [(3, "WARNING", "retryable"), (1, "ERROR", "discarded")]
)
def test_a_failed_attempt_is_logged_with_its_error(
    caplog, django_capture_on_commit_callbacks, attempts, level, state
):
    job = JobFactory(
        active=True, type="mail", queue="q", reserved_by="w", attempt=1, max_attempts=attempts
    )
    message = "no such address\nJob 1 is fine " + "x" * 9000

    with django_capture_on_commit_callbacks(execute=True):
        engine.fail([Failure(job.pk, "w", type="AddressError", message=message)])

    (line,) = caplog.records
    assert (line.levelname, line.state) == (level, state)
    assert (line.job_id, line.job_type, line.queue) == (str(job.pk), "mail", "q")
    assert r"AddressError: no such address\nJob 1 is fine" in line.getMessage()
    assert "\n" not in line.getMessage() and len(line.getMessage()) < 1000
    document = json.loads(JSONFormatter().format(line))
    assert document["error"] == {"type": "AddressError", "message": message}


@pytest.fixture
def lifecycle() -> Iterator[None]:
    """As in a process that started with `LOG_JOBS`."""
    log.log_lifecycle()
    yield
    log.keep_quiet()


def test_each_job_is_logged_if_the_site_wants_it(
    lifecycle, caplog, django_capture_on_commit_callbacks
):
    with caplog.at_level(logging.DEBUG, "jobs"), django_capture_on_commit_callbacks(execute=True):
        meta = {"traceparent": TRACE}
        job = jobs.enqueue("email.send", ["secret"], queue="mail", meta=meta)
        engine.claim(["mail"], worker_id="w")
        engine.complete([Completion(job.id, "w", result="secret")])
        other = jobs.enqueue("email.send", queue="mail")
        engine.cancel(other.id)

    lines = [record for record in caplog.records if record.name == "jobs"]
    told = [
        (line.levelname, line.getMessage(), line.job_id, line.state)
        for line in lines
        if hasattr(line, "job_id")
    ]
    assert told == [
        ("INFO", "Job enqueued", str(job.id), "available"),
        ("DEBUG", "Job fetched by worker", str(job.id), "active"),
        ("INFO", "Job completed successfully", str(job.id), "completed"),
        ("INFO", "Job enqueued", str(other.id), "available"),
        ("INFO", "Job cancelled", str(other.id), "cancelled"),
    ]
    assert {line.category for line in lines if hasattr(line, "job_id")} == {"lifecycle"}
    assert (lines[0].job_type, lines[0].queue) == ("email.send", "mail")
    written = json.loads(JSONFormatter().format(lines[0]))
    assert written["trace"]["trace_id"] == TRACE.split("-")[1]
    assert "secret" not in caplog.text


def test_jobs_that_succeed_are_not_logged_otherwise(caplog, django_capture_on_commit_callbacks):
    with caplog.at_level(logging.DEBUG, "jobs"), django_capture_on_commit_callbacks(execute=True):
        job = jobs.enqueue("email.send")
        engine.claim(["default"], worker_id="w")
        engine.complete([Completion(job.id, "w")])

    assert [record for record in caplog.records if record.name == "jobs"] == []

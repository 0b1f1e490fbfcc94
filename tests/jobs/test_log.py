"""Log lines about jobs."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from jobs import engine
from jobs.engine import Failure
from tests.factories import JobFactory

pytestmark = pytest.mark.django_db


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

"""The browser tells the server the reader's time zone."""

from __future__ import annotations

import pytest

from jobs.models import Job
from tests.factories import JobFactory
from tests.once import once_is_enough

pytestmark = [
    once_is_enough,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
]


def test_an_operator_in_berlin_reads_times_of_berlin(log_in):
    job = JobFactory()
    Job.objects.update(created_at="2026-07-01T22:30:00Z")

    page = log_in(timezone_id="Europe/Berlin")
    page.goto(f"/admin/ojs_jobs/job/{job.pk}/change/")
    page.reload()

    assert "2026-07-02 00:30:00 CEST" in page.inner_text("#content-main")

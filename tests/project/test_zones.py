"""Times in the reader's own time zone, with UTC on hover."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jobs.models import Job
from tests.factories import JobFactory

pytestmark = pytest.mark.django_db


def shown(client, zone=""):
    job = JobFactory()
    Job.objects.update(created_at=datetime(2026, 7, 1, 22, 30, tzinfo=UTC))
    if zone:
        client.cookies["ojs_zone"] = zone
    return client.get(f"/admin/ojs_jobs/job/{job.pk}/change/").content.decode()


@pytest.mark.parametrize("cookie", ["Europe%2FBerlin", "Europe/Berlin"], ids=["script", "hand"])
def test_times_are_those_of_the_readers_zone_with_utc_on_hover(admin_client, cookie):
    text = shown(admin_client, cookie)

    assert ">2026-07-02 00:30:00 CEST</time>" in text
    assert 'title="2026-07-02 00:30:00 CEST = 2026-07-01 22:30:00 UTC"' in text


@pytest.mark.parametrize("zone", ["", "Nowhere/Land", "../../etc/passwd", "Europe", "x" * 99])
def test_without_a_zone_that_is_one_they_are_utc(admin_client, zone):
    assert ">2026-07-01 22:30:00 UTC</time>" in shown(admin_client, zone)

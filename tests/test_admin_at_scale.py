"""Every page of the admin on a large installation: few queries, and little to send."""

from __future__ import annotations

import pytest
from django.test.utils import CaptureQueriesContext

from jobs.models import CronJob, DeadJob, Job, OperatorAction, Queue, TypeRollup
from tests.browser import walk
from tests.database import connection
from tests.once import once_is_enough
from tests.scenes import large
from workers.models import FleetOperation, Worker

pytestmark = [pytest.mark.django_db, pytest.mark.slow, once_is_enough]

QUERIES, SIZE = 15, 50_000
"""Most queries of a page, and bytes that are sent of it, compressed."""


def test_every_page_takes_few_queries_and_little_room(admin_client):
    scene = large.draw()
    assert Worker.objects.count() == 1000 and Queue.objects.count() == 21
    assert TypeRollup.objects.values("type").distinct().count() == len(large.TYPES) == 54
    chosen = {
        Job: scene.waiting,
        DeadJob: DeadJob.objects.get(pk=scene.dead.pk),
        CronJob: CronJob.objects.get(pk="daily-report"),
        Worker: Worker.objects.get(pk=scene.terminated),
        Queue: Queue.objects.get(pk="video"),
        FleetOperation: FleetOperation.objects.latest("pk"),
    }
    order = OperatorAction.objects.filter(verb="terminate_worker").latest("pk").pk
    breakdown = "/admin/ojs_workers/dashboard/breakdown/"
    more = (
        ("dashboard of a week", "/admin/ojs_workers/dashboard/?range=7d"),
        ("map by label", "/admin/ojs_workers/worker/map/?group=label"),
        ("workers by host", "/admin/ojs_workers/worker/?group=host"),
        ("by queue", f"{breakdown}?by=queue&order=run"),
        ("one type", f"{breakdown}?by=type&name={large.SLOWEST}"),
        ("new job with inputs", "/admin/ojs_jobs/job/add/?type=email.send"),
    )
    wrong = []
    for name, url in (*walk.pages(walk.Rows(chosen, order)), *more):
        admin_client.get(url)  # what a process reads once
        with CaptureQueriesContext(connection) as captured:
            page = admin_client.get(url, headers={"accept-encoding": "gzip"})
        assert page.status_code == 200, url
        if len(captured) > QUERIES or len(page.content) > SIZE:
            wrong.append(f"{name}: {len(captured)} queries, {len(page.content)} bytes ({url})")

    assert wrong == [], "\n".join(wrong)

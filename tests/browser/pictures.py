"""Takes the pictures of docs/operators.md: `python -m tests.pictures` runs it, the tests do not."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from typing import Any

import pytest
from django.urls import reverse

from jobs.models import OperatorAction
from tests.pictures import CHOSEN, FOLDER
from tests.scenes import large
from workers.chores import reaper
from workers.models import FleetOperation

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

WIDTH, TALLEST = 1280, 1000
QUALITY = 80
MOST = 120_000
"""Bytes of a picture."""
CALM = "document.getAnimations().forEach(each => each.finish())"


@dataclass(frozen=True)
class Picture:
    name: str
    model: str
    page: str = "changelist"
    row: Any = None
    query: str = ""
    tall: int = TALLEST


def pictures(scene: large.Large) -> list[Picture]:
    order = OperatorAction.objects.filter(verb="terminate_worker").latest("pk").pk
    drain = FleetOperation.objects.latest("pk").pk
    return [
        Picture("dashboard", "ojs_workers_dashboard", query="?range=24h", tall=1240),
        Picture("breakdown", "ojs_workers_dashboard", "breakdown", query="?order=run", tall=640),
        Picture("workers", "ojs_workers_worker", query="?label=green", tall=820),
        Picture("map", "ojs_workers_worker", "map", query="?group=label", tall=1000),
        Picture("order", "ojs_workers_worker", "order", order),
        Picture("drain", "ojs_workers_fleetoperation", "change", drain, tall=900),
        Picture("jobs", "ojs_jobs_job", tall=820),
        Picture("job", "ojs_jobs_job", "change", scene.waiting.pk, tall=700),
        Picture("dead-job", "ojs_jobs_job", "change", scene.dead.pk, tall=1100),
        Picture("new-job", "ojs_jobs_job", "add", query="?type=email.send&queue=email", tall=1000),
        Picture("cron", "ojs_jobs_cronjob", "change", "daily-report", tall=900),
        Picture("dead-letter", "ojs_jobs_deadjob", tall=900),
        Picture("queues", "ojs_jobs_queue", tall=800),
        Picture("audit", "ojs_jobs_operatoraction", tall=800),
    ]


def test_take_them(log_in):
    scene = large.draw(sampled=large.QUARTER)
    page = log_in(
        viewport={"width": WIDTH, "height": TALLEST}, reduced_motion="reduce", locale="en-US"
    )
    # The bar at the side is the same on each.
    page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    chosen = set(filter(None, os.environ.get(CHOSEN, "").split(",")))
    all_of_them = pictures(scene)
    assert chosen <= {each.name for each in all_of_them}, "there is no such picture"
    for each in all_of_them:
        if chosen and each.name not in chosen:
            continue
        reaper.sign_of_life("web-1:41")
        keys = [] if each.row is None else [each.row]
        page.set_viewport_size({"width": WIDTH, "height": each.tall})
        page.goto(reverse(f"admin:{each.model}_{each.page}", args=keys) + each.query)
        page.wait_for_load_state("load")
        page.evaluate(CALM)
        size = save(page, each)
        assert size <= MOST, f"{each.name} has {size} bytes"


def save(page: Any, picture: Picture) -> int:
    """Write the top of the page, as far as it has something to show; return its size."""
    bottom = page.evaluate("document.querySelector('#content').getBoundingClientRect().bottom")
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": min(bottom, picture.tall), "scale": 1}
    shot = page.context.new_cdp_session(page).send(
        "Page.captureScreenshot", {"format": "webp", "quality": QUALITY, "clip": clip}
    )
    data = base64.b64decode(shot["data"])
    (FOLDER / f"{picture.name}.webp").write_bytes(data)
    return len(data)

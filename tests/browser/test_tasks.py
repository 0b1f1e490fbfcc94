"""An operator's tasks on a large installation, each from the start page, with clicks counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.once import once_is_enough
from tests.scenes import large
from workers.chores import reaper

from . import tasks

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    once_is_enough,
]

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "operators.md"


@pytest.mark.parametrize("script", [True, False], ids=["script", "no_script"])
def test_each_task_takes_few_clicks_from_the_start_page(log_in, script):
    # Without script it is the same on a small installation.
    scene = large.draw() if script else large.draw(workers=80, finished=500, waiting=200)
    page = log_in(java_script_enabled=script, viewport={"width": 1280, "height": 900})
    took = {}
    for task in tasks.TASKS:
        reaper.sign_of_life("web-1:41")  # otherwise each page warns that no reaper runs
        page.goto(tasks.start())
        if script:
            page.evaluate("sessionStorage.clear()")  # which filters were unfolded
        hand = tasks.Hand(page)
        task.perform(hand, scene)
        took[task.name] = hand.clicks

    assert took == {task.name: task.clicks for task in tasks.TASKS}
    assert max(took.values()) <= tasks.MOST


def test_the_guide_has_the_table_of_the_tasks():
    assert tasks.table() in GUIDE.read_text(), "python -m tests.pictures --table"

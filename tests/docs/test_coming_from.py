"""Our half of the pages for people who come from other job queues runs as it stands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import pytest

from jobs import crontab, testing
from tests.once import once_is_enough
from workers.runtime import handlers

from .pages import ROOT, Block, blocks

pytestmark = once_is_enough

PAGES = sorted((ROOT / "docs" / "coming-from").glob("*.md"))


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    """Pages may all have a handler of the same type; none stays."""
    before = set(handlers.known())
    yield
    for type in set(handlers.known()) - before:
        handlers.forget(type)


def is_ours(block: Block) -> bool:
    return block.is_run and block.language == "python"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_task_of_the_page_runs(page, db):
    delivered: list[int] = []
    namespace: dict[str, Any] = {"deliver": delivered.append}
    ours = [block.text for block in blocks(page) if is_ours(block)]

    with testing.fake():
        for text in ours:
            if "Schedule" not in text:
                exec(compile(text, str(page), "exec"), namespace)
        if "confirm_later" in namespace:
            namespace["confirm_later"](8)
        testing.run_jobs()

    if "TASKS" in namespace:
        assert {one["BACKEND"].split(".")[-1] for one in namespace["TASKS"].values()} == {
            "DatabaseBackend",
            "OJSBackend",
        }
    else:
        assert delivered == [7, 8]
    if page.stem == "django-q2":
        from django_q.models import OrmQ

        (waiting,) = OrmQ.objects.all()
        assert (waiting.key, waiting.func(), waiting.task["args"]) == (
            "mail",
            "shop.tasks.confirm",
            (7,),
        )


def test_schedules_of_django_q2_become_an_option(db, capsys, settings):
    from django.utils.timezone import datetime, make_aware
    from django_q.models import Schedule

    Schedule.objects.all().delete()
    when = make_aware(datetime(2026, 3, 4, 5, 6))
    for kind, more in [
        (Schedule.CRON, {"cron": "0 9 * * 1-5"}),
        (Schedule.MINUTES, {"minutes": 10}),
        (Schedule.HOURLY, {}),
        (Schedule.DAILY, {"args": "1, 'two'"}),
        (Schedule.WEEKLY, {}),
        (Schedule.MONTHLY, {"kwargs": "year=2026"}),
        (Schedule.YEARLY, {}),
        (Schedule.ONCE, {}),
    ]:
        Schedule.objects.create(
            name=kind, func="shop.report", schedule_type=kind, next_run=when, **more
        )
    (page,) = (page for page in PAGES if page.stem == "django-q2")
    (script,) = (block.text for block in blocks(page) if "Schedule" in block.text)

    exec(compile(script, str(page), "exec"), {})

    printed, _, note = capsys.readouterr().out.partition("# ")
    assert "year=2026" in note
    settings.OJS = settings.OJS | ast.literal_eval(printed)
    found = {one.name: one for one in crontab.of_settings()}
    assert {name: one.cron for name, one in found.items()} == {
        Schedule.CRON: "0 9 * * 1-5",
        Schedule.MINUTES: "@every 10m",
        Schedule.HOURLY: "6 * * * *",
        Schedule.DAILY: "6 5 * * *",
        Schedule.WEEKLY: "6 5 * * 3",
        Schedule.MONTHLY: "6 5 4 * *",
        Schedule.YEARLY: "6 5 4 3 *",
    }

"""Strong uniqueness: racing enqueues under one key make one job (OJS unique jobs §8.1)."""

from __future__ import annotations

import pytest
from django.utils import timezone

from jobs import engine
from jobs.errors import DuplicateJob
from jobs.models import Job
from jobs.spec.lifecycle import State
from jobs.spec.validation import new_job

from .threads import together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def race(count: int, strategy: str) -> list[str]:
    """Enqueue the same job `count` times at once; return the outcome of each."""

    def enqueue() -> str:
        unique = {"keys": ["type", "args"], "on_conflict": strategy}
        document = {"type": "report.make", "args": [1], "unique": unique}
        job = new_job(document, timezone.now())
        try:
            engine.enqueue([job])
        except DuplicateJob:
            return "rejected"
        return "made" if job.existing is None else "ignored"

    return together(*[enqueue] * count)


@pytest.mark.postgres
def test_a_hundred_racing_enqueues_make_one_job():
    outcomes = [outcome for _ in range(2) for outcome in race(50, "reject")]

    assert (outcomes.count("made"), outcomes.count("rejected")) == (1, 99)
    assert Job.objects.count() == 1


@pytest.mark.parametrize(("strategy", "others"), [("reject", "rejected"), ("ignore", "ignored")])
def test_of_racing_enqueues_one_makes_a_job_and_the_others_see_it(strategy, others):
    outcomes = race(8, strategy)

    assert sorted(outcomes) == sorted(["made"] + [others] * 7)
    assert Job.objects.count() == 1


def test_of_racing_replacements_one_job_is_left():
    race(8, "replace")

    assert Job.objects.count() == 8
    assert Job.objects.exclude(state=State.CANCELLED).count() == 1

"""However many reapers run, an occurrence is decided once (OJS cron §7.1)."""

from __future__ import annotations

import pytest

from jobs import engine
from jobs.models import CronJob, CronRun, Job
from tests.factories import ago

from .threads import in_step

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.postgres]

ROUNDS = 10
SCHEDULES = 5


def test_three_reapers_enqueue_each_occurrence_exactly_once():
    # Not a schedule of every minute, which may become due again during a round.
    template = {"type": "report.make", "args": []}
    for number in range(SCHEDULES):
        new = engine.NewCronJob(f"cron-{number}", "@every 24h", template, overlap_policy="allow")
        engine.upsert_cron(new)

    def sweep(number: int) -> int:
        return engine.enqueue_due_schedules()

    for number in range(1, ROUNDS + 1):
        CronJob.objects.update(next_run_at=ago(1), anchored_at=ago(60))

        decided = in_step(1, sweep, sweep, sweep)[0]

        assert sum(decided) == SCHEDULES
        assert Job.objects.count() == CronRun.objects.count() == number * SCHEDULES
    assert set(CronJob.objects.values_list("run_count", flat=True)) == {ROUNDS}


def test_a_registration_made_by_several_servers_at_once_is_one():
    new = engine.NewCronJob("cron", "* * * * *", {"type": "report.make", "args": []})

    made = in_step(1, *[lambda number: engine.upsert_cron(new)[1]] * 4)[0]

    assert sorted(made) == [False, False, False, True]
    assert CronJob.objects.count() == 1

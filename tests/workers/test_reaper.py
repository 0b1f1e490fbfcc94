"""Rounds of the reaper: chore after chore, whatever fails (docs/architecture.md)."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
from django.db import IntegrityError, OperationalError
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.store import pace
from tests.database import atomic, connection
from tests.factories import JobFactory, QueueFactory, WorkerFactory, ago
from workers.chores import reaper
from workers.chores.reaper import Chore
from workers.models import Reaper, Sweep, Worker

pytestmark = pytest.mark.django_db


def failing(problem: Exception) -> Chore:
    def run() -> int:
        raise problem

    return Chore("failing", run, "things")


@pytest.mark.parametrize(
    "problem",
    [ValueError("a bug"), IntegrityError("a bug"), OperationalError("a deadlock")],
    ids=lambda problem: type(problem).__name__,
)
def test_a_chore_that_fails_does_not_stop_the_others(monkeypatch, caplog, problem):
    monkeypatch.setattr(reaper, "CHORES", (failing(problem), *reaper.CHORES))
    QueueFactory(name="default")
    JobFactory(active=True, reserved_until=ago(1))

    assert reaper.sweep() == {"expired-reservations": 1}

    assert "The chore failing failed" in caplog.text
    assert str(problem) in caplog.text, "with its traceback"


def test_a_chore_that_fails_in_every_round_is_logged_once_for_each_way_of_failing(
    monkeypatch, caplog
):
    again = [ValueError("row 17"), ValueError("row 18")]
    troubles = [*again, KeyError("other"), None, *again]
    coming = iter(troubles)

    def run() -> int:
        trouble = next(coming)
        if trouble is not None:
            raise trouble
        return 0

    monkeypatch.setattr(reaper, "CHORES", (Chore("at-times", run, "things"),))
    caplog.set_level("INFO", "workers.reaper")
    for _ in troubles:
        reaper.sweep()

    assert [record.getMessage() for record in caplog.records] == [
        "The chore at-times failed.",
        "The chore at-times failed.",
        "The chore at-times works again.",
        "The chore at-times failed.",
    ]


def test_a_chore_whose_table_is_missing_fails_in_one_line_that_says_what_to_do(monkeypatch, caplog):
    def ask() -> int:
        with atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM ojs_jobs_of_next_year")
        raise AssertionError("there is such a table")

    monkeypatch.setattr(reaper, "CHORES", (Chore("early", ask, "things"),))

    reaper.sweep()

    (line,) = caplog.records
    assert "The chore early failed." in line.getMessage()
    assert "run 'manage.py migrate'" in line.getMessage()
    assert line.exc_info is None


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_database_that_went_away_ends_the_round(monkeypatch, caplog):
    """The other chores would fail as well; the caller waits and reconnects."""

    def lose_the_connection() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        raise AssertionError("the connection is gone")

    losing = Chore("losing", lose_the_connection, "things")
    monkeypatch.setattr(reaper, "CHORES", (losing, *reaper.CHORES))
    try:
        with pytest.raises(OperationalError):
            reaper.sweep()
    finally:
        connection.close()
    assert "failed" not in caplog.text, "one problem is logged once"


def test_a_chore_works_through_batch_after_batch(monkeypatch):
    monkeypatch.setattr(reaper, "BATCH_SIZE", 2)
    WorkerFactory.create_batch(5, silent=True)

    assert reaper.sweep() == {"dead-workers": 5}


def test_a_round_that_is_asked_to_stop_finishes_the_batch_in_hand(monkeypatch):
    monkeypatch.setattr(reaper, "BATCH_SIZE", 2)
    WorkerFactory.create_batch(5, silent=True)
    JobFactory(active=True, reserved_until=ago(1))
    asked = iter([False, True, True])

    assert reaper.sweep(stop=lambda: next(asked, True)) == {"dead-workers": 2}
    assert Worker.objects.live().count() == 3


def test_only_the_chores_named_are_done():
    WorkerFactory(silent=True)
    JobFactory(active=True, reserved_until=ago(1))

    assert reaper.sweep(["expired-reservations"]) == {"expired-reservations": 1}


def test_a_chore_that_looks_long_and_finds_nothing_rests_in_proportion(monkeypatch):
    clock, found, ran = [0.0], [0], []

    def look():
        ran.append(clock[0])
        clock[0] += 0.5
        return found.pop() if found else 0

    slow = Chore("slow", look, "things")
    other = Chore("other", lambda: ran.append("other") or 0, "things")
    monkeypatch.setattr(reaper, "CHORES", (slow, other))
    rests = reaper.Rests(now=lambda: clock[0])

    for _ in range(3):
        reaper.sweep(rests=rests)
    clock[0] = 0.5 + 4 * 0.5
    found[:] = [0, 1]
    reaper.sweep(rests=rests)
    assert ran == [0.0, "other", "other", "other", 2.5, 3.0, "other"]

    # A fifth of the time, but never longer than the operator would wait.
    clock[0] += 4 * 1.0
    ran.clear()
    monkeypatch.setattr(reaper, "LONGEST_REST", 0.0)
    for _ in range(2):
        reaper.sweep(rests=rests)
    assert ran == [7.5, "other", 8.0, "other"]


@pytest.mark.parametrize(
    "chore",
    [
        Chore("in-parts", lambda: 0, "things", batches=1),
        Chore("slow", lambda: 0, "things", every=timedelta(0)),
    ],
    ids=lambda chore: chore.name,
)
def test_a_chore_that_has_more_to_do_or_a_period_of_its_own_does_not_rest(monkeypatch, chore):
    monkeypatch.setattr(reaper, "CHORES", (chore,))
    clock = itertools.count()
    rests = reaper.Rests(now=lambda: next(clock))

    reaper.sweep(rests=rests)

    assert not rests.has(chore)


def test_one_query_tells_which_slow_chores_are_due(db):
    now = timezone.now()
    for chore in reaper.SLOW:
        Sweep.objects.create(name=chore.name, ran_at=now)

    with CaptureQueriesContext(connection) as ran:
        reaper.sweep()

    table = connection.ops.quote_name(Sweep._meta.db_table)
    assert [query["sql"].split()[0] for query in ran if table in query["sql"]] == ["SELECT"]


class Machine:
    """A clock, and a throttled chore whose batches take half a second each."""

    def __init__(self, monkeypatch, batches: int) -> None:
        self.now, self.left = 0.0, batches
        self.said: list[str] = []
        self.chore = Chore(
            "throttled", self.batch, "things", timedelta(minutes=1), is_throttled=True
        )
        self.rests = reaper.Rests(now=lambda: self.now, pause=self.pause)
        monkeypatch.setattr(reaper, "CHORES", (self.chore,))
        monkeypatch.setattr(reaper, "_due", lambda give_up: {chore.name for chore in reaper.CHORES})
        monkeypatch.setattr(reaper, "take_turn", lambda chore: True)

    def batch(self) -> int:
        self.now += 0.5
        self.said.append("batch" if self.left else "look")
        self.left -= bool(self.left)
        return self.said[-1] == "batch"

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.said.append(f"rest {seconds:g}")

    def sweep(self) -> list[str]:
        self.said = []
        reaper.sweep(rests=self.rests)
        return self.said


def test_a_throttled_chore_rests_as_long_as_its_batches_take_and_leaves_the_round_to_others(
    db, monkeypatch
):
    machine = Machine(monkeypatch, batches=3)
    Sweep.objects.create(name="throttled", ran_at=timezone.now())

    assert machine.sweep() == ["batch", "rest 0.5"] * 2
    due = Sweep.objects.filter(ran_at__lte=timezone.now() - timedelta(minutes=2))
    assert due.exists(), "it goes on in the next round"
    assert machine.sweep() == ["batch", "rest 0.5", "look"]


def test_a_throttled_chore_that_does_not_come_to_an_end_no_longer_rests(db, monkeypatch):
    machine = Machine(monkeypatch, batches=1000)
    while machine.now < reaper.BEHIND:
        assert machine.sweep() == ["batch", "rest 0.5"] * 2
        machine.now += 1

    assert machine.sweep() == ["batch"] * 4

    machine.left = 0
    machine.sweep()
    machine.left, machine.now = 1000, machine.now + 60
    assert machine.sweep() == ["batch", "rest 0.5"] * 2


def test_a_throttled_chore_rests_again_if_another_process_may_have_come_to_its_end(db, monkeypatch):
    machine = Machine(monkeypatch, batches=1000)
    machine.sweep()

    machine.now += reaper.BEHIND

    assert machine.sweep() == ["batch", "rest 0.5"] * 2


def test_a_throttled_chore_that_looks_long_for_nothing_more_looks_less_often(db, monkeypatch):
    machine = Machine(monkeypatch, batches=1)

    assert machine.sweep() == ["batch", "rest 0.5", "look"]

    machine.now += 49 * 0.5 - 0.1
    assert machine.sweep() == []
    machine.now += 0.2
    assert machine.sweep() == ["look"]


def in_pieces(machine: Machine, count: int) -> Chore:
    """A chore that does its work in so many pieces of half a second."""

    def work() -> int:
        for _ in range(count):
            with pace.piece():
                machine.batch()
        return 0

    return Chore("pieces", work, "things", timedelta(minutes=1))


def test_a_chore_rests_between_the_pieces_of_its_work_but_not_for_long(monkeypatch):
    machine = Machine(monkeypatch, batches=1000)
    monkeypatch.setattr(reaper, "CHORES", (in_pieces(machine, 5),))
    monkeypatch.setattr(pace, "now", lambda: machine.now)

    assert machine.sweep() == ["batch", "rest 0.5"] * 2 + ["batch"] * 3

    machine.rests.throttles = False
    assert machine.sweep() == ["batch"] * 5


def test_whoever_does_the_work_of_a_chore_otherwise_does_not_rest(monkeypatch):
    machine = Machine(monkeypatch, batches=1000)

    in_pieces(machine, 3).run()

    assert machine.said == ["batch"] * 3


def test_a_throttled_chore_takes_no_rest_in_a_process_that_runs_once(db, monkeypatch):
    machine = Machine(monkeypatch, batches=10)

    reaper.sweep()

    assert machine.said == ["batch"] * 10 + ["look"]


def test_what_a_round_did_is_said_in_words():
    assert list(reaper.report({"dead-workers": 2, "orphaned-jobs": 7})) == [
        "2 workers declared dead",
        "7 jobs of dead workers recovered",
    ]
    assert list(reaper.report({})) == []


def test_every_chore_of_the_documented_list_is_there():
    assert [chore.name for chore in reaper.CHORES] == [
        "dead-workers",
        "fleet-operations",
        "directives",
        "timeouts",
        "orphaned-jobs",
        "expired-reservations",
        "total-timeouts",
        "dead-letter-queues",
        "schedules",
        "due-jobs",
        "expired-jobs",
        "dependents",
        "bulk-operations",
        "grown-tables",
        "tenants",
        "webhooks",
        "statistics",
        "queue-samples",
        "fleet-samples",
        "workflows",
        "queues",
        "pressure",
        "finished-jobs",
        "old-results",
        "old-workflows",
        "event-partitions",
        "stored-arguments",
        "old-events",
        "long-histories",
        "old-refusals",
        "alerts",
        "old-alerts",
        "old-deliveries",
        "tallies",
        "old-directives",
        "old-marks",
        "old-workers",
    ]


# Slow chores: once in a period, however many processes


def test_a_slow_chore_is_done_once_in_its_period():
    chore = reaper.SLOW[0]

    assert [reaper.take_turn(chore) for _ in range(3)] == [True, False, False]


def test_a_reaper_leaves_a_slow_chore_to_the_cluster_for_a_while():
    chore = reaper.SLOW[0]
    assert chore.every is not None
    sweep = Sweep.objects.create(name=chore.name, ran_at=timezone.now() - chore.every * 1.5)

    assert not reaper.take_turn(chore), "the reaper waits for two periods"
    assert reaper.take_turn(chore, patience=1)

    Sweep.objects.filter(pk=sweep.pk).update(ran_at=timezone.now() - chore.every * 2.1)
    assert reaper.take_turn(chore), "and then steps in"


def test_naming_a_slow_chore_does_it_now():
    JobFactory(completed=True, finished_at=ago(8 * 86_400))
    assert reaper.take_turn(next(c for c in reaper.SLOW if c.name == "finished-jobs"))

    assert reaper.sweep() == {}
    assert reaper.sweep(["finished-jobs"]) == {"finished-jobs": 1}


def test_workers_that_are_gone_are_forgotten_after_a_day():
    kept = [WorkerFactory(), WorkerFactory(dead=True), WorkerFactory(left=True)]
    WorkerFactory(dead=True, last_heartbeat_at=ago(2 * 86_400))
    holding = WorkerFactory(dead=True, last_heartbeat_at=ago(2 * 86_400))
    JobFactory(active=True, reserved_by=holding.pk)

    assert reaper.prune_workers() == 1

    assert set(Worker.objects.all()) == {*kept, holding}, "one that holds jobs is still needed"


# The reaper's own sign of life


def test_a_reaper_is_seen_and_one_long_gone_is_forgotten():
    Reaper.objects.create(name="old:1", seen_at=ago(7200))
    assert reaper.is_silent(reaper.last_seen())

    reaper.sign_of_life("new:2")
    reaper.prune_workers()

    assert not reaper.is_silent(reaper.last_seen())
    assert [row.name for row in Reaper.objects.all()] == ["new:2"]


def test_where_no_reaper_ever_ran_it_is_silent():
    assert reaper.last_seen() is None
    assert reaper.is_silent(None)


@pytest.mark.parametrize(("age", "silent"), [(25, False), (31, True)])
def test_a_reaper_is_missed_after_thirty_seconds(age, silent):
    assert reaper.is_silent(ago(age)) is silent

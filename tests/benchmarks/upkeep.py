"""Housekeeping of filled tables: whether it is done in small steps, and what fetches feel of it.

Fetches come from another process, so that they compete for the database alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest import mock

from django.conf import settings
from django.db import connections
from django.db.transaction import Atomic
from django.test import override_settings

from jobs.access.audit import of_shell
from jobs.engine import bulk, bulk_operations
from jobs.models import BulkOperation, BulkState, Job
from jobs.spec.lifecycle import State
from jobs.store import pace
from workers.chores import reaper

from .fetching import fetching
from .places import UPKEEP
from .plan import say
from .results import Results, percentile

if TYPE_CHECKING:
    from .filled import Sizes

STOPPED_AFTER = 3
"""Batches after which a bulk operation is stopped once."""
CHORES = {chore.name: chore for chore in reaper.CHORES}


@contextmanager
def transactions() -> Iterator[list[float]]:
    """Collect the milliseconds of each transaction that Django begins and ends."""
    times: list[float] = []
    enter, leave = Atomic.__enter__, Atomic.__exit__
    began = 0.0

    def timed_enter(self: Any) -> None:
        nonlocal began
        if not connections[self.using].in_atomic_block:
            began = time.perf_counter()
        enter(self)

    def timed_leave(self: Any, *problem: Any) -> None:
        leave(self, *problem)
        if not connections[self.using].in_atomic_block:
            times.append((time.perf_counter() - began) * 1000)

    with (
        mock.patch.object(Atomic, "__enter__", timed_enter),
        mock.patch.object(Atomic, "__exit__", timed_leave),
    ):
        yield times


@dataclass
class Watch:
    """Times work while another process fetches."""

    results: Results
    url: str
    queues: list[str]
    group: str = UPKEEP
    alone: list[float] = field(default_factory=list)

    def idle(self, seconds: float) -> None:
        """Time fetches beside which nothing is done."""
        with fetching(self.url, self.queues, self.alone):
            time.sleep(seconds)
        self.note("FETCH p99, nothing beside it", percentile(self.alone, 0.99), "ms")

    def work(self, name: str, work: Callable[[], str]) -> None:
        """Do it, and note how long it and its longest transaction took, and fetches beside it.

        Args:
            work: returns a remark.
        """
        times: list[float] = []
        with fetching(self.url, self.queues, times), transactions() as lasted:
            began = time.perf_counter()
            remark = work()
            seconds = time.perf_counter() - began
        self.note(f"{name}: whole", seconds, "s", remark)
        self.note(f"{name}: longest transaction", max(lasted, default=0.0), "ms")
        if times:
            beside = percentile(times, 0.99)
            self.note(f"{name}: FETCH p99 beside it", beside, "ms")
            if self.alone:
                ratio = beside / percentile(self.alone, 0.99)
                self.note(f"{name}: FETCH p99 beside it, of alone", ratio, "×")

    def note(self, name: str, value: float, unit: str, remark: str = "") -> None:
        result = self.results.get(self.group, name, unit)
        result.rounds.append(value)
        result.note = f"({remark})" if remark else ""
        say(f"  {name}: {value:,.2f} {unit} {result.note}")


def run(sizes: Sizes, results: Results, url: str) -> None:
    queues = [f"queue-{n}" for n in range(sizes.stock.queues)]
    watch = Watch(results, url, queues)
    _sweep(watch, sizes.rounds)
    watch.idle(sizes.alone)
    batch = sizes.batch or bulk.BATCH
    with mock.patch.object(bulk, "BATCH", batch), mock.patch.object(pace, "TURN", -1.0):
        _operate(watch, "retry of the whole dead letter", "retry", {"state": "discarded"})
        purged = {"type": "type-3", "state": "completed"}
        _operate(watch, "purge of the completed jobs of a type", "delete", purged)
    _retire(watch, sizes)


def _sweep(watch: Watch, rounds: int) -> None:
    """A sweep in steady state: every chore is due, and has little to do."""
    for _ in range(rounds):  # what has gathered so far
        for chore in reaper.CHORES:
            reaper.run(chore)
    for _ in range(rounds):
        taken = {}
        with transactions() as lasted:
            for chore in reaper.CHORES:
                began = time.perf_counter()
                reaper.run(chore)
                taken[chore.name] = time.perf_counter() - began
        slowest = sorted(taken, key=lambda name: -taken[name])[:3]
        remark = ", ".join(f"{name} {taken[name]:.2f} s" for name in slowest)
        watch.note("a sweep with every chore: whole", sum(taken.values()), "s", remark)
        watch.note("a sweep with every chore: longest transaction", max(lasted), "ms")


def _operate(watch: Watch, name: str, verb: str, wanted: dict[str, Any]) -> None:
    """A bulk operation, stopped once and continued; one batch in each turn of its chore.

    Raises:
        RuntimeError: it did not stop, or did not end.
    """
    began = time.perf_counter()
    operation = bulk_operations.start(verb, wanted, actor=of_shell())
    watch.note(f"{name}: counting", time.perf_counter() - began, "s")

    def work() -> str:
        seen = carry_out(operation)
        return f"{seen[-1]:,} jobs, progress seen {len(set(seen)):,} times"

    watch.work(name, work)


def carry_out(operation: BulkOperation) -> list[int]:
    """Run the chore until the operation has ended; stop it once; return how far it was each time.

    Raises:
        RuntimeError: it did not stop, or did not end.
    """
    seen = []
    while operation.state == BulkState.RUNNING:
        reaper.run(CHORES["bulk-operations"])
        operation.refresh_from_db()
        seen.append(operation.done)
        if len(seen) == STOPPED_AFTER and operation.state == BulkState.RUNNING:
            bulk_operations.stop(operation.pk, actor=of_shell())
            reaper.run(CHORES["bulk-operations"])
            operation.refresh_from_db()
            if operation.done != seen[-1]:
                raise RuntimeError("A bulk operation went on although it was stopped.")
            bulk_operations.go_on(operation.pk, actor=of_shell())
            operation.refresh_from_db()
    if operation.state != BulkState.COMPLETED:
        raise RuntimeError(f"A bulk operation ended {operation.state}.")
    return seen


def _retire(watch: Watch, sizes: Sizes) -> None:
    """A shorter retention makes a tenth of the past too old, or a million jobs."""
    stock = sizes.stock
    share = min(sizes.deleted, stock.finished // 10) / stock.finished
    completed = Job.objects.filter(state=State.COMPLETED)
    (oldest,) = completed.order_by("finished_at").values_list("finished_at", flat=True)[:1]
    (newest,) = completed.order_by("-finished_at").values_list("finished_at", flat=True)[:1]
    from jobs.store import clock

    edge = oldest + (newest - oldest) * share
    keep = clock.now() - edge
    shorter = settings.OJS | {"COMPLETED_RETENTION": keep / timedelta(seconds=1)}
    old = completed.filter(finished_at__lte=edge).count()

    def work() -> str:
        deleted = 0
        # Others become too old in the meantime: there is always something to delete.
        while deleted < old and (count := reaper.run(CHORES["finished-jobs"])):
            deleted += count
        return f"{deleted:,} jobs"

    with override_settings(OJS=shorter):
        watch.work("retention", work)

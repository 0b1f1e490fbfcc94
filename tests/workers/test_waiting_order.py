"""Order of waiters: which look when work arrives, and in which order they are served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from workers.fetching.waiting import SWEPT, Hub, Look, Waiter

LONG = 3600.0


class Work:
    """Jobs, and waiters; the name of a waiter contains what it can run."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.hub.listens_since = time.monotonic()
        self.jobs: list[str] = []
        self.looked: list[str] = []
        self.given_back: list[str] = []
        self.served: list[str] = []

    def wait(
        self,
        name: str,
        takes: Callable[[str], bool] = lambda job: True,
        looked_at: float | None = None,
    ) -> asyncio.Task:
        """Wait, having looked in vain just now or at `looked_at`."""
        looked_at = time.monotonic() if looked_at is None else looked_at

        async def look() -> Look:
            self.looked.append(name)
            # As a statement does, it finds only what was there when it began.
            there = list(self.jobs)
            for _ in range(3):
                await asyncio.sleep(0)
            for job in there:
                if takes(job) and job in self.jobs:
                    self.jobs.remove(job)
                    await asyncio.sleep(0)
                    return Look([job])
            return Look([], may_fetch=not name.startswith("quiet"))

        async def release(found: Look) -> None:
            self.given_back += found.jobs

        async def wait() -> None:
            found = await self.hub.wait(waiter, ["q"], "alike", looked_at, LONG)
            if found is not None:
                self.served.append(name)

        waiter = Waiter(name, look, release)
        return asyncio.create_task(wait())

    async def add(self, *jobs: str) -> None:
        self.jobs += jobs
        self.hub.ring(frozenset({"q"}))
        await settle()


async def settle() -> None:
    for _ in range(500):
        await asyncio.sleep(0)


def run(story) -> None:
    async def tell() -> None:
        work = Work()
        await story(work)
        work.hub.end()
        await settle()

    asyncio.run(tell())


def test_they_are_served_in_the_order_they_came():
    async def story(work):
        for number in range(20):
            work.wait(f"w-{number}")
        await settle()
        for number in range(20):
            await work.add("job")
            assert work.served[-1] == f"w-{number}"

    run(story)


def test_a_ring_in_vain_costs_no_waiter_its_place():
    async def story(work):
        for number in range(10):
            work.wait(f"w-{number}")
        for _ in range(5):
            await work.add()
        await work.add("job")
        assert work.served == ["w-0"]

    run(story)


@pytest.mark.parametrize("jobs", [1, 7, 100])
def test_no_more_of_them_look_than_there_are_jobs_for_but_a_few(jobs):
    async def story(work):
        for number in range(1000):
            work.wait(f"w-{number}")
        await settle()
        work.looked.clear()

        await work.add(*(["job"] * jobs))

        assert len(work.served) == jobs
        # Waiters that find nothing more: as many as look at the same time, and a few more.
        assert len(work.looked) <= jobs + 8

    run(story)


def test_workers_that_cannot_run_a_job_keep_no_other_from_it():
    async def story(work):
        for number in range(5):
            work.wait(f"other-{number}", takes=lambda job: job == "special")
        work.wait("able")
        await settle()
        await work.add("job")
        for group in work.hub._groups.values():
            group.sweep()
        await settle()
        assert work.served == ["able"]

    run(story)


def test_quieted_workers_at_the_front_keep_no_other_from_work():
    async def story(work):
        for number in range(20):
            work.wait(f"quiet-{number}", takes=lambda job: False)
        work.wait("able")
        await settle()
        await work.add("job")
        assert work.served == ["able"]

    run(story)


@pytest.mark.parametrize("later", range(24))
def test_work_between_a_look_and_the_wait_is_not_missed_whenever_it_comes(later):
    """Its wake-up reaches another waiter, which may be anywhere between its look and its answer."""

    async def story(work):
        work.wait("first")
        await settle()
        before = time.monotonic()
        work.jobs += ["one", "two"]
        work.hub.ring(frozenset({"q"}))
        for _ in range(later):
            await asyncio.sleep(0)
        work.wait("second", looked_at=before)
        await settle()
        assert sorted(work.served) == ["first", "second"]

    run(story)


def test_work_that_found_only_quieted_workers_is_there_for_one_that_looked_before():
    async def story(work):
        work.wait("quiet", takes=lambda job: False)
        await settle()
        before = time.monotonic()
        await work.add("job")
        work.wait("able", looked_at=before)
        await settle()
        assert work.served == ["able"]

    run(story)


def test_one_that_looked_after_the_last_wake_up_joins_without_another_look():
    async def story(work):
        await work.add()
        for number in range(10):
            work.wait(f"w-{number}")
        await settle()
        assert work.looked == []

    run(story)


def test_notifications_that_may_have_been_lost_wake_everyone_and_those_who_looked_before():
    async def story(work):
        work.wait("waits")
        before = time.monotonic()
        await settle()
        work.jobs.append("job")
        work.hub.ring(frozenset())
        await settle()
        assert work.served == ["waits"]

        work.jobs.append("another")
        work.wait("looked", looked_at=before)
        await settle()
        assert work.served == ["waits", "looked"]

    run(story)


def test_a_notification_that_comes_late_does_not_make_a_closed_hub_believe_it_listens():
    async def story(work):
        work.hub.close()
        work.hub.ring(frozenset())
        assert not work.hub.listens

    run(story)


def test_a_sweep_reaches_everyone_in_turn():
    async def story(work):
        for number in range(3 * SWEPT):
            work.wait(f"w-{number}", takes=lambda job, number=number: job == str(number))
        await settle()
        work.jobs.append(str(3 * SWEPT - 1))
        for _ in range(4):
            for group in work.hub._groups.values():
                group.sweep()
            await settle()
        assert work.served == [f"w-{3 * SWEPT - 1}"]

    run(story)


@pytest.mark.parametrize("later", range(10))
def test_work_that_arrives_while_a_sweep_looks_is_not_missed_whenever_it_comes(later):
    """The sweep may have looked too early, and the wake-up finds its waiter busy."""

    async def story(work):
        work.wait("only")
        await settle()
        for group in work.hub._groups.values():
            group.sweep()
        for _ in range(later):
            await asyncio.sleep(0)
        await work.add("job")
        assert work.served == ["only"]

    run(story)


@pytest.mark.parametrize("later", range(10))
def test_a_worker_that_is_asked_for_looks_whatever_it_is_doing(later):
    async def story(work):
        for number in range(3):
            work.wait(f"w-{number}", takes=lambda job, number=number: job == f"for w-{number}")
        await settle()
        work.hub.ring(frozenset({"q"}))
        for _ in range(later):
            await asyncio.sleep(0)
        work.jobs.append("for w-1")
        await work.hub.ring_for("w-1")
        await settle()
        assert work.served == ["w-1"]

    run(story)


def test_what_is_found_for_one_that_has_left_is_given_back():
    async def story(work):
        task = work.wait("gone")
        await settle()
        work.jobs.append("job")
        work.hub.ring(frozenset({"q"}))
        await asyncio.sleep(0)
        task.cancel()
        await settle()
        assert work.jobs or work.given_back == ["job"]
        assert work.served == []

    run(story)


def test_at_the_end_all_are_sent_away_also_those_who_look():
    async def story(work):
        tasks = [work.wait(f"w-{number}") for number in range(10)]
        await asyncio.sleep(0)
        work.hub.ring(frozenset({"q"}))
        work.hub.end()
        await settle()
        assert all(task.done() for task in tasks)
        assert work.served == []

    run(story)

"""The threads that use the database on behalf of the event loop (workers/asgi/threads.py)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from tests.processes import PATIENCE
from workers.asgi.gather import BATCH, Gatherer
from workers.asgi.threads import Threads


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, PATIENCE))


def name_of_thread() -> str:
    return threading.current_thread().name


def test_requests_one_after_another_are_served_by_one_thread() -> None:
    """With its database session and warm caches; a second thread would have neither."""

    async def story() -> None:
        threads = Threads(8, "request")
        names = {await threads.submit(name_of_thread) for _ in range(500)}
        threads.close()
        assert names == {"request-1"}

    run(story())


def test_more_requests_than_threads_are_served_in_the_order_they_came() -> None:
    async def story() -> None:
        threads = Threads(1, "request")
        may_go = threading.Event()
        order: list[int] = []
        held = threads.submit(may_go.wait)
        others = [threads.submit(partial(order.append, number)) for number in range(5)]
        may_go.set()
        await asyncio.gather(held, *others)
        threads.close()
        assert order == [0, 1, 2, 3, 4]

    run(story())


def test_a_pool_that_closes_finishes_what_it_was_given() -> None:
    async def story() -> None:
        for _ in range(50):
            threads = Threads(2, "request")
            # Whether a thread sleeps, runs, or has just become idle is up to the scheduler.
            await threads.submit(name_of_thread)
            done: list[str] = []
            for _ in range(3):
                threads.submit(partial(done.append, "done"))
            threads.close(PATIENCE)
            assert done == ["done"] * 3

    run(story())


def test_an_exception_of_the_work_is_raised_where_it_is_awaited() -> None:
    async def story() -> None:
        threads = Threads(1, "request")
        problem = ""
        try:
            await threads.submit(lambda: 1 // 0)
        except ZeroDivisionError as error:
            problem = str(error)
        threads.close()
        assert problem

    run(story())


def test_requests_that_are_read_together_are_one_batch_and_call_one_thread() -> None:
    """A thread that is called in vain takes time from the loop."""

    async def story() -> None:
        threads = Threads(8, "request")
        batches: list[list[int]] = []

        def answer(items: Sequence[int]) -> list[int]:
            batches.append(list(items))
            return [-item for item in items]

        gatherer = Gatherer(threads, answer)
        found = await asyncio.gather(*[gatherer.submit(number) for number in range(5)])
        alone = await gatherer.submit(5)
        threads.close()
        assert [*found, alone] == [0, -1, -2, -3, -4, -5]
        assert batches == [[0, 1, 2, 3, 4], [5]]

    run(story())


def test_no_request_of_a_large_crowd_is_left_over() -> None:
    async def story() -> None:
        threads = Threads(8, "request")
        largest: list[int] = []

        def answer(items: Sequence[int]) -> list[int]:
            largest.append(len(items))
            return list(items)

        gatherer = Gatherer(threads, answer)
        for _ in range(50):
            crowd = range(3 * BATCH + 1)
            assert await asyncio.gather(*map(gatherer.submit, crowd)) == list(crowd)
        threads.close()
        assert max(largest) == BATCH

    run(story())

"""The hot verbs in process, each call timed, on many queues in turn."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from django.db import connection
from django.utils import timezone

from jobs import engine
from jobs.engine import ClaimedJob, Completion
from jobs.spec.batches import new_jobs
from workers import protocol
from workers.lifecycle import WorkerState

from .places import ACK_TEN, BEAT, ENQUEUE, ENQUEUE_MANY, FETCH_AND_ACK, FETCH_TEN, of_verb
from .results import Results, percentile

WARM_UP = 20
TEN = 10
MANY = 100
SHARES = {"p50": 0.5, "p99": 0.99}


def timed(verb: Callable[[], Any]) -> tuple[float, Any]:
    """Return the milliseconds of a call, and what it returned."""
    started = time.perf_counter()
    found = verb()
    return (time.perf_counter() - started) * 1000, found


class Verbs:
    """Calls that leave as many jobs in each queue as there were."""

    def __init__(self, queues: Sequence[str], *, worker: str, fleet: int = 0) -> None:
        """
        Args:
            fleet: workers whose heartbeats are sent in turn, of those that hold jobs.
        """
        self._queues = itertools.cycle(queues)
        self._worker = worker
        self._held = itertools.cycle(_held(fleet) if fleet else [])

    def fetch_ten(self) -> tuple[float, float]:
        """Milliseconds of a FETCH of ten, and of the ACK of what it got."""
        queue = next(self._queues)
        fetched, jobs = timed(lambda: self._fetch(queue, TEN))
        acked, _ = timed(lambda: self._ack(jobs))
        self._enqueue(queue, TEN)
        return fetched, acked

    def fetch_one_and_ack(self) -> float:
        queue = next(self._queues)
        taken, _ = timed(lambda: self._ack(self._fetch(queue, 1)))
        self._enqueue(queue, 1)
        return taken

    def beat(self) -> float:
        worker, ids = next(self._held)
        taken, reply = timed(
            lambda: protocol.beat(worker, state=WorkerState.RUNNING, active_job_ids=ids)
        )
        assert len(reply.jobs_extended) == len(ids), reply
        return taken

    def enqueue(self, count: int) -> float:
        queue = next(self._queues)
        taken, jobs = timed(lambda: self._enqueue(queue, count))
        with connection.cursor() as cursor:
            cursor.execute(
                "DELETE FROM ojs_jobs_job WHERE id = ANY(%s)", [[job.id for job in jobs]]
            )
        return taken

    def _fetch(self, queue: str, count: int) -> Sequence[ClaimedJob]:
        jobs = protocol.fetch([queue], worker_id=self._worker, count=count)
        assert len(jobs) == count, (queue, len(jobs))
        return jobs

    def _ack(self, jobs: Sequence[ClaimedJob]) -> None:
        outcomes = protocol.ack([Completion(job.id, self._worker, job.attempt) for job in jobs])
        assert all(outcome.error is None for outcome in outcomes)

    def _enqueue(self, queue: str, count: int) -> Sequence[Any]:
        documents = [{"type": "bench.noop", "queue": queue, "args": [n]} for n in range(count)]
        return engine.enqueue(new_jobs(documents, timezone.now()))


def sample(verbs: Verbs, samples: int) -> dict[str, list[float]]:
    """Call each verb so often, after a warm-up; return the milliseconds of each call."""
    # An enqueue of many is rare, and its rows have to go again.
    few = max(1, samples // 5)
    for verb in (verbs.fetch_ten, verbs.fetch_one_and_ack, verbs.beat, lambda: verbs.enqueue(1)):
        for _ in range(WARM_UP):
            verb()
    pairs = [verbs.fetch_ten() for _ in range(samples)]
    return {
        FETCH_TEN: [fetched for fetched, _ in pairs],
        ACK_TEN: [acked for _, acked in pairs],
        FETCH_AND_ACK: [verbs.fetch_one_and_ack() for _ in range(samples)],
        BEAT: [verbs.beat() for _ in range(samples)],
        ENQUEUE: [verbs.enqueue(1) for _ in range(samples)],
        ENQUEUE_MANY: [verbs.enqueue(MANY) for _ in range(few)],
    }


def note(results: Results, group: str, where: str, times: dict[str, list[float]]) -> None:
    """Add the percentiles of a round on the database that is called `where`."""
    for kind, values in times.items():
        for name, share in SHARES.items():
            found = results.get(group, of_verb(kind, name, where), "ms")
            found.rounds.append(percentile(values, share))


def _held(fleet: int) -> list[tuple[str, list[str]]]:
    """Workers with the ids of the jobs that they hold."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT reserved_by, array_agg(id::text) FROM ojs_jobs_job"
            " WHERE state = 'active' AND reserved_for IS NOT NULL AND reserved_by LIKE 'worker-%%'"
            " GROUP BY reserved_by ORDER BY md5(reserved_by) LIMIT %s",
            [fleet],
        )
        return cursor.fetchall()

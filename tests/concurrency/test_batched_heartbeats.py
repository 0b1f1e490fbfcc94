"""A batch of heartbeats has the same effects as each heartbeat alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import DataError, connections

from jobs import engine
from jobs.engine import Completion
from jobs.models import Event, Job
from jobs.signals import jobs_extended
from tests.database import atomic, connection, rolled_back
from tests.factories import JobFactory, WorkerFactory, ago
from tests.processes import eventually
from workers import protocol
from workers.lifecycle import WorkerState
from workers.liveness import heartbeats
from workers.models import Worker
from workers.protocol import Description, Reply
from workers.store import contract
from workers.store.postgres import batches

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

RUNNING, QUIET, TERMINATE = WorkerState.RUNNING, WorkerState.QUIET, WorkerState.TERMINATE
LOCKED = "LOCK TABLE ojs_workers_worker IN ACCESS EXCLUSIVE MODE"


@pytest.fixture(autouse=True)
def a_new_meeting_place() -> Iterator[None]:
    batches._groups.clear()
    yield
    batches._groups.clear()


def waiting() -> int:
    return sum(len(group._waiting) for group in batches._groups.values())


def under_way() -> int:
    return sum(len(group._leaders) for group in batches._groups.values())


def beat_together(*beats: Callable[[], Reply], then: Callable[[], Any] = lambda: None) -> list[Any]:
    """Send the heartbeats so that they are batched; return the replies.

    Args:
        then: called when all of them wait.
    """
    others = [WorkerFactory().pk for _ in range(batches.MAX_IN_FLIGHT)]

    def sent(beat: Callable[[], Reply]) -> Any:
        try:
            return beat()
        except Exception as problem:
            return problem
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(others) + len(beats)) as pool:
        with atomic():
            # The only lock that they wait for.
            connection.cursor().execute(LOCKED)
            for other in others:
                pool.submit(sent, partial(protocol.beat, other))
            eventually(lambda: under_way() == len(others), lambda: "they do not wait")
            answers = []
            for beat in beats:
                answers.append(pool.submit(sent, beat))
                eventually(lambda: waiting() == len(answers), lambda: "it does not wait")
            then()
        return [answer.result() for answer in answers]


def worker(**fields: Any) -> tuple[str, list[str]]:
    """A worker with two jobs; return their ids."""
    made = WorkerFactory(**fields)
    jobs = JobFactory.create_batch(2, active=True, reserved_by=made.pk)
    return made.pk, [str(job.pk) for job in jobs]


def commits(*worker_ids: str) -> set[int]:
    """The ids of the transactions that wrote these workers and their jobs."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT xmin::text FROM ojs_workers_worker WHERE worker_id = ANY(%(ids)s)"
            " UNION SELECT xmin::text FROM ojs_jobs_job WHERE reserved_by = ANY(%(ids)s)",
            {"ids": list(worker_ids)},
        )
        return {int(xmin) for (xmin,) in cursor.fetchall()}


def test_those_that_wait_are_written_at_once_and_each_gets_its_own_answer():
    plain, quiet, ending = worker(), worker(directive=QUIET), worker(state=TERMINATE)
    idle = WorkerFactory().pk

    answers = beat_together(
        partial(protocol.beat, plain[0], state=RUNNING, active_job_ids=plain[1], sequence=7),
        partial(protocol.beat, quiet[0], active_job_ids=quiet[1][::-1]),
        partial(protocol.beat, ending[0], state=TERMINATE, active_job_ids=ending[1]),
        partial(protocol.beat, idle),
    )

    assert answers == [
        Reply(RUNNING, plain[1]),
        Reply(QUIET, quiet[1][::-1]),
        Reply(TERMINATE, ending[1]),
        Reply(RUNNING),
    ]
    assert len(commits(plain[0], quiet[0], ending[0], idle)) == 1
    assert Worker.objects.get(pk=plain[0]).sequence == 7


def test_a_lost_job_is_reported_to_its_worker_alone():
    (one, kept), (other, named) = worker(), worker()
    foreign = str(JobFactory(active=True, reserved_by="somebody").pk)

    answers = beat_together(
        partial(protocol.beat, one, active_job_ids=kept),
        partial(protocol.beat, other, active_job_ids=[*named, foreign]),
    )

    assert answers == [Reply(RUNNING, kept), Reply(RUNNING, named, [foreign])]
    assert Job.objects.get(pk=foreign).reserved_by == "somebody"


@pytest.mark.parametrize("model", [Worker, Job])
def test_a_locked_row_delays_only_its_worker(model):
    (free, jobs), (held, others) = worker(), worker()
    pk = held if model is Worker else others[0]
    beats = [
        partial(protocol.beat, free, active_job_ids=jobs),
        partial(protocol.beat, held, active_job_ids=others),
    ]

    with ThreadPoolExecutor(2) as pool, atomic():
        assert model.objects.select_for_update().get(pk=pk)
        assert pool.submit(left_alone, *beats).result(120) == [False, True]
        answers = [pool.submit(closing, beat) for beat in beats]
        assert answers[0].result(120) == Reply(RUNNING, jobs)
        assert not answers[1].done()

    assert answers[1].result() == Reply(RUNNING, others)


def left_alone(*beats: partial[Reply]) -> list[bool]:
    """Write the heartbeats with one statement; return which of them it skipped."""
    items = [batches._item(heartbeats.Heartbeat(*beat.args, **beat.keywords)) for beat in beats]
    try:
        return [written is None for written in batches._write_all(items)]
    finally:
        connections.close_all()


def closing(beat: Callable[[], Reply]) -> Reply:
    try:
        return beat()
    finally:
        connections.close_all()


def heard(worker_id: str) -> bool:
    return Worker.objects.get(pk=worker_id).last_heartbeat_at > ago(15)


def test_one_that_cannot_be_written_fails_alone():
    (one, jobs), (bad, _), (other, _) = worker(), worker(), worker()
    impossible = Description(hostname="x" * 300)

    answers = beat_together(
        partial(protocol.beat, one, active_job_ids=jobs),
        partial(protocol.beat, bad, description=impossible),
        partial(protocol.beat, other),
    )

    assert answers[0::2] == [Reply(RUNNING, jobs), Reply(RUNNING)]
    assert isinstance(answers[1], DataError)


def test_two_of_one_worker_with_one_number_are_both_answered_and_one_came_late():
    one, jobs = worker()

    *both, met = beat_together(
        partial(protocol.beat, one, active_job_ids=jobs, sequence=9),
        partial(protocol.beat, one, active_job_ids=jobs, sequence=9),
        partial(protocol.beat, "unknown", active_job_ids=[]),
    )

    assert sorted(both, key=lambda reply: reply.stale) == [
        Reply(RUNNING, jobs),
        Reply(RUNNING, stale=True),
    ]
    assert met == Reply(RUNNING)
    assert Worker.objects.live().filter(pk="unknown").exists()


def test_a_job_that_ends_while_its_heartbeat_waits_is_lost():
    one, jobs = worker()

    (answer,) = beat_together(
        partial(protocol.beat, one, active_job_ids=jobs),
        then=lambda: engine.complete([Completion(UUID(jobs[0]), one)]),
    )

    assert answer == Reply(RUNNING, jobs[1:], jobs[:1])


def test_receivers_of_signals_hear_of_each():
    (one, jobs), (other, _) = worker(), worker()
    notified = []

    def hear(worker_id: str, job_ids: list[Any], **kwargs: Any) -> None:
        notified.append((worker_id, {str(job_id) for job_id in job_ids}))

    jobs_extended.connect(hear)
    try:
        beat_together(
            partial(protocol.beat, one, active_job_ids=jobs), partial(protocol.beat, other)
        )
    finally:
        jobs_extended.disconnect(hear)

    assert notified == [(one, set(jobs))]


def test_a_caller_in_a_transaction_keeps_it():
    one = WorkerFactory(last_heartbeat_at=ago(20)).pk

    with rolled_back():
        protocol.beat(one)

    assert not heard(one)
    assert not batches._groups


def test_a_forked_process_waits_for_no_thread_that_it_does_not_have():
    protocol.beat(WorkerFactory().pk)
    assert batches._groups

    child = os.fork()
    if not child:
        os._exit(len(batches._groups))

    assert os.waitpid(child, 0)[1] == 0


def test_a_field_of_the_description_is_written_together_or_separately():
    known = {*batches.REPEATED, *batches.OWN_WAY, *contract.SETTLED}

    assert known == set(Description.__slots__)


# Equivalence of single and batched heartbeats

SAID = Description(
    hostname="host",
    pid=2**31,
    queues=["a", "b"],
    concurrency=3,
    labels=["ä"],
    version="v/1",
    job_versions={"a": [1, None]},
)
SINCE = datetime(2025, 1, 1, tzinfo=UTC)
WORKERS: list[dict[str, Any]] = [
    {"state": state, "directive": directive, "sequence": 5} | process
    for process in (
        {"hostname": "", "pid": None, "started_at": None},
        {"hostname": "host", "pid": 1, "started_at": SINCE},
    )
    for state in WorkerState
    for directive in ("", RUNNING, QUIET, TERMINATE)
]
BEATS: list[dict[str, Any]] = [
    {},
    {"state": RUNNING, "description": SAID},
    {"state": QUIET, "sequence": 6},
    {"state": RUNNING, "sequence": 5},
    {"state": TERMINATE, "requested": timedelta(seconds=120, microseconds=5)},
    {"description": Description(started_at=datetime(2025, 6, 1, 8, 0, 0, 7, tzinfo=UTC))},
    {"description": Description(heartbeat_timeout=timedelta(1)), "requested": timedelta(3)},
    {"description": Description(hostname="host", pid=1, started_at=SINCE), "sequence": 6},
    # Other processes, one of which is earlier.
    {"description": Description(pid=2), "sequence": 1, "state": QUIET},
    {"description": Description(hostname="elsewhere"), "sequence": 9, "state": RUNNING},
    {"description": Description(started_at=SINCE - timedelta(1)), "sequence": 9, "state": QUIET},
]
NAMED = [((), 0), ((0,), 0), ((1, 0, 1), 0), ((0, 1), 1), ((1, 2), 0)]
"""Which of its jobs it names, the last of which no worker holds; and how many that do not exist."""
MOVING = ("last_heartbeat_at", "registered_at", "left_at", "created_at", "worker_id")


def one_like(fields: dict[str, Any]) -> tuple[str, list[str]]:
    made = WorkerFactory(**fields)
    jobs = [
        JobFactory(active=True, reserved_by=made.pk, reserved_for=timedelta(seconds=1)),
        JobFactory(active=True, reserved_by=made.pk, visibility_timeout=timedelta(minutes=5)),
        JobFactory(active=True, reserved_by=""),
    ]
    return made.pk, [str(job.pk) for job in jobs]


def outcome(worker_id: str, jobs: list[str], reply: Reply) -> Any:
    """Everything visible of a heartbeat, except times and ids."""
    place = {job_id: number for number, job_id in enumerate(jobs)}
    row = Worker.objects.filter(pk=worker_id).values().get()
    heard = row["last_heartbeat_at"]
    found = Job.objects.in_bulk(jobs)
    return (
        (reply.state, reply.stale),
        [place.get(job_id, job_id) for job_id in reply.jobs_extended],
        [place.get(job_id, job_id) for job_id in reply.jobs_lost],
        {name: value for name, value in row.items() if name not in (*MOVING, "active_job_ids")},
        [place.get(job_id, job_id) for job_id in row["active_job_ids"]],
        [
            job.reserved_by == worker_id and job.reserved_until - heard
            for job in (found[UUID(job_id)] for job_id in jobs)
            if str(job.pk) in reply.jobs_extended
        ],
        sorted(Event.objects.filter(worker_id=worker_id).values_list("type", flat=True)),
    )


@pytest.mark.parametrize("beat", range(len(BEATS)))
def test_alone_and_together_it_leads_to_the_same(beat):
    lost = str(uuid4())
    for number, fields in enumerate(WORKERS):
        named, others = NAMED[(beat + number) % len(NAMED)]
        found = []
        for alone in (True, False):
            worker_id, jobs = one_like(fields)
            names = [jobs[name] for name in named] + [lost] * others
            with atomic() if alone else contextlib.nullcontext():
                reply = protocol.beat(worker_id, **BEATS[beat], active_job_ids=names)
            found.append(outcome(worker_id, jobs, reply))
        assert found[0] == found[1], fields

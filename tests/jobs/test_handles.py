"""Handles: jobs read, found, waited for and changed from Python."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections

import jobs
from jobs import engine, testing
from jobs.engine import Completion, Failure
from jobs.errors import InvalidRequest, InvalidTransition, JobNotFound, WaitTimeout
from jobs.models import Job, Listener
from jobs.spec.lifecycle import State
from jobs.store import wakeup
from tests.database import alias, atomic
from tests.factories import JobFactory
from tests.processes import PATIENCE
from workers.runtime import handler

pytest_plugins = ["jobs.pytest_plugin"]

WORKER = "w-1"

UNKNOWN = uuid.UUID("01931f6c-0000-7000-8000-000000000000")


def claimed(queue: str = "default") -> Any:
    (job,) = engine.claim([queue], worker_id=WORKER)
    return job


def complete(job_id: Any, result: Any = None) -> None:
    (outcome,) = engine.complete([Completion(job_id, WORKER, result=result)])
    assert outcome.error is None


# Read


@pytest.mark.django_db
def test_enqueue_returns_a_handle_on_the_job():
    handle = jobs.enqueue("email.send", ["ann"], queue="mail", tags=["vip"], priority=3)

    assert isinstance(handle, jobs.JobHandle)
    assert handle.id == handle.pk == Job.objects.get().pk
    assert (handle.type, handle.queue, handle.args) == ("email.send", "mail", ["ann"])
    assert (handle.tags, handle.priority, handle.attempt) == (["vip"], 3, 0)
    assert (handle.state, handle.result, handle.errors) == ("available", None, [])
    assert handle.progress is None and not handle.is_finished


@pytest.mark.django_db
def test_a_handle_shows_what_was_read_last_until_it_is_refreshed():
    handle = jobs.enqueue("report.build")
    complete(claimed().id, {"pages": 3})

    assert handle.state == "available"
    assert handle.refresh() is handle
    assert (handle.state, handle.attempt, handle.result) == ("completed", 1, {"pages": 3})
    assert handle.is_finished and handle.finished_at is not None


@pytest.mark.django_db
def test_a_handle_can_be_given_where_an_id_is():
    handle = jobs.enqueue("report.build")
    flow = jobs.chain(jobs.job("report.build")).enqueue()

    assert jobs.get(handle) == handle and jobs.get(handle) is not handle
    assert jobs.get_workflow(flow) == flow
    jobs.cancel(handle)
    assert jobs.wait(handle, timeout=0).state == "cancelled"
    assert async_to_sync(jobs.wait_async)(handle, timeout=0).state == "cancelled"
    testing.assert_job_state(handle, "cancelled")


@handler("test.handles.build")
def build(context: Any) -> None:
    pass


@pytest.mark.django_db
def test_jobs_are_found_by_their_handler_as_by_its_type():
    made = build.enqueue()
    jobs.enqueue("report.build")

    assert jobs.find(type=build) == [made] == jobs.find(type="test.handles.build")
    testing.assert_enqueued(build, count=1)
    testing.refute_performed(build)
    with pytest.raises(InvalidRequest, match="a handler or a task of OJSBackend"):
        jobs.find(type=len)


@pytest.mark.django_db
def test_a_failed_attempt_is_among_the_errors():
    handle = jobs.enqueue("report.build")
    failed = Failure(claimed().id, WORKER, type="ValueError", message="no", backtrace=["a line"])
    engine.fail([failed])

    (error,) = jobs.get(handle.id).errors

    assert (error.attempt, error.type, error.message) == (1, "ValueError", "no")
    assert (error.backtrace, error.worker_id) == (["a line"], WORKER)


@pytest.mark.django_db
def test_progress_is_that_of_the_present_attempt():
    handle = jobs.enqueue("report.build")
    engine.report_progress(claimed().id, value=0.4, data={"page": 2}, worker_id=WORKER)

    handle.refresh()
    assert (handle.progress, handle.progress_data) == (0.4, {"page": 2})

    engine.fail([Failure(handle.id, WORKER, release=True)])
    Job.objects.update(attempt=2)
    assert handle.refresh().progress is None


@pytest.mark.django_db
def test_reading_a_job_takes_two_queries(django_assert_num_queries):
    job = JobFactory()

    with django_assert_num_queries(2):
        handle = jobs.get(str(job.pk))
        assert (handle.errors, handle.progress) == ([], None)


@pytest.mark.django_db
@pytest.mark.parametrize("unknown", [UNKNOWN, str(UNKNOWN), "nothing", ""])
def test_a_job_that_is_not_there_is_refused_by_name(unknown):
    with pytest.raises(JobNotFound):
        jobs.get(unknown)
    with pytest.raises(JobNotFound):
        jobs.wait(unknown, timeout=0)


@pytest.mark.django_db
def test_a_handle_of_a_batch_stays_the_same_however_it_is_reached():
    handles = jobs.enqueue_many([{"type": "a", "args": [number]} for number in range(3)])
    jobs.cancel(handles[0].id)

    handles[0].refresh()

    assert handles[0].state == "cancelled"
    assert handles[2] is handles[-1] is list(handles)[2] is handles[1:][1] is handles[::-1][0]
    assert len(handles[1:]) == 2
    with pytest.raises(IndexError):
        handles[1:][2]


@pytest.mark.django_db
def test_many_jobs_are_handles_as_well():
    handles = jobs.enqueue_many([{"type": "a", "args": [number]} for number in range(3)])

    assert [handle.args for handle in handles] == [[0], [1], [2]]
    assert [handle.args for handle in handles[1:]] == [[1], [2]]
    assert {handle.id for handle in handles} == set(Job.objects.values_list("pk", flat=True))
    assert handles[0] == jobs.get(handles[0].id)


# Find


@pytest.fixture
def some_jobs(db: None) -> dict[str, Any]:
    given: dict[str, dict[str, Any]] = {
        "mail": {"type": "email.send", "queue": "mail", "tags": ["vip", "spring"]},
        "plain": {"type": "email.send", "queue": "default"},
        "report": {"type": "report.build", "queue": "default", "tags": ["vip"]},
    }
    return {name: jobs.enqueue(**options) for name, options in given.items()}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ["report", "plain", "mail"]),
        ({"type": "email.send"}, ["plain", "mail"]),
        ({"queue": "default"}, ["report", "plain"]),
        ({"tag": "vip"}, ["report", "mail"]),
        ({"tag": "vip", "type": "email.send"}, ["mail"]),
        ({"tag": "vi"}, []),
        ({"state": "available", "limit": 1}, ["report"]),
        ({"state": "active"}, []),
        ({"limit": 0}, []),
        ({"state": "active", "limit": 10**20}, []),
    ],
)
def test_jobs_are_found_newest_first(some_jobs, wanted, found):
    assert jobs.find(**wanted) == [some_jobs[name] for name in found]
    assert async_to_sync(jobs.afind)(**wanted) == [some_jobs[name] for name in found]


@pytest.mark.parametrize(
    ("wanted", "field"), [({"state": "activ"}, "state"), ({"queue": "No Such"}, "queue")]
)
def test_a_misspelt_condition_is_refused_and_not_taken_for_one_that_nothing_meets(
    some_jobs, wanted, field
):
    with pytest.raises(InvalidRequest) as refusal:
        jobs.find(**wanted)

    assert refusal.value.details["field"] == field


def test_jobs_are_found_by_a_member_of_the_enumeration_of_states(some_jobs):
    assert len(jobs.find(state=State.AVAILABLE)) == 3


def test_a_negative_limit_is_refused(some_jobs):
    with pytest.raises(InvalidRequest):
        jobs.find(limit=-1)


# Change


@pytest.mark.django_db
def test_a_job_is_cancelled_and_retried_by_its_handle():
    handle = jobs.enqueue("email.send")

    assert handle.cancel(reason="wrong address").state == "cancelled"
    with pytest.raises(InvalidTransition):
        handle.cancel()
    assert handle.retry().state == "available"
    with pytest.raises(InvalidTransition):
        handle.retry()


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["scheduled", "retryable", "pending"])
def test_a_job_that_waits_is_available_at_once(state):
    handle = jobs.get(JobFactory(**{state: True}).pk)

    assert handle.run_now().state == "available"
    assert claimed().id == handle.id


@pytest.mark.django_db
def test_a_job_that_is_available_stays_so_and_others_cannot_be_made_so():
    handle = jobs.enqueue("email.send")
    assert handle.run_now().state == "available"
    claimed()

    with pytest.raises(InvalidTransition, match="state 'active'"):
        handle.run_now()


@pytest.mark.django_db
def test_a_job_that_waits_for_others_is_not_run_now():
    first, second = jobs.job("a"), jobs.job("b")
    made = jobs.graph(first, second.after(first)).enqueue().jobs()
    (waiting,) = (job for job in made if job.type == "b")

    with pytest.raises(InvalidTransition, match="it waits for other jobs"):
        waiting.run_now()


def test_a_job_in_memory_is_run_now(fake_jobs):
    handle = jobs.enqueue("email.send", scheduled_at=timedelta(hours=1))

    assert handle.run_now().state == "available"


@pytest.mark.django_db
def test_async_code_reads_and_changes_too():
    async def story() -> list[Any]:
        handle = await jobs.aenqueue("email.send", [1], queue="mail")
        again = await jobs.aget(handle.id)
        states = [again.state, (await again.acancel()).state, (await again.aretry()).state]
        return [*states, (await again.arun_now()).state, (await handle.arefresh()).state]

    assert async_to_sync(story)() == ["available", "cancelled", *["available"] * 3]


@pytest.mark.django_db(transaction=True)
def test_what_a_handle_changes_is_rolled_back_with_the_transaction():
    handle = jobs.enqueue("email.send")

    with pytest.raises(ZeroDivisionError), atomic():
        handle.cancel()
        raise ZeroDivisionError

    assert handle.refresh().state == "available"


# Wait


def in_a_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as problem:
            found.append(problem)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_waited_for() -> bool:
    """Whether a thread waits, as far as that is visible."""
    if connections[alias()].vendor != "postgresql":
        return True
    names = Listener.objects.filter(name__regex="^(job|workflow):").values_list("name", flat=True)
    awaited = [name.removeprefix("job:") for name in names if name.startswith("job:")]
    followed = Job.objects.filter(pk__in=awaited, followed=True)
    return bool(names) and followed.count() == len(awaited) and bool(wakeup._subscriptions)


WAITS = {
    "thread": lambda job_id: jobs.wait(job_id, timeout=PATIENCE),
    "loop": lambda job_id: async_to_sync(jobs.wait_async)(job_id, timeout=PATIENCE),
}
ENDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "completed": (lambda job_id: complete(job_id, 42), "completed"),
    "failed": (
        lambda job_id: engine.fail([Failure(job_id, WORKER, code="DISCARD")]),
        "discarded",
    ),
    "cancelled": (lambda job_id: jobs.cancel(job_id), "cancelled"),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", WAITS)
@pytest.mark.parametrize("end", ENDS)
def test_who_waits_for_a_job_is_woken_when_it_ends(nobody_polls, way, end):
    act, state = ENDS[end]
    handle = jobs.enqueue("report.build")
    claimed()
    thread, found = in_a_thread(lambda: WAITS[way](handle.id))
    until(is_waited_for)

    act(handle.id)

    thread.join(PATIENCE)
    (ended,) = found
    assert (ended.id, ended.state) == (handle.id, state)
    assert not Listener.objects.filter(name=f"job:{handle.id}").exists()


@pytest.mark.django_db(transaction=True)
def test_several_wait_for_the_same_job(nobody_polls):
    handle = jobs.enqueue("report.build")
    claimed()
    waits = [in_a_thread(lambda: jobs.wait(handle.id, timeout=PATIENCE)) for _ in range(3)]
    until(lambda: is_waited_for())

    complete(handle.id, "done")

    for thread, found in waits:
        thread.join(PATIENCE)
        assert [ended.result for ended in found] == ["done"]


@pytest.mark.django_db(transaction=True)
def test_a_job_that_has_ended_is_not_waited_for():
    job = JobFactory(completed=True)

    assert jobs.wait(job.pk, timeout=0).state == "completed"
    assert jobs.get(job.pk).wait().state == "completed"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("timeout", [0, 0.01, timedelta(milliseconds=10)])
def test_a_wait_ends_when_its_time_is_up(timeout):
    handle = jobs.enqueue("report.build")

    with pytest.raises(WaitTimeout):
        handle.wait(timeout=timeout)
    with pytest.raises(WaitTimeout):
        async_to_sync(handle.wait_async)(timeout=timeout)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", WAITS)
def test_a_wait_in_the_transaction_that_enqueued_the_job_is_refused(way):
    with atomic():
        handle = jobs.enqueue("report.build")
        with pytest.raises(jobs.WaitsForever, match="transaction"):
            WAITS[way](handle.id)
        with atomic(), pytest.raises(jobs.WaitsForever):
            WAITS[way](handle.id)
        with atomic():
            inner = jobs.enqueue("report.build")
        with pytest.raises(jobs.WaitsForever):
            WAITS[way](inner.id)


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_it_is_refused_in_debug_too(monkeypatch):
    """Where Django logs queries, cursors of psycopg run them, which read every `%`."""
    monkeypatch.setattr(connections[alias()], "force_debug_cursor", True)
    with atomic():
        handle = jobs.enqueue("report.build")
        with pytest.raises(jobs.WaitsForever):
            handle.wait(timeout=PATIENCE)


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_another_transaction_may_wait():
    handle = jobs.enqueue("report.build")
    claimed()

    with atomic():
        thread, _ = in_a_thread(lambda: complete(handle.id))
        assert jobs.wait(handle.id, timeout=PATIENCE).state == "completed"
    thread.join(PATIENCE)


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_job_without_a_waiter_is_completed_by_one_statement(django_assert_num_queries):
    handle = jobs.enqueue("report.build")
    claimed()

    with django_assert_num_queries(1):
        complete(handle.id)


# Modes of jobs.testing


def test_handles_work_in_a_fake_mode(fake_jobs, mails):
    handle = jobs.enqueue("email.send", ["ann"], tags=["vip"])

    assert jobs.get(handle.id).state == "available"
    assert jobs.find(tag="vip") == [handle]
    with pytest.raises(WaitTimeout, match="run_jobs"):
        jobs.wait(handle.id)
    testing.run_jobs()
    assert jobs.wait(handle.id).state == handle.refresh().state == "completed"


def test_a_job_has_ended_when_enqueue_returns_in_the_inline_mode(inline_jobs, mails):
    handle = jobs.enqueue("email.send", ["ann"])

    assert jobs.wait(handle.id).state == "completed"


def test_a_handle_knows_its_mode_when_that_has_ended(mails):
    with testing.fake():
        handle = jobs.enqueue("email.send", ["ann"])

    assert handle.refresh().state == "available"
    assert handle.cancel().state == "cancelled"


@pytest.fixture
def mails() -> Any:
    from workers.runtime import handler, handlers

    sent: list[str] = []

    @handler("email.send")
    def send(context: Any, to: str = "") -> None:
        sent.append(to)

    yield sent
    handlers.forget("email.send")


def test_threads_have_modes_of_their_own():
    """Two tests in two threads of one process do not see each other's jobs."""
    both = threading.Barrier(2, timeout=PATIENCE)

    def test(name: str) -> list[Any]:
        with testing.fake() as session:
            both.wait()
            jobs.enqueue(name)
            both.wait()
            return [job.type for job in session.jobs]

    threads = [in_a_thread(lambda name=name: test(name)) for name in ("a", "b")]
    for thread, _ in threads:
        thread.join(PATIENCE)
    assert [found for _, found in threads] == [[["a"]], [["b"]]]


@pytest.mark.django_db
def test_the_mode_of_another_thread_is_none_of_this_one():
    entered, done = threading.Event(), threading.Event()

    def test() -> int:
        with testing.fake() as session:
            entered.set()
            done.wait(PATIENCE)
            return len(session.jobs)

    thread, found = in_a_thread(test)
    assert entered.wait(PATIENCE)
    jobs.enqueue("email.send")
    done.set()
    thread.join(PATIENCE)

    assert found == [0] and Job.objects.count() == 1


# For type checkers


def test_a_misspelt_name_is_no_name():
    with pytest.raises(AttributeError):
        jobs.enqeue  # noqa: B018
    assert {"enqueue", "get", "wait"} <= set(dir(jobs))


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"retry": {"max_atempts": 5}}, "retry.max_atempts"),
        ({"unique": {"keyz": ["args"]}}, "unique.keyz"),
        ({"rate_limit": {"key": "a", "concurency": 1}}, "rate_limit.concurency"),
        (
            {"rate_limit": {"key": "a", "rate": {"limit": 1, "period": "PT1S", "windw": "fixed"}}},
            "rate_limit.rate.windw",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_misspelt_key_of_a_policy_is_refused(fake_jobs, options, place):
    with pytest.raises(InvalidRequest, match=place.rpartition(".")[2]) as refusal:
        jobs.enqueue("email.send", **options)
    assert refusal.value.details["field"] == place
    assert testing.all_enqueued() == []


@pytest.mark.django_db
def test_a_policy_may_be_a_retry():
    policy = jobs.Retry(max_attempts=8, backoff="linear", jitter=False, initial_interval=90)

    job = Job.objects.get(pk=jobs.enqueue("email.send", retry=policy).id)

    expected = {"max_attempts": 8, "strategy": "linear", "jitter": False}
    assert job.retry == expected | {"initial_interval": "PT1M30S"}
    assert job.max_attempts == 8


def test_a_loop_stays_free_while_it_waits(inline_jobs, mails):
    async def story() -> list[Any]:
        handles = await jobs.aenqueue_many([{"type": "email.send", "args": [n]} for n in "ab"])
        waits = [jobs.wait_async(handle.id) for handle in handles]
        return [handle.state for handle in await asyncio.gather(*waits)]

    assert async_to_sync(story)() == ["completed", "completed"]

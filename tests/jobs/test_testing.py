"""`jobs.testing`: the tools for tests of a host site (OJS testing)."""

from __future__ import annotations

import contextlib
import threading
import unittest
from datetime import timedelta
from typing import ClassVar

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, router
from django.test import SimpleTestCase, TestCase
from django.utils import timezone
from django.utils.connection import ConnectionDoesNotExist

import jobs
from jobs import engine, signals, testing
from jobs.errors import DuplicateJob, InvalidTransition, JobNotFound
from jobs.models import Job, Queue
from jobs.spec.lifecycle import State
from jobs.spec.workflow_plans import plan_of
from jobs.store import memory
from jobs.store.database import alias, atomic
from workers.runtime import Discard, Retry, Snooze, handlers
from workers.runtime.inline import HandlerNotFound

pytest_plugins = ["jobs.pytest_plugin"]


@pytest.fixture
def mails():
    """Mails sent by the handler of `tests.mail`."""
    sent: list = []

    @handlers.handler("tests.mail")
    def mail(context, to):
        if to == "later":
            raise Snooze(60)
        if to == "again":
            raise Retry(60, "busy")
        if to == "exit":
            raise SystemExit(3)
        if to == "never":
            raise Discard("gone")
        if to == "two":
            jobs.enqueue("tests.mail", ["second"])
        sent.append((to, context.attempt))
        return {"sent": to}

    yield sent
    handlers.forget("tests.mail")


def test_the_handle_of_a_job_that_has_run_at_once_shows_its_outcome(mails):
    with testing.inline():
        handle = jobs.enqueue("tests.mail", ["bob"])
        alone, other = jobs.enqueue_many(
            [{"type": "tests.mail", "args": ["ann"]}, {"type": "tests.mail", "args": ["eve"]}]
        )

    assert (handle.state, handle.result) == ("completed", {"sent": "bob"})
    assert [alone.state, other.state] == ["completed", "completed"]


def test_the_handle_of_a_job_that_is_not_made_again_shows_the_other(mails):
    with testing.inline():
        options = {"unique": {"keys": ["type"], "states": ["completed"], "on_conflict": "ignore"}}
        first = jobs.enqueue("tests.mail", ["bob"], **options)
        second = jobs.enqueue("tests.mail", ["bob"], **options)

    assert second.existing == first


@pytest.fixture(params=["memory", "database"])
def place(request):
    """In memory and in the database: everything that runs jobs behaves the same."""
    if request.param == "memory":
        with testing.fake():
            yield
    else:
        request.getfixturevalue("db")
        yield


def test_fake_jobs_touch_no_database_and_are_checked_like_real_ones(fake_jobs):
    made = jobs.enqueue("email.send", ["a@b.c"], queue="mail", meta={"a": 1, "b": 2})

    assert made.id.version == 7
    testing.assert_enqueued("email.send", args=["a@b.c"], queue="mail", meta={"a": 1}, count=1)
    testing.refute_enqueued("email.send", queue="default")
    testing.refute_performed("email.send")
    testing.assert_job_state(made.id, "available")
    assert [job.type for job in testing.all_enqueued()] == ["email.send"]
    testing.clear_all()
    testing.refute_enqueued("email.send")


def test_a_failed_assertion_says_what_was_enqueued_instead(fake_jobs):
    jobs.enqueue("email.send", ["a@b.c"])

    with pytest.raises(AssertionError, match=r"email.send args=\['a@b.c'\] queue='default'"):
        testing.assert_enqueued("email.send", args=["x@y.z"])
    with pytest.raises(AssertionError, match="Expected 2"):
        testing.assert_enqueued("email.send", count=2)
    with pytest.raises(AssertionError, match="Expected 0"):
        testing.refute_enqueued("email.send")


@pytest.mark.django_db
def test_afterwards_jobs_are_real_again():
    with testing.fake():
        jobs.enqueue("email.send")
    jobs.enqueue("email.receive")

    assert [job.type for job in Job.objects.all()] == ["email.receive"]
    testing.assert_enqueued("email.receive")
    testing.refute_enqueued("email.send")


def test_inline_runs_the_handler_at_once(inline_jobs, mails):
    jobs.enqueue("tests.mail", ["two"], scheduled_at=timedelta(hours=1))

    assert mails == [("second", 1), ("two", 1)]
    testing.assert_completed("tests.mail", count=2)


def test_inline_lets_errors_out(inline_jobs, mails):
    testing.fail_next("tests.mail", ConnectionError("no route"))
    with pytest.raises(ConnectionError):
        jobs.enqueue("tests.mail", ["x"])
    with pytest.raises(HandlerNotFound, match=r"tests\.nobody"):
        jobs.enqueue("tests.nobody")
    testing.assert_failed("tests.mail", count=1)
    testing.assert_failed("tests.nobody", count=1)


def test_what_fails_a_job_of_a_worker_fails_it_in_a_test(place, mails, settings):
    settings.OJS = {"MAX_RESULT_SIZE": 100}
    later = {"max_attempts": 3, "initial_interval": "PT1H"}
    left = jobs.enqueue("tests.mail", ["exit"], retry=later)
    large = jobs.enqueue("tests.mail", ["x" * 100])

    assert testing.run_jobs() == 2

    testing.assert_job_state(left.id, "retryable")
    testing.assert_job_state(large.id, "discarded")


def test_tuples_are_looked_for_as_the_lists_they_have_become(place):
    jobs.enqueue("tests.mail", [("a", {"b": ("c",)})])

    testing.assert_enqueued("tests.mail", args=[("a", {"b": ("c",)})])


def test_time_passes_by_a_timedelta_or_its_parts(fake_jobs):
    with pytest.raises(TypeError, match="hours=24"):
        testing.advance_time(3600)


def test_run_jobs_runs_what_is_there_and_what_that_enqueues(place, mails):
    jobs.enqueue("tests.mail", ["two"])
    jobs.enqueue("tests.mail", ["other"], queue="other")

    assert testing.run_jobs() == 3

    assert sorted(mails) == [("other", 1), ("second", 1), ("two", 1)]
    testing.assert_completed("tests.mail", count=3)
    assert testing.all_enqueued(args=["two"])[0].result == {"sent": "two"}


def test_run_jobs_can_be_limited_to_some_jobs(place, mails):
    for queue in ("default", "default", "other"):
        jobs.enqueue("tests.mail", [queue], queue=queue)

    assert testing.run_jobs("other") == 1
    assert testing.run_jobs(max_jobs=1) == 1
    assert mails == [("other", 1), ("default", 1)]


def test_a_failure_is_tried_again_when_its_time_comes(place, mails):
    testing.fail_next("tests.mail", ConnectionError("no route"))
    jobs.enqueue("tests.mail", ["x"])

    testing.run_jobs()
    testing.assert_failed("tests.mail")
    testing.assert_performed("tests.mail")
    testing.run_jobs(with_scheduled=True)

    assert mails == [("x", 2)]
    testing.assert_completed("tests.mail")


def test_fail_all_uses_the_attempts_up(place, mails):
    testing.fail_all("tests.mail", ConnectionError("no route"))
    jobs.enqueue("tests.mail", ["x"], max_attempts=2)

    assert testing.run_jobs(with_scheduled=True) == 2

    (job,) = testing.all_enqueued()
    testing.assert_job_state(job.id, "discarded")
    testing.forget_failures()


@pytest.mark.parametrize("kind", [unittest.TestCase, unittest.IsolatedAsyncioTestCase])
def test_a_failure_asked_for_ends_with_the_test_case_that_did(place, mails, kind):
    class OfAHost(kind):
        def setUp(self):
            testing.fail_all("tests.mail", ConnectionError("no route"))

        def test_plain(self):
            testing.fail_next("tests.mail", ConnectionError("no route"))

        async def test_async(self):
            testing.fail_next("tests.mail", ConnectionError("no route"))

    name = "test_async" if kind is unittest.IsolatedAsyncioTestCase else "test_plain"
    assert OfAHost(name).run().wasSuccessful()

    jobs.enqueue("tests.mail", ["x"])
    testing.run_jobs()
    testing.assert_completed("tests.mail")


def test_jobs_run_in_an_async_test(place, mails):
    async def test():
        await jobs.aenqueue("tests.mail", ["x"])
        return await testing.arun_jobs(max_jobs=5)

    assert async_to_sync(test)() == 1
    assert mails == [("x", 1)]


def test_a_policy_that_forbids_another_attempt_is_obeyed(place, mails):
    testing.fail_next("tests.mail", ValueError("never"))
    made = jobs.enqueue("tests.mail", ["x"], retry={"non_retryable_errors": ["ValueError"]})

    testing.run_jobs()

    testing.assert_job_state(made.id, "discarded")


def test_advancing_time_makes_jobs_due(place, mails):
    jobs.enqueue("tests.mail", ["x"], scheduled_at=timedelta(hours=24))

    testing.advance_time(hours=23)
    assert testing.run_jobs() == 0
    testing.advance_time(hours=2)
    assert testing.run_jobs() == 1


@pytest.mark.django_db
def test_advancing_time_runs_schedules_as_often_as_they_fall_due(mails):
    template = {"type": "tests.mail", "args": ["daily"]}
    at = timezone.now() + timedelta(hours=2)
    daily = f"{at.minute} {at.hour} * * *"
    engine.upsert_cron(engine.NewCronJob("report", daily, template, enabled=True))

    ran = []
    for _ in range(12):
        testing.advance_time(hours=4)
        ran.append(testing.run_jobs())

    assert ran == [1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]


@pytest.mark.django_db
def test_a_schedule_that_is_not_enabled_stays_silent(mails):
    template = {"type": "tests.mail", "args": ["never"]}
    engine.upsert_cron(engine.NewCronJob("report", "0 3 * * *", template, enabled=False))

    testing.advance_time(hours=48)

    assert testing.run_jobs() == 0


@pytest.mark.parametrize(
    ("word", "state", "attempt"),
    [
        ("later", State.RETRYABLE, None),
        ("again", State.RETRYABLE, 1),
        ("never", State.DISCARDED, 1),
    ],
)
def test_handlers_decide_how_their_job_goes_on(place, mails, word, state, attempt):
    made = jobs.enqueue("tests.mail", [word])

    testing.run_jobs()

    testing.assert_job_state(made.id, state)
    if attempt is not None:
        assert testing.all_enqueued()[0].attempt == attempt


@pytest.mark.django_db
def test_a_snoozed_attempt_does_not_count(mails):
    jobs.enqueue("tests.mail", ["later"])

    for _ in range(5):
        testing.run_jobs(with_scheduled=True, max_jobs=1)

    job = Job.objects.get()
    assert (job.attempt, job.state, job.errors.count()) == (1, State.RETRYABLE, 0)


@pytest.mark.django_db
def test_retry_waits_as_long_as_the_handler_asks(mails):
    jobs.enqueue("tests.mail", ["again"])

    testing.run_jobs()

    job = Job.objects.get()
    assert job.retry_delay == timedelta(seconds=60)
    assert [(error.type, error.message) for error in job.errors.all()] == [("retry", "busy")]


def report(on_conflict, **more):
    return jobs.enqueue(
        "tests.mail", ["a"], unique={"keys": ["type", "args"], "on_conflict": on_conflict, **more}
    )


def test_a_duplicate_is_rejected_until_the_first_is_done(place, mails):
    report("reject")
    with pytest.raises(DuplicateJob):
        report("reject")
    testing.assert_enqueued("tests.mail", count=1)

    testing.run_jobs()
    report("reject")

    testing.assert_enqueued("tests.mail", count=2)


def test_a_duplicate_that_is_ignored_is_the_job_there_was(place, mails):
    first = report("ignore")

    assert report("ignore").id == first.id
    testing.assert_enqueued("tests.mail", count=1)


def test_a_duplicate_that_replaces_cancels_the_job_there_was(place, mails):
    first, second = report("replace"), report("replace")

    testing.assert_job_state(first.id, "cancelled")
    testing.assert_job_state(second.id, "available")


def test_a_unique_period_ends(fake_jobs):
    report("reject", period="PT1H")
    testing.advance_time(minutes=61)
    report("reject", period="PT1H")

    testing.assert_enqueued("tests.mail", count=2)


def test_of_several_rejected_jobs_none_is_kept(fake_jobs):
    report("reject")
    again = {"unique": {"keys": ["type", "args"]}, "args": ["a"]}
    with pytest.raises(DuplicateJob):
        jobs.enqueue_many([{"type": "tests.other"}, {"type": "tests.mail", **again}])

    testing.refute_enqueued("tests.other")


# The clock (§7.2)


def test_a_frozen_clock_says_when_jobs_are_due(fake_jobs, mails):
    testing.freeze_time("2026-02-13T10:00:00Z")
    made = jobs.enqueue("tests.mail", ["x"], scheduled_at=timedelta(hours=24))

    assert made.created_at.isoformat() == "2026-02-13T10:00:00+00:00"
    assert made.scheduled_at.isoformat() == "2026-02-14T10:00:00+00:00"
    testing.advance_time(hours=23, minutes=59)
    assert testing.run_jobs() == 0
    testing.advance_time(minutes=1)
    assert testing.run_jobs() == 1
    testing.assert_completed("tests.mail")


def test_a_retry_is_due_after_its_backoff(fake_jobs, mails):
    testing.freeze_time("2026-02-13T10:00:00Z")
    policy = {"initial_interval": "PT1H", "jitter": False}
    testing.fail_next("tests.mail", ConnectionError("no route"))
    jobs.enqueue("tests.mail", ["x"], retry=policy)

    assert testing.run_jobs() == 1
    testing.advance_time(minutes=59)
    assert testing.run_jobs() == 0
    testing.assert_failed("tests.mail")
    testing.advance_time(minutes=1)
    assert testing.run_jobs() == 1
    assert mails == [("x", 2)]


def test_a_job_that_was_not_run_in_time_is_discarded(fake_jobs, mails):
    late = jobs.enqueue("tests.mail", ["x"], expires_at=timedelta(hours=1))
    kept = jobs.enqueue("tests.mail", ["y"], expires_at=timedelta(hours=3))
    testing.advance_time(hours=2)

    assert testing.run_jobs() == 1
    testing.assert_job_state(late.id, "discarded")
    testing.assert_job_state(kept.id, "completed")


def test_the_clock_of_the_database_cannot_be_frozen(db):
    with pytest.raises(RuntimeError, match="advance_time"):
        testing.freeze_time("2026-02-13T10:00:00Z")


def test_a_clock_runs_again_when_its_mode_has_ended(db):
    with testing.fake():
        testing.freeze_time("2020-01-01T00:00:00Z")
    made = jobs.enqueue("email.send", scheduled_at=timedelta(hours=1))

    assert made.scheduled_at > timezone.now()


# Cancelling, finding (§5.1)


def test_a_cancelled_job_is_not_run(place, mails):
    made = jobs.enqueue("tests.mail", ["x"])

    jobs.cancel(str(made.id), reason="sent by hand")

    assert testing.run_jobs() == 0
    assert testing.get_job(made.id).state == "cancelled"
    with pytest.raises(InvalidTransition):
        jobs.cancel(made.id)


def test_a_job_that_is_not_there_cannot_be_cancelled(place):
    for identifier in ("01900000-0000-7000-8000-000000000000", "nonsense"):
        assert testing.get_job(identifier) is None
        with pytest.raises(JobNotFound):
            jobs.cancel(identifier)


def test_an_async_site_cancels_too(fake_jobs):
    made = jobs.enqueue("tests.mail", ["x"])
    async_to_sync(jobs.acancel)(made.id)
    testing.assert_job_state(made.id, "cancelled")


# The server's own rules, in memory as in the database


def test_jobs_run_by_priority_then_age(place, mails):
    for name, priority in (("low", -1), ("first", 5), ("second", 5)):
        jobs.enqueue("tests.mail", [name], priority=priority)

    testing.run_jobs()

    assert [name for name, _ in mails] == ["first", "second", "low"]


def test_a_job_that_only_some_workers_are_able_to_run_is_run(place, mails):
    jobs.enqueue("tests.mail", ["x"], meta={"capabilities": ["gpu"]})

    assert testing.run_jobs() == 1


def test_jobs_that_are_late_are_discarded_as_time_passes(place, mails):
    expired = jobs.enqueue("tests.mail", ["x"], expires_at=timedelta(hours=1))
    overdrawn = jobs.enqueue("tests.mail", ["x"], total_timeout=3600)
    pending = jobs.enqueue("tests.mail", ["x"], pending=True)

    testing.advance_time(hours=2)

    testing.assert_job_state(expired.id, "discarded")
    testing.assert_job_state(overdrawn.id, "discarded")
    testing.assert_job_state(pending.id, "pending")
    assert testing.run_jobs() == 0


def test_a_job_is_available_as_soon_as_it_is_due(fake_jobs):
    testing.freeze_time("2026-02-13T10:00:00Z")
    made = jobs.enqueue("tests.mail", ["x"], scheduled_at=timedelta(hours=1))

    testing.advance_time(minutes=59, seconds=59)
    testing.assert_job_state(made.id, "scheduled")
    testing.advance_time(seconds=1)
    testing.assert_job_state(made.id, "available")


def test_a_rate_limit_opens_as_time_passes(fake_jobs, mails):
    testing.freeze_time("2026-02-13T10:00:00Z")
    limit = {"key": "smtp", "rate": {"limit": 1, "period": "PT1M"}}
    for _ in range(2):
        jobs.enqueue("tests.mail", ["x"], rate_limit=limit)

    assert testing.run_jobs() == 1
    assert testing.run_jobs() == 0
    testing.advance_time(minutes=2)
    assert testing.run_jobs() == 1


@pytest.mark.parametrize(("word", "state"), [("again", "retryable"), ("never", "discarded")])
def test_what_a_handler_decides_comes_out_of_inline_and_happens(inline_jobs, mails, word, state):
    with pytest.raises(Exception, match=r"busy|gone"):
        jobs.enqueue("tests.mail", [word])

    (job,) = inline_jobs.jobs
    assert job.state == state


def test_inline_leaves_pending_jobs_alone(inline_jobs, mails):
    made = jobs.enqueue("tests.mail", ["x"], pending=True)

    testing.assert_job_state(made.id, "pending")
    assert mails == []


def test_a_job_replaced_within_its_batch_is_not_run_inline(inline_jobs, mails):
    unique = {"keys": ["type"], "on_conflict": "replace"}
    item = {"type": "tests.mail", "unique": unique}
    jobs.enqueue_many([item | {"args": ["first"]}, item | {"args": ["second"]}])

    assert mails == [("second", 1)]


def test_a_job_that_was_ignored_runs_nothing_inline(inline_jobs, mails):
    testing.fail_next("tests.mail", ConnectionError("no route"))
    unique = {"keys": ["type"], "on_conflict": "ignore"}
    again = {"type": "tests.mail", "args": ["again"], "unique": unique}
    with pytest.raises(ConnectionError):
        jobs.enqueue_many([{"type": "tests.mail", "args": ["first"]}, again])
    jobs.enqueue(**again)

    assert mails == []


def test_jobs_of_a_mode_are_listed_as_they_were_enqueued(fake_jobs):
    for number in (3, 1, 2):
        jobs.enqueue("tests.mail", [number], id=f"0190000{number}-0000-7000-8000-000000000000")

    assert [job.args for job in testing.all_enqueued()] == [[3], [1], [2]]


def test_a_job_of_a_mode_is_seen_as_it_is_now(fake_jobs, mails):
    testing.fail_next("tests.mail", ConnectionError("no route"))
    made = jobs.enqueue("tests.mail", ["x"], priority=3, meta={"a": 1}, scheduled_at=timedelta(1))
    (job,) = fake_jobs.jobs

    assert (job.id, job.type, job.args, job.queue) == (made.id, "tests.mail", ["x"], "default")
    assert (job.priority, job.meta, job.attempt, job.performed) == (3, {"a": 1}, 0, False)
    assert (job.state, job.due_at) == (State.SCHEDULED, made.scheduled_at)
    testing.run_jobs(with_scheduled=True)
    assert (job.state, job.attempt, job.performed) == (State.COMPLETED, 2, True)
    assert [(error.type, error.message) for error in job.errors] == [
        ("ConnectionError", "no route")
    ]
    assert job.result == {"sent": "x"}
    assert job == testing.get_job(made.id)
    testing.clear_all()
    assert (fake_jobs.jobs, job.state) == ([], State.COMPLETED)


def test_jobs_can_be_looked_at_when_their_mode_has_ended():
    with testing.fake() as session:
        jobs.enqueue("tests.mail", ["x"])

    assert [job.args for job in session.jobs] == [["x"]]


# Location: in memory, and only the jobs


def test_a_queue_is_made_in_each_place_that_has_a_job_of_it(db, django_capture_on_commit_callbacks):
    def names():
        return set(Queue.objects.values_list("pk", flat=True))

    def enqueue(queue):
        with django_capture_on_commit_callbacks(execute=True):
            jobs.enqueue("tests.mail", queue=queue)

    enqueue("first")
    with testing.fake() as outer:
        enqueue("first")
        with testing.fake() as inner:
            enqueue("first")
            enqueue("second")
        enqueue("second")
    enqueue("second")

    assert names() == {"first", "second"}
    for session in (outer, inner):
        with session.inside():
            assert names() == {"first", "second"}


def test_a_mode_inside_another_has_jobs_of_its_own(fake_jobs):
    jobs.enqueue("tests.outer", queue="mail")
    with testing.fake():
        testing.refute_enqueued("tests.outer")
        jobs.enqueue("tests.inner", queue="inner")
    jobs.enqueue("tests.outer", queue="inner")

    assert [job.type for job in testing.all_enqueued()] == ["tests.outer", "tests.outer"]


def test_jobs_of_a_mode_stay_when_the_transaction_is_rolled_back(db, fake_jobs):
    with contextlib.suppress(ZeroDivisionError), atomic():
        jobs.enqueue("tests.mail", ["x"])
        raise ZeroDivisionError

    testing.assert_enqueued("tests.mail")


def test_handlers_and_receivers_find_the_database_of_the_site(db, fake_jobs):
    found = []

    @handlers.handler("tests.count")
    def count(context):
        found.append(Job.objects.count())

    def receive(sender, **about):
        found.append(Job.objects.count())

    signals.jobs_completed.connect(receive)
    try:
        jobs.enqueue("tests.count")
        testing.run_jobs()
    finally:
        signals.jobs_completed.disconnect(receive)
        handlers.forget("tests.count")

    assert found == [0, 0]
    testing.assert_completed("tests.count")


def test_what_threads_enqueue_at_once_is_seen(fake_jobs, mails):
    def enqueue():
        for _ in range(5):
            jobs.enqueue("tests.mail", ["x"])

    threads = [threading.Thread(target=enqueue) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    testing.assert_enqueued("tests.mail", count=20)


def test_an_async_test_may_look_at_memory_without_leaving_its_loop(mails):
    async def test():
        with testing.fake():
            await jobs.aenqueue("tests.mail", ["x"])
            jobs.enqueue("tests.mail", ["y"])
            testing.assert_enqueued("tests.mail", count=2)
            testing.advance_time(hours=1)
            with pytest.raises(DuplicateJob):
                jobs.enqueue("tests.mail", id=testing.all_enqueued()[0].id)
            await testing.arun_jobs()
            testing.assert_completed("tests.mail", count=2)

    async_to_sync(test)()


class Elsewhere:
    """A router of a site, which does not know the database in memory."""

    def db_for_read(self, model, **hints):
        return "default"

    db_for_write = db_for_read

    def allow_relation(self, one, other, **hints):
        return False


def test_routers_of_the_site_have_no_say_in_memory(fake_jobs, mails, settings):
    jobs.enqueue("tests.mail", ["x"])
    settings.DATABASE_ROUTERS = [Elsewhere()]
    testing.fail_next("tests.mail", ConnectionError("no route"))
    jobs.enqueue("tests.mail", ["y"])

    assert testing.run_jobs() == 2
    testing.assert_failed("tests.mail", count=1)


def test_nothing_is_left_of_a_mode():
    before = list(router.routers)
    with testing.fake():
        jobs.enqueue("tests.mail", ["x"])
        assert router.routers == before

    assert memory.ALIAS not in connections
    with pytest.raises(ConnectionDoesNotExist):
        connections[memory.ALIAS]
    assert alias() != memory.ALIAS


@pytest.mark.parametrize("kind", [SimpleTestCase, TestCase])
def test_a_test_case_that_forbids_databases_allows_modes(kind, mails):
    class OfAHost(kind):
        databases: ClassVar = set()

        def test_modes(self):
            with testing.fake():
                jobs.enqueue("tests.mail", ["x"])
                thread = threading.Thread(target=testing.run_jobs)
                thread.start()
                thread.join()
                testing.assert_completed("tests.mail")

        def test_it_does_forbid_them(self):
            with self.assertRaises((AssertionError, RuntimeError)):
                Job.objects.count()

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(OfAHost).run(result)
    assert (result.testsRun, result.failures, result.errors) == (2, [], [])


# Workflows (§6.4)


def test_workflows_are_found_by_type_name_and_steps(db):
    step = {"type": "data.fetch", "args": []}
    inner = {"type": "group", "jobs": [step, step]}
    for document in (
        {"type": "chain", "name": "etl", "steps": [step, {"type": "data.load", "args": []}]},
        {"type": "batch", "jobs": [inner, step], "callbacks": {"on_complete": step}},
    ):
        engine.create_workflow(plan_of(document, timezone.now()))

    testing.assert_workflow_created("chain", name="etl", step_types=["data.fetch", "data.load"])
    testing.assert_workflow_created("batch", step_count=2, step_types=["group", "data.fetch"])
    testing.assert_workflow_created("group", count=0)
    with pytest.raises(AssertionError, match=r"chain 'etl' of \['data.fetch', 'data.load'\]"):
        testing.assert_workflow_created("chain", step_count=3)

"""FAIL: the retry policy and the handler decide what follows a failed attempt (OJS retry)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import engine
from jobs.engine import Failure
from jobs.errors import InvalidTransition, JobNotFound, ReservationLost
from jobs.models import Event, Job, RefusedFinish
from jobs.signals import jobs_failed
from jobs.spec.identifiers import uuid7
from jobs.spec.lifecycle import State
from jobs.spec.reports import BACKTRACE_CHARACTERS, BACKTRACE_FRAMES
from tests.database import connection
from tests.factories import JobErrorFactory, JobFactory, QueueFactory

STEADY = {"jitter": False, "initial_interval": "PT10S", "backoff_coefficient": 3}
"""Retries after 10, 30, 90 … seconds."""


def failed(job: Job, **fields):
    (outcome,) = engine.fail([Failure(job.pk, **fields)])
    job.refresh_from_db()
    return outcome


def seconds_until(moment) -> float:
    return (moment - timezone.now()).total_seconds()


# Retry or not (core §6.3, retry §2)


@pytest.mark.parametrize(("attempt", "delay"), [(1, 10), (2, 30), (3, 90)])
def test_a_failed_attempt_waits_for_its_backoff(db, attempt, delay):
    job = JobFactory(active=True, attempt=attempt, max_attempts=5, retry=STEADY)

    outcome = failed(job, worker_id="worker-1")

    assert (job.state, job.attempt) == (State.RETRYABLE, attempt)
    assert job.retry_delay == timedelta(seconds=delay)
    assert delay - 60 < seconds_until(job.scheduled_at) <= delay
    assert (job.reserved_by, job.reserved_until) == ("", None)
    assert job.finished_at is None
    assert (outcome.state, outcome.attempt) == (State.RETRYABLE, attempt)
    assert (outcome.retry_at, outcome.retry_delay) == (job.scheduled_at, job.retry_delay)


def test_without_a_policy_of_its_own_a_job_follows_the_default(db):
    """Three attempts, one second, doubled, with jitter (retry §8)."""
    job = JobFactory(active=True, attempt=2, retry=None)

    failed(job)

    assert job.state == State.RETRYABLE
    assert timedelta(seconds=1) <= job.retry_delay < timedelta(seconds=3)


def test_the_last_attempt_ends_the_job(db):
    job = JobFactory(active=True, attempt=3, max_attempts=3)

    outcome = failed(job, worker_id="worker-1")

    assert (job.state, job.attempt) == (State.DISCARDED, 3)
    assert (job.finished_by, job.retry_delay) == ("worker-1", None)
    assert outcome.at is not None
    assert outcome.retry_at is None
    assert abs(job.finished_at - outcome.at) < timedelta(minutes=1)


@pytest.mark.parametrize("max_attempts", [0, 1])
def test_no_retry_means_that_the_first_failure_is_the_last(db, max_attempts):
    """Retry §2.2: 0 runs once, like 1."""
    JobFactory(max_attempts=max_attempts, retry={"max_attempts": max_attempts})

    (claimed,) = engine.claim(["default"])
    (outcome,) = engine.fail([Failure(claimed.id)])

    assert claimed.attempt == 1
    assert outcome.state == State.DISCARDED
    assert engine.claim(["default"]) == []


@pytest.mark.parametrize("max_attempts", [1, 2, 5])
def test_a_job_runs_as_often_as_it_may_and_never_more(db, max_attempts):
    """RET-01, through every way an attempt can end badly."""
    policy = {"max_attempts": max_attempts, "initial_interval": "PT0.001S", "jitter": False}
    job = JobFactory(max_attempts=max_attempts, retry=policy | {"max_interval": "PT0.001S"})
    endings = [lambda: engine.fail([Failure(job.pk)]), engine.expire, engine.time_out]
    runs = 0

    for turn in range(10):
        Job.objects.filter(state=State.RETRYABLE).update(scheduled_at=timezone.now())
        claimed = engine.claim(["default"])
        runs += len(claimed)
        moment = timezone.now() - timedelta(seconds=9)
        Job.objects.active().update(
            reserved_until=moment, started_at=moment, timeout=timedelta(seconds=1)
        )
        endings[turn % 3]()

    job.refresh_from_db()
    assert runs == max_attempts
    assert (job.state, job.attempt) == (State.DISCARDED, max_attempts)
    assert [error.attempt for error in job.errors.all()] == list(range(1, max_attempts + 1))


# Errors that are never retried (retry §6)


@pytest.mark.parametrize(
    ("entries", "error_type", "code", "state"),
    [
        (["validation.payload_invalid"], "validation.payload_invalid", "", State.DISCARDED),
        (["validation.payload_invalid"], "validation.schema_error", "", State.RETRYABLE),
        (["auth.*"], "auth.token_expired", "", State.DISCARDED),
        (["auth.*"], "auth", "", State.RETRYABLE),
        (["auth.*"], "external.auth.failure", "", State.RETRYABLE),
        (["auth.*"], "authority.gone", "", State.RETRYABLE),
        (["CARD_STOLEN"], "handler_error", "CARD_STOLEN", State.DISCARDED),
        ([], "anything", "", State.RETRYABLE),
    ],
)
def test_error_types_the_policy_names_are_not_retried(db, entries, error_type, code, state):
    policy = {"non_retryable_errors": entries}
    job = JobFactory(active=True, attempt=1, retry=policy)

    failed(job, type=error_type, code=code)

    assert job.state == state
    assert [error.type for error in job.errors.all()] == [error_type]


def test_a_worker_may_say_that_trying_again_is_futile(db):
    job = JobFactory(active=True, attempt=1)

    failed(job, retryable=False)

    assert job.state == State.DISCARDED


def test_a_worker_cannot_get_more_attempts_by_calling_an_error_retryable(db):
    job = JobFactory(active=True, attempt=3)

    failed(job, retryable=True)

    assert job.state == State.DISCARDED


# The handler's own decision (retry §7) and the dead letter (dead letter §4)

NOBODY_SAID, DISCARD, DEAD_LETTER = None, "discard", "dead_letter"


@pytest.mark.parametrize(
    ("code", "retryable", "state"),
    [
        ("RETRY", None, State.RETRYABLE),
        ("RETRY", False, State.RETRYABLE),
        ("DISCARD", None, State.DISCARDED),
        ("DISCARD", True, State.DISCARDED),
        ("FAIL", None, State.DISCARDED),
        ("DEAD_LETTER", None, State.DISCARDED),
        ("DEAD_LETTER", True, State.DISCARDED),
        ("handler_error", None, State.RETRYABLE),
        ("discard", None, State.RETRYABLE),
    ],
)
def test_a_response_code_takes_precedence_over_the_policy(db, code, retryable, state):
    job = JobFactory(active=True, attempt=1, max_attempts=3)

    failed(job, code=code, retryable=retryable)

    assert job.state == state


def test_the_code_retry_follows_the_policy_to_its_end(db):
    last = JobFactory(active=True, attempt=3, max_attempts=3)
    final = JobFactory(active=True, retry={"non_retryable_errors": ["auth.*"]})

    failed(last, code="RETRY")
    failed(final, code="RETRY", type="auth.expired")

    assert (last.state, final.state) == (State.DISCARDED, State.DISCARDED)


@pytest.mark.parametrize(
    ("on_exhaustion", "code", "kept"),
    [
        (NOBODY_SAID, "", True),
        (NOBODY_SAID, "DISCARD", False),
        (NOBODY_SAID, "FAIL", False),
        (NOBODY_SAID, "DEAD_LETTER", True),
        (DISCARD, "", False),
        (DISCARD, "DISCARD", False),
        (DISCARD, "DEAD_LETTER", True),
        (DEAD_LETTER, "", True),
        (DEAD_LETTER, "DISCARD", False),
        (DEAD_LETTER, "FAIL", False),
        (DEAD_LETTER, "DEAD_LETTER", True),
    ],
)
@pytest.mark.parametrize("why", ["exhausted", "non-retryable"])
def test_who_is_kept_in_the_dead_letter(db, on_exhaustion, code, kept, why):
    """Discarded jobs are kept unless the policy is `discard` (docs/architecture.md)."""
    policy = {"non_retryable_errors": ["fatal"]} | (
        {"on_exhaustion": on_exhaustion} if on_exhaustion else {}
    )
    job = JobFactory(active=True, attempt=3 if why == "exhausted" else 1, retry=policy)

    failed(job, type="boom" if why == "exhausted" else "fatal", code=code)

    assert (job.state, job.dead_letter) == (State.DISCARDED, kept)


def test_a_job_that_will_be_retried_is_no_dead_letter(db):
    job = JobFactory(active=True, retry={"on_exhaustion": "dead_letter"})

    failed(job)

    assert (job.state, job.dead_letter) == (State.RETRYABLE, False)


# Stored details of a failure (core §8, errors §6)


def test_everything_the_worker_said_of_the_error_is_kept(db):
    job = JobFactory(active=True, attempt=2)

    failed(
        job,
        worker_id="worker-1",
        type="SmtpConnectionError",
        code="handler_error",
        message="Connection refused",
        backtrace=["at smtp.js:42", "at handler.js:15"],
        details={"smtp_port": 587},
        retryable=True,
    )

    error = job.errors.get()
    assert (error.attempt, error.type, error.code) == (2, "SmtpConnectionError", "handler_error")
    assert error.message == "Connection refused"
    assert error.backtrace == ["at smtp.js:42", "at handler.js:15"]
    assert (error.details, error.retryable) == ({"smtp_port": 587}, True)
    assert error.worker_id == "worker-1"
    assert abs(timezone.now() - error.occurred_at) < timedelta(minutes=1)


def test_an_unsigned_failure_is_put_down_to_the_holder(db):
    job = JobFactory(active=True, reserved_by="worker-9")

    failed(job)

    assert job.errors.get().worker_id == "worker-9"


def test_a_long_backtrace_is_cut(db):
    """At most 50 frames and 10,000 characters (core §8.1)."""
    many, long = JobFactory(active=True), JobFactory(active=True)

    failed(many, backtrace=[f"frame {n}" for n in range(500)])
    failed(long, backtrace=["x" * 4_000] * 10)

    assert many.errors.get().backtrace == [f"frame {n}" for n in range(BACKTRACE_FRAMES)]
    assert [len(frame) for frame in long.errors.get().backtrace] == [4_000, 4_000, 2_000]
    assert BACKTRACE_CHARACTERS == 10_000


def test_an_error_is_kept_whatever_it_says(db):
    """Its text is for people; half a character must not leave the job unsettled."""
    job = JobFactory(active=True)
    text = "\0\ud83dü"

    failed(
        job,
        type=text * 200,
        code=text * 200,
        message=text * 2**19,
        backtrace=[text],
        details={text: [text, 2**70, {"n": 1.5}]},
    )

    error = job.errors.get()
    legible = r"\x00\ud83dü"
    assert (error.type, error.code) == ((legible * 200)[:255], (legible * 200)[:255])
    assert error.message == (legible * 2**19)[: 2**20]
    assert error.backtrace == [legible]
    assert error.details == {legible: [legible, str(2**70), {"n": 1.5}]}
    event = Event.objects.get(type="job.failed")
    assert event.data["error"]["message"] == error.message


def test_the_history_grows_with_each_failure(db):
    job = JobFactory(active=True, attempt=2)
    JobErrorFactory(job=job, attempt=1, type="First")

    failed(job, type="Second")

    assert [(error.attempt, error.type) for error in job.errors.all()] == [
        (1, "First"),
        (2, "Second"),
    ]


# Releasing a job (worker §9, docs/architecture.md)


def test_a_released_job_is_available_at_once_and_its_attempt_does_not_count(db):
    job = JobFactory(active=True, attempt=3, max_attempts=3)

    outcome = failed(job, worker_id="worker-1", release=True)

    assert (job.state, job.attempt) == (State.AVAILABLE, 3)
    assert (outcome.state, outcome.retry_at) == (State.AVAILABLE, None)
    assert not job.errors.exists()

    (again,) = engine.claim(["default"])
    assert (again.id, again.attempt) == (job.pk, 3)


def test_a_release_needs_no_error_and_heeds_none(db):
    job = JobFactory(active=True, retry={"non_retryable_errors": ["*", "shutdown"]})

    failed(job, release=True, type="shutdown", code="DISCARD", retryable=False)

    assert job.state == State.AVAILABLE
    assert not job.errors.exists()


def test_a_job_released_again_and_again_is_never_used_up(db):
    job = JobFactory(max_attempts=1)

    for _ in range(5):
        (claimed,) = engine.claim(["default"], worker_id="worker-1")
        assert claimed.attempt == 1
        engine.fail([Failure(job.pk, worker_id="worker-1", release=True)])

    job.refresh_from_db()
    assert job.state == State.AVAILABLE


def test_a_released_job_stands_at_the_end_of_its_queue(db):
    released = JobFactory(active=True)
    waiting = JobFactory()

    failed(released, release=True)

    assert [job.id for job in engine.claim(["default"], count=2)] == [waiting.pk, released.pk]


# Ownership (worker §5.6)


def test_only_the_holder_may_fail_a_job(db):
    job = JobFactory(active=True, reserved_by="worker-1")

    outcome = failed(job, worker_id="worker-2")

    assert isinstance(outcome.error, ReservationLost)
    assert (job.state, job.reserved_by) == (State.ACTIVE, "worker-1")
    assert not job.errors.exists()
    refusal = RefusedFinish.objects.get()
    assert (refusal.operation, refusal.worker_id) == ("fail", "worker-2")


def test_an_older_attempt_may_not_fail_a_job(db):
    job = JobFactory(active=True, attempt=2)

    assert isinstance(failed(job, worker_id="worker-1", attempt=1).error, ReservationLost)
    assert failed(job, worker_id="worker-1", attempt=2).error is None


def test_an_unsigned_failure_that_ends_the_job_is_marked(db):
    job = JobFactory(active=True, attempt=3)

    failed(job)

    assert (job.state, job.unfenced) == (State.DISCARDED, True)


# Many at once


def test_many_fail_in_as_many_queries_as_two_and_each_waits_for_its_own_time(db):
    def fail(count: int) -> int:
        jobs = [
            JobFactory(active=True, attempt=1 + place % 3, max_attempts=5, retry=STEADY)
            for place in range(count)
        ]
        with CaptureQueriesContext(connection) as queries:
            outcomes = engine.fail([Failure(job.pk, message=str(job.pk)) for job in jobs])
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.refresh_from_db()
            assert job.retry_delay == timedelta(seconds=10 * 3 ** (job.attempt - 1))
            assert (job.scheduled_at, job.retry_delay) == (outcome.retry_at, outcome.retry_delay)
            assert job.errors.get().message == str(job.pk)
        return len(queries)

    assert fail(9) == fail(2)


def test_each_failure_of_a_list_is_decided_by_itself(db):
    retried = JobFactory(active=True, retry=STEADY)
    later = JobFactory(active=True, attempt=2, retry=STEADY)
    spent = JobFactory(active=True, attempt=3)
    silenced = JobFactory(active=True, attempt=3, retry={"on_exhaustion": "discard"})
    released = JobFactory(active=True)
    others = JobFactory(active=True, reserved_by="worker-2")
    nobodys = uuid7()
    jobs = [retried, later, spent, silenced, released, others]

    failures = [Failure(job.pk, worker_id="worker-1", release=job is released) for job in jobs]
    outcomes = engine.fail([*failures, Failure(nobodys), Failure(retried.pk)])

    states = [Job.objects.values_list("state", flat=True).get(pk=job.pk) for job in jobs]
    assert states == ["retryable", "retryable", "discarded", "discarded", "available", "active"]
    assert [type(outcome.error) for outcome in outcomes[5:]] == [
        ReservationLost,
        JobNotFound,
        InvalidTransition,
    ]
    delays = [Job.objects.get(pk=job.pk).retry_delay for job in (retried, later)]
    assert delays == [timedelta(seconds=10), timedelta(seconds=30)]
    due = [Job.objects.get(pk=job.pk).scheduled_at for job in (retried, later)]
    assert due == [outcomes[0].retry_at, outcomes[1].retry_at]
    assert Job.objects.get(pk=spent.pk).dead_letter
    assert not Job.objects.get(pk=silenced.pk).dead_letter
    assert retried.errors.count() == 1


def test_nothing_to_fail_is_no_error(db):
    assert engine.fail([]) == []


# Events and signals


def recorded() -> list[tuple[str, dict]]:
    return list(Event.objects.order_by("id").values_list("type", "data"))


def test_the_record_tells_of_the_failure_and_of_the_retry(db):
    job = JobFactory(active=True, retry=STEADY)

    failed(job, worker_id="worker-1", code="smtp", message="No answer")

    (kind, failure), (second, retry) = recorded()
    error = {"code": "smtp", "message": "No answer"}
    assert (kind, second) == ("job.failed", "job.retrying")
    assert failure == {"error": error | {"retryable": True}, "state": "retryable"}
    assert (retry["error"], retry["max_attempts"]) == (error, 3)
    assert retry["next_retry_at"] == job.scheduled_at.isoformat()


def test_the_record_tells_of_the_last_failure_and_of_the_end(db):
    job = JobFactory(active=True, attempt=3)

    failed(job, worker_id="worker-1", type="Boom", message="No answer")

    (_, failure), *ends = recorded()
    assert failure["error"]["retryable"] is False
    kinds = ["job.retry_exhausted", "job.discarded", "job.dead_lettered"]
    assert [kind for kind, _ in ends] == kinds
    for _, last in ends:
        assert last == {"total_attempts": 3, "last_error": {"code": "Boom", "message": "No answer"}}


def test_a_released_job_was_only_enqueued_again(db):
    failed(JobFactory(active=True), release=True)

    assert [kind for kind, _ in recorded()] == ["job.enqueued"]


def test_listeners_hear_what_became_of_each(db, django_capture_on_commit_callbacks):
    jobs = [JobFactory(active=True), JobFactory(active=True, attempt=3)]
    heard = []

    def listen(*, outcomes, **kwargs):
        heard.extend((outcome.job_id, outcome.state) for outcome in outcomes)

    jobs_failed.connect(listen)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            engine.fail([Failure(job.pk) for job in jobs])
    finally:
        jobs_failed.disconnect(listen)

    assert heard == [(jobs[0].pk, State.RETRYABLE), (jobs[1].pk, State.DISCARDED)]


def test_failing_leaves_the_queue_alone(db):
    QueueFactory(name="default", paused=True)
    job = JobFactory(active=True)

    failed(job)

    assert job.state == State.RETRYABLE

"""Limits besides the timeout: total_timeout, enqueue_ttl, grace_period (OJS timeouts)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

import jobs
from jobs import engine
from jobs.models import Event, Job
from jobs.spec.lifecycle import State
from tests.factories import JobFactory, ago, ahead
from tests.ojs_client import OJSClient

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)


@pytest.fixture
def api(settings):
    settings.OJS = {"ALLOW_ANONYMOUS": True, "CONFORMANCE_MODE": True}
    return OJSClient()


def recorded(job: Job) -> dict[str, dict]:
    return dict(Event.objects.filter(subject=str(job.pk)).values_list("type", "data"))


@pytest.mark.parametrize("state", ["active", "retryable", "scheduled", "pending"])
def test_a_job_that_had_its_time_is_discarded_whatever_attempts_are_left(state):
    created_at = ago(90)
    deadline = created_at + timedelta(seconds=60)
    job = JobFactory(
        **{state: True}, created_at=created_at, deadline=deadline, attempt=1, max_attempts=25
    )

    assert engine.discard_overdrawn() == 1

    job.refresh_from_db()
    (error,) = job.errors.all()
    assert (job.state, job.dead_letter, error.type) == (State.DISCARDED, True, "total_timeout")
    assert error.details["timeout_kind"] == "total" and error.details["limit_seconds"] == 60
    assert recorded(job)["job.total_timeout"] == error.details
    assert recorded(job)["job.discarded"]["last_error"]["code"] == "total_timeout"
    assert ("job.failed" in recorded(job)) is (state == "active")
    assert engine.discard_overdrawn() == 0


def test_the_worker_of_such_a_job_hears_that_it_is_not_its_own_any_more(api):
    job_id = api.pushed(total_timeout=60)
    api.fetch(worker_id="w")
    Job.objects.filter(pk=job_id).update(deadline=ago(1))

    engine.discard_overdrawn()

    assert api.ack(job_id, worker_id="w").status_code == 409


def test_jobs_that_ended_and_jobs_with_time_left_are_left_alone():
    JobFactory(completed=True, deadline=ago(30))
    JobFactory(active=True, deadline=ahead(30))

    assert engine.discard_overdrawn() == 0


@pytest.mark.parametrize(
    ("left", "state"), [(30, State.DISCARDED), (300, State.RETRYABLE)], ids=["late", "in time"]
)
def test_no_retry_is_planned_that_could_not_end_in_time(api, left, state):
    """OJS timeouts §9.1: the backoff of 60 s and the timeout of 60 s must fit."""
    retry = {"max_attempts": 5, "initial_interval": "PT60S", "jitter": False}
    job_id = api.pushed(timeout=60, total_timeout=3600, retry=retry)
    Job.objects.filter(pk=job_id).update(deadline=ahead(left))
    api.fetch(worker_id="w")

    api.nack(job_id)

    assert api.job(job_id)["state"] == state


def test_an_operators_retry_takes_the_deadline_away():
    job = JobFactory(dead=True, deadline=ago(30))

    engine.retry([job.pk])

    assert engine.discard_overdrawn() == 0


def test_a_job_that_no_worker_took_in_time_is_discarded_and_says_why(api):
    job_id = api.pushed(enqueue_ttl=300, options={"queue": "mail"})
    Job.objects.filter(pk=job_id).update(expires_at=ago(1))
    assert api.fetch("mail") == []

    assert engine.discard_expired() == 1

    job = api.job(job_id)
    assert (job["state"], job["error"]["type"]) == ("discarded", "enqueue_ttl_expired")
    assert job["error"]["timeout_kind"] == "enqueue_ttl" and job["error"]["limit_seconds"] == 300
    events = recorded(Job.objects.get())
    assert events["job.ttl_expired"]["timeout_kind"] == "enqueue_ttl"
    assert "job.expired" in events


def test_expires_at_that_is_sooner_is_no_matter_of_the_ttl(api):
    job_id = api.pushed(enqueue_ttl=300, expires_at="+PT60S")
    job = Job.objects.get()
    assert job.expires_at < ahead(61)
    sent = job.attributes | {"expires_at": ago(1).isoformat()}
    Job.objects.update(expires_at=ago(1), attributes=sent)

    engine.discard_expired()

    assert api.job(job_id)["error"]["type"] == "expired"


@pytest.mark.parametrize("way", ["failed", "released", "reclaimed"])
def test_the_ttl_is_about_the_first_attempt_and_not_about_the_next(api, way):
    job_id = api.pushed(enqueue_ttl=300, expires_at="2099-01-01T00:00:00Z")
    assert Job.objects.get().expires_at < ahead(301)
    api.fetch(worker_id="w")
    if way == "reclaimed":
        Job.objects.update(reserved_until=ago(1))
        engine.expire()
    else:
        api.nack(job_id, worker_id="w", **({"requeue": True} if way == "released" else {}))

    assert Job.objects.get().expires_at.year == 2099
    assert api.job(job_id)["expires_at"] == "2099-01-01T00:00:00Z"


@pytest.mark.parametrize("sent", ["2099-12-31T23:59:60.5Z", "2099-01-01T00:00:00+16:00"])
def test_a_date_that_the_database_would_not_read_stops_no_recovery(api, sent):
    api.pushed(enqueue_ttl=300, expires_at=sent)
    api.fetch(worker_id="w")
    Job.objects.update(reserved_until=ago(1))

    assert engine.expire() == 1

    assert Job.objects.get().expires_at.year >= 2098


def test_a_grace_period_puts_the_end_of_an_attempt_off():
    job = JobFactory(active=True, timeout=60 * SECOND, grace_period=30 * SECOND, started_at=ago(80))
    assert engine.time_out() == 0

    Job.objects.filter(pk=job.pk).update(started_at=ago(91))

    assert engine.time_out() == 1


def test_a_heartbeat_timeout_is_the_silence_a_reservation_outlasts(api):
    api.pushed(heartbeat_timeout=120)

    api.fetch(worker_id="w", visibility_timeout_ms=5000)

    assert Job.objects.get().reserved_for == 120 * SECOND


def test_a_job_taken_back_keeps_the_expiry_that_its_client_spelled(api):
    # PostgreSQL itself accepts no offset beyond sixteen hours.
    ours = api.pushed(enqueue_ttl=300, expires_at="2099-01-01T00:00:00+23:00")
    plain = api.pushed()
    assert {str(job.id) for job in engine.claim(["default"], count=2)} == {ours, plain}
    Job.objects.update(reserved_until=ago(1))

    assert engine.expire() == 2

    assert Job.objects.get(pk=ours).expires_at == datetime(2098, 12, 31, 1, tzinfo=UTC)
    assert Job.objects.get(pk=plain).expires_at is None


def test_a_moment_may_be_spelled_with_any_offset(api):
    job_id = api.pushed(
        scheduled_at="2099-01-01T00:00:00-23:59", expires_at="2099-02-01T00:00:00+23:59"
    )

    job = Job.objects.get()
    assert job.scheduled_at == datetime(2099, 1, 1, 23, 59, tzinfo=UTC)
    assert job.expires_at == datetime(2099, 1, 31, 0, 1, tzinfo=UTC)
    assert api.job(job_id)["expires_at"] == "2099-02-01T00:00:00+23:59"


@pytest.mark.parametrize("how", ["expire", "fail"])
def test_an_expiry_that_a_retry_took_away_does_not_come_back(api, how):
    job_id = api.pushed(enqueue_ttl=300, expires_at="2099-01-01T00:00:00Z")
    engine.claim(["default"])
    engine.fail([engine.Failure(UUID(job_id), retryable=False)])
    engine.retry([UUID(job_id)])
    engine.claim(["default"])

    if how == "expire":
        Job.objects.update(reserved_until=ago(1))
        engine.expire()
    else:
        engine.fail([engine.Failure(UUID(job_id))])

    assert Job.objects.get().expires_at is None


@pytest.mark.parametrize(
    "limits",
    [
        {"timeout": 100, "total_timeout": 50},
        {"grace_period": -1},
        {"heartbeat_timeout": 0},
        {"enqueue_ttl": 0},
        {"total_timeout": 0},
        {"total_timeout": "PT1H"},
        {"enqueue_ttl": 2**50},
    ],
    ids=str,
)
def test_limits_that_make_no_sense_are_refused(api, limits):
    reply = api.push(**limits)

    assert reply.status_code == 400
    assert reply.json()["error"]["details"]["field"] in limits
    assert not Job.objects.exists()


def test_limits_come_back_as_they_were_sent(api):
    sent = {"total_timeout": 86400, "enqueue_ttl": 7200, "grace_period": 60}

    assert sent.items() <= api.job(api.pushed(timeout=3600, **sent)).items()


def test_django_code_may_give_them_as_timedeltas():
    jobs.enqueue("a", total_timeout=timedelta(hours=1), grace_period=5, enqueue_ttl=60)
    jobs.enqueue("a", enqueue_ttl=60, expires_at=timedelta(hours=2))

    first, second = Job.objects.order_by("created_at", "pk")
    assert ahead(3590) < first.deadline < ahead(3601) and first.grace_period == 5 * SECOND
    assert first.expires_at < ahead(61) and second.expires_at < ahead(61)
    assert second.attributes["expires_at"] > first.attributes.get("expires_at", "")

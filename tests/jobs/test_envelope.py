"""The envelope of a job in each of its states (core §5, JSON format §3, retry §10, errors §6)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from jobs.spec.envelope import ERROR_FIELDS, envelope, error_entry
from jobs.spec.lifecycle import State
from tests.factories import JobErrorFactory, JobFactory, ago, ahead

MOMENT = datetime(2026, 2, 12, 10, 30, 5, 123_456, tzinfo=UTC)
WIRE_MOMENT = "2026-02-12T10:30:05.123Z"
RFC_3339 = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z")

ALWAYS = {
    "specversion",
    "id",
    "type",
    "queue",
    "args",
    "meta",
    "priority",
    "state",
    "attempt",
    "max_attempts",
    "tags",
    "created_at",
    "enqueued_at",
}
RAN = {"started_at"}
BY_STATE = {
    "available": set(),
    "pending": set(),
    "scheduled": {"scheduled_at"},
    "active": RAN,
    "retryable": {*RAN, "retry_delay_ms", "next_attempt_at", "next_retry_at"},
    "completed": {*RAN, "completed_at"},
    "cancelled": {"cancelled_at"},
    "discarded": {*RAN, "completed_at", "discarded_at"},
}


def given(state: str, **fields):
    return JobFactory(**({} if state == "available" else {state: True}), **fields)


def errors_of(job):
    return list(job.errors.values(*ERROR_FIELDS))


@pytest.mark.parametrize("state", list(State))
def test_each_state_has_its_fields_and_no_other(db, state):
    document = envelope(given(state))

    assert set(document) == ALWAYS | BY_STATE[state]
    assert document["state"] == state
    assert document["specversion"] == "1.0"


@pytest.mark.parametrize("state", list(State))
def test_every_time_is_utc_with_milliseconds(db, state):
    document = envelope(given(state))

    times = {name: value for name, value in document.items() if name.endswith("_at")}
    assert len(times) >= 2
    assert [name for name, value in times.items() if not RFC_3339.fullmatch(value)] == []


def test_what_is_not_set_is_left_out_rather_than_null(db):
    """JSON format §14.2."""
    for state in State:
        assert None not in envelope(given(state)).values()


def test_durations_are_milliseconds(db):
    job = JobFactory(
        timeout=timedelta(seconds=1.5),
        visibility_timeout=timedelta(minutes=2),
        retry_delay=timedelta(seconds=1, microseconds=999),
    )

    document = envelope(job)

    assert document["timeout_ms"] == 1500
    assert document["visibility_timeout_ms"] == 120_000
    assert document["retry_delay_ms"] == 1000


def test_a_retry_says_when_under_both_names(db):
    """HTTP §10.3 `next_attempt_at`, retry §10 `next_retry_at`."""
    document = envelope(JobFactory(retryable=True, scheduled_at=MOMENT))

    assert document["next_attempt_at"] == document["next_retry_at"] == WIRE_MOMENT
    assert "scheduled_at" not in document


@pytest.mark.parametrize("result", [0, False, "", [], {}, "done", {"a": 1}])
def test_every_result_but_none_is_included(db, result):
    assert envelope(JobFactory(completed=True, result=result))["result"] == result


def test_a_job_that_expired_before_it_ran_never_completed(db):
    """L2-TTL-001 expects no `completed_at`; a job that ran has it."""
    expired = envelope(JobFactory(discarded=True, attempt=0, started_at=None))
    ran = envelope(JobFactory(discarded=True))

    assert "completed_at" not in expired
    assert "discarded_at" in expired
    assert ran["completed_at"] == ran["discarded_at"]


# Fields that the client wrote


def test_times_come_back_in_the_clients_own_spelling(db):
    """JSON format §5.3: MUST preserve the original timezone."""
    sent = {
        "scheduled_at": "2999-01-01T00:00:00+02:00",
        "expires_at": "2999-01-02T00:00:00.5-07:00",
    }
    job = JobFactory(
        scheduled=True, scheduled_at=ahead(60), expires_at=ahead(120), attributes=dict(sent)
    )

    document = envelope(job)

    assert {name: document[name] for name in sent} == sent


def test_the_schedule_stays_on_a_job_that_runs(db):
    """JSON format §11.3."""
    job = JobFactory(active=True, attributes={"scheduled_at": "2025-06-01T09:00:00Z"})

    assert envelope(job)["scheduled_at"] == "2025-06-01T09:00:00Z"


def test_a_deadline_that_was_removed_is_not_included(db):
    job = JobFactory(expires_at=None, attributes={"expires_at": "2025-06-01T09:00:00Z"})

    assert "expires_at" not in envelope(job)


def test_unknown_fields_come_back_and_never_replace_ours(db):
    job = JobFactory(attributes={"x_team": {"a": [1]}, "state": "completed", "args": "mine"})

    document = envelope(job)

    assert document["x_team"] == {"a": [1]}
    assert document["state"] == "available"
    assert document["args"] == job.args


def test_workers_do_not_get_the_timeout_in_seconds(db):
    """Public JavaScript workers would read it as milliseconds (CLIENTS §2)."""
    job = JobFactory(timeout=timedelta(seconds=30), attributes={"timeout": 30})

    assert envelope(job)["timeout"] == 30
    for_worker = envelope(job, for_worker=True)
    assert "timeout" not in for_worker
    assert for_worker["timeout_ms"] == 30_000


# Errors


def test_the_history_is_listed_oldest_first_and_the_newest_stands_out(db):
    job = JobFactory(retryable=True, attempt=2)
    JobErrorFactory(job=job, attempt=1, type="First")
    JobErrorFactory(job=job, attempt=2, type="Second", code="smtp", details={"port": 587})

    document = envelope(job, errors_of(job))

    assert [error["type"] for error in document["errors"]] == ["First", "Second"]
    assert document["error"] == document["errors"][1]
    assert document["error"]["code"] == "smtp"
    assert document["error"]["details"] == {"port": 587}


def test_success_clears_the_error_and_keeps_the_history(db):
    """Core §7.3."""
    job = JobFactory(completed=True, attempt=2)
    JobErrorFactory(job=job, attempt=1)

    document = envelope(job, errors_of(job))

    assert "error" not in document
    assert len(document["errors"]) == 1


def test_a_fresh_start_clears_the_error_and_keeps_the_history(db):
    job = JobFactory(attempt=0)
    JobErrorFactory(job=job, attempt=3)

    document = envelope(job, errors_of(job))

    assert "error" not in document
    assert len(document["errors"]) == 1


def test_each_error_has_what_the_documents_require():
    """ERR-012 and retry §10.1 have different names for its time."""
    entry = error_entry({"attempt": 1, "type": "Boom", "code": "", "occurred_at": MOMENT})

    assert entry == {
        "attempt": 1,
        "type": "Boom",
        "code": "Boom",
        "message": "",
        "occurred_at": WIRE_MOMENT,
        "timestamp": WIRE_MOMENT,
    }


def test_a_workers_answer_is_included_even_if_it_is_no(db):
    job = JobFactory(retryable=True)
    JobErrorFactory(job=job, retryable=False, occurred_at=ago(5))

    assert envelope(job, errors_of(job))["error"]["retryable"] is False

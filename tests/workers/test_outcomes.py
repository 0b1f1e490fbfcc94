"""What is recorded of an attempt that its handler ends by a decision."""

from __future__ import annotations

import pytest

import jobs
from jobs import testing
from workers.runtime import Discard, Retry, handler


class Throttled(Exception):
    pass


@handler("test.deciding")
def decide(context, how):
    try:
        raise Throttled("come back later")
    except Throttled as error:
        if how == "implied":
            raise Retry(60)  # noqa: B904 (as many write it)
        if how == "discarded":
            raise Discard from error
        if how == "with a reason":
            raise Retry(60, "the mail server is busy") from error
        if how == "suppressed":
            raise Retry(60) from None
        raise Retry(60) from error


def outcome(how):
    with testing.fake():
        made = jobs.enqueue("test.deciding", [how])
        testing.run_jobs()
        (error,) = made.refresh().errors
    return error


CAUSE = "tests.workers.test_outcomes.Throttled: come back later"


@pytest.mark.parametrize(
    ("how", "type", "message"),
    [
        ("stated", "retry", CAUSE),
        ("implied", "retry", CAUSE),
        ("discarded", "discard", CAUSE),
        ("with a reason", "retry", "the mail server is busy"),
    ],
)
def test_a_decision_for_an_error_records_that_error(how, type, message, caplog):
    error = outcome(how)

    assert (error.type, error.message) == (type, message)
    assert error.backtrace[-1].strip() == CAUSE
    assert any('raise Throttled("come back later")' in entry for entry in error.backtrace)


def test_a_decision_that_hides_its_error_records_none_of_it():
    error = outcome("suppressed")

    assert (error.type, error.message, error.backtrace) == ("retry", "Retry", None)

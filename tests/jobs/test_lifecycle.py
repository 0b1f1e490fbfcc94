"""Life cycle of a job against the transition table of OJS core §6.3, row by row.

The table is repeated here, by hand from the document: the engine is checked against it, not
against our own table.
"""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db import IntegrityError

from jobs import engine
from jobs.engine import Completion, Failure
from jobs.errors import OJSError
from jobs.models import Job
from jobs.spec.lifecycle import TERMINAL, TRANSITIONS, WAITING, Event, State, sources
from jobs.store.postgres import COMPLETE, INSERT_EACH, INSERT_UNIFORM, PROMOTE, RECLAIM
from jobs.store.postgres.claiming import CLAIM
from tests.database import atomic
from tests.factories import JobFactory, ago, ahead

S, E = State, Event

CORE_6_3 = [
    (None, E.PUSH, S.SCHEDULED),
    (None, E.PUSH, S.AVAILABLE),
    (None, E.PUSH, S.PENDING),
    (S.SCHEDULED, E.TIMER, S.AVAILABLE),
    (S.PENDING, E.ACTIVATE, S.AVAILABLE),
    (S.AVAILABLE, E.FETCH, S.ACTIVE),
    (S.ACTIVE, E.ACK, S.COMPLETED),
    (S.ACTIVE, E.FAIL, S.RETRYABLE),
    (S.ACTIVE, E.FAIL, S.DISCARDED),
    (S.ACTIVE, E.CANCEL, S.CANCELLED),
    (S.ACTIVE, E.TIMEOUT, S.AVAILABLE),
    (S.RETRYABLE, E.TIMER, S.AVAILABLE),
    (S.SCHEDULED, E.CANCEL, S.CANCELLED),
    (S.AVAILABLE, E.CANCEL, S.CANCELLED),
    (S.PENDING, E.CANCEL, S.CANCELLED),
    (S.RETRYABLE, E.CANCEL, S.CANCELLED),
    (S.DISCARDED, E.RETRY, S.AVAILABLE),
]
OTHER_DOCUMENTS = [
    # Worker protocol §5.5.4 and §10.2: a lost reservation of the last attempt ends the job.
    (S.ACTIVE, E.TIMEOUT, S.DISCARDED),
    # Worker protocol §9, `requeue: true`: the worker returns a job that it will not finish.
    (S.ACTIVE, E.RELEASE, S.AVAILABLE),
    # Core §5.2, `expires_at`: a job that was not fetched in time is discarded.
    (S.SCHEDULED, E.EXPIRE, S.DISCARDED),
    (S.AVAILABLE, E.EXPIRE, S.DISCARDED),
    (S.PENDING, E.EXPIRE, S.DISCARDED),
    (S.RETRYABLE, E.EXPIRE, S.DISCARDED),
    # Admin API §7.4: a job that was cancelled by mistake.
    (S.CANCELLED, E.RETRY, S.AVAILABLE),
    # Rate limiting §6.2, `reschedule`: a job whose limit is reached is postponed.
    (S.AVAILABLE, E.DEFER, S.SCHEDULED),
    # HTTP §14.1 and cron §6.1: what was made before its turn enters its queue when that comes, by
    # the rules of PUSH.
    (S.PENDING, E.READY, S.SCHEDULED),
    (S.PENDING, E.READY, S.AVAILABLE),
]
ALLOWED = {*CORE_6_3, *OTHER_DOCUMENTS}

every_state = pytest.mark.parametrize("state", list(State))


def given(state: State, **fields) -> Job:
    """A job in `state` with all deadlines in the future."""
    trait = {} if state == S.AVAILABLE else {str(state): True}
    return JobFactory(**trait, **fields)


def state_of(job: Job) -> str:
    return Job.objects.values_list("state", flat=True).get(pk=job.pk)


# The table as data


def test_the_seventeen_rows_of_the_document_and_ten_of_others_are_all_there_is():
    ours = {
        (source, event, target)
        for event, row in TRANSITIONS.items()
        for source, targets in row.items()
        for target in targets
    }
    assert len(CORE_6_3) == 17
    assert ours == ALLOWED


@pytest.mark.parametrize("event", list(Event))
@pytest.mark.parametrize("target", list(State))
def test_sources_are_those_of_the_table(event, target):
    expected = {state for state, by, to in ALLOWED if (by, to) == (event, target)} - {None}

    assert set(sources(event, target)) == expected


def test_terminal_and_waiting_states_are_those_of_the_document():
    assert {S.COMPLETED, S.CANCELLED, S.DISCARDED} == TERMINAL
    assert {S.SCHEDULED, S.AVAILABLE, S.PENDING, S.RETRYABLE} == WAITING


def test_only_an_operator_leads_out_of_a_terminal_state():
    ways_out = {(event, source) for source, event, _ in ALLOWED if source in TERMINAL}

    assert ways_out == {(E.RETRY, S.DISCARDED), (E.RETRY, S.CANCELLED)}


# The one guarded UPDATE


@every_state
@pytest.mark.parametrize("event", list(Event))
def test_a_transition_moves_exactly_the_jobs_the_table_lets_move(db, event, state):
    for target in {to for _, by, to in ALLOWED if by == event}:
        job = given(state)
        reservation = {}
        if target == S.ACTIVE:
            reservation = {"reserved_until": ahead(60), "reserved_by": "worker-1"}

        moved = Job.objects.filter(pk=job.pk).transition(event, target, **reservation)

        allowed = (state, event, target) in ALLOWED
        assert moved == (1 if allowed else 0)
        assert state_of(job) == (target if allowed else state)


def test_leaving_active_gives_the_reservation_back(db):
    job = given(S.ACTIVE)

    Job.objects.filter(pk=job.pk).transition(E.FAIL, S.RETRYABLE)

    job.refresh_from_db()
    assert (job.reserved_by, job.reserved_until, job.reserved_for) == ("", None, None)


def test_a_terminal_state_is_stamped_and_a_retry_takes_the_stamp_away(db):
    job = given(S.ACTIVE)
    jobs = Job.objects.filter(pk=job.pk)

    jobs.transition(E.FAIL, S.DISCARDED)
    assert jobs.get().finished_at is not None

    jobs.transition(E.RETRY, S.AVAILABLE)
    assert jobs.get().finished_at is None


@every_state
def test_the_database_itself_refuses_a_reservation_without_activity_and_the_reverse(db, state):
    job = given(state)
    wrong = None if state == S.ACTIVE else ahead(60)

    with pytest.raises(IntegrityError), atomic():
        Job.objects.filter(pk=job.pk).update(reserved_until=wrong)


@every_state
def test_the_database_itself_ties_terminal_states_to_the_time_they_were_reached(db, state):
    job = given(state)
    wrong = None if state in TERMINAL else ago(1)

    with pytest.raises(IntegrityError), atomic():
        Job.objects.filter(pk=job.pk).update(finished_at=wrong)


# Every verb of the engine, on a job with all possible deadlines in the past, so that only the
# state can prevent the verb.


def overdue(state: State, verb: str) -> Job:
    past = {"expires_at": ago(1)} if state in WAITING else {}
    if state in (S.SCHEDULED, S.RETRYABLE):
        past |= {"scheduled_at": ago(1)}
    if state == S.ACTIVE:
        # Of its two deadlines, the first decides.
        end = ago(9.5) if verb == "expire" else ago(1)
        past |= {"reserved_until": end, "started_at": ago(10), "timeout": timedelta(seconds=1)}
    return given(state, **past)


def refused(outcome) -> None:
    if outcome.error is not None:
        raise outcome.error


VERBS = {
    "complete": (E.ACK, lambda job: refused(engine.complete([Completion(job.pk)])[0])),
    "fail": (E.FAIL, lambda job: refused(engine.fail([Failure(job.pk)])[0])),
    "release": (E.RELEASE, lambda job: refused(engine.fail([Failure(job.pk, release=True)])[0])),
    "expire": (E.TIMEOUT, lambda job: engine.expire()),
    "time_out": (E.FAIL, lambda job: engine.time_out()),
    "promote_due": (E.TIMER, lambda job: engine.promote_due()),
    "discard_expired": (E.EXPIRE, lambda job: engine.discard_expired()),
    "cancel": (E.CANCEL, lambda job: engine.cancel(job.pk)),
    "activate": (E.ACTIVATE, lambda job: engine.activate(job.pk)),
    "retry": (E.RETRY, lambda job: engine.retry_finished(job.pk)),
}
CHORES = {"expire", "time_out", "promote_due", "discard_expired"}
"""They select jobs themselves: one that they may not move is simply not found."""


@every_state
@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_does_what_the_table_allows_and_refuses_the_rest(db, verb, state):
    event, act = VERBS[verb]
    job = overdue(state, verb)
    before = Job.objects.filter(pk=job.pk).values().get()
    targets = {to for source, by, to in ALLOWED if (source, by) == (state, event)}

    if targets:
        act(job)
        assert state_of(job) in targets
    elif verb in CHORES:
        assert act(job) == 0
    else:
        with pytest.raises(OJSError):
            act(job)

    if not targets:
        assert Job.objects.filter(pk=job.pk).values().get() == before


@every_state
def test_a_fetch_takes_available_jobs_and_those_a_timer_would_have_made_available(db, state):
    due = {"scheduled_at": ago(1)} if state in (S.SCHEDULED, S.RETRYABLE) else {}
    job = given(state, **due)
    ways = [(state, E.FETCH, S.ACTIVE), (state, E.TIMER, S.AVAILABLE)]
    may_be_fetched = any(way in ALLOWED for way in ways)

    claimed = engine.claim(["default"], worker_id="worker-2")

    assert [each.id for each in claimed] == ([job.pk] if may_be_fetched else [])
    assert state_of(job) == (S.ACTIVE if may_be_fetched else state)


@pytest.mark.parametrize("state", [S.SCHEDULED, S.RETRYABLE])
def test_no_fetch_takes_a_job_before_its_time(db, state):
    job = given(state, scheduled_at=ahead(60))

    assert engine.claim(["default"]) == []
    assert state_of(job) == state


# The hand-written statements, which `transition()` does not build


def states_in(condition: str, statement: str) -> list[set[str]]:
    """The states in each `WHERE` of a statement after `condition`."""
    found = re.findall(rf"{condition} (?:= ('\w+')|IN \(([^)]*)\))", statement)
    return [set(re.findall(r"'(\w+)'", "".join(names))) for names in found]


def test_the_claim_statement_names_the_states_of_the_table():
    available, due = states_in(r"(?:WHERE|AND) state", CLAIM)

    assert available == set(sources(E.FETCH, S.ACTIVE))
    assert due == set(sources(E.TIMER, S.AVAILABLE))
    assert states_in("SET state", CLAIM) == [{"active"}]


def test_the_completing_statement_names_the_states_of_the_table():
    (source,) = states_in(r"(?:WHERE|AND) (?:job\.)?state", COMPLETE)

    assert source == set(sources(E.ACK, S.COMPLETED))
    assert states_in("SET state", COMPLETE) == [{"completed"}]


def test_the_reclaiming_statement_names_the_states_of_the_table():
    lost, *guards = states_in(r"(?:WHERE|AND) (?:job\.)?state", RECLAIM)

    assert lost == set(sources(E.TIMEOUT, S.AVAILABLE))
    assert guards == [set(sources(E.TIMEOUT, S.AVAILABLE)), set(sources(E.TIMEOUT, S.DISCARDED))]
    assert states_in("SET state", RECLAIM) == [{"available"}, {"discarded"}]


def test_the_promoting_statement_names_the_states_of_the_table():
    (source,) = states_in(r"(?:WHERE|AND) state", PROMOTE)

    assert source == set(sources(E.TIMER, S.AVAILABLE))
    assert states_in("SET state", PROMOTE) == [{"available"}]


@pytest.mark.parametrize("statement", [INSERT_EACH, INSERT_UNIFORM])
def test_the_enqueueing_statement_names_the_states_of_the_table(statement):
    named = set(re.findall(r"(?:THEN|ELSE) '([a-z]+)'", statement))

    assert named == {to for source, by, to in ALLOWED if by == E.PUSH}

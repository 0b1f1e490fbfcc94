"""A worker's states, their one-way order, and the directives of operators (OJS worker §2, §4.4)."""

from __future__ import annotations

import pytest

from tests.factories import JobFactory, WorkerFactory, ago
from workers import protocol
from workers.lifecycle import WorkerState, strictest
from workers.models import Worker

RUNNING, QUIET, TERMINATE = WorkerState.RUNNING, WorkerState.QUIET, WorkerState.TERMINATE

pytestmark = pytest.mark.django_db


def direct(worker: Worker, directive: WorkerState) -> int:
    return Worker.objects.filter(pk=worker.pk).direct(directive)


def resume(worker: Worker) -> int:
    return Worker.objects.filter(pk=worker.pk).resume()


def beats(worker: Worker, state: WorkerState | None = None) -> WorkerState:
    """Send a heartbeat with `state`; return the desired state in the reply."""
    return protocol.beat(worker.pk, state=state).state


def known(worker: Worker) -> Worker:
    return Worker.objects.get(pk=worker.pk)


def test_the_states_are_ordered_from_running_to_terminated():
    assert [state.rank for state in WorkerState] == [0, 1, 2, 3]
    assert list(WorkerState) == ["running", "quiet", "terminate", "terminated"]


@pytest.mark.parametrize(
    ("states", "strictest_of_them"),
    [
        (("running", ""), RUNNING),
        (("running", "quiet"), QUIET),
        (("quiet", "running"), QUIET),
        (("quiet", "terminate"), TERMINATE),
        (("terminate", ""), TERMINATE),
    ],
)
def test_the_strictest_state_wins_and_silence_does_not_count(states, strictest_of_them):
    assert strictest(*states) == strictest_of_them


# What a worker reports (§2.3)


@pytest.mark.parametrize(
    ("said", "recorded"),
    [
        ([RUNNING, QUIET], QUIET),
        ([RUNNING, TERMINATE], TERMINATE),
        ([QUIET, TERMINATE], TERMINATE),
        # SIGCONT.
        ([QUIET, RUNNING], RUNNING),
        # Workers MUST NOT go back from `terminate`, so such a heartbeat must be an older one.
        ([TERMINATE, QUIET], TERMINATE),
        ([TERMINATE, RUNNING], TERMINATE),
        # A heartbeat without a state, which the HTTP binding allows, leaves the reported state.
        ([QUIET, None], QUIET),
        ([TERMINATE, None], TERMINATE),
        ([None], RUNNING),
    ],
)
def test_reported_states_are_recorded_and_nothing_leads_back_from_terminate(said, recorded):
    worker = WorkerFactory()

    told = [beats(worker, state) for state in said][-1]

    assert known(worker).state == recorded
    assert told == recorded


# Directives of an operator (§4.4)


@pytest.mark.parametrize("directive", [QUIET, TERMINATE])
def test_a_directive_is_what_the_next_heartbeats_are_answered_until_it_is_followed(directive):
    worker = WorkerFactory()

    assert direct(worker, directive) == 1

    assert [beats(worker, RUNNING), beats(worker, RUNNING)] == [directive, directive]
    assert beats(worker, directive) == directive


def test_the_answer_is_never_milder_than_what_the_worker_says_it_is():
    worker = WorkerFactory()
    direct(worker, QUIET)

    assert beats(worker, TERMINATE) == TERMINATE


def test_terminate_follows_quiet_and_nothing_milder_replaces_it():
    worker = WorkerFactory()

    assert direct(worker, QUIET) == 1
    assert direct(worker, TERMINATE) == 1
    assert direct(worker, QUIET) == 0
    assert resume(worker) == 0

    assert beats(worker, RUNNING) == TERMINATE


def test_who_is_at_or_past_the_state_already_hears_nothing_new():
    for state in (QUIET, TERMINATE):
        worker = WorkerFactory(state=state)
        assert direct(worker, QUIET) == 0
        assert known(worker).directive == ""
    assert direct(WorkerFactory(dead=True), TERMINATE) == 0


def test_one_directive_goes_to_a_whole_fleet_in_one_statement(django_assert_num_queries):
    WorkerFactory.create_batch(3)
    WorkerFactory(state=TERMINATE)

    with django_assert_num_queries(1):
        assert Worker.objects.direct(TERMINATE) == 3


def test_a_directive_does_not_outlive_the_process_it_was_meant_for():
    worker = WorkerFactory(directive=TERMINATE)

    protocol.deregister(worker.pk)
    assert beats(worker, RUNNING) == RUNNING


# Resume (§2.3; docs/architecture.md)


def test_a_worker_that_a_directive_quieted_gets_the_directive_to_run_again():
    worker = WorkerFactory()
    direct(worker, QUIET)
    beats(worker, RUNNING)
    assert beats(worker, QUIET) == QUIET

    assert resume(worker) == 1

    assert beats(worker, QUIET) == RUNNING
    assert beats(worker, RUNNING) == RUNNING


def test_a_resume_is_repeated_until_the_worker_runs_and_is_then_forgotten():
    worker = WorkerFactory(state=QUIET, directive=QUIET)
    resume(worker)

    assert [beats(worker, QUIET), beats(worker, QUIET)] == [RUNNING, RUNNING]
    beats(worker, RUNNING)

    assert known(worker).directive == ""
    assert beats(worker, QUIET) == QUIET, "a later quiet is the worker's own"


def test_a_worker_that_quieted_itself_is_not_resumed():
    worker = WorkerFactory()
    beats(worker, QUIET)

    assert resume(worker) == 0

    assert beats(worker, QUIET) == QUIET


def test_a_worker_that_quieted_itself_stays_so_after_a_directive_came_and_went():
    worker = WorkerFactory(state=QUIET)

    direct(worker, QUIET)
    resume(worker)

    assert beats(worker, QUIET) == QUIET


def test_a_quiet_withdrawn_before_it_was_heard_leaves_nothing_behind():
    worker = WorkerFactory(last_heartbeat_at=ago(3))
    direct(worker, QUIET)

    resume(worker)

    assert known(worker).directive == ""
    assert beats(worker, QUIET) == QUIET, "nobody but the worker itself quieted it"


def test_a_worker_that_heard_quiet_but_has_not_said_so_yet_is_resumed():
    worker = WorkerFactory(last_heartbeat_at=ago(3))
    direct(worker, QUIET)
    assert beats(worker, RUNNING) == QUIET

    resume(worker)

    assert beats(worker, QUIET) == RUNNING


def test_an_operator_may_change_his_mind_twice_between_two_heartbeats():
    worker = WorkerFactory(state=QUIET, directive=QUIET)
    resume(worker)

    assert direct(worker, QUIET) == 1

    assert beats(worker, QUIET) == QUIET


def test_terminate_overtakes_a_resume_that_was_not_heard():
    worker = WorkerFactory(state=QUIET, directive=QUIET)
    resume(worker)

    assert direct(worker, TERMINATE) == 1

    assert beats(worker, QUIET) == TERMINATE


# Fetching meanwhile (§6.6)


@pytest.mark.parametrize(
    ("state", "directive", "gets"),
    [
        (RUNNING, "", 1),
        (RUNNING, QUIET, 0),
        (RUNNING, TERMINATE, 0),
        (QUIET, "", 0),
        (QUIET, QUIET, 0),
        (QUIET, RUNNING, 1),
        (TERMINATE, "", 0),
    ],
)
def test_only_a_worker_that_shall_run_is_given_jobs(state, directive, gets):
    worker = WorkerFactory(state=state, directive=directive)
    JobFactory()

    assert len(protocol.fetch(["default"], worker_id=worker.pk)) == gets
    assert known(worker).may_fetch is bool(gets)

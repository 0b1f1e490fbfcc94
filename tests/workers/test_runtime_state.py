"""Changes of a worker process's own state (OJS worker protocol §2.3, §9.4)."""

from __future__ import annotations

import pytest

from workers.lifecycle import WorkerState
from workers.runtime.client import LocalClient, Unavailable
from workers.runtime.options import Options
from workers.runtime.process import WorkerProcess
from workers.runtime.state import SERVER, SIGNAL, ProcessState

RUNNING, QUIET, TERMINATE = WorkerState.RUNNING, WorkerState.QUIET, WorkerState.TERMINATE


def test_the_answer_to_a_heartbeat_sent_before_sigcont_does_not_undo_it():
    state = ProcessState()
    state.quiet(SIGNAL)
    reported = state.now

    state.resume(SIGNAL)
    state.obey(QUIET, reported)

    assert state.now == RUNNING


def test_what_the_server_quieted_only_the_server_or_sigcont_resumes():
    state = ProcessState()
    state.obey(QUIET, RUNNING)
    assert state.now == QUIET

    state.obey(RUNNING, QUIET)

    assert state.now == RUNNING


def test_the_server_does_not_resume_what_a_signal_quieted():
    state = ProcessState()
    state.quiet(SIGNAL)

    state.obey(RUNNING, QUIET)

    assert state.now == QUIET


@pytest.mark.parametrize("by", [SIGNAL, SERVER])
def test_nothing_leads_back_from_terminate(by):
    state = ProcessState()
    state.terminate(by)

    state.resume(by)
    state.obey(RUNNING, TERMINATE)

    assert state.now == TERMINATE


def test_the_last_pause_of_a_worker_that_ends_is_no_longer_than_it_may_take(monkeypatch):
    """Service managers kill what has not ended in time."""
    process = WorkerProcess(LocalClient("w"), Options(queues=["mail"]))
    paused: list[float] = []
    monkeypatch.setattr(process._changed, "wait", paused.append)

    process._wait_out(Unavailable("away"), until=0.0)

    assert paused == [0.0]

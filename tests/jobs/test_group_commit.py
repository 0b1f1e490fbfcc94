"""Concurrent requests of several threads: one thread runs them all, and none waits forever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from jobs.store import group_commit
from jobs.store.group_commit import GroupCommit
from tests.processes import eventually


class Gone(BaseException):
    """Ends a thread without being an error of its work."""


class Recorder:
    """Answers each item with itself, in capitals; pauses on request."""

    def __init__(self, *, most: int = 10, max_in_flight: int = 1) -> None:
        self.done: list[list[str]] = []
        self.open = threading.Event()
        self.group: GroupCommit[str, str] = GroupCommit(
            self.together, max_size=most, max_in_flight=max_in_flight
        )
        self.problem: BaseException | None = None

    def together(self, items: list[str]) -> list[str]:
        self.done.append(items)
        if items == ["gate"]:
            assert self.open.wait(120)
        elif self.problem is not None:
            raise self.problem
        return [item.upper() for item in items]

    def behind_the_gate(self, *items: str, key: Callable[[str], str] = str) -> list[Future]:
        """Submit all items while another one is running; continue when all of them wait."""
        with ThreadPoolExecutor(len(items) + 1) as pool:
            gate = pool.submit(self.group.do, "gate", "gate")
            eventually(lambda: self.done == [["gate"]], lambda: "nothing is under way")
            asked = []
            for item in items:
                asked.append(pool.submit(self.group.do, key(item), item))
                eventually(self.waiting(len(asked)), lambda: "it does not wait")
            self.open.set()
        assert gate.result() == "GATE"
        return asked

    def waiting(self, number: int) -> Callable[[], bool]:
        return lambda: len(self.group._waiting) == number


def test_who_finds_nothing_under_way_does_its_own_at_once():
    recorder = Recorder()

    assert [recorder.group.do(item, item) for item in ("a", "b")] == ["A", "B"]
    assert recorder.done == [["a"], ["b"]]


def test_those_that_come_meanwhile_are_done_at_once_and_each_has_its_own_answer():
    recorder = Recorder()

    asked = recorder.behind_the_gate("a", "b", "c", "d")

    assert [one.result() for one in asked] == ["A", "B", "C", "D"]
    assert recorder.done == [["gate"], ["a", "b", "c", "d"]]


def test_no_more_are_done_at_once_than_that():
    recorder = Recorder(most=2)

    asked = recorder.behind_the_gate("a", "b", "c", "d", "e")

    assert [one.result() for one in asked] == ["A", "B", "C", "D", "E"]
    assert recorder.done == [["gate"], ["a", "b"], ["c", "d"], ["e"]]


def test_two_with_one_key_are_never_done_at_once():
    recorder = Recorder()

    asked = recorder.behind_the_gate("a1", "b1", "a2", key=lambda item: item[0])

    assert [one.result() for one in asked] == ["A1", "B1", "A2"]
    assert recorder.done == [["gate"], ["a1", "b1"], ["a2"]]


def test_a_caller_waits_only_at_the_limit_of_groups_in_flight():
    recorder = Recorder(max_in_flight=2)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(recorder.group.do, "gate", "gate")
        eventually(lambda: recorder.done == [["gate"]], lambda: "nothing is under way")
        assert recorder.group.do("a", "a") == "A", "it does not wait for the gate"
        recorder.open.set()


@pytest.mark.parametrize("problem", [ValueError(), Gone()], ids=["an error", "its end"])
def test_an_error_of_the_committing_caller_reaches_no_other(problem):
    recorder = Recorder()
    recorder.problem = problem

    leader, *others = recorder.behind_the_gate("a", "b", "c")

    assert leader.exception() is problem
    assert [one.result() for one in others] == [None, None], "nobody did it for them"
    recorder.problem = None
    assert recorder.group.do("d", "d") == "D"


def test_who_waits_too_long_for_one_that_is_under_way_goes_as_well(monkeypatch):
    monkeypatch.setattr(group_commit, "PATIENCE", 0.001)
    recorder = Recorder()

    with ThreadPoolExecutor(1) as pool:
        hangs = pool.submit(recorder.group.do, "gate", "gate")
        eventually(lambda: recorder.done == [["gate"]], lambda: "nothing is under way")
        assert recorder.group.do("a", "a") == "A"
        assert not hangs.done()
        recorder.open.set()

    assert hangs.result() == "GATE"
    assert recorder.group.do("b", "b") == "B"

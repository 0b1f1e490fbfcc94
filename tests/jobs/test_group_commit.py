"""Threads that want the same at the same time: one does it for all, and nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from jobs.store import group_commit
from jobs.store.group_commit import Combiner
from tests.processes import eventually


class Gone(BaseException):
    """What ends a thread without being an error of what it does."""


class Desk:
    """Answers each item with itself, in capitals; stops where it is told to."""

    def __init__(self, *, most: int = 10, abreast: int = 1) -> None:
        self.done: list[list[str]] = []
        self.open = threading.Event()
        self.combiner: Combiner[str, str] = Combiner(self.together, most=most, abreast=abreast)
        self.problem: BaseException | None = None

    def together(self, items: list[str]) -> list[str]:
        self.done.append(items)
        if items == ["gate"]:
            assert self.open.wait(120)
        elif self.problem is not None:
            raise self.problem
        return [item.upper() for item in items]

    def behind_the_gate(self, *items: str, key: Callable[[str], str] = str) -> list[Future]:
        """Ask for all of the items while another one is under way; go on when all of them wait."""
        with ThreadPoolExecutor(len(items) + 1) as pool:
            gate = pool.submit(self.combiner.do, "gate", "gate")
            eventually(lambda: self.done == [["gate"]], lambda: "nothing is under way")
            asked = []
            for item in items:
                asked.append(pool.submit(self.combiner.do, key(item), item))
                eventually(self.waiting(len(asked)), lambda: "it does not wait")
            self.open.set()
        assert gate.result() == "GATE"
        return asked

    def waiting(self, number: int) -> Callable[[], bool]:
        return lambda: len(self.combiner._waiting) == number


def test_who_finds_nothing_under_way_does_its_own_at_once():
    desk = Desk()

    assert [desk.combiner.do(item, item) for item in ("a", "b")] == ["A", "B"]
    assert desk.done == [["a"], ["b"]]


def test_those_that_come_meanwhile_are_done_at_once_and_each_has_its_own_answer():
    desk = Desk()

    asked = desk.behind_the_gate("a", "b", "c", "d")

    assert [one.result() for one in asked] == ["A", "B", "C", "D"]
    assert desk.done == [["gate"], ["a", "b", "c", "d"]]


def test_no_more_are_done_at_once_than_that():
    desk = Desk(most=2)

    asked = desk.behind_the_gate("a", "b", "c", "d", "e")

    assert [one.result() for one in asked] == ["A", "B", "C", "D", "E"]
    assert desk.done == [["gate"], ["a", "b"], ["c", "d"], ["e"]]


def test_two_with_one_key_are_never_done_at_once():
    desk = Desk()

    asked = desk.behind_the_gate("a1", "b1", "a2", key=lambda item: item[0])

    assert [one.result() for one in asked] == ["A1", "B1", "A2"]
    assert desk.done == [["gate"], ["a1", "b1"], ["a2"]]


def test_several_may_be_under_way_and_only_then_somebody_waits():
    desk = Desk(abreast=2)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(desk.combiner.do, "gate", "gate")
        eventually(lambda: desk.done == [["gate"]], lambda: "nothing is under way")
        assert desk.combiner.do("a", "a") == "A", "it does not wait for the gate"
        desk.open.set()


@pytest.mark.parametrize("problem", [ValueError(), Gone()], ids=["an error", "its end"])
def test_what_ends_the_one_that_does_it_ends_nobody_else(problem):
    desk = Desk()
    desk.problem = problem

    leader, *others = desk.behind_the_gate("a", "b", "c")

    assert leader.exception() is problem
    assert [one.result() for one in others] == [None, None], "nobody did it for them"
    desk.problem = None
    assert desk.combiner.do("d", "d") == "D"


def test_who_waits_too_long_for_one_that_is_under_way_goes_as_well(monkeypatch):
    monkeypatch.setattr(group_commit, "PATIENCE", 0.001)
    desk = Desk()

    with ThreadPoolExecutor(1) as pool:
        hangs = pool.submit(desk.combiner.do, "gate", "gate")
        eventually(lambda: desk.done == [["gate"]], lambda: "nothing is under way")
        assert desk.combiner.do("a", "a") == "A"
        assert not hangs.done()
        desk.open.set()

    assert hangs.result() == "GATE"
    assert desk.combiner.do("b", "b") == "B"

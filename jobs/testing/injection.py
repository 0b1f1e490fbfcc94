"""Failures injected by a test (OJS testing §7.3); import them from `jobs.testing`."""

from __future__ import annotations

import sys
import unittest
from types import FrameType

_failing: dict[str, list[BaseException]] = {}
_always_failing: dict[str, BaseException] = {}


def fail_next(type: str, error: BaseException) -> None:
    """Make the next execution of a job of this type fail with `error`, without its handler."""
    _forget_failures_after_test()
    _failing.setdefault(type, []).append(error)


def fail_all(type: str, error: BaseException) -> None:
    """Make every execution of jobs of this type fail with `error`."""
    _forget_failures_after_test()
    _always_failing[type] = error


def forget_failures() -> None:
    """Undo `fail_next()` and `fail_all()`. Modes do this when they end, test cases and the fixtures
    of `jobs.pytest_plugin` after each test."""
    _failing.clear()
    _always_failing.clear()


def _forget_failures_after_test() -> None:
    """Forget failures at the end of the test case, which is found among the callers.

    Outside a mode only the test case knows when the test ends.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        test = frame.f_locals.get("self")
        if isinstance(test, unittest.TestCase):
            test.addCleanup(forget_failures)
            return
        frame = frame.f_back


def planned(type: str) -> BaseException | None:
    """Return the error with which the next execution is to fail, or None."""
    errors = _failing.get(type)
    return errors.pop(0) if errors else _always_failing.get(type)

"""Fixtures for pytest: `pytest_plugins = ["jobs.pytest_plugin"]` in a site's conftest.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _no_failures_left() -> Iterator[None]:
    """Reset `fail_next()` and `fail_all()` after each test."""
    yield
    testing = sys.modules.get("jobs.testing")
    if testing is not None:
        testing.forget_failures()


@pytest.fixture
def fake_jobs() -> Iterator[Any]:
    """Jobs are kept in memory and not run."""
    from . import testing

    with testing.fake() as session:
        yield session


@pytest.fixture
def inline_jobs() -> Iterator[Any]:
    """Jobs run as soon as they are enqueued."""
    from . import testing

    with testing.inline() as session:
        yield session

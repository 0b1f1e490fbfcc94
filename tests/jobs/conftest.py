"""Shared by the tests of what waits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.processes import PATIENCE


@pytest.fixture
def nobody_polls(settings: Any) -> None:
    """On PostgreSQL no waiter polls for the duration of a test: one that wakes was woken."""
    settings.OJS = {"WAIT_POLL_INTERVAL": 10 * PATIENCE}

"""Wrong clocks: of this process for a while, or of a process that a test starts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from unittest import mock

from django.apps import apps
from django.utils import timezone

SHIFTED = str(Path(__file__).resolve().parent / "shifted")
"""A folder for PYTHONPATH: Python starts with a clock that is ahead by CLOCK_AHEAD seconds."""


@contextlib.contextmanager
def ahead(by: timedelta) -> Iterator[None]:
    """Make this machine's clock ahead of all others; with a negative `by`, behind."""
    now, seconds = timezone.now, time.time
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(timezone, "now", lambda: now() + by))
        there = mock.patch.object(time, "time", lambda: seconds() + by.total_seconds())
        stack.enter_context(there)
        # Models captured the function itself when they were created.
        for model in apps.get_models():
            for field in model._meta.local_fields:
                if field.default is now:
                    wrong = {"_get_default": lambda: now() + by}
                    stack.enter_context(mock.patch.dict(vars(field), wrong))
        yield


def environment(by: timedelta) -> dict[str, str]:
    """The environment of a process whose clock is ahead."""
    return {"PYTHONPATH": SHIFTED, "CLOCK_AHEAD": str(by.total_seconds())}

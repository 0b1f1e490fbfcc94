"""Handlers whose attempts fail in every way there is, most of them after or beside the handler."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jobs.models import Workflow
from jobs.spec.identifiers import uuid7
from jobs.store import clock
from workers.runtime import handlers

OUTCOMES = "workers.runtime.outcomes"
WAYS = [
    ("tests.fail", "unjson", f"{OUTCOMES}.InvalidResult"),
    ("tests.fail_async", "unjson", f"{OUTCOMES}.InvalidResult"),
    ("tests.fail_atomic", "unjson", f"{OUTCOMES}.InvalidResult"),
    ("tests.fail", "exit", "builtins.SystemExit"),
    ("tests.fail", "cancelled", "asyncio.exceptions.CancelledError"),
    ("tests.fail_async", "cancelled", "asyncio.exceptions.CancelledError"),
    ("tests.fail_atomic", "at commit", "django.db.utils.IntegrityError"),
    ("tests.fail", "late", f"{OUTCOMES}.JobTimeout"),
    ("tests.fail_async", "late", f"{OUTCOMES}.JobTimeout"),
]
"""Type of a job, its argument, and what the attempt fails with."""


@contextmanager
def failing_handlers() -> Iterator[None]:
    @handlers.handler("tests.fail", timeout=0.2)
    def fail_at_once(context: Any, how: str) -> Any:
        while how == "late":
            time.sleep(0.01)
        return _fail(how)

    @handlers.handler("tests.fail_async", timeout=0.2)
    async def fail_async(context: Any, how: str) -> Any:
        if how == "late":
            await asyncio.Event().wait()
        return _fail(how)

    @handlers.handler("tests.fail_atomic", atomic_ack=True)
    def fail_atomic(context: Any, how: str) -> Any:
        if how == "at commit":  # where foreign keys are checked
            nowhere = uuid7()
            Workflow.objects.create(parent_id=nowhere, root_id=nowhere, created_at=clock.now())
        return _fail(how)

    yield
    for kind in ("tests.fail", "tests.fail_async", "tests.fail_atomic"):
        handlers.forget(kind)


def _fail(how: str) -> Any:
    if how == "unjson":
        return object()
    if how == "exit":
        sys.exit(3)
    if how == "cancelled":
        raise asyncio.CancelledError("elsewhere")
    return how

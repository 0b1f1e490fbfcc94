"""The handlers, run by `runjobworker`."""

from __future__ import annotations

import functools
import time
from typing import Any

from workers.runtime import handler

from . import ledger

ledger_of = functools.cache(ledger.of_worker)


class Planned(Exception):
    """The failure that a job is meant to have."""


@handler("campaign.job")
def run(context: Any, work: dict[str, Any], *others: Any) -> None:
    book = ledger_of(context.worker_id)
    book.write("started", context.id, context.attempt, context.worker_id)
    time.sleep(work["seconds"])
    if work["fails"] and context.attempt == 1:
        book.write("failed", context.id, context.attempt, context.worker_id)
        raise Planned("as planned")
    book.write("finished", context.id, context.attempt, context.worker_id)

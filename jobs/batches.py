"""Enqueue requests that differ in their arguments only, as most do, are checked in full once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from copy import deepcopy
from datetime import datetime
from functools import partial
from typing import Any

import orjson

from .errors import OJSError
from .fields import within
from .identifiers import uuid7
from .validation import NewJob, new_job, read_args


def new_jobs(documents: Iterable[Any], now: datetime) -> list[NewJob]:
    """Check a batch; the first refusal names the job by its index (OJS HTTP §9.2)."""
    checked: list[NewJob] = []
    alike: dict[bytes, NewJob] = {}
    check = partial(new_job, now=now)
    for index, document in enumerate(documents):
        try:
            checked.append(checked_once(document, alike, check, read_args))
        except OJSError as refusal:
            refusal.message = f"Batch validation failed: job at index {index}: {refusal.message}"
            refusal.details["index"] = index
            within(f"jobs[{index}]", refusal)
            raise
    return checked


class Memory(dict[bytes, NewJob]):
    """Jobs by their shape, for longer than a batch: one for each door, which reads in its own way.

    Kept are short shapes, for long ones hardly come again, and only what means the same a moment
    later.
    """

    MOST = 256
    SHORT = 1_000
    TIMED = re.compile(rb'"(scheduled_at|delay_until|expires_at|enqueue_ttl)"')

    def __setitem__(self, shape: bytes, job: NewJob) -> None:
        if len(shape) > self.SHORT or self.TIMED.search(shape):
            return
        if len(self) >= self.MOST:
            self.clear()
        super().__setitem__(shape, job)


def checked_once(
    document: Any,
    alike: dict[bytes, NewJob],
    check: Callable[[Any], NewJob],
    arguments: Callable[[Any], list[Any]],
) -> NewJob:
    """Return `check(document)`, or a job like one that passed it before, with its own arguments."""
    shape = shape_of(document)
    if not shape:
        return check(document)
    known = alike.get(shape)
    if known is not None:
        return like(known, arguments(document))
    job = check(document)
    # Not the job itself: whoever gets it writes on it, and its arguments may be large.
    alike[shape] = like(job, [])
    return job


STRICTLY = (
    orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
)


def shape_of(document: Any) -> bytes:
    """What two requests must share to differ in nothing but `args`, which a batch mostly does.

    Empty where that cannot be told: the job has an id of its own, its uniqueness depends on its
    arguments, or it says something that is not plain JSON.
    """
    if type(document) is not dict or "id" in document or "unique" in document:
        return b""
    options = document.get("options")
    if type(options) is dict and "unique" in options:
        return b""
    rest = document.copy()
    rest.pop("args", None)
    try:
        shape = orjson.dumps(rest, option=STRICTLY)
    except TypeError:
        return b""
    # It writes null for NaN, too, which is refused.
    return b"" if b"null" in shape else shape


def like(job: NewJob, args: list[Any]) -> NewJob:
    """Return a job as `job`, of the same shape, with other arguments."""
    another = object.__new__(NewJob)
    # All at once, then what is its own, or a change of one would change them all.
    another.__dict__.update(
        job.__dict__,
        id=uuid7(),
        args=args,
        meta=deepcopy(job.meta) if job.meta else {},
        tags=job.tags.copy(),
        attributes=deepcopy(job.attributes) if job.attributes else {},
        retry=deepcopy(job.retry) if job.retry else None,
    )
    return another

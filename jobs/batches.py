"""Checking many enqueue requests: those that differ in their arguments only are checked once."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from datetime import datetime
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
    for index, document in enumerate(documents):
        try:
            shape = shape_of(document)
            job = alike.get(shape) if shape else None
            if job is not None:
                checked.append(like(job, read_args(document)))
                continue
            checked.append(new_job(document, now))
            if shape:
                alike[shape] = checked[-1]
        except OJSError as refusal:
            refusal.message = f"Batch validation failed: job at index {index}: {refusal.message}"
            refusal.details["index"] = index
            within(f"jobs[{index}]", refusal)
            raise
    return checked


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

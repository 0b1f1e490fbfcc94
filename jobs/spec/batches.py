"""Validates enqueue requests that differ only in their arguments, as most do, just once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import MISSING, fields
from datetime import datetime
from functools import cached_property, partial
from typing import Any, overload
from uuid import UUID

import orjson

from ..errors import OJSError
from .fields import within
from .identifiers import draw, uuid7
from .validation import WIRE_TYPE_PATTERN, NewJob, new_job, read_args

Arguments = list[list[Any]]
Check = Callable[[Any], NewJob]


def new_jobs(
    documents: Sequence[Any], now: datetime, *, type_pattern: re.Pattern[str] = WIRE_TYPE_PATTERN
) -> Sequence[NewJob]:
    """Check a batch; the first refusal names the job by its index (OJS HTTP §9.2)."""
    check = partial(new_job, now=now, type_pattern=type_pattern)
    return uniform(documents, check, _lists) or _one_by_one(documents, check)


def _one_by_one(documents: Sequence[Any], check: Check) -> list[NewJob]:
    checked: list[NewJob] = []
    known: dict[bytes, NewJob] = {}
    for index, document in enumerate(documents):
        try:
            checked.append(checked_once(document, known, check, read_args))
        except OJSError as refusal:
            refusal.message = f"Batch validation failed: job at index {index}: {refusal.message}"
            refusal.details["index"] = index
            within(f"jobs[{index}]", refusal)
            raise
    return checked


def _lists(documents: Sequence[Any]) -> Arguments | None:
    lists = [document.get("args") for document in documents]
    return lists if all(type(args) is list for args in lists) else None


class Memory(dict[bytes, NewJob]):
    """Jobs by their shape, kept beyond a batch; one per protocol, as each reads jobs differently.

    Only short shapes are kept, since long ones rarely recur, and only shapes whose meaning does not
    depend on the time.
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
    known: dict[bytes, NewJob],
    check: Check,
    arguments: Callable[[Any], list[Any]],
) -> NewJob:
    """Return `check(document)`, or a copy of a job of the same shape, with its own arguments."""
    shape = shape_of(document)
    if not shape:
        return check(document)
    model = known.get(shape)
    if model is not None:
        return like(model, arguments(document), uuid7())
    job = check(document)
    # Not the job itself: the caller modifies it, and its arguments may be large.
    known[shape] = model_of(like(job, [], job.id))
    return job


STRICTLY = (
    orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
)


def shape_of(document: Any) -> bytes:
    """What two requests must share to differ only in `args`, as most requests of a batch do.

    Empty if that cannot be determined: the job has an id of its own, its uniqueness depends on its
    arguments, or it contains something that is not plain JSON.
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
    # orjson writes null for NaN, too, which must be refused.
    return b"" if b"null" in shape else shape


USUAL = {field.name: field.default for field in fields(NewJob) if field.default is not MISSING}
"""A job with default values; its class provides them."""


def model_of(job: NewJob) -> NewJob:
    """Return a model to copy such jobs from quickly: it holds only values that are not defaults."""
    model = object.__new__(NewJob)
    model.__dict__.update(
        (name, value)
        for name, value in job.__dict__.items()
        if name not in USUAL or value is not USUAL[name]
    )
    model.args = []
    return model


def like(model: NewJob, args: list[Any], id: UUID) -> NewJob:
    """Return a copy of `model`, of the same shape, with other arguments."""
    another = object.__new__(NewJob)
    own = another.__dict__
    own.update(model.__dict__)
    own["id"] = id
    own["args"] = args
    # Otherwise a change to one would change them all.
    own["meta"] = deepcopy(model.meta) if model.meta else {}
    own["tags"] = model.tags.copy()
    own["attributes"] = deepcopy(model.attributes) if model.attributes else {}
    if model.retry:
        own["retry"] = deepcopy(model.retry)
    return another


class UniformBatch(Sequence[NewJob]):
    """New jobs that differ only in ids and arguments.

    They can be stored without creating an object for each; all objects are created on first access
    to one of them. Values common to all are written to the model, see `shared_targets`.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, model: NewJob, args: Arguments) -> None:
        self.model = model
        self.args = args
        self.ids = draw(len(args))
        """16 bytes each."""
        self.parts: list[UniformBatch] = []

    @cached_property
    def jobs(self) -> list[NewJob]:
        if self.parts:
            return [job for part in self.parts for job in part]
        model, ids = self.model, self.ids
        return [
            like(model, args, UUID(bytes=ids[16 * index : 16 * index + 16]))
            for index, args in enumerate(self.args)
        ]

    @property
    def made(self) -> list[NewJob]:
        """The objects created so far: all of them or none."""
        return self.jobs if "jobs" in self.__dict__ else []

    def in_parts(self, size: int) -> Sequence[Sequence[NewJob]]:
        if len(self) <= size:
            return [self]
        if self.made:
            return in_parts(self.made, size)
        # Each part has its own model, because the parts are stored at different times.
        self.parts = [
            UniformBatch(like(self.model, [], self.model.id), list(args))
            for args in in_parts(self.args, size)
        ]
        return self.parts

    def __len__(self) -> int:
        return len(self.args)

    def __eq__(self, other: object) -> bool:
        return self.jobs == (other.jobs if isinstance(other, UniformBatch) else other)

    def __repr__(self) -> str:
        return repr(self.jobs)

    def __iter__(self) -> Iterator[NewJob]:
        return iter(self.jobs)

    @overload
    def __getitem__(self, index: int) -> NewJob: ...
    @overload
    def __getitem__(self, index: slice) -> list[NewJob]: ...
    def __getitem__(self, index: int | slice) -> NewJob | list[NewJob]:
        return self.jobs[index]


def representatives(new: Sequence[NewJob]) -> Sequence[NewJob]:
    """Jobs that represent all of them, for code that does not depend on arguments."""
    return [new.model] if type(new) is UniformBatch else new


def shared_targets(new: Sequence[NewJob]) -> Sequence[NewJob]:
    """The objects to which values common to all jobs are written."""
    return [new.model, *new.made] if type(new) is UniformBatch else new


def in_parts(new: Sequence[Any], size: int) -> Sequence[Sequence[Any]]:
    """Return the jobs in parts of `size`."""
    if isinstance(new, UniformBatch):
        return new.in_parts(size)
    return [new[start : start + size] for start in range(0, len(new), size)]


def uniform(
    documents: Sequence[Any],
    check: Check,
    arguments: Callable[[Sequence[Any]], Arguments | None],
) -> UniformBatch | None:
    """Validate a batch of requests that differ only in their arguments.

    None if the requests differ otherwise or one is refused; then each must be validated separately.

    Args:
        arguments: reads the arguments, or returns None unless they are all plain lists.
    """
    if len(documents) < 2:
        return None
    first = documents[0]
    shape = shape_of(first)
    if not shape or any(shape_of(document) != shape for document in documents[1:]):
        return None
    args = arguments(documents)
    if args is None:
        return None
    try:
        return UniformBatch(model_of(check(first)), args)
    except OJSError:
        return None

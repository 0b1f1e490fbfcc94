"""Enqueue requests that differ in their arguments only, as most do, are checked in full once."""

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
    known: dict[bytes, NewJob],
    check: Check,
    arguments: Callable[[Any], list[Any]],
) -> NewJob:
    """Return `check(document)`, or a job like one that passed it before, with its own arguments."""
    shape = shape_of(document)
    if not shape:
        return check(document)
    model = known.get(shape)
    if model is not None:
        return like(model, arguments(document), uuid7())
    job = check(document)
    # Not the job itself: whoever gets it writes on it, and its arguments may be large.
    known[shape] = model_of(like(job, [], job.id))
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


USUAL = {field.name: field.default for field in fields(NewJob) if field.default is not MISSING}
"""What a job is that says nothing; its class says it for it."""


def model_of(job: NewJob) -> NewJob:
    """Return what jobs like this one are copied from, fast: it holds only what is unusual."""
    model = object.__new__(NewJob)
    model.__dict__.update(
        (name, value)
        for name, value in job.__dict__.items()
        if name not in USUAL or value is not USUAL[name]
    )
    model.args = []
    return model


def like(model: NewJob, args: list[Any], id: UUID) -> NewJob:
    """Return a job as `model`, of the same shape, with other arguments."""
    another = object.__new__(NewJob)
    own = another.__dict__
    own.update(model.__dict__)
    own["id"] = id
    own["args"] = args
    # Or a change of one would change them all.
    own["meta"] = deepcopy(model.meta) if model.meta else {}
    own["tags"] = model.tags.copy()
    own["attributes"] = deepcopy(model.attributes) if model.attributes else {}
    if model.retry:
        own["retry"] = deepcopy(model.retry)
    return another


class UniformBatch(Sequence[NewJob]):
    """New jobs that differ in nothing but ids and arguments.

    They can be stored without being made one by one; that happens once, when somebody asks for one
    of them. What is so for all of them is written on the model, see `shared_targets`.
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
        """What has been asked for already: all of them or none."""
        return self.jobs if "jobs" in self.__dict__ else []

    def in_parts(self, size: int) -> Sequence[Sequence[NewJob]]:
        if len(self) <= size:
            return [self]
        if self.made:
            return in_parts(self.made, size)
        # Each with a model of its own: they are not stored in the same moment.
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
    """Jobs that stand for all of them, for questions that arguments have no say in."""
    return [new.model] if type(new) is UniformBatch else new


def shared_targets(new: Sequence[NewJob]) -> Sequence[NewJob]:
    """Where to write what is so for all of them."""
    return [new.model, *new.made] if type(new) is UniformBatch else new


def in_parts(new: Sequence[Any], size: int) -> Sequence[Sequence[Any]]:
    """Return the jobs, `size` of them at a time."""
    if isinstance(new, UniformBatch):
        return new.in_parts(size)
    return [new[start : start + size] for start in range(0, len(new), size)]


def uniform(
    documents: Sequence[Any],
    check: Check,
    arguments: Callable[[Sequence[Any]], Arguments | None],
) -> UniformBatch | None:
    """Check a batch of requests all of which differ in their arguments only.

    None if they are not like that, or one is refused: then each has to be looked at by itself.

    Args:
        arguments: reads them, or answers None where they are not as plain as they should be.
    """
    if len(documents) < 2:
        return None
    first = documents[0]
    shape = shape_of(first)
    if not shape or not all(_is_of(shape, first, document) for document in documents):
        return None
    args = arguments(documents)
    if args is None:
        return None
    try:
        return UniformBatch(model_of(check(first)), args)
    except OJSError:
        return None


def _is_of(shape: bytes, first: dict[str, Any], document: Any) -> bool:
    """Whether a document differs from the first, which is of that shape, in its arguments only."""
    if document is first:
        return True
    if type(document) is not dict or document.keys() != first.keys():
        return False
    for name, value in first.items():
        its = document[name]
        same = its is value or name == "args" or (type(its) is type(value) is str and its == value)
        if not same:
            return shape_of(document) == shape
    return True

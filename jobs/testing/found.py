"""Types of the parameters and return values of the assertions, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypedDict
from uuid import UUID

from ..options import JSON, JobState


class Criteria(TypedDict, total=False):
    """Which jobs an assertion is about; what is left out may be anything."""

    args: Sequence[object]
    queue: str
    meta: Mapping[str, object]
    """A part of theirs."""


class FoundJob(Protocol):
    """A job as the tools find it: a `jobs.models.Job`, or one in memory that looks like it."""

    @property
    def id(self) -> UUID: ...
    @property
    def type(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def args(self) -> list[JSON]: ...
    @property
    def meta(self) -> dict[str, JSON]: ...
    @property
    def tags(self) -> list[str]: ...
    @property
    def priority(self) -> int: ...
    @property
    def state(self) -> JobState: ...
    @property
    def attempt(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def result(self) -> JSON: ...
    @property
    def scheduled_at(self) -> datetime | None: ...
    @property
    def expires_at(self) -> datetime | None: ...
    @property
    def finished_at(self) -> datetime | None: ...

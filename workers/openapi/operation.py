"""Description of an endpoint: one row of the tables in `operations`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jobs.http.dialects import MEDIA_TYPE
from jobs.spec.members import Declared, Members

from .refusals import Refusals
from .schema import Schema

Json = Any


@dataclass(frozen=True, slots=True)
class Reply:
    """A success: its meaning, schema, example, and headers besides the standard ones."""

    description: str
    schema: Schema | None = None
    example: Json = None
    headers: tuple[str, ...] = ()
    media_types: tuple[str, ...] = ()
    """If it is not JSON."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An endpoint: what it does, accepts and returns."""

    tag: str
    summary: str
    replies: dict[int, Reply]
    description: str = ""
    body: type[Members] | Schema | None = None
    """The declaration by which the endpoint reads the body."""
    example: Json = None
    """Example of the body."""
    optional: bool = False
    """The body may be left out."""
    headers: tuple[Declared, ...] = ()
    """Headers of the request, besides the standard ones."""
    media_type: str = MEDIA_TYPE
    """Media type of all its responses."""
    refusals: Refusals = ()
    """What it may refuse, besides what every endpoint may."""
    asks_database: bool = True
    """It may fail because the database is unavailable."""

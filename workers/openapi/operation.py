"""What an endpoint takes and answers: one row of the tables in `operations`."""

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
    """A success: what it means, its form, an example, and headers beside the standard ones."""

    description: str
    schema: Schema | None = None
    example: Json = None
    headers: tuple[str, ...] = ()
    media_types: tuple[str, ...] = ()
    """Where it is not JSON."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An endpoint: what it does, what it takes, what it answers."""

    tag: str
    summary: str
    replies: dict[int, Reply]
    description: str = ""
    body: type[Members] | Schema | None = None
    """Its declaration, which the endpoint reads it with."""
    example: Json = None
    """Of the body."""
    optional: bool = False
    """The body may be left out."""
    headers: tuple[Declared, ...] = ()
    """Of the request, beside the standard ones."""
    media_type: str = MEDIA_TYPE
    """Of all its answers."""
    refusals: Refusals = ()
    """What it may refuse, beside what every endpoint may."""
    asks_database: bool = True
    """It may find the database away."""

"""What an endpoint takes and answers: one row of the tables in `operations`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jobs.http.dialects import MEDIA_TYPE
from jobs.spec.members import Members

from .refusals import Refusals
from .schema import Schema, integer, text

Json = Any


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter of the query string."""

    name: str
    schema: Schema
    description: str = ""
    required: bool = False


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
    query: tuple[Query, ...] = ()
    headers: tuple[Query, ...] = ()
    """Of the request, beside the standard ones."""
    media_type: str = MEDIA_TYPE
    """Of all its answers."""
    refusals: Refusals = ()
    """What it may refuse, beside what every endpoint may."""
    asks_database: bool = True
    """It may find the database away."""


LIMIT = Query("limit", integer(minimum=1, maximum=200, default=50), "Most entries of a page.")
OFFSET = Query("offset", integer(minimum=0, maximum=1_000_000, default=0), "For older clients.")
CURSOR = Query("cursor", text(), "`pagination.next_cursor` of the page before.")
PAGE = (LIMIT, OFFSET, CURSOR)

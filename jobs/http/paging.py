"""Cursor pagination, with `offset` for older clients (OJS HTTP §17)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import InvalidRequest
from ..spec.identifiers import parse_uuid
from ..spec.strict_base64 import from_base64
from .parameters import MOST, Page


def encode_cursor(*keys: str) -> str:
    return base64.urlsafe_b64encode("\x1f".join(keys).encode()).decode().rstrip("=")


def decode_cursor(text: str, parts: int) -> list[str]:
    """
    Raises:
        InvalidRequest: this is not a cursor of this server.
    """
    try:
        padded = text + "=" * (-len(text) % 4)
        keys = from_base64(padded, altchars=b"-_").decode().split("\x1f")
    except ValueError:
        keys = []
    if len(keys) != parts or "\x00" in "".join(keys):
        raise bad_cursor(text)
    return keys


def bad_cursor(text: str, name: str = "cursor") -> InvalidRequest:
    return InvalidRequest(
        f"The '{name}' parameter is not one this server gave out: {text!r}.", field=name
    )


def below_id(rows: Any, keys: Sequence[str]) -> Any:
    """Narrow `rows`, ordered by `-pk`, to those after the row whose id is the only key.

    Raises:
        ValueError: the key is not an id.
    """
    last = parse_uuid(keys[0])
    if last is None:
        raise ValueError
    return rows.filter(pk__lt=last)


def page(
    parameters: Any,
    rows: Any,
    *,
    keys: Callable[[Any], Sequence[str]],
    after: Callable[[Any, list[str]], Any],
    parts: int,
    most: int = MOST,
    count: Callable[[Any], int] = lambda rows: rows.count(),
) -> tuple[list[Any], dict[str, Any]]:
    """Return one page of the ordered queryset `rows`, and the `pagination` of the response.

    Args:
        keys: the values of a row that its cursor consists of.
        after: narrows the queryset to what follows such keys; raises ValueError for others.
        count: counts the rows, for resources that do not count all of them.
        most: rows on a page, if fewer than the `limit` that requests may ask for (§17.1).
    """
    limit = min(Page.per_page.read(parameters) or Page.limit.read(parameters), most)
    number = Page.page.read(parameters)
    offset = Page.offset.read(parameters) if number is None else (number - 1) * limit
    total = count(rows)
    cursor = parameters.get("cursor")
    if cursor:
        try:
            rows = after(rows, decode_cursor(cursor, parts))
        except ValueError:
            raise bad_cursor(cursor) from None
        offset = 0
    found = list(rows[offset : offset + limit + 1])
    more = len(found) > limit
    found = found[:limit]
    pagination: dict[str, Any] = {
        "total": total,
        "limit": limit,
        "offset": offset,
        "has_more": more,
    }
    if more:
        pagination["next_cursor"] = encode_cursor(*keys(found[-1]))
    return found, pagination

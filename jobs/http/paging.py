"""Cursor pagination, with `offset` for older clients (OJS HTTP §17)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import InvalidRequest
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
        keys = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split("\x1f")
    except ValueError:
        keys = []
    if len(keys) != parts or "\x00" in "".join(keys):
        raise bad_cursor(text)
    return keys


def bad_cursor(text: str) -> InvalidRequest:
    return InvalidRequest(
        f"The 'cursor' parameter is not one this server gave out: {text!r}.", field="cursor"
    )


def page(
    parameters: Any,
    rows: Any,
    *,
    keys: Callable[[Any], Sequence[str]],
    after: Callable[[Any, list[str]], Any],
    parts: int,
    most: int = MOST,
) -> tuple[list[Any], dict[str, Any]]:
    """Return one page of the ordered queryset `rows`, and the `pagination` of the response.

    Args:
        keys: the values of a row that make the cursor for the rows after it.
        after: narrows the queryset to the rows after such values.
        most: rows on a page, if that is less than the highest `limit` of other lists (§17.1).
    """
    limit = min(Page.limit.read(parameters), most)
    offset = Page.offset.read(parameters)
    total = rows.count()
    if parameters.get("cursor"):
        rows = after(rows, decode_cursor(parameters["cursor"], parts))
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

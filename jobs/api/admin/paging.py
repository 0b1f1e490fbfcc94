"""Pages by number, as the Admin API specifies, and by cursor, for reading long lists.

GET …?page=2&per_page=50            OJS admin API §7.1
GET …?limit=50&cursor=…             OJS HTTP §17.1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ...http.paging import bad_cursor, decode_cursor, encode_cursor
from ...http.parameters import AdminPage
from ...spec.identifiers import parse_uuid

COUNTED = 100_000
"""Rows that are counted exactly; beyond that, the total is a lower bound."""
OFFSET = "offset"
T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """The position where a page begins."""

    size: int
    offset: int
    after: str = ""
    """Id of the row before it, if the rows are ordered by id."""


def place(parameters: Any) -> Place:
    """
    Raises:
        InvalidRequest: a number is out of range, or the cursor is not one of this server.
    """
    size = AdminPage.per_page.read(parameters)
    size = AdminPage.limit.read(parameters) or size
    if not parameters.get("cursor"):
        page = AdminPage.page.read(parameters)
        return Place(size, (page - 1) * size)
    cursor = parameters["cursor"]
    offset, after = decode_cursor(cursor, 2)
    if not (offset.isascii() and offset.isdecimal() and len(offset) < 10):
        raise bad_cursor(cursor)
    if after != OFFSET and parse_uuid(after) is None:
        raise bad_cursor(cursor)
    return Place(size, int(offset), "" if after == OFFSET else after)


def page(
    parameters: Any, rows: Any, *, by_id: Literal["", "up", "down"] = ""
) -> tuple[list[Any], dict[str, Any]]:
    """Return one page of the ordered queryset `rows`, and the `pagination` of the response.

    Args:
        by_id: the direction in which `rows` are ordered by id, if they are: then the page also
            has cursors, which cost the same on the last page as on the first.
    """
    here = place(parameters)
    total = count(rows)
    rest = rows
    if here.after and by_id:
        rest = rows.filter(**{f"pk__{'lt' if by_id == 'down' else 'gt'}": here.after})
    elif here.offset:
        rest = rows[here.offset :]
    found = list(rest[: here.size + 1])
    more, found = len(found) > here.size, found[: here.size]
    pagination: dict[str, Any] = {
        "total": min(total, COUNTED),
        "page": here.offset // here.size + 1,
        "per_page": here.size,
        "has_more": more,
    }
    if total > COUNTED:
        pagination["total_is_minimum"] = True
    if more:
        last = str(found[-1].pk) if by_id else OFFSET
        pagination["next_cursor"] = encode_cursor(str(here.offset + here.size), last)
    return found, pagination


def page_of_list(parameters: Any, names: Sequence[T]) -> tuple[list[T], dict[str, Any]]:
    """The same for names, or others, that are in memory."""
    here = place(parameters)
    end = here.offset + here.size
    pagination: dict[str, Any] = {
        "total": len(names),
        "page": here.offset // here.size + 1,
        "per_page": here.size,
        "has_more": len(names) > end,
    }
    if len(names) > end:
        pagination["next_cursor"] = encode_cursor(str(end), OFFSET)
    return list(names[here.offset : end]), pagination


def count(rows: Any) -> int:
    """The number of rows, counted up to one more than `COUNTED`."""
    total: int = rows.order_by().values("pk")[: COUNTED + 1].count()
    return total

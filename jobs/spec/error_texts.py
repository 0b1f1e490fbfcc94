"""What is written down of an exception, in a form that JSON, databases and protobuf can carry."""

from __future__ import annotations

import re

MESSAGE = 10_000


def legible(text: str) -> str:
    """Return `text` with a NUL and half a character as escapes.

    File names and program output may contain them, and errors quote those.
    """
    if text.isascii() and "\0" not in text:
        return text
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def in_one_line(text: str) -> str:
    """Return `text` with line breaks and other control characters as escapes: on a terminal, they
    would forge other lines, or colours."""
    return CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


def message_of(problem: BaseException) -> str:
    """Return the message of an exception, even if its class fails to produce one."""
    try:
        text = str(problem)
    except BaseException:
        text = "<exception str() failed>"
    return legible(text[:MESSAGE])


def class_name(kind: type[BaseException]) -> str:
    """Return the name of an exception's class: `ValueError`, but `shop.errors.CardDeclined`."""
    name = kind.__qualname__
    return legible(name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}")

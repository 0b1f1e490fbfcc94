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


BIDIRECTIONAL = "\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069"
CONTROLS = re.compile(rf"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029{BIDIRECTIONAL}]")
CONTROLS_OF_LINES = re.compile(rf"(?!\n){CONTROLS.pattern}")


def in_one_line(text: str) -> str:
    """Return `text` with line breaks and other control characters as escapes: on a terminal, they
    would forge other lines, or colours, or turn the order of what is read."""
    return CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


def in_lines(text: str) -> str:
    """The same for a text of several lines, with escapes that JSON has, too: `\\u009b`."""
    return CONTROLS_OF_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


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

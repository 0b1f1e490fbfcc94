"""Converts Python values to JSON values without loss; refuses what JSON cannot represent.

Nothing is pickled and nothing is silently turned into text: a worker in another language, or the
same one after a deployment, must read what was written (OJS JSON format §13).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidRequest
from .fields import refuse
from .members import LARGEST

DEEPEST = 200
"""Levels of nesting."""
EVERY_DIGIT_ZERO = bytes.maketrans(b"123456789", b"000000000")
LONG = b"0" * len(str(LARGEST)) + b".0"
HINTS = {
    "datetime": "pass its isoformat()",
    "date": "pass its isoformat()",
    "time": "pass its isoformat()",
    "timedelta": "pass its total_seconds()",
    "Decimal": "pass it as a string",
    "UUID": "pass it as a string",
    "bytes": "decode it, or pass where to find it",
    "set": "pass a list",
    "frozenset": "pass a list",
    "QuerySet": "pass a list of primary keys",
    "__proxy__": "a lazy translation: pass str() of it",
}


def jsonable(value: Any, place: str) -> Any:
    """Return a copy of `value` in plain JSON types; tuples become arrays.

    Raises:
        InvalidRequest: a value is not JSON; the message names its place and a remedy.
    """
    try:
        return _copied(value, 0)
    except _NotPlain:
        return _converted(value, place, 0)


class _NotPlain(Exception):
    """A value must be converted, or refused."""


def _copied(value: Any, depth: int) -> Any:
    """Copy what is plain JSON already, as most is, without tracking the place of each value.

    Raises:
        _NotPlain: a value needs conversion.
    """
    kind = type(value)
    if kind is str:
        if value.isascii() and "\x00" not in value:
            return value
    elif kind is int:
        if -LARGEST <= value <= LARGEST:
            return value
    elif value is None or kind is bool:
        return value
    elif kind is float:
        if -LARGEST <= value <= LARGEST:
            return value
    elif depth > DEEPEST:
        pass
    elif kind is list or kind is tuple:
        return [_copied(item, depth + 1) for item in value]
    elif kind is dict:
        return {_plain_name(name): _copied(item, depth + 1) for name, item in value.items()}
    raise _NotPlain


def _plain_name(name: Any) -> str:
    if type(name) is str and name.isascii() and "\x00" not in name:
        return name
    raise _NotPlain


def _converted(value: Any, place: str, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, place)
    if isinstance(value, int):
        return int(_kept(value, place))
    if isinstance(value, float):
        if not math.isfinite(value):
            raise refuse(place, f"The number at {place} is {value}, which JSON does not have.")
        return float(_kept(value, place))
    if depth > DEEPEST:
        raise refuse(place[:80], f"The value at {place[:80]}… is nested too deeply, or in itself.")
    if isinstance(value, list | tuple):
        return [_converted(item, f"{place}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {
            _name(name, place): _converted(item, f"{place}.{name}", depth + 1)
            for name, item in value.items()
        }
    raise _not_json(value, place)


def _kept(value: float, place: str) -> float:
    # In JSON, 1e300 is an integer, too, and PostgreSQL returns it as one (OJS JSON format §4.2).
    if not -LARGEST <= value <= LARGEST:
        raise refuse(place, f"The number at {place} is beyond ±(2^53 - 1); pass a string.")
    return value


def may_have_large_float(written: bytes) -> bool:
    """Whether JSON that orjson wrote may contain a float beyond ±(2^53 - 1).

    A regular expression would look at the bytes one by one, which takes longer than writing them.
    """
    if b"+" in written and b"e+" in written:  # a single byte is found much faster
        return True
    return LONG in written.translate(EVERY_DIGIT_ZERO)


def _text(value: str, place: str) -> str:
    # str() of a subclass may return anything; this is its content.
    text = value if type(value) is str else "".join(value)
    if "\x00" in text:
        raise refuse(place, f"The string at {place} contains a NUL character.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise refuse(place, f"The string at {place} contains a lone surrogate.") from None
    return text


def _name(name: Any, place: str) -> str:
    if not isinstance(name, str):
        raise refuse(place, f"The key {name!r} at {place} must be a string in JSON.")
    return _text(name, place)


def _not_json(value: Any, place: str) -> InvalidRequest:
    kind = type(value)
    hint = HINTS.get(kind.__name__, "")
    if not hint and hasattr(kind, "_meta") and hasattr(value, "pk"):
        hint = "pass its primary key"
    advice = f"; {hint}" if hint else ""
    return refuse(
        place,
        f"The value at {place} is of type {kind.__module__}.{kind.__qualname__}, which JSON does "
        f"not have{advice}.",
        received=kind.__qualname__,
    )

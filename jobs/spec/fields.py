"""Strict readers for the members of a JSON object: the right type, or a refusal that names it.

Nothing is converted: a number where a string belongs is refused (OJS JSON format §12.4). `null`
counts as absent everywhere (§14.2).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from ..errors import InvalidRequest, OJSError
from .durations import parse_duration
from .identifiers import parse_uuid
from .timestamps import parse_when

JSON_NAMES = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}
LONGEST = timedelta(days=36_500)
Document = Mapping[str, Any]


def json_name(value: object) -> str:
    return JSON_NAMES.get(type(value), type(value).__name__)


def refuse(field: str, message: str, **details: Any) -> InvalidRequest:
    """Return the refusal of `field`, with the details that OJS JSON format §12.4 requires."""
    dot = "." if field and not field.startswith("[") else ""
    error = {"path": f"${dot}{field}", "message": message}
    return InvalidRequest(message, field=field, validation_errors=[error], **details)


def within(place: str, refusal: OJSError) -> None:
    """Prefix the location of a refusal with `place`: `path` starts at the top (§12.4)."""
    for error in refusal.details.get("validation_errors", ()):
        # Those of a schema are sentences, and say where in the arguments.
        if isinstance(error, dict):
            error["path"] = f"$.{place}{error['path'].removeprefix('$')}"


@contextlib.contextmanager
def inside(place: str, *, aloud: bool = False) -> Iterator[None]:
    """Prefix refusals of what is read in the block with `place`, in `field` and `path` (§12.4).

    Args:
        aloud: prefix the message, too.
    """
    try:
        yield
    except InvalidRequest as refusal:
        if aloud:
            refusal.message = f"{place}: {refusal.message}"
        refusal.details["field"] = f"{place}.{refusal.details.get('field', '')}"
        within(place, refusal)
        raise


def wrong_type(field: str, expected: str, value: object) -> InvalidRequest:
    received = json_name(value)
    article = "an" if expected[0] in "aeio" else "a"
    return refuse(
        field,
        f"The '{field}' field must be {article} {expected}, not {received}.",
        expected=expected,
        received=received,
    )


def missing(field: str) -> InvalidRequest:
    return refuse(field, f"The '{field}' field is required.", validation="required")


def empty(field: str) -> InvalidRequest:
    return refuse(field, f"The '{field}' field must not be empty.", validation="min_length")


def text(
    document: Document,
    field: str,
    default: str | None = None,
    *,
    pattern: re.Pattern[str] | None = None,
    longest: int = 255,
) -> str | None:
    value = document.get(field)
    if value is None:
        return default
    if type(value) is not str:
        raise wrong_type(field, "string", value)
    if len(value) > longest:
        raise refuse(
            field,
            f"The '{field}' field may have at most {longest} characters, not {len(value)}.",
            validation="max_length",
            limit=longest,
        )
    if pattern is not None and not pattern.fullmatch(value):
        raise refuse(
            field,
            f"The '{field}' field must match {pattern.pattern}; {value!r} does not.",
            validation="pattern",
            pattern=pattern.pattern,
        )
    return value


def required_text(document: Document, field: str, **rules: Any) -> str:
    value = text(document, field, **rules)
    if value is None:
        raise missing(field)
    if not value:
        raise empty(field)
    return value


def integer(
    document: Document,
    field: str,
    default: int | None = None,
    *,
    least: int = 0,
    most: int = 2**53 - 1,
) -> int | None:
    value = document.get(field)
    if value is None:
        return default
    if type(value) is not int:
        raise wrong_type(field, "integer", value)
    if not least <= value <= most:
        raise refuse(
            field,
            f"The '{field}' field must be between {least} and {most}, not {value}.",
            validation="range",
            minimum=least,
            maximum=most,
        )
    return value


def boolean(document: Document, field: str, default: bool = False) -> bool:
    value = boolean_or_none(document, field)
    return default if value is None else value


def boolean_or_none(document: Document, field: str) -> bool | None:
    """Read a boolean that may be absent."""
    value = document.get(field)
    if value is not None and type(value) is not bool:
        raise wrong_type(field, "boolean", value)
    return value


def mapping(document: Document, field: str) -> dict[str, Any] | None:
    value = document.get(field)
    if value is None:
        return None
    if type(value) is not dict:
        raise wrong_type(field, "object", value)
    return value


def array(document: Document, field: str) -> list[Any] | None:
    value = document.get(field)
    if value is None:
        return None
    if type(value) is not list:
        raise wrong_type(field, "array", value)
    return value


def texts(
    document: Document, field: str, *, pattern: re.Pattern[str] | None = None, longest: int = 255
) -> list[str] | None:
    """Read an array of strings."""
    value = array(document, field)
    for index, item in enumerate(value or ()):
        place = {f"{field}[{index}]": item}
        if item is None:
            raise wrong_type(f"{field}[{index}]", "string", item)
        text(place, f"{field}[{index}]", pattern=pattern, longest=longest)
    return value


def when(document: Document, field: str, now: datetime) -> datetime | None:
    """Read an RFC 3339 timestamp, or `+PT5S` counted from `now` (OJS JSON format §5)."""
    value = text(document, field, longest=64)
    if value is None:
        return None
    try:
        return parse_when(value, now)
    except ValueError as problem:
        raise refuse(
            field, f"The '{field}' field is not a timestamp: {problem}", validation="format"
        ) from None


def period(document: Document, field: str, *, least: timedelta = timedelta(0)) -> timedelta | None:
    """Read a duration given as `<field>_ms`, as `<field>` in seconds, or in ISO 8601."""
    milliseconds = integer(document, f"{field}_ms", most=int(LONGEST.total_seconds()) * 1000)
    if milliseconds is not None:
        value = timedelta(milliseconds=milliseconds)
        field = f"{field}_ms"
    elif isinstance(document.get(field), str):
        try:
            value = parse_duration(document[field])
        except ValueError as problem:
            raise refuse(
                field, f"The '{field}' field is not a duration: {problem}", validation="format"
            ) from None
    else:
        seconds = integer(document, field, most=int(LONGEST.total_seconds()))
        if seconds is None:
            return None
        value = timedelta(seconds=seconds)
    if value < least:
        raise refuse(field, f"The '{field}' field must be positive.", validation="range")
    return value


def job_id(document: Document, field: str = "job_id") -> Any:
    value = required_text(document, field, longest=64)
    identifier = parse_uuid(value)
    if identifier is None:
        raise refuse(field, f"The '{field}' field must be a job id (a UUID), not {value!r}.")
    return identifier

"""Workers' reports about their jobs (OJS core §7.3, §7.4; worker protocol §5.6), and themselves.

People read the texts of a failure, so it is never refused for what they contain: they are made
legible and, if they are too long, cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from .error_texts import legible
from .fields import refuse, wrong_type
from .jsonable import DEEPEST
from .members import LARGEST, Listed, Member, Schema

LONGEST_NAME = 255
"""Characters of a type and a code."""
LONGEST_MESSAGE = LARGEST_DETAILS = 2**20
"""Characters, and bytes of JSON."""
LONGEST_DETAIL = 1_000
"""Characters of each text in details that are too large."""
LARGEST_PROGRESS = LARGEST_ABOUT = 64 * 1024
"""Bytes of JSON: the data of a progress report (OJS progress §5.2 recommends 4 KB); a registration
that is kept as it was sent, and a worker's statistics."""
BACKTRACE_FRAMES = 50
BACKTRACE_CHARACTERS = 10_000


@dataclass(slots=True)
class Completion:
    """An ACK as received."""

    job_id: UUID
    worker_id: str | None = None
    """The reporting worker; None if the request does not name it."""
    attempt: int | None = None
    """Fences against an older attempt of the same worker."""
    result: Any = None
    traceparent: str = ""
    """The trace context in which the worker sent it (OJS distributed tracing §7.2)."""


@dataclass(slots=True)
class Failure:
    """A FAIL as received (OJS core §8, retry §7.3)."""

    job_id: UUID
    worker_id: str | None = None
    attempt: int | None = None
    type: str = "handler_error"
    code: str = ""
    message: str = ""
    backtrace: list[str] | None = None
    details: dict[str, Any] | None = None
    retryable: bool | None = None
    release: bool = False
    """Return the job unfinished: no error, no backoff, and the attempt does not count."""
    retry_in: timedelta | None = None
    """The delay that the handler requests instead of the policy's backoff; also with `release`."""
    rate_limit_until: datetime | None = None
    """The API it calls is limited until then: hold the job's rate limit (rate limiting §9)."""
    traceparent: str = ""
    """As in `Completion`."""

    def tidy(self) -> None:
        """Make its texts legible, and cut those that are too long."""
        self.type = legible(self.type)[:LONGEST_NAME]
        self.code = legible(self.code)[:LONGEST_NAME]
        self.message = legible(self.message)[:LONGEST_MESSAGE]
        self.backtrace = shortened(self.backtrace)
        if self.details:
            self.details = fitting(legible_json(self.details))


def legible_json(value: Any, depth: int = 0) -> Any:
    """Return JSON as it can be stored: like `legible`; other values that no job may carry are text,
    and what is nested too deeply is omitted.
    """
    kind = type(value)
    if isinstance(value, str):
        return legible(value)
    if kind in (int, float) and not -LARGEST <= value <= LARGEST:
        return str(value)
    if kind not in (list, dict):
        return value
    if depth > DEEPEST:
        return "…"
    if kind is list:
        return [legible_json(item, depth + 1) for item in value]
    return {legible_json(name): legible_json(item, depth + 1) for name, item in value.items()}


def mend_members(report: Any, *names: str) -> None:
    """Make the named members of a report legible, if it has them."""
    if type(report) is dict:
        for name in names:
            if report.get(name) is not None:
                # The error itself is a few levels below the request.
                report[name] = legible_json(report[name], depth=10)


def shortened(backtrace: list[str] | None) -> list[str] | None:
    """Return at most 50 frames and 10,000 characters (OJS core §8.1)."""
    if not backtrace:
        return None
    room = BACKTRACE_CHARACTERS
    kept: list[str] = []
    for frame in backtrace[:BACKTRACE_FRAMES]:
        kept.append(legible(frame)[:room])
        room -= len(kept[-1])
        if room <= 0:
            break
    return kept


class ErrorText(Member[str | None]):
    """A text about a failure, of any length; a longer one is cut (`Failure.tidy`)."""

    def check(self, value: Any, place: str) -> str:
        if type(value) is not str:
            raise wrong_type(place, "string", value)
        return value

    def rules(self) -> Schema:
        return {"type": "string"}


class ErrorTexts(Listed[str]):
    """The lines of a backtrace, of any number and length."""

    each = ErrorText()

    def check(self, value: Any, place: str) -> list[str]:
        found = super().check(value, place)
        return [self.each.check(item, f"{place}[{i}]") for i, item in enumerate(found)]

    def items_schema(self) -> Schema:
        return self.each.json_schema()


def measure(value: Any, place: str, most: int) -> None:
    """Refuse JSON of more than `most` bytes.

    Args:
        place: its name in the request; empty if it is the request itself.

    Raises:
        InvalidRequest: it is too large.
    """
    size = len(orjson.dumps(value))
    if size > most:
        what = f"The '{place}' field" if place else "The request"
        message = f"{what} may have at most {most} bytes of JSON, not {size}."
        raise refuse(place, message, validation="max_length", limit=most)


def measure_progress(data: dict[str, Any] | None, place: str = "data") -> None:
    """Refuse progress data that is too large.

    Raises:
        InvalidRequest: it is.
    """
    if data is not None:
        measure(data, place, LARGEST_PROGRESS)


def fitting(details: dict[str, Any], most: int = LARGEST_DETAILS) -> dict[str, Any]:
    """Return details of a failure, or other notes, as they are stored: in those that are too large,
    texts are cut; if that does not suffice, they are omitted.

    Args:
        most: bytes of JSON.
    """
    if len(orjson.dumps(details)) <= most:
        return details
    cut: dict[str, Any] = _cut(details)
    size = len(orjson.dumps(cut))
    return cut if size <= most else {"omitted": f"{size} bytes of JSON"}


def _cut(value: Any) -> Any:
    if type(value) is str:
        return value[:LONGEST_DETAIL]
    if type(value) is list:
        return [_cut(item) for item in value]
    if type(value) is dict:
        return {name[:LONGEST_DETAIL]: _cut(item) for name, item in value.items()}
    return value

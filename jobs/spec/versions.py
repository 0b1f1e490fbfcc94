"""Versions of a job's arguments, and ranges that workers accept (OJS job versioning §5, §8).

`2.1` is major and minor. Internally a version is one number, so a range of versions is a range of
numbers, which a fetch can query.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from .fields import Document, refuse
from .members import Member, Schema

PART = r"(0|[1-9][0-9]{0,8})"
# A third part is an addition of OJS schema registry §6.1; by §5.1 it never concerns arguments.
VERSION = re.compile(rf"{PART}(?:\.{PART}(?:\.{PART})?)?")
VERSION_PATTERN = rf"{PART}(\.{PART}){{0,2}}"
"""The same as a pattern for descriptions."""
RANGE_PATTERN = (
    rf"^(\*|{VERSION_PATTERN}|>={VERSION_PATTERN}|>={VERSION_PATTERN} <{VERSION_PATTERN})$"
)
"""The simplest of the ranges that `read_versions` accepts."""
CONSTRAINT = re.compile(r"(>=|<)\s*([0-9.]+)(?=[\s,]|\Z)[\s,]*")
LONGEST = 255
MINORS = 10**9
"""The number of minor versions that a major version may have."""
MAJORS = 10**9 - 1
EXPECTED = "'2.0', '>=1.0 <3.0' or '*'"


def version_number(version: Any) -> int | None:
    """The number of `"2.1"`, or of the whole number 2; None for anything else."""
    if type(version) is int:
        version = str(version)
    found = VERSION.fullmatch(version) if type(version) is str else None
    return int(found[1]) * MINORS + int(found[2] or 0) if found else None


class Version(Member[int | None]):
    """The version of a job's arguments, as its number."""

    def check(self, value: Any, place: str) -> int:
        number = version_number(value)
        if number is None:
            raise refuse(
                place,
                f"The '{place}' field must be a version such as '2.0', not {value!r:.64}.",
                validation="format",
            )
        return number

    def rules(self) -> Schema:
        text = {"type": "string", "pattern": f"^{VERSION_PATTERN}$", "examples": ["2.0"]}
        return {"oneOf": [text, {"type": "integer", "minimum": 0, "maximum": MAJORS}]}


def version_text(number: int) -> str:
    major, minor = divmod(number, MINORS)
    return f"{major}.{minor}"


class Versions(NamedTuple):
    """The versions from `least` up to, but excluding, `below`; None: no bound on that side.

    Stored as a JSON array of the two with the worker that declared it.
    """

    least: int | None = None
    below: int | None = None

    def __contains__(self, number: object) -> bool:
        """Whether the version is in the range; jobs without a version go to any worker (§8.2)."""
        if not isinstance(number, int):
            return True
        return (self.least or 0) <= number and (self.below is None or number < self.below)

    def __str__(self) -> str:
        """The range as a worker would declare it."""
        if self.least is not None and self.below == self.least + 1:
            return version_text(self.least)
        bounds = [f">={version_text(self.least)}"] if self.least is not None else []
        if self.below is not None:
            bounds.append(f"<{version_text(self.below)}")
        return " ".join(bounds) or "*"


ALL = Versions()


def read_versions(text: str) -> Versions:
    """Read a worker's declaration: `*`, `2.0`, or `>=` and `<` with spaces or commas (§8.1, §15.1).

    Raises:
        ValueError: it is none of these, or no version is in the range.
    """
    text = text.strip()
    if text == "*":
        return ALL
    exactly = version_number(text)
    if exactly is not None:
        return Versions(exactly, exactly + 1)
    least: list[int] = []
    below: list[int] = []
    rest = text
    while rest:
        found = CONSTRAINT.match(rest)
        number = version_number(found[2]) if found else None
        if found is None or number is None:
            raise ValueError(f"{text!r} is no range of versions such as {EXPECTED}.")
        (least if found[1] == ">=" else below).append(number)
        rest = rest[found.end() :]
    if not text:
        raise ValueError(f"A range of versions says {EXPECTED}.")
    read = Versions(max(least, default=None), min(below, default=None))
    if read.below is not None and (read.least or 0) >= read.below:
        raise ValueError(f"No version is in the range {text!r}.")
    return read


def split_type(document: Document) -> tuple[Document, str | None]:
    """Separate the job's type from the version that `invoice.generate@2.0` adds to it (§5.3)."""
    sent = document.get("type")
    if type(sent) is not str or "@" not in sent:
        return document, None
    kind, _, version = sent.partition("@")
    if not VERSION.fullmatch(version):
        raise refuse(
            "type", f"The 'type' field ends in {version!r}, which is no version such as '2.0'."
        )
    return {"type": kind}, version

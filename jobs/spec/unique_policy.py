"""Uniqueness policy of a job and its key (OJS unique jobs §2 to §4). No database here."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from .durations import LONGEST, parse_duration
from .fields import refuse, wrong_type
from .lifecycle import TERMINAL, State
from .members import (
    CENTURY,
    DURATION,
    Anything,
    Choice,
    Integer,
    Member,
    Members,
    Schema,
    Text,
    Texts,
)
from .versions import version_text

DIMENSIONS = ("type", "queue", "args", "meta", "version")
STATES = tuple(state for state in State if state not in TERMINAL)
STRATEGIES = ("reject", "replace", "replace_except_schedule", "ignore")
WITHIN = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class Names(Texts):
    """Names without repetition.

    Args:
        known: the allowed names; `kind` is a word for them.
    """

    def __init__(
        self, about: str = "", *, kind: str = "", known: Sequence[str] = (), **words: Any
    ) -> None:
        super().__init__(about, **words)
        self.kind = kind
        self.known = known

    def check(self, value: Any, place: str) -> list[str]:
        found = super().check(value, place)
        if len(set(found)) < len(found):
            raise refuse(place, f"The '{place}' field names something twice.", validation="unique")
        return found

    def must_know(self, names: Sequence[str], place: str) -> None:
        for name in names:
            if name not in self.known:
                raise refuse(
                    place,
                    f"There is no {self.kind} {name!r}; there are {', '.join(self.known)}.",
                    validation="enum",
                )

    def rules(self) -> Schema:
        schema = super().rules() | {"uniqueItems": True}
        if self.known:
            schema["items"] = {"type": "string", "enum": [str(name) for name in self.known]}
        return schema


class PolicyLength(Member[timedelta | None]):
    def check(self, value: Any, place: str) -> timedelta:
        text = PERIOD.check(value, place)
        try:
            return parse_duration(text, mixes_weeks=True)
        except ValueError as problem:
            raise refuse(place, str(problem), validation="format") from None

    def rules(self) -> Schema:
        return dict(DURATION)


class Within(Member[timedelta | None]):
    def check(self, value: Any, place: str) -> timedelta:
        text = WITHIN_TEXT.check(value, place)
        found = WITHIN.fullmatch(text)
        length = int(found[1]) * UNITS[found[2]] if found else 0
        if not 0 < length <= LONGEST.total_seconds():
            raise refuse(place, f"{text!r} is not a duration such as 1h.")
        return timedelta(seconds=length)

    def rules(self) -> Schema:
        return {"type": "string", "pattern": r"^[1-9][0-9]{0,3}[smhd]$"}


PERIOD = Text(longest=64)
WITHIN_TEXT = Text(longest=16)
NAMES = Names()


class Unique(Members, component="UniquePolicy", closed=True, about="OJS unique jobs §2."):
    keys = Names(kind="dimension", known=DIMENSIONS)
    key = Anything(hidden=True)
    digest = Text(
        "The key itself, from a client that encrypts the arguments afterwards (extension "
        "interactions §4): the SHA-256 of OJS unique jobs §4.1, in lower-case hexadecimal.",
        pattern=re.compile("[0-9a-f]{64}"),
    )
    args_keys = Names("Members of the first argument, if not all of them count.")
    meta_keys = Names("Members of `meta`, if that is one of the keys.")
    period = PolicyLength("How long a job counts as a duplicate.")
    within = Within(hidden=True)
    period_ms = Integer(least=1, most=CENTURY * 1000, hidden=True)
    states = Names(kind="state", known=State.values)
    # `use_existing` comes from OJS's own OpenAPI document.
    on_conflict = Choice(
        {strategy: strategy for strategy in STRATEGIES} | {"use_existing": "ignore"},
        sentence="There is no strategy {value!r}; there are {choices}.",
        details={"validation": "enum"},
        unsaid=["use_existing"],
    )


@dataclass(frozen=True, slots=True)
class UniquePolicy:
    """A valid policy, with the resulting key of its job."""

    key: str
    states: tuple[State, ...] = STATES
    period: timedelta | None = None
    on_conflict: str = "reject"


def read_policy(
    given: Mapping[str, Any],
    *,
    type: str,
    queue: str,
    args: list[Any],
    meta: dict[str, Any],
    version: int | None = None,
) -> UniquePolicy:
    """Validate a policy and compute the key of its job (§2, §4).

    Besides the document's `keys`, the public clients' `key` is accepted: a list of dimensions, a
    list of fields of the arguments, or a text that is the key. Jobs of different versions are
    different jobs, unless the policy lists its dimensions without `version` (OJS job versioning
    §15.5).

    Raises:
        InvalidRequest: it is invalid by §2.2; `details["field"]` names the member.
    """
    unknown = given.keys() - Unique.names
    if unknown:
        name = min(unknown)
        raise refuse(f"unique.{name}"[:255], f"A unique policy has no member {name[:64]!r}.")
    dimensions: dict[str, Any] = {"type": type}
    literal = given.get("key")
    if isinstance(literal, str) and literal:
        dimensions["key"] = literal
    digest = Unique.digest.under(given, "unique")
    keys, args_keys, place = _keys(given)
    if digest:
        # Its arguments cannot be read any more.
        args_keys = None
    if "queue" in keys:
        dimensions["queue"] = queue
    chosen = _chosen(args, args_keys, place)
    if "args" in keys:
        dimensions["args"] = args if chosen is None else chosen
    meta_keys = Unique.meta_keys.under(given, "unique")
    if "meta" in keys:
        if not meta_keys:
            raise refuse(
                "unique.meta_keys", "A unique policy over 'meta' must name its 'meta_keys'."
            )
        dimensions["meta"] = {name: meta[name] for name in meta_keys if name in meta}
    if version is not None and (not keys or "version" in keys):
        dimensions["version"] = version_text(version)
    return UniquePolicy(
        digest or unique_key(dimensions),
        _states(given),
        _period(given),
        Unique.on_conflict.under(given, "unique") or "reject",
    )


def unique_key(dimensions: Mapping[str, Any]) -> str:
    """The SHA-256 of the canonical JSON of the dimensions, in lower-case hexadecimal (§4.1)."""
    return hashlib.sha256(canonical(dimensions).encode()).hexdigest()


def key_of_project(key: str, project: str) -> str:
    """Return the key by which a project's jobs are unique: no other project has it."""
    return hashlib.sha256(f"{project}\x00{key}".encode()).hexdigest() if project else key


def canonical(value: Any) -> str:
    """Write JSON as RFC 8785 does, its strings in NFC (§4.2)."""
    if isinstance(value, str):
        return json.dumps(unicodedata.normalize("NFC", value), ensure_ascii=False)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, Mapping):
        # Ordered by UTF-16 code units, as the RFC specifies, not by code points.
        named = {unicodedata.normalize("NFC", name): item for name, item in value.items()}
        names = sorted(named, key=lambda name: name.encode("utf-16-be"))
        members = (f"{canonical(name)}:{canonical(named[name])}" for name in names)
        return "{" + ",".join(members) + "}"
    return "[" + ",".join(canonical(item) for item in value) + "]"


def number(value: int | float) -> str:
    """Write a number as ECMAScript does (RFC 8785 §3.2.2.3)."""
    if isinstance(value, int) and abs(value) < 2**53:
        return str(value)
    value = float(value)
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    # The value is 0.digits times ten to the power of `point`.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1:+d}"


def _keys(given: Mapping[str, Any]) -> tuple[list[str], list[str] | None, str]:
    """Return the dimensions of the policy, and the fields of the arguments if only some count.

    The last value is the member that names those fields.
    """
    keys, place = Unique.keys.under(given, "unique"), "unique.args_keys"
    args_keys = Unique.args_keys.under(given, "unique")
    key = given.get("key")
    if keys is None and isinstance(key, list):
        keys = NAMES.check(key, "unique.key")
        named = [name for name in keys if name not in DIMENSIONS]
        if named:
            keys = [name for name in keys if name in DIMENSIONS] + ["args"]
            args_keys, place = named, "unique.key"
    Unique.keys.must_know(keys or (), "unique.keys")
    if key is not None and not isinstance(key, str | list):
        raise wrong_type("unique.key", "array", key)
    return keys or [], args_keys, place


def _chosen(args: list[Any], args_keys: list[str] | None, place: str) -> dict[str, Any] | None:
    """Pick fields of the arguments, from the object that is the first argument (§3.3).

    Args:
        place: the member that names them.
    """
    if args_keys is None:
        return None
    source = args[0] if args and isinstance(args[0], dict) else {}
    for name in args_keys:
        if name not in source:
            raise refuse(place, f"The job's arguments have no field {name!r}.", missing=name)
    return {name: source[name] for name in args_keys}


def _states(given: Mapping[str, Any]) -> tuple[State, ...]:
    found = Unique.states.under(given, "unique")
    if found is None:
        return STATES
    Unique.states.must_know(found, "unique.states")
    return tuple(State(name) for name in found)


def _period(given: Mapping[str, Any]) -> timedelta | None:
    """`period`, or one of its other spellings; the first that is present counts."""
    length = Unique.period.under(given, "unique")
    if length is None:
        length = Unique.within.under(given, "unique")
    if length is not None:
        return length
    milliseconds = Unique.period_ms.under(given, "unique")
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)

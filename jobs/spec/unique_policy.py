"""The uniqueness policy of a job and its key (OJS unique jobs §2 to §4). No database here."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from . import fields
from .durations import LONGEST, parse_duration
from .fields import refuse, wrong_type
from .lifecycle import TERMINAL, State
from .versions import version_text

DIMENSIONS = ("type", "queue", "args", "meta", "version")
STATES = tuple(state for state in State if state not in TERMINAL)
STRATEGIES = ("reject", "replace", "replace_except_schedule", "ignore")
SPELLINGS = {"use_existing": "ignore"}
"""The OpenAPI document's word."""
MEMBERS = frozenset(
    {"keys", "key", "args_keys", "meta_keys", "period", "period_ms", "within", "states"}
    | {"on_conflict"}
)
WITHIN = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class UniquePolicy:
    """A valid policy, with the key it gives its job."""

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
    """Check a policy and compute the key of the job it came with (§2, §4).

    Besides the document's `keys`, the `key` of the public clients is taken: a list of dimensions,
    a list of fields of the arguments, or a text that is the key. Jobs of different versions are
    different jobs, unless the policy names its dimensions and `version` is none (OJS job
    versioning §15.5).

    Raises:
        InvalidRequest: it breaks a rule of §2.2; `details["field"]` names the member.
    """
    unknown = given.keys() - MEMBERS
    if unknown:
        name = min(unknown)
        raise refuse(f"unique.{name}"[:255], f"A unique policy has no member {name[:64]!r}.")
    document = {f"unique.{name}": value for name, value in given.items() if value is not None}
    dimensions: dict[str, Any] = {"type": type}
    literal = document.get("unique.key")
    if isinstance(literal, str) and literal:
        dimensions["key"] = literal
    keys, args_keys = _keys(document)
    if "queue" in keys:
        dimensions["queue"] = queue
    chosen = _chosen(args, args_keys)
    if "args" in keys:
        dimensions["args"] = args if chosen is None else chosen
    meta_keys = _texts(document, "unique.meta_keys")
    if "meta" in keys:
        if not meta_keys:
            raise refuse(
                "unique.meta_keys", "A unique policy over 'meta' must name its 'meta_keys'."
            )
        dimensions["meta"] = {name: meta[name] for name in meta_keys if name in meta}
    if version is not None and (not keys or "version" in keys):
        dimensions["version"] = version_text(version)
    return UniquePolicy(
        unique_key(dimensions), _states(document), _period(document), _strategy(document)
    )


def unique_key(dimensions: Mapping[str, Any]) -> str:
    """The SHA-256 of the canonical JSON of the dimensions, in lower-case hexadecimal (§4.1)."""
    return hashlib.sha256(canonical(dimensions).encode()).hexdigest()


def canonical(value: Any) -> str:
    """Write JSON as RFC 8785 does, its strings in NFC (§4.2)."""
    if isinstance(value, str):
        return json.dumps(unicodedata.normalize("NFC", value), ensure_ascii=False)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, Mapping):
        # By UTF-16 code units, as the RFC has it: not by code points.
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


def _keys(document: dict[str, Any]) -> tuple[list[str], list[str] | None]:
    """Return the dimensions it names, and the fields of the arguments if only some count."""
    keys = _texts(document, "unique.keys")
    args_keys = _texts(document, "unique.args_keys")
    if keys is None and isinstance(document.get("unique.key"), list):
        keys = _texts(document, "unique.key") or []
        named = [name for name in keys if name not in DIMENSIONS]
        if named:
            keys = [name for name in keys if name in DIMENSIONS] + ["args"]
            args_keys = named
    for name in keys or ():
        if name not in DIMENSIONS:
            raise refuse(
                "unique.keys",
                f"There is no dimension {name!r}; there are {', '.join(DIMENSIONS)}.",
                validation="enum",
            )
    if not isinstance(document.get("unique.key", ""), str | list):
        raise wrong_type("unique.key", "array", document["unique.key"])
    return keys or [], args_keys


def _texts(document: dict[str, Any], field: str) -> list[str] | None:
    found = fields.texts(document, field)
    if found is not None and len(set(found)) < len(found):
        raise refuse(field, f"The '{field}' field names something twice.", validation="unique")
    return found


def _chosen(args: list[Any], args_keys: list[str] | None) -> dict[str, Any] | None:
    """Pick fields of the arguments: those of the object that is the first of them (§3.3)."""
    if args_keys is None:
        return None
    source = args[0] if args and isinstance(args[0], dict) else {}
    for name in args_keys:
        if name not in source:
            raise refuse(
                "unique.args_keys", f"The job's arguments have no field {name!r}.", missing=name
            )
    return {name: source[name] for name in args_keys}


def _states(document: dict[str, Any]) -> tuple[State, ...]:
    found = _texts(document, "unique.states")
    if found is None:
        return STATES
    for name in found:
        if name not in State.values:
            raise refuse(
                "unique.states",
                f"There is no state {name!r}; there are {', '.join(State.values)}.",
                validation="enum",
            )
    return tuple(State(name) for name in found)


def _period(document: dict[str, Any]) -> timedelta | None:
    given = fields.text(document, "unique.period", longest=64)
    if given is not None:
        try:
            return parse_duration(given)
        except ValueError as problem:
            raise refuse("unique.period", str(problem), validation="format") from None
    within = fields.text(document, "unique.within", longest=16)
    if within is not None:
        found = WITHIN.fullmatch(within)
        length = int(found[1]) * UNITS[found[2]] if found else 0
        if not 0 < length <= LONGEST.total_seconds():
            raise refuse("unique.within", f"{within!r} is not a duration such as 1h.")
        return timedelta(seconds=length)
    most = int(LONGEST.total_seconds()) * 1000
    milliseconds = fields.integer(document, "unique.period_ms", least=1, most=most)
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


def _strategy(document: dict[str, Any]) -> str:
    given = fields.text(document, "unique.on_conflict", "reject") or ""
    given = SPELLINGS.get(given, given)
    if given not in STRATEGIES:
        raise refuse(
            "unique.on_conflict",
            f"There is no strategy {given!r}; there are {', '.join(STRATEGIES)}.",
            validation="enum",
        )
    return given

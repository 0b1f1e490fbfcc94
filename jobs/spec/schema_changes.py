"""Compares two schemas of a job type: which changes break those who rely on the older one
(OJS schema registry §8)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from .json_schema import Schema, is_as_before, modern, pointer_of, resolve

MOST_CHANGES = 50
"""Breaking changes that are listed."""
UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains")
LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains")
EXACT = ("pattern", "format", "const")
"""Any new value of these narrows."""
INNER = ("additionalProperties", "items", "unevaluatedProperties", "unevaluatedItems")
"""Schemas of whatever no other keyword describes; absent means that anything is accepted."""
WHOLE = ("not", "if", "then", "else", "oneOf", "contains", "propertyNames", "dependentSchemas")
"""Not compared in detail: a change of one of these is taken for a breaking one."""

Place = tuple[str | int, ...]


class Change(NamedTuple):
    """A breaking change."""

    pointer: str
    """JSON pointer into the newer schema; of what was removed, into the older one."""
    message: str

    def __str__(self) -> str:
        return self.message


def breaking_changes(old: Schema, new: Schema) -> list[Change]:
    """Return what `new` does not accept any more, or no longer describes; `MOST_CHANGES` at most.

    Both have passed `check_schema`, so their references do not recurse.
    """
    old, new = (modern(each) if is_as_before(each) else each for each in (old, new))
    found: list[Change] = []
    for change in _Comparison(old, new).compare(old, new, ()):
        if change not in found:
            found.append(change)
        if len(found) == MOST_CHANGES:
            break
    return found


class _Comparison:
    def __init__(self, old: Schema, new: Schema) -> None:
        self.old, self.new = old, new

    def compare(self, old: Schema, new: Schema, place: Place) -> Iterator[Change]:
        old, new = _whole(self.old, old), _whole(self.new, new)
        if new is False:
            if old is not False:
                yield _change(place, f"{_subject(place)} is not accepted any more")
            return
        if old is False:
            return
        before: dict[str, Any] = old if isinstance(old, dict) else {}
        after: dict[str, Any] = new if isinstance(new, dict) else {}
        yield from _types(before, after, place)
        yield from _constraints(before, after, place)
        yield from self._members(before, after, place)
        yield from self._elements(before, after, place)
        for keyword in INNER:
            yield from self._inner(keyword, before, after, place)
        yield from _combined(before, after, place)

    def _members(self, old: dict[str, Any], new: dict[str, Any], place: Place) -> Iterator[Change]:
        for name in _added(old.get("required"), new.get("required")):
            yield _change((*place, "required"), f"Required field '{name}' was added")
        before, after = old.get("properties") or {}, new.get("properties") or {}
        for name, schema in before.items():
            inside = (*place, "properties", name)
            if name not in after:
                yield _change(inside, f"Field '{name}' was removed")
            else:
                yield from self.compare(schema, after[name], inside)
        before, after = old.get("patternProperties") or {}, new.get("patternProperties") or {}
        for pattern, schema in after.items():
            yield from self.compare(
                before.get(pattern, True), schema, (*place, "patternProperties", pattern)
            )
        before, after = old.get("dependentRequired") or {}, new.get("dependentRequired") or {}
        for name, names in after.items():
            for other in _added(before.get(name), names):
                yield _change(
                    (*place, "dependentRequired", name),
                    f"Field '{other}' became required beside '{name}'",
                )

    def _elements(self, old: dict[str, Any], new: dict[str, Any], place: Place) -> Iterator[Change]:
        before, after = old.get("prefixItems") or [], new.get("prefixItems") or []
        rest = old.get("items", True)
        for index, schema in enumerate(before):
            inside = (*place, "prefixItems", index)
            if index >= len(after):
                yield _change(inside, f"Element {index} was removed")
            else:
                yield from self.compare(schema, after[index], inside)
        # A new element at the end is compatible (OJS job versioning §7.1), unless elements in
        # that place had a form already.
        if rest is not True:
            for index in range(len(before), len(after)):
                yield from self.compare(rest, after[index], (*place, "prefixItems", index))

    def _inner(
        self, keyword: str, old: dict[str, Any], new: dict[str, Any], place: Place
    ) -> Iterator[Change]:
        before, after = old.get(keyword, True), new.get(keyword, True)
        inside = (*place, keyword)
        if after is False and before is not False:
            yield _change(inside, f"'{keyword}' of {_subject(place, False)} was set to false")
        elif after is not True:
            yield from self.compare(before, after, inside)


def _whole(root: Schema, schema: Schema) -> Schema:
    """Return the schema with what its reference adds to it."""
    if not isinstance(schema, dict) or "$ref" not in schema:
        return schema
    own = {name: value for name, value in schema.items() if name != "$ref"}
    try:
        target = _whole(root, resolve(root, schema["$ref"]))
    except (LookupError, TypeError, ValueError):
        return own
    if not isinstance(target, dict):
        return own if target else False
    return target | own


def _types(old: dict[str, Any], new: dict[str, Any], place: Place) -> Iterator[Change]:
    before, after = _named_types(old), _named_types(new)
    if after is None:
        return
    if before is None or any(not _covers(after, each) for each in before):
        was = " or ".join(before) if before else "anything"
        yield _change(
            (*place, "type"), f"Type of {_subject(place, False)} changed from {was} to "
            f"{' or '.join(after)}"
        )  # fmt: skip


def _named_types(schema: dict[str, Any]) -> list[str] | None:
    found = schema.get("type")
    return [found] if isinstance(found, str) else found


def _covers(types: list[str], each: str) -> bool:
    return each in types or (each == "integer" and "number" in types)


def _constraints(old: dict[str, Any], new: dict[str, Any], place: Place) -> Iterator[Change]:
    for keywords, sign in ((UPPER, 1), (LOWER, -1)):
        for keyword in keywords:
            limit, was = new.get(keyword), old.get(keyword)
            if limit is not None and (was is None or sign * limit < sign * was):
                yield _narrowed(keyword, was, limit, place)
    for keyword in EXACT:
        if keyword in new and (keyword not in old or old[keyword] != new[keyword]):
            yield _narrowed(keyword, old.get(keyword), new[keyword], place)
    factor, was = new.get("multipleOf"), old.get("multipleOf")
    if factor is not None and (was is None or was % factor):
        yield _narrowed("multipleOf", was, factor, place)
    if new.get("uniqueItems") and not old.get("uniqueItems"):
        yield _narrowed("uniqueItems", False, True, place)
    if "enum" in new:
        gone = [each for each in old.get("enum", ()) if each not in new["enum"]]
        if "enum" not in old:
            yield _narrowed("enum", None, new["enum"], place)
        elif gone:
            yield _change(
                (*place, "enum"), f"{_subject(place)} does not accept {_shown(gone)} any more"
            )


def _combined(old: dict[str, Any], new: dict[str, Any], place: Place) -> Iterator[Change]:
    before, after = old.get("anyOf"), new.get("anyOf")
    if after and (not before or any(each not in after for each in before)):
        yield _change((*place, "anyOf"), f"Alternatives of {_subject(place, False)} were removed")
    if any(each not in (old.get("allOf") or ()) for each in new.get("allOf") or ()):
        yield _change((*place, "allOf"), f"Rules for {_subject(place, False)} were added")
    for keyword in WHOLE:
        if keyword in new and new[keyword] != old.get(keyword):
            yield _change(
                (*place, keyword), f"'{keyword}' of {_subject(place, False)} was changed or added"
            )


def _added(old: Any, new: Any) -> list[str]:
    return [name for name in new or () if name not in (old or ())]


def _narrowed(keyword: str, old: Any, new: Any, place: Place) -> Change:
    was = "" if old is None else f" from {_shown(old)}"
    return _change(
        (*place, keyword),
        f"'{keyword}' of {_subject(place, False)} was narrowed{was} to {_shown(new)}",
    )


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _subject(place: Place, is_first: bool = True) -> str:
    for keyword, name in zip(reversed(place[:-1]), reversed(place[1:]), strict=True):
        if keyword == "properties":
            return f"{'F' if is_first else 'f'}ield '{name}'"
        if keyword == "prefixItems":
            return f"{'E' if is_first else 'e'}lement {name}"
    return "Arguments" if is_first else "arguments"


def _change(place: Place, message: str) -> Change:
    return Change(pointer_of(place), message)

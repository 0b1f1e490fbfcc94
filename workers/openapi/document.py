"""OpenAPI document as served to tools and as pages."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from django.utils.html import escape
from django.utils.module_loading import import_string
from django.utils.safestring import SafeString, mark_safe

GENERATOR = "workers.openapi.generate.document"


@cache
def current() -> dict[str, Any]:
    """Return the OpenAPI document of this server; takes a tenth of a second, once."""
    # Imported by name on first use, because it imports the endpoints of every binding, one of which
    # serves it.
    document: dict[str, Any] = import_string(GENERATOR)()
    return document


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, its meaning, and an example."""

    status: str
    description: str
    example: str
    form: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """Something that a request may say, in its path, query, headers or body."""

    name: str
    place: str
    is_required: bool
    kind: str
    """Type, format and limits."""
    choices: list[str]
    default: str
    description: SafeString


@dataclass(frozen=True, slots=True)
class Section:
    """An endpoint as the page shows it."""

    id: str
    method: str
    path: str
    summary: str
    description: str
    parameters: list[Parameter]
    body: str
    form: str
    curl: str
    answers: list[Answer] = field(default_factory=list)


def sections(document: dict[str, Any], base: str) -> dict[str, list[Section]]:
    """Return the endpoints by tag, in the order of the tags.

    Args:
        base: URL of the server, for commands to copy.
    """
    found: dict[str, list[Section]] = defaultdict(list)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            found[operation["tags"][0]].append(_section(document, path, method, operation, base))
    return {tag["name"]: found[tag["name"]] for tag in document["tags"] if found[tag["name"]]}


def found(sections: dict[str, list[Section]], words: Iterable[str]) -> dict[str, list[Section]]:
    """Return the endpoints that contain every word, by tag."""
    wanted = [word.lower() for word in words]

    def fits(section: Section) -> bool:
        parts = (section.method, section.path, section.summary, section.description)
        text = " ".join(parts).lower()
        return all(word in text for word in wanted)

    kept = {tag: [each for each in all_ if fits(each)] for tag, all_ in sections.items()}
    return {tag: some for tag, some in kept.items() if some}


def forms(document: dict[str, Any]) -> dict[str, str]:
    """Name → JSON Schema of everything that is sent or received."""
    return {name: pretty(schema) for name, schema in document["components"]["schemas"].items()}


def marked(text: str) -> SafeString:
    """The text as HTML, with code between backticks."""
    return mark_safe(re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text)))


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _section(
    document: dict[str, Any], path: str, method: str, operation: dict[str, Any], base: str
) -> Section:
    media = _first(operation.get("requestBody", {}).get("content", {}))
    example, schema = media.get("example"), media.get("schema", {})
    return Section(
        id=operation["operationId"],
        method=method.upper(),
        path=path,
        summary=operation["summary"],
        description=marked(operation.get("description", "")),
        parameters=[*map(_sent, operation.get("parameters", ())), *_members(document, schema)],
        body=pretty(example) if example is not None else "",
        form=_form(media),
        curl=_curl(method, path, example, base, is_open=operation["security"] == [{}]),
        answers=[
            _answer(document, status, response)
            for status, response in operation["responses"].items()
        ],
    )


DEEPEST = 2
"""Levels of a body whose members are listed; the forms have the rest."""


def _members(
    document: dict[str, Any], schema: dict[str, Any], prefix: str = "", depth: int = 1
) -> Iterator[Parameter]:
    """List the members of a body, those of its objects after them: `options.queue`."""
    schema = _whole(document, schema)
    required = schema.get("required", ())
    for name, member in schema.get("properties", {}).items():
        member = _whole(document, member)
        yield _parameter(f"{prefix}{name}", "body", name in required, member)
        if depth == DEEPEST:
            continue
        yield from _members(document, member, f"{prefix}{name}.", depth + 1)
        if "items" in member:
            yield from _members(document, member["items"], f"{prefix}{name}[].", depth + 1)


def _whole(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with what it refers to; its own words come first."""
    for part in (schema, *schema.get("allOf", ())):
        if "$ref" in part:
            found = document["components"]["schemas"][part["$ref"].rpartition("/")[2]]
            schema = _whole(document, found) | schema
    return schema


def _sent(given: dict[str, Any]) -> Parameter:
    about = {"description": given["description"]} if "description" in given else {}
    is_required = given.get("required", False)
    return _parameter(given["name"], given["in"], is_required, given["schema"] | about)


def _parameter(name: str, place: str, is_required: bool, schema: dict[str, Any]) -> Parameter:
    default = schema.get("default")
    return Parameter(
        name=name,
        place=place,
        is_required=is_required,
        kind=_kind(schema),
        choices=[str(choice) for choice in schema.get("enum", ())],
        default="" if default is None else json.dumps(default, ensure_ascii=False),
        description=marked(schema.get("description", "")),
    )


LIMITS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "minLength": "length ≥",
    "maxLength": "length ≤",
    "minItems": "items ≥",
    "maxItems": "items ≤",
}


def _kind(schema: dict[str, Any]) -> str:
    """Describe a type in a few words: `integer, ≥ 1, ≤ 200`."""
    alternatives = schema.get("oneOf") or schema.get("anyOf") or ()
    types = schema.get("type", "")
    named = " or ".join(types) if isinstance(types, list) else str(types)
    if alternatives and not named:
        named = " or ".join(dict.fromkeys(filter(None, map(_kind, alternatives))))
    limits = [f"{words} {schema[limit]}" for limit, words in LIMITS.items() if limit in schema]
    return ", ".join(filter(None, [named, schema.get("format", ""), *limits]))


def _answer(document: dict[str, Any], status: str, response: dict[str, Any]) -> Answer:
    description = response["description"]
    if "$ref" in response:
        name = response["$ref"].rpartition("/")[2]
        response = document["components"]["responses"][name]
    media = _first(response.get("content", {}))
    found = [each["value"] for each in media.get("examples", {}).values()]
    found += [media["example"]] if media.get("example") else []
    shown = "\n\n".join(each if isinstance(each, str) else pretty(each) for each in found)
    return Answer(status, marked(description), shown, _form(media))


def _first(content: dict[str, Any]) -> dict[str, Any]:
    media: dict[str, Any] = next(iter(content.values()), {})
    return media


def _form(media: dict[str, Any]) -> str:
    schema = media.get("schema", {})
    reference: str = schema.get("$ref") or schema.get("allOf", [{}])[0].get("$ref", "")
    return reference.rpartition("/")[2]


def _curl(method: str, path: str, example: Any, base: str, *, is_open: bool) -> str:
    verb = "" if method == ("get" if example is None else "post") else f" -X {method.upper()}"
    words = [f"curl{verb} '{base}{path}'"]
    if not is_open:
        words.append('-H "Authorization: Bearer $OJS_KEY"')
    if example is not None:
        words.append("-H 'Content-Type: application/openjobspec+json'")
        body = json.dumps(example, ensure_ascii=False).replace("'", "'\\''")
        words.append(f"-d '{body}'")
    return " \\\n  ".join(words)

"""Constructors for JSON Schema, which keep the tables readable."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def obj(required: str = "", /, **properties: Schema) -> Schema:
    """An object; `required` names properties, separated by spaces. Others are allowed, too."""
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required.split()
    return schema


def array(items: Schema, **rules: Any) -> Schema:
    return {"type": "array", "items": items} | rules


def text(description: str = "", **rules: Any) -> Schema:
    return _typed("string", description, rules)


def integer(description: str = "", **rules: Any) -> Schema:
    return _typed("integer", description, rules)


def number(description: str = "", **rules: Any) -> Schema:
    return _typed("number", description, rules)


def boolean(description: str = "", **rules: Any) -> Schema:
    return _typed("boolean", description, rules)


def anything(description: str = "") -> Schema:
    return {"description": description} if description else {}


def free(description: str = "") -> Schema:
    """An object whose members are the client's own."""
    return _typed("object", description, {"additionalProperties": True})


def enum(*values: str, description: str = "") -> Schema:
    return text(description, enum=list(values))


def nullable(schema: Schema) -> Schema:
    if "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return schema | {"type": [schema["type"], "null"]}


def _typed(name: str, description: str, rules: dict[str, Any]) -> Schema:
    schema: Schema = {"type": name}
    if description:
        schema["description"] = description
    return schema | rules


TIME = text(format="date-time")
UUID = text(format="uuid")
COUNT = integer(minimum=0)

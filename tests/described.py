"""Checks responses against the OpenAPI document: a refusal must be listed there."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import orjson

from workers.openapi.document import current

PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")
Code = tuple[int, str]
OF_NO_ENDPOINT = (405, 500)
"""Methods that an endpoint does not have, and bugs."""


@cache
def listed(method: str, path: str) -> frozenset[Code] | None:
    """The permitted statuses and codes; None if nothing is described."""
    document = current()
    operation = document["paths"].get(path, {}).get(method.lower())
    if operation is None:
        return None
    return frozenset(codes_of(operation))


def codes_of(operation: dict[str, Any]) -> list[Code]:
    responses = current()["components"]["responses"]
    return [
        (int(status), code)
        for status, response in operation["responses"].items()
        if "$ref" in response
        for content in responses[response["$ref"].rpartition("/")[2]]["content"].values()
        for code in content["examples"]
    ]


def refused_with(reply: Any) -> Code | None:
    """The status and code of a refusal in the form of OJS or Flare."""
    if reply.status_code < 400 or reply.streaming:
        return None
    try:
        error = orjson.loads(reply.content)["error"]
        return reply.status_code, error["code"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


def path_of(route: str) -> str:
    """A route of Django in the notation of the OpenAPI document."""
    return PARAMETER.sub(r"{\1}", f"/{route.removeprefix('/')}")


def check(method: str, reply: Any) -> None:
    """Check that a refusal is listed for the endpoint."""
    code = refused_with(reply)
    match = getattr(reply, "resolver_match", None)
    if code is None or code[0] in OF_NO_ENDPOINT or match is None:
        return
    path = path_of(match.route)
    codes = listed(method, path)
    assert codes is None or code in codes, f"{method} {path} does not list {code}"

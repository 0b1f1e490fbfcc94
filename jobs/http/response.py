"""What the endpoints answer: a JSON document, written at once."""

from __future__ import annotations

import json
from typing import Any

import orjson
from django.http import HttpResponse

from .dialects import MEDIA_TYPE


def dumps(document: Any) -> bytes:
    try:
        return orjson.dumps(document)
    except TypeError:
        # PostgreSQL returns 1e20 as the integer it is, and orjson writes none beyond 64 bits.
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


class Response:
    """Status, headers and body. Django's own, with its cookies, charsets and closers, is made of it
    only for who needs that one: there is nothing here to negotiate and no template to wait for.
    """

    __slots__ = ("content", "headers", "status_code")

    streaming = False

    def __init__(self, document: Any = None, status: int = 200) -> None:
        self.content = b"" if document is None else dumps(document)
        self.status_code = status
        self.headers: dict[str, str] = {"Content-Type": MEDIA_TYPE}

    def __setitem__(self, name: str, text: str) -> None:
        self.headers[name] = text

    def __contains__(self, name: str) -> bool:
        return name in self.headers

    def __delitem__(self, name: str) -> None:
        self.headers.pop(name, None)

    def for_django(self) -> HttpResponse:
        return HttpResponse(self.content, status=self.status_code, headers=self.headers)


def for_django(response: Any) -> Any:
    """The response as Django's handlers and middleware know it."""
    return response.for_django() if type(response) is Response else response

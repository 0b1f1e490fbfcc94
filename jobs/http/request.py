"""A request as the views see it, and the parts of it that policies check."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

import rest_framework.request
from django.http import HttpRequest

from ..errors import InvalidRequest
from ..spec.identifiers import uuid7

Meta = Mapping[str, Any]
"""A WSGI environment: the headers and the server's variables, like `HttpRequest.META`."""
REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Readable(Protocol):
    """Source of a body, which ends by itself or by `Content-Length`."""

    def read(self, size: int, /) -> bytes: ...


class Request(rest_framework.request.Request):
    """REST framework's request, with a body that may come without `Content-Length`.

    REST framework treats such a body, which is chunked, as empty.
    """

    @property
    def stream(self) -> Readable:
        return body_stream(self._request)


def body_stream(request: HttpRequest) -> Readable:
    # Read from the stream: Django's own limit is the host site's, and lower. Django also treats a
    # chunked body as empty.
    if not is_chunked(request.META):
        return request
    stream: Readable = request.META["wsgi.input"]
    return stream


def is_chunked(meta: Meta) -> bool:
    """Whether the body has no stated length, and the server supports that."""
    return not meta.get("CONTENT_LENGTH") and bool(meta.get("wsgi.input_terminated"))


def request_id_of(meta: Meta) -> str:
    """The client's `X-Request-Id` if it is printable, else a new one (OJS HTTP §19)."""
    given: str = meta.get("HTTP_X_REQUEST_ID", "")
    return given if REQUEST_ID.fullmatch(given) else f"req_{uuid7()}"


def check_url(path: str, meta: Meta) -> None:
    """
    Raises:
        InvalidRequest: the URL contains a NUL character, which PostgreSQL cannot store in text.
    """
    if "\x00" in path or "%00" in meta.get("QUERY_STRING", ""):
        raise InvalidRequest("The URL contains a NUL character.", hint="Leave out the '%00'.")

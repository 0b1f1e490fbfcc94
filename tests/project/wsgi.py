"""Requests to a WSGI application, as a server makes them."""

from __future__ import annotations

import io
import json
import re
from typing import Any

from django.test import RequestFactory

MOMENT = re.compile(
    rb"\d{4}-\d\d-\d\dT[\d:.]+Z|\b1\d{9}\b"
    rb"|[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f-]{17}|job_[0-9A-Z]{26}|evt_[0-9a-f-]+"
)
"""Values that differ each time: times and ids."""


def environment(method: str, path: str, body: Any, headers: dict[str, str]) -> dict[str, Any]:
    """A WSGI environment.

    Args:
        body: bytes as they are, anything else as JSON.
        headers: under their WSGI names.
    """
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    extra = {"CONTENT_TYPE": "application/json"} | headers
    asked = RequestFactory().generic(method, path, content, **extra)
    asked.environ["wsgi.input"] = io.BytesIO(content)
    return dict(asked.environ)


def answered(application: Any, environ: dict[str, Any]) -> tuple[str, dict[str, str], bytes]:
    """Status, headers and body of the response."""
    sent: list[Any] = []
    parts = application(environ, lambda status, headers: sent.append((status, headers)))
    try:
        body = b"".join(parts)
    finally:
        getattr(parts, "close", lambda: None)()
    ((status, headers),) = sent
    assert len(headers) == len(dict(headers))
    return status, dict(headers), body


def plain(answer: tuple[str, dict[str, str], bytes]) -> tuple[str, dict[str, str], bytes]:
    """The response without values that differ each time."""
    status, headers, body = answer
    headers = {name: MOMENT.sub(b"~", text.encode()).decode() for name, text in headers.items()}
    return status, headers, MOMENT.sub(b"~", body)

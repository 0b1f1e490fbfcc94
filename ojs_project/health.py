"""Queries the health endpoint of a server over HTTP, as a load balancer does."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

TIMEOUT = 2.0
"""Seconds to wait for the response."""


class NoAnswer(Exception):
    """The server could not be reached, did not answer in time, or is not healthy."""


def health(url: str) -> dict[str, Any]:
    """Return the answer of the health endpoint.

    Args:
        url: base URL of the server, without a path.

    Raises:
        NoAnswer: there is no answer, or its status is not a success.
    """
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT)
    try:
        connection.request("GET", "/ojs/v1/health")
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as problem:
        raise NoAnswer(f"{type(problem).__name__}: {problem}") from problem
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise NoAnswer(f"HTTP {response.status}")
    try:
        document: dict[str, Any] = json.loads(text)
    except ValueError:
        raise NoAnswer("not JSON") from None
    return document

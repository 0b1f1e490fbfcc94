"""Open Job Spec over HTTP with the standard library: what the demonstration speaks."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit


class NoAnswer(Exception):
    """The server could not be reached, did not answer in time, or failed."""


class Refused(Exception):
    """The server answered, and said no: asking again would not help."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status


class Client:
    """A server's address and, where it asks for one, a key. Safe to share between threads."""

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url)
        self._connect = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._address = parts.netloc
        self._prefix = parts.path.rstrip("/")
        self._headers = {
            "Content-Type": "application/openjobspec+json",
            "OJS-Version": "1.0",
            "User-Agent": "ojs-demo/1.0",
        }
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def get(self, path: str, *, timeout: float = 10) -> dict[str, Any]:
        return self._ask("GET", path, None, timeout)

    def post(self, path: str, body: dict[str, Any], *, timeout: float = 10) -> dict[str, Any]:
        return self._ask("POST", path, body, timeout)

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None, timeout: float
    ) -> dict[str, Any]:
        """
        Raises:
            NoAnswer: nothing is known about what became of the request.
            Refused: it was understood and not carried out.
        """
        # A connection for each request: a busy worker would keep one, and then has to notice
        # when the server closed it meanwhile.
        connection = self._connect(self._address, timeout=timeout)
        try:
            connection.request(
                method,
                self._prefix + path,
                None if body is None else json.dumps(body).encode(),
                self._headers,
            )
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as problem:
            raise NoAnswer(f"{type(problem).__name__}: {problem}") from problem
        finally:
            connection.close()
        document = _json_object(text)
        if response.status >= 500:
            raise NoAnswer(f"HTTP {response.status}")
        if response.status >= 300:
            error = document.get("error")
            error = error if isinstance(error, dict) else {}
            raise Refused(
                response.status,
                str(error.get("code", response.reason)),
                str(error.get("message", "")),
            )
        return document


def _json_object(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}

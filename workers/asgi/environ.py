"""ASGI scopes as WSGI environments (PEP 3333)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from django.core.handlers.asgi import get_script_prefix

from jobs.http.loop import LOOP

UNPREFIXED = {b"content-type": "CONTENT_TYPE", b"content-length": "CONTENT_LENGTH"}


def path_of(scope: Mapping[str, Any]) -> str:
    """Return the path of a request below the prefix at which the site is served, if any."""
    path: str = scope["path"]
    return path.removeprefix(get_script_prefix(scope))


def environ_of(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment of a request, without its body."""
    server = scope.get("server") or ("", None)
    client = scope.get("client") or ("", None)
    path = path_of(scope)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope.get("method", "GET"),
        "SCRIPT_NAME": get_script_prefix(scope),
        # WSGI requires the bytes of the path as Latin-1.
        "PATH_INFO": path if path.isascii() else _latin(path),
        "QUERY_STRING": scope.get("query_string", b"").decode("latin-1"),
        "SERVER_NAME": str(server[0]),
        "SERVER_PORT": str(server[1] or ""),
        "SERVER_PROTOCOL": f"HTTP/{scope.get('http_version', '1.1')}",
        "REMOTE_ADDR": str(client[0] or ""),
        "REMOTE_PORT": str(client[1] or ""),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": _scheme(scope.get("scheme", "http")),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
        "wsgi.input_terminated": True,
        LOOP: True,
    }
    add_headers(environ, scope["headers"])
    return environ


def add_headers(environ: dict[str, Any], headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Add the headers of a request; repeated ones are joined by commas."""
    for name, value in headers:
        variable = _variable(name)
        if not variable:
            continue
        text = value.decode("latin-1")
        if variable in environ:
            separator = "; " if variable == "HTTP_COOKIE" else ","
            text = f"{environ[variable]}{separator}{text}"
        environ[variable] = text


def _variable(name: bytes) -> str:
    """Return the variable of a header; empty for a name that could be mistaken for another's."""
    lowered = name.lower()
    if b"_" in lowered:
        return ""
    known = UNPREFIXED.get(lowered)
    return known or "HTTP_" + lowered.decode("latin-1").upper().replace("-", "_")


def _scheme(scheme: str) -> str:
    return {"ws": "http", "wss": "https"}.get(scheme, scheme)


def _latin(path: str) -> str:
    return path.encode("utf-8").decode("latin-1")

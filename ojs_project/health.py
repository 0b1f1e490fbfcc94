"""Queries the health endpoint of a server over HTTP, as a load balancer does.

`python -m ojs_project.health` is the health check of a container: it exits with 1 and a line that
says why, unless the process of this container is well. A process with an `--alive-file` at
`ALIVE_FILE` is judged by that, any other as a server on this machine.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import ssl
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .environment import words

PATH = "/ojs/v1/health"
PROBES = (PATH, "/ojs/v1/ready", "/ojs/manifest", "/health", "/ready")
"""Paths for balancers and orchestrators. They need no key, reveal no secret, and are answered over
plain HTTP even where everything else is redirected to HTTPS: a redirect would fail the probe."""
TIMEOUT = 2.0
"""Seconds to wait for the response."""
LOOPBACKS = {4: "127.0.0.1", 6: "::1"}
ALIVE_FILE = Path("/tmp/alive")
SILENCE = 60.0
"""Seconds without a touch after which the process of an alive file is taken for stuck."""


class NoAnswer(Exception):
    """The server could not be reached, did not answer in time, or is not healthy."""


def health(url: str, host: str = "") -> dict[str, Any]:
    """Return the answer of the health endpoint.

    Args:
        url: base URL of the server, without a path.
        host: host name to ask for, if not that of `url`.

    Raises:
        NoAnswer: there is no answer, or its status is not a success.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT)
    if parts.scheme == "https":
        # The question stays on this machine, for whose address there is no certificate.
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(parts.netloc, timeout=TIMEOUT, context=context)
    try:
        connection.request("GET", PATH, headers={"Host": host} if host else {})
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


def check(environ: Mapping[str, str], alive_file: Path = ALIVE_FILE) -> None:
    """Return if the process of this container is well.

    Args:
        environ: `OJS_SERVER_HOST` is the address on which the server listens (127.0.0.1),
            `OJS_SERVER_PORT` its port (8000), `OJS_SERVER_TLS_CERTIFICATE` is set if it speaks TLS,
            and `DJANGO_ALLOWED_HOSTS` has a name that it answers to.

    Raises:
        NoAnswer: it is not.
    """
    try:
        silence = time.time() - alive_file.stat().st_mtime
    except FileNotFoundError:
        port = environ.get("OJS_SERVER_PORT", "8000")
        scheme = "https" if environ.get("OJS_SERVER_TLS_CERTIFICATE") else "http"
        host = bracketed(own_address(environ.get("OJS_SERVER_HOST") or LOOPBACKS[4]))
        health(f"{scheme}://{host}:{port}", _allowed_host(environ))
        return
    if silence > SILENCE:
        raise NoAnswer(f"{alive_file} was touched {silence:.0f} seconds ago.")


def own_address(host: str) -> str:
    """Where this machine reaches a server that listens on `host`."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a name
        return host
    return LOOPBACKS[address.version] if address.is_unspecified else host


def bracketed(host: str) -> str:
    """A host as URLs spell it."""
    return f"[{host}]" if ":" in host else host


def _allowed_host(environ: Mapping[str, str]) -> str:
    """A name that the server answers to: the first allowed one that is no pattern for any."""
    names = [name for name in words(environ, "DJANGO_ALLOWED_HOSTS") if name != "*"]
    # `.example.com` stands for the domain and everything below it.
    return names[0].removeprefix(".") if names else ""


if __name__ == "__main__":
    try:
        check(os.environ)
    except NoAnswer as problem:
        sys.exit(f"Not healthy: {problem}")

"""TLS for the servers with a port of their own: a certificate, renewed while they run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import ssl
from collections.abc import AsyncIterator
from typing import Any

logger = logging.getLogger("workers.tls")

EVERY = 30.0
"""Seconds between two checks of the certificate's files."""
HANDSHAKE = 10.0
"""Seconds that a client may take for the handshake, which precedes all other limits."""


class UnusableCertificate(Exception):
    """The server cannot use the configured certificate; the text gives the reason as a sentence."""


class Certificate:
    """A certificate and its key, in files; `context` always has the last valid version.

    Existing connections keep their certificate; new ones get the current one.
    """

    def __init__(self, certificate: str, key: str = "") -> None:
        """
        Args:
            certificate: path of a PEM file with the certificate and its chain.
            key: path of the PEM file with the key, unless that is in the first one.

        Raises:
            UnusableCertificate: the files cannot be read, or do not match.
        """
        if not certificate:
            raise UnusableCertificate("There is a TLS key but no TLS certificate.")
        self._paths = (certificate, key or None)
        self._seen = self._look()
        self.context = self._load(_context())

    def renew(self) -> None:
        """Read the files again; if they are invalid, log that and keep the current certificate."""
        self._seen = self._look()
        try:
            # First into a spare: a new certificate with the old key would break the context.
            self._load(_context())
            self._load(self.context)
        except UnusableCertificate as problem:
            logger.error("%s The previous one remains in use.", problem)
        else:
            logger.info("The TLS certificate %s was read again.", self._paths[0])

    def renew_if_changed(self) -> None:
        if self._look() != self._seen:
            self.renew()

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        try:
            # Without a password the library would ask for one on the terminal.
            context.load_cert_chain(*self._paths, password="")
        except (OSError, ValueError) as problem:
            files = " and ".join(filter(None, self._paths))
            raise UnusableCertificate(f"The TLS certificate in {files}: {problem}.") from None
        return context

    def _look(self) -> list[tuple[int, int, int] | None]:
        """Distinguishes versions of the files, through symbolic links."""
        found: list[tuple[int, int, int] | None] = []
        for path in filter(None, self._paths):
            try:
                status = os.stat(path)
            except OSError:
                found.append(None)
            else:
                found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return found


def _context() -> ssl.SSLContext:
    return ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)


def certificate_of(certificate: str, key: str) -> Certificate | None:
    """Return the certificate in these files; None if there are none.

    Raises:
        UnusableCertificate: it is not valid.
    """
    return Certificate(certificate, key) if certificate or key else None


def add_arguments(parser: Any, certificate: str, key: str) -> None:
    """Add the arguments of a command, given the names of the options that they override."""
    parser.add_argument(
        "--tls-certificate",
        help=f"PEM file with a certificate and its chain: serve TLS (default: {certificate})",
    )
    parser.add_argument(
        "--tls-key", help=f"PEM file with its key, if it is separate (default: {key})"
    )


def server_options(certificate: Certificate | None) -> dict[str, Any]:
    """Keyword arguments for asyncio's servers."""
    if certificate is None:
        return {}
    return {"ssl": certificate.context, "ssl_handshake_timeout": HANDSHAKE}


@contextlib.asynccontextmanager
async def renewed(certificate: Certificate | None) -> AsyncIterator[None]:
    """Reload the certificate when its files change, and immediately on SIGHUP."""
    if certificate is None:
        yield
        return
    loop = asyncio.get_running_loop()
    # Only a main thread receives signals, and Windows has no SIGHUP.
    with contextlib.suppress(ValueError, RuntimeError, NotImplementedError, AttributeError):
        loop.add_signal_handler(signal.SIGHUP, certificate.renew)
    watching = asyncio.create_task(_watch(certificate))
    try:
        yield
    finally:
        watching.cancel()


async def _watch(certificate: Certificate) -> None:
    while True:
        await asyncio.sleep(EVERY)
        certificate.renew_if_changed()

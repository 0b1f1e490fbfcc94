"""Base class of the commands that serve a worker protocol on its own port."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from django.core.management.base import CommandError
from django.utils.module_loading import import_string

from jobs.conf import options_of, protocol_of
from jobs.protocols import WorkerProtocol
from jobs.store import keepalive

from ..bindings.shared import tls
from ..runtime.health_signal import HealthSignal
from . import alive
from .ends import ends
from .lines import SpeakingCommand


class ServerCommand(SpeakingCommand):
    """Serve one worker protocol until SIGTERM or SIGINT."""

    logger = logging.getLogger("workers.server")
    protocol_name = ""
    """The protocol's name; if empty, it is given on the command line."""

    def add_arguments(self, parser: Any) -> None:
        group = self.protocol_name.upper() or "<PROTOCOL>"
        place = f'OJS["{group}"]'
        parser.add_argument("--host", help=f'address to listen on (default: {place}["HOST"])')
        parser.add_argument("--port", type=int, help=f'its port (default: {place}["PORT"])')
        alive.add_argument(parser)
        tls.add_arguments(parser, f'{place}["TLS_CERTIFICATE"]', f'{place}["TLS_KEY"]')

    def handle(self, *args: Any, **given: Any) -> None:
        protocol = protocol_of(self.protocol_name or given["protocol"])
        factory = _server_class(protocol)
        options: Any = options_of(protocol.options or object)
        host = given["host"] or options.HOST
        port = options.PORT if given["port"] is None else given["port"]
        pulse = alive.outside(given)
        keepalive.apply()
        try:
            certificate = tls.certificate_of(
                given["tls_certificate"] or options.TLS_CERTIFICATE,
                given["tls_key"] or options.TLS_KEY,
            )
        except tls.UnusableCertificate as problem:
            raise CommandError(str(problem)) from None
        try:
            asyncio.run(self._serve(factory, certificate, pulse, host, port))
        except (OSError, OverflowError) as problem:
            raise CommandError(f"Cannot listen on {host}:{port}: {problem}") from None

    async def _serve(
        self,
        factory: Any,
        certificate: tls.Certificate | None,
        pulse: HealthSignal,
        host: str,
        port: int,
    ) -> None:
        stop = asyncio.Event()
        for name in ends(has_reload=certificate is not None):
            asyncio.get_running_loop().add_signal_handler(name, stop.set)
        await factory(certificate, pulse).run(host, port, stop, self.say)


def _server_class(protocol: WorkerProtocol) -> Any:
    """
    Raises:
        CommandError: the site does not list the protocol, or the protocol has no server, or the
            server cannot be imported.
    """
    server = protocol.server
    if server is None:
        raise CommandError(
            f'{protocol.title} has no server: none of OJS["WORKER_PROTOCOLS"] declares one.'
        )
    try:
        return import_string(server.factory)
    except ImportError as problem:
        if server.is_installed:
            raise
        raise CommandError(
            f"{protocol.title} needs the extra '{protocol.name}' "
            f"(pip install 'django-ojs[{protocol.name}]'): {problem}"
        ) from None

"""Serve Rota workers: a WebSocket at /work."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from jobs.conf import ojs_settings
from jobs.store import keepalive
from workers.bindings.shared import tls
from workers.management import alive


class Command(BaseCommand):
    help = __doc__ or ""

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--host", help='address to listen on (default: OJS["ROTA"]["HOST"])')
        parser.add_argument("--port", type=int, help='its port (default: OJS["ROTA"]["PORT"])')
        alive.add_argument(parser)
        tls.add_arguments(parser, "ROTA")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            from workers.bindings.rota.server import RotaServer
        except ImportError as problem:
            raise CommandError(
                f"Rota needs the extra 'rota' (pip install 'django-ojs[rota]'): {problem}"
            ) from None
        host = options["host"] or ojs_settings.ROTA.HOST
        port = ojs_settings.ROTA.PORT if options["port"] is None else options["port"]
        pulse = alive.outside(options)
        keepalive.apply()
        try:
            certificate = tls.certificate_of(
                ojs_settings.ROTA, options["tls_certificate"], options["tls_key"]
            )
        except tls.UnusableCertificate as problem:
            raise CommandError(str(problem)) from None
        scheme = "wss" if certificate else "ws"
        try:
            asyncio.run(self._serve(RotaServer(certificate, pulse), scheme, host, port))
        except OSError as problem:
            raise CommandError(f"Cannot listen on {host}:{port}: {problem.strerror}.") from None

    async def _serve(self, server: Any, scheme: str, host: str, port: int) -> None:
        stop = asyncio.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, stop.set)
        self.stdout.write(f"Rota workers connect to {scheme}://{host}:{port}/work")
        await server.run(host, port, stop)

"""Serve AGQ workers: RESP over TCP, the protocol of Redis clients (docs/protocols/agq.md)."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from jobs.conf import ojs_settings
from jobs.store import keepalive
from workers.bindings.shared import tls
from workers.management import alive
from workers.runtime.health_signal import HealthSignal, beating


class Command(BaseCommand):
    help = __doc__ or ""

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--host", help='address to listen on (default: OJS["AGQ"]["HOST"])')
        parser.add_argument("--port", type=int, help='port (default: OJS["AGQ"]["PORT"])')
        alive.add_argument(parser)
        tls.add_arguments(parser, "AGQ")

    def handle(self, *args: Any, **options: Any) -> None:
        host = options["host"] or ojs_settings.AGQ.HOST
        port = ojs_settings.AGQ.PORT if options["port"] is None else options["port"]
        pulse = alive.outside(options)
        keepalive.apply()
        try:
            certificate = tls.certificate_of(
                ojs_settings.AGQ, options["tls_certificate"], options["tls_key"]
            )
        except tls.UnusableCertificate as problem:
            raise CommandError(str(problem)) from None
        try:
            asyncio.run(self._serve(certificate, host, port, pulse))
        except (OSError, OverflowError) as problem:
            raise CommandError(f"Cannot listen on {host}:{port}: {problem}") from None
        except KeyboardInterrupt:
            pass

    async def _serve(
        self, certificate: tls.Certificate | None, host: str, port: int, pulse: HealthSignal
    ) -> None:
        from workers.bindings.agq.server import Server

        asked = asyncio.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, asked.set)
        server = Server(certificate)
        address = await server.start(host, port)
        over = " over TLS" if certificate else ""
        self.stdout.write(f"AGQ workers are served on {address}{over}.")
        self.stdout.flush()
        async with beating(pulse, server.in_thread):
            await asked.wait()
        await server.end()
        self.stdout.write("The AGQ server stops.")

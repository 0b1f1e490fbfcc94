"""Serve HTTP and WebSockets: workers, producers and the admin, in one or more processes."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from jobs.conf import ojs_settings
from jobs.management import base
from workers.bindings.shared import tls
from workers.management.ends import ends

KEEP_ALIVE = 75
"""Seconds that an idle connection stays open: longer than the pause between two heartbeats, so that
a worker does not send on a connection that is being closed."""
LAST_WORDS = 30
"""Seconds for requests in hand when the server is asked to end."""
PARTING = 5
"""Seconds beyond that until a process that has not ended is killed. Together, they are less than
systemd, Kubernetes and compose are told to wait."""
HUNG = 60
"""Seconds after which a process that does not answer its parent is replaced. Busy processors alone
must not cause that."""
BACKLOG = 4096
ENDS = (signal.SIGTERM, signal.SIGINT)


class Command(base.Command):
    help = __doc__ or ""
    # The application runs those that matter when it is imported.
    requires_system_checks = []

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "application",
            nargs="?",
            default=getattr(settings, "ASGI_APPLICATION", None),
            help="the ASGI application, as module:name (default: the setting ASGI_APPLICATION)",
        )
        parser.add_argument("--host", help="address to listen on (default: SERVER_HOST)")
        parser.add_argument("--port", type=int, help="its port (default: SERVER_PORT)")
        parser.add_argument(
            "--processes", type=int, help="how many processes (default: SERVER_PROCESSES)"
        )
        tls.add_arguments(parser, "SERVER_TLS_CERTIFICATE", "SERVER_TLS_KEY")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            import uvicorn

            from .. import server_processes
        except ImportError as problem:
            raise CommandError(
                f"runhttp needs the extra 'server' (pip install 'django-ojs[server]'): {problem}"
            ) from None
        processes = _given(options["processes"], ojs_settings.SERVER_PROCESSES)
        if processes < 1:
            raise CommandError("There must be at least one process.")
        port = _given(options["port"], ojs_settings.SERVER_PORT)
        if not 0 <= port <= 65_535:
            raise CommandError(f"--port is a number from 0 to 65535, not {port}.")
        certificate = options["tls_certificate"] or ojs_settings.SERVER_TLS_CERTIFICATE
        key = options["tls_key"] or ojs_settings.SERVER_TLS_KEY
        try:
            tls.certificate_of(certificate, key)
        except tls.UnusableCertificate as problem:
            raise CommandError(str(problem)) from None
        application = options["application"]
        if not application:
            raise CommandError("There is no ASGI_APPLICATION in the settings: name one.")
        if ":" not in application:
            # In settings, a dot stands before the name.
            application = ":".join(application.rsplit(".", 1))
        config = uvicorn.Config(
            application,
            host=options["host"] or ojs_settings.SERVER_HOST,
            port=port,
            workers=processes,
            http="workers.management.http_protocol:HttpProtocol",
            interface="asgi3",
            lifespan="on",
            # The site's own logging applies.
            log_config=None,
            access_log=False,
            server_header=False,
            # `OJS["PROXIES"]` decides which addresses proxies may claim.
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=LAST_WORDS,
            timeout_worker_healthcheck=HUNG,
            ssl_certfile=certificate or None,
            ssl_keyfile=key or None,
        )
        server = uvicorn.Server(config)

        def end(number: int, frame: FrameType | None) -> None:
            # uvicorn repeats the signal when it has ended: that is no failure.
            if not server.should_exit:
                sys.exit(0)

        # Until uvicorn takes them over.
        for number in ENDS:
            signal.signal(number, end)
        if processes > 1:
            # Otherwise each process would fail alone, and be started again without end.
            self.check()
            is_well = server_processes.serve(config, LAST_WORDS + PARTING)
        else:
            for number in set(ends()) - set(ENDS):
                signal.signal(number, lambda number, frame: signal.raise_signal(signal.SIGTERM))
            server.run()
            is_well = server.started
        if not is_well:
            sys.exit(1)


def _given(value: int | None, default: int) -> int:
    return default if value is None else value

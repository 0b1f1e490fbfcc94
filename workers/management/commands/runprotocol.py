"""Serve the workers of a protocol that has a server with its own port."""

from __future__ import annotations

from typing import Any

from jobs.conf import protocols
from workers.management.serving import ServerCommand


class Command(ServerCommand):
    help = __doc__ or ""

    def add_arguments(self, parser: Any) -> None:
        names = [protocol.name for protocol in protocols() if protocol.server is not None]
        parser.add_argument("protocol", choices=names)
        super().add_arguments(parser)

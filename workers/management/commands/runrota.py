"""Serve Rota workers: a WebSocket at /work (docs/protocols/rota.md)."""

from workers.management.serving import ServerCommand


class Command(ServerCommand):
    help = __doc__ or ""
    protocol_name = "rota"

"""Serve AGQ workers: RESP over TCP, the protocol of Redis clients (docs/protocols/agq.md)."""

from workers.management.serving import ServerCommand


class Command(ServerCommand):
    help = __doc__ or ""
    protocol_name = "agq"

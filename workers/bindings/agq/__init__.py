"""AGQ: worker registration and jobs over RESP, the protocol of Redis clients."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from jobs.conf import duration, option, options_of, port
from jobs.protocols import Server, WorkerProtocol


@dataclass(frozen=True)
class Options:
    """`OJS["AGQ"]`, `OJS_AGQ_<NAME>`."""

    HOST: str = option("127.0.0.1", "Address `runagq` listens on.")
    PORT: int = port(6380, "Port `runagq` listens on.")
    URL: str = option("", "The address in the manifest, if it differs from the one listened on.")
    TLS_CERTIFICATE: str = option(
        "", "PEM file with a certificate and its chain; `runagq` then accepts only TLS."
    )
    TLS_KEY: str = option("", "PEM file with the certificate's key, if that is a separate file.")
    AUTH_TIMEOUT: timedelta = duration(
        10, "Time for a connection to authenticate if a key is required; 0: no limit."
    )
    HEARTBEAT_INTERVAL: timedelta = duration(
        30, "How often AGQ workers are to send a heartbeat.", positive=True
    )
    HEARTBEAT_TIMEOUT: timedelta = duration(
        90, "Silence after which an AGQ worker is dead.", positive=True
    )
    JOB_TIMEOUT: timedelta = duration(
        3600,
        "How long an AGQ worker may take for a job without a visibility timeout of its own; "
        "after that the job is reclaimed and the worker flagged for investigation.",
        positive=True,
    )
    THREADS: int = option(8, "Concurrent commands, each with a database connection.", least=1)
    MAX_CONNECTIONS: int = option(10_000, "Maximum number of connections per process.", least=1)
    MAX_COMMAND: int = option(16 * 1024 * 1024, "Largest command, in bytes.")
    MAX_BUFFERED: int = option(
        256 * 1024 * 1024,
        "Maximum size of unfinished commands in bytes, over all connections; at most an eighth "
        "of it is for connections that have not authenticated.",
    )


SERVER = Server(factory="workers.bindings.agq.server.Server", schemes=("redis", "rediss"))
PROTOCOL = WorkerProtocol(
    name="agq",
    title="AGQ",
    summary="workers with any Redis client",
    options=Options,
    server=SERVER,
    commands="workers.bindings.agq.authorization",
)


def options() -> Options:
    """The options of this site."""
    return options_of(Options)

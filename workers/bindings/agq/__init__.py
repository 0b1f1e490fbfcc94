"""AGQ: worker registration and jobs over RESP, the protocol of Redis clients."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from jobs.conf import duration, option, options_of
from jobs.protocols import Server, WorkerProtocol


@dataclass(frozen=True)
class Options:
    """`OJS["AGQ"]`, `OJS_AGQ_<NAME>`."""

    HOST: str = option("127.0.0.1", "Address `runagq` listens on.")
    PORT: int = option(6380, "Port `runagq` listens on.")
    URL: str = option("", "What the manifest calls it, where that is not where it listens.")
    TLS_CERTIFICATE: str = option(
        "", "PEM file with a certificate and its chain; `runagq` then speaks TLS and nothing else."
    )
    TLS_KEY: str = option("", "PEM file with the certificate's key, if that is another.")
    AUTH_TIMEOUT: timedelta = duration(
        10, "How long a connection that needs a key may take to send a good one; 0: as it likes."
    )
    HEARTBEAT_INTERVAL: timedelta = duration(30, "How often AGQ workers are told to be heard.")
    HEARTBEAT_TIMEOUT: timedelta = duration(90, "Silence after which an AGQ worker is dead.")
    JOB_TIMEOUT: timedelta = duration(
        3600,
        "How long an AGQ worker may take for a job that names no visibility timeout of its own; "
        "beyond it the job is taken back and the worker flagged for investigation.",
    )
    THREADS: int = option(8, "Commands carried out at once, each with a database connection.")
    MAX_CONNECTIONS: int = option(10_000, "Most connections of one process.")
    MAX_COMMAND: int = option(16 * 1024 * 1024, "Largest command, in bytes.")
    MAX_BUFFERED: int = option(
        256 * 1024 * 1024,
        "Most bytes of unfinished commands, all connections together; an eighth of it is for those "
        "that have not authenticated, and no more.",
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

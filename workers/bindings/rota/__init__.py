"""Rota worker protocol: a WebSocket at `/work` (`seeds/rota-worker-protocol.txt`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from jobs.conf import duration, option, options_of, port
from jobs.protocols import Reports, Server, WebSocket, WorkerProtocol


@dataclass(frozen=True)
class Options:
    """`OJS["ROTA"]`, `OJS_ROTA_<NAME>`."""

    IN_SERVER: bool = option(
        True, "Serve Rota at `/work` of the ASGI server as well, without `runrota`."
    )
    HOST: str = option("127.0.0.1", "Address `runrota` listens on.")
    PORT: int = port(8081, "Port `runrota` listens on.")
    URL: str = option("", "The address in the manifest, if it differs from the one served.")
    TLS_CERTIFICATE: str = option(
        "", "PEM file with a certificate and its chain; `runrota` then accepts only TLS."
    )
    TLS_KEY: str = option("", "PEM file with the certificate's key, if that is a separate file.")
    HEARTBEAT_TIMEOUT: timedelta = duration(
        5, "Silence after which a Rota worker is dead.", positive=True
    )
    THREADS: int = option(
        8, "Concurrent messages of `runrota`, each with a database connection.", least=1
    )
    MAX_CONNECTIONS: int = option(10_000, "Maximum number of connections per process.", least=1)
    MAX_MESSAGE: int = option(16 * 1024 * 1024, "Largest message, in bytes.")


PATH = "/work"
SERVER = Server(
    factory="workers.bindings.rota.server.RotaServer",
    schemes=("ws", "wss"),
    path=PATH,
    needs="websockets",
)
PROTOCOL = WorkerProtocol(
    name="rota",
    title="Rota",
    summary="workers on a WebSocket",
    hears=frozenset({"quiet", "terminate"}),
    reports=Reports.OPTIONALLY,
    options=Options,
    server=SERVER,
    socket=WebSocket(
        path=PATH, serve="workers.bindings.rota.connections.serve", switch="IN_SERVER"
    ),
    commands="workers.bindings.rota.authorization",
)


def options() -> Options:
    """The options of this site."""
    return options_of(Options)

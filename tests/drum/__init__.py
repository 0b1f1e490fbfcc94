"""A third-party worker protocol: a package, and one line of settings.

A line of text is a command, a line the answer; on a WebSocket, messages are used instead. Workers
can receive `quiet` and `terminate`, and do not report their state. One HTTP endpoint lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from jobs.conf import duration, option, options_of
from jobs.protocols import HTTP, Reports, Server, WebSocket, WorkerProtocol


@dataclass(frozen=True)
class Options:
    """`OJS["DRUM"]`, `OJS_DRUM_<NAME>`."""

    HOST: str = option("127.0.0.1", "Address the server of Drum listens on.")
    PORT: int = option(7766, "Port the server of Drum listens on.")
    URL: str = option("", "What the manifest calls it, where that is not where it listens.")
    TLS_CERTIFICATE: str = option("", "PEM file with a certificate and its chain.")
    TLS_KEY: str = option("", "PEM file with the certificate's key.")
    HEARTBEAT_TIMEOUT: timedelta = duration(60, "Silence after which a worker is dead.")


SERVER = Server(factory="tests.drum.server.DrumServer", schemes=("drum", "drums"))
PROTOCOL = WorkerProtocol(
    name="drum",
    title="Drum",
    summary="workers that send lines",
    hears=frozenset({"quiet", "terminate"}),
    reports=Reports.NEVER,
    options=Options,
    server=SERVER,
    socket=WebSocket(path="/drum", serve="tests.drum.server.serve"),
    http=HTTP(path="drum/v1", urls="tests.drum.urls", in_manifest=False),
    commands="tests.drum.authorization",
)


def options() -> Options:
    return options_of(Options)

"""How a PostgreSQL connection notices that the other side is gone without a word.

A machine that loses its power, or a network that drops everything, sends no farewell. By its
defaults Linux notices after a quarter of an hour, or two hours where nothing is under way. These
parameters of libpq make that about ten seconds. The stand-alone project has them in its settings,
our own long-lived processes and the thread that listens add them to what a site's `DATABASES`
says, and a system check shows them to sites whose servers lack them. What a site sets itself wins.

Where several hosts are named, libpq tries them in turn. After a failover the first one may be a
machine that does not answer, and each new connection would wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .database import alias, connection

PARAMETERS: dict[str, int] = {
    # Seconds for a new connection, for each host of several.
    "connect_timeout": 5,
    # Seconds of silence after which the other side is asked, then the pause and number of repeats.
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    # Milliseconds that what was sent, or asked, may stay without an acknowledgement. A server that
    # is only busy acknowledges: its kernel does.
    "tcp_user_timeout": 10_000,
}
HOST_TIMEOUT = 3
"""`connect_timeout` for each of several hosts: those that come first may be the ones that died."""
ENVIRONMENT = {
    "connect_timeout": "PGCONNECT_TIMEOUT",
    "target_session_attrs": "PGTARGETSESSIONATTRS",
}
"""Where libpq looks for what it is not given."""
ONLY_ONE = ("read-write", "primary")
"""`target_session_attrs` that one host alone can have at a time."""


def missing(options: Mapping[str, Any], hosts: str = "") -> dict[str, int]:
    """Return the parameters that a site's `OPTIONS` leave to the defaults of system and libpq.

    Args:
        hosts: where the database is: one host, or several with commas.
    """
    if options.get("service"):
        return {}  # a file of libpq's says what is wanted
    parameters = dict(PARAMETERS)
    if "," in hosts:
        parameters["connect_timeout"] = HOST_TIMEOUT
    return {
        name: number
        for name, number in parameters.items()
        if name not in options and ENVIRONMENT.get(name, name) not in os.environ
    }


def apply() -> None:
    """Have the connections of this process notice; for commands that run for long.

    To be called before the first connection is made. It concerns the jobs' database alone.
    """
    settings = connection().settings_dict
    if connection().vendor == "postgresql":
        lacking = missing(settings["OPTIONS"], str(settings.get("HOST") or ""))
        settings["OPTIONS"] = {**lacking, **settings["OPTIONS"]}


def prefer(sender: Any, connection: Any, **others: Any) -> None:
    """Try the host that has just taken a connection first from now on, in all of this process.

    Only where no other host would be right, and only where one assignment does it, since other
    threads may be connecting: their ports have to be the same.
    """
    if connection.vendor != "postgresql" or connection.alias != alias():
        return
    settings = connection.settings_dict
    hosts = str(settings.get("HOST") or "").split(",")
    if len(hosts) < 2 or len(set(str(settings.get("PORT") or "").split(","))) > 1:
        return
    wanted = settings["OPTIONS"].get("target_session_attrs") or os.environ.get(
        ENVIRONMENT["target_session_attrs"]
    )
    host = connection.connection.info.host
    if wanted not in ONLY_ONE or host == hosts[0] or host not in hosts:
        return
    settings["HOST"] = ",".join(sorted(hosts, key=lambda name: name != host))
    pool = connection.pool
    if pool is not None and isinstance(pool.kwargs, dict):
        pool.kwargs["host"] = settings["HOST"]


def unguarded() -> dict[str, int]:
    """Return what the site's settings lack, where the database is on another machine."""
    from django.db import connections

    database = connections[alias()]
    host = str(database.settings_dict.get("HOST") or "")
    if database.vendor != "postgresql" or not host or host.startswith(("/", "@")):
        return {}
    return missing(database.settings_dict["OPTIONS"], host)

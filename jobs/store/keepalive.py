"""Makes PostgreSQL connections detect that the other side has disappeared.

A machine that loses power, or a network that drops everything, closes no connection. By default
Linux notices after a quarter of an hour, or two hours if the connection is idle. These libpq
parameters reduce that to about ten seconds. The stand-alone project has them in its settings, the
long-lived processes and the listening thread add them to a site's `DATABASES`, and a system check
shows them to sites whose servers lack them. Values that a site sets itself take precedence.

If several hosts are configured, libpq tries them in turn. After a failover the first one may be a
machine that does not respond, and each new connection would wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .database import alias, connection

PARAMETERS: dict[str, int] = {
    # Seconds for a new connection, for each host of several.
    "connect_timeout": 5,
    # Seconds of silence before the first probe, then the interval and number of probes.
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    # Milliseconds that data or a probe may stay unacknowledged. A server that is merely busy still
    # acknowledges: its kernel does.
    "tcp_user_timeout": 10_000,
}
HOST_TIMEOUT = 3
"""`connect_timeout` for each of several hosts: the first ones may be those that failed."""
ENVIRONMENT = {
    "connect_timeout": "PGCONNECT_TIMEOUT",
    "target_session_attrs": "PGTARGETSESSIONATTRS",
}
"""Sources from which libpq takes missing parameters."""
ONLY_ONE = ("read-write", "primary")
"""`target_session_attrs` that only one host can satisfy at a time."""


def missing(options: Mapping[str, Any], hosts: str = "") -> dict[str, int]:
    """Return the parameters that a site's `OPTIONS` leave to the defaults of the system and libpq.

    Args:
        hosts: the database's host, or several separated by commas.
    """
    if options.get("service"):
        return {}  # a libpq service file sets the parameters
    parameters = dict(PARAMETERS)
    if "," in hosts:
        parameters["connect_timeout"] = HOST_TIMEOUT
    return {
        name: number
        for name, number in parameters.items()
        if name not in options and ENVIRONMENT.get(name, name) not in os.environ
    }


def apply() -> None:
    """Set the parameters for this process's connections; for long-running commands.

    Call it before the first connection is made. It affects only the jobs' database.
    """
    settings = connection().settings_dict
    if connection().vendor == "postgresql":
        lacking = missing(settings["OPTIONS"], str(settings.get("HOST") or ""))
        settings["OPTIONS"] = {**lacking, **settings["OPTIONS"]}


def prefer(sender: Any, connection: Any, **others: Any) -> None:
    """Make the host that has just accepted a connection the first choice of the whole process.

    Only where no other host can be right, and where a single assignment suffices, since other
    threads may be connecting: the hosts' ports have to be the same.
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
    """Return the parameters the site's settings lack, if the database is on another machine."""
    from django.db import connections

    database = connections[alias()]
    host = str(database.settings_dict.get("HOST") or "")
    if database.vendor != "postgresql" or not host or host.startswith(("/", "@")):
        return {}
    return missing(database.settings_dict["OPTIONS"], host)

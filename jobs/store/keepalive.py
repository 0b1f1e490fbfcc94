"""How a PostgreSQL connection notices that the other side is gone without a word.

A machine that loses its power, or a network that drops everything, sends no farewell. By its
defaults Linux notices after a quarter of an hour, or two hours where nothing is under way. These
parameters of libpq make that about ten seconds. The stand-alone project has them in its settings,
our own long-lived processes and the thread that listens add them to what a site's `DATABASES`
says, and a system check shows them to sites whose servers lack them. What a site sets itself wins.
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
ENVIRONMENT = {"connect_timeout": "PGCONNECT_TIMEOUT"}
"""Where libpq looks for what it is not given."""


def missing(options: Mapping[str, Any]) -> dict[str, int]:
    """Return the parameters that a site's `OPTIONS` leave to the defaults of system and libpq."""
    if options.get("service"):
        return {}  # a file of libpq's says what is wanted
    return {
        name: number
        for name, number in PARAMETERS.items()
        if name not in options and ENVIRONMENT.get(name, name) not in os.environ
    }


def apply() -> None:
    """Have the connections of this process notice; for commands that run for long.

    To be called before the first connection is made. It concerns the jobs' database alone.
    """
    settings = connection().settings_dict
    if connection().vendor == "postgresql":
        settings["OPTIONS"] = {**missing(settings["OPTIONS"]), **settings["OPTIONS"]}


def unguarded() -> dict[str, int]:
    """Return what the site's settings lack, where the database is on another machine."""
    from django.db import connections

    database = connections[alias()]
    host = str(database.settings_dict.get("HOST") or "")
    if database.vendor != "postgresql" or not host or host.startswith(("/", "@")):
        return {}
    return missing(database.settings_dict["OPTIONS"])

"""Database that `DATABASE_URL` names, with the connection options that a job server needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from jobs.store import keepalive

from .environment import flag, value

SQLITE_OPTIONS = {
    # SQLite has one writer at a time. IMMEDIATE takes its turn when a transaction begins, where
    # waiting works; a transaction that reads first and then writes would fail immediately instead.
    "transaction_mode": "IMMEDIATE",
    "timeout": 30,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}
READ_COMMITTED = 2
"""`psycopg.IsolationLevel.READ_COMMITTED`: only databases on PostgreSQL need psycopg."""
PORT = "5432"
HOSTS = re.compile(
    r"(?P<before>[a-z0-9+]+://(?:[^/?#]*@)?)(?P<hosts>[^/?#@]*,[^/?#@]*)(?P<after>.*)"
)
"""A URL of several hosts, as libpq reads it: `user:password@host1:5432,host2/name`."""
UNQUOTED = (
    "DATABASE_URL is not a URL of a database. In a user name or password, characters such as "
    "/ # ? [ ] % must be percent-encoded: / is %2F."
)
HOST = re.compile(r"(?P<host>\[[^\]]+\]|[^:\[\]]*)(?::(?P<port>\d*))?")


def database(url: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the entry of `DATABASES` for `url`.

    Args:
        environ: `OJS_DB_POOL` is 0, 1 or a JSON object of pool options; the two `DJANGO_DB_…`
            variables are Django's settings of those names.

    Raises:
        ImproperlyConfigured: it is no URL of a database.
    """
    several = HOSTS.fullmatch(url)
    if several is None:
        found = _parse(url)
    else:
        places = [_place(text) for text in several["hosts"].split(",")]
        found = _parse(f"{several['before']}{several['hosts'].split(',')[0]}{several['after']}")
        found["HOST"] = ",".join(host for host, _ in places)
        # One port for all hosts, or one for each.
        found["PORT"] = ",".join(port or PORT for _, port in places)
    options = found.setdefault("OPTIONS", {})
    if found["ENGINE"].endswith("sqlite3"):
        options.update(SQLITE_OPTIONS)
        return found
    pool = value(environ.get("OJS_DB_POOL", "0"))
    if not found["ENGINE"].endswith("postgresql"):
        pool = False
    else:
        options.update(keepalive.missing(options, found["HOST"]))
        # Under a stricter level, which the server may have as its default, a transaction does not
        # see what others commit meanwhile, so unique jobs would be stored twice.
        options.setdefault("isolation_level", READ_COMMITTED)
    if pool:
        options["pool"] = pool if isinstance(pool, dict) else True
    else:
        # Connecting anew for each request costs several times more than the request itself.
        found.update(CONN_MAX_AGE=None)
    # A persistent connection shows that its server has hung up (`database`). One in a pool has
    # to be checked.
    found["CONN_HEALTH_CHECKS"] = flag(environ, "DJANGO_DB_CONN_HEALTH_CHECKS", default=bool(pool))
    found["DISABLE_SERVER_SIDE_CURSORS"] = flag(environ, "DJANGO_DB_DISABLE_SERVER_SIDE_CURSORS")
    return found


def _parse(url: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = dict(dj_database_url.parse(url))
    except dj_database_url.UnknownSchemeError as problem:
        # Not the URL itself, which holds a password.
        raise ImproperlyConfigured(f"DATABASE_URL is not a URL of a database: {problem}") from None
    except ValueError:
        raise ImproperlyConfigured(UNQUOTED) from None
    # A password that begins like a port, and goes on with `/`.
    if not found["ENGINE"].endswith("sqlite3") and not found["USER"] and "@" in found["NAME"]:
        raise ImproperlyConfigured(UNQUOTED)
    return found


def _place(text: str) -> tuple[str, str]:
    found = HOST.fullmatch(text)
    if found is None or not found["host"]:
        raise ImproperlyConfigured(
            f"DATABASE_URL: {text!r} is no host; several are written host1:5432,host2:5432."
        )
    return unquote(found["host"].strip("[]")), found["port"] or ""

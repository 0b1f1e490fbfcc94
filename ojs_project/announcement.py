"""Announcement of quickstart once everything runs: addresses, and how to log in."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from jobs.conf import is_served, ojs_settings, options_of, protocols
from jobs.store.database import connection

from .access import Operator
from .quickstart_environment import Address

MANAGE = Path(settings.BASE_DIR) / "manage.py"


@dataclass(frozen=True)
class Announcement:
    address: Address
    operator: Operator
    logs: Path
    token: str
    """The demonstration's key; empty if none is needed."""
    worker_pid: int | None
    """None without a demonstration."""
    served: frozenset[str]
    """Names of the worker protocols whose servers run."""

    def lines(self) -> Iterator[str]:
        url = self.address.url
        yield ""
        yield f"OJS for Django is running on {database_name()}."
        yield ""
        yield f"  Admin     {url}/admin/"
        yield f"            {self._login()}"
        yield f"  Health    {url}/ojs/v1/health    server, database and reaper"
        yield from self._bindings()
        yield f"  Manifest  {url}/ojs/manifest     what the API under {url}/ojs/v1 can do"
        for protocol in protocols():
            if protocol.http and protocol.http.in_manifest and is_served(protocol):
                path = f"{url}/{protocol.http.path}"
                yield f"  {protocol.title:<9} {path}        {protocol.summary}"
        yield ""
        yield from self._exposure()
        if self.worker_pid:
            timeout = ojs_settings.HEARTBEAT_TIMEOUT.total_seconds()
            yield (
                f"  Try       kill -9 {self.worker_pid}    the demonstration worker: its jobs are "
                f"recovered after {timeout:g} s of silence"
            )
        yield "  Next      README.md has a curl session and a worker in 30 lines"
        yield f"  Logs      {from_here(self.logs)}"
        yield "  End       Ctrl-C"
        yield ""

    def _bindings(self) -> Iterator[str]:
        for protocol in protocols():
            if protocol.server is None or protocol.options is None:
                continue
            options: Any = options_of(protocol.options)
            place = f"{options.HOST}:{options.PORT}"
            if protocol.name in self.served:
                scheme = protocol.server.schemes[bool(options.TLS_CERTIFICATE)]
                url = f"{scheme}://{place}{protocol.server.path}"
                yield f"  {protocol.title:<9} {url}    {protocol.summary}"
            elif options.PORT and protocol.server.is_installed:
                variable = f"OJS_{protocol.group}_PORT"
                yield f"  {protocol.title:<9} not served: {place} is in use ({variable})"

    def _login(self) -> str:
        name = self.operator.username
        if self.operator.password:
            return f"log in as {name} with the password {self.operator.password}"
        if self.operator.is_new:
            return f"log in as {name} with the password of DJANGO_SUPERUSER_PASSWORD"
        return (
            f"log in as {name} with the password you have: it was not changed. To set a new one:\n"
            f"            {self._command('changepassword', name)}"
        )

    def _exposure(self) -> Iterator[str]:
        if self.address.outside_url:
            yield f"  Outside   {self.address.outside_url}/"
            yield f"            It answers to the names {', '.join(settings.ALLOWED_HOSTS)}."
            yield "            There is no HTTPS here: passwords and keys can be read on the way."
            if settings.DEBUG:
                yield "            DJANGO_DEBUG is on: error pages show source and settings."
        if ojs_settings.ALLOW_ANONYMOUS:
            return
        if self.token:
            yield "  API key   while this runs:"
            yield f"            {self.token}"
        else:
            yield "  API key   needed for everything but health and manifest"
        yield "            To make one that lasts:"
        yield f"            {self._command('createapikey', '--name', 'mine')}"

    def _command(self, *words: str) -> str:
        """Return a manage.py command that works as printed, in another terminal while this runs."""
        return shlex.join([from_here(Path(sys.executable)), from_here(MANAGE), *words])


def database_name() -> str:
    """Describe the database without its credentials."""
    database = connection().settings_dict
    if connection().vendor == "sqlite":
        return f"SQLite, {from_here(Path(database['NAME']))}"
    return f"{connection().display_name}, database {database['NAME']}"


def from_here(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)

"""`manage.py quickstart` as a real process, with its own database, folder and port."""

from __future__ import annotations

import contextlib
import http.cookiejar
import os
import re
import secrets
import signal
import sqlite3
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from tests import processes
from tests.database import connection
from tests.processes import PATIENCE, ROOT, Api, eventually, free_port

MARK = "QUICKSTART_OF_A_TEST"


@contextlib.contextmanager
def empty_database(folder: Path) -> Iterator[str | None]:
    """The URL of a database without tables, or None for quickstart's own default."""
    if connection.vendor == "sqlite":
        yield None
        return
    server = os.environ["OJS_TEST_DATABASE_URL"]
    name = f"quickstart_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as postgres:
        postgres.execute(f'CREATE DATABASE "{name}"')  # type: ignore[arg-type]
        try:
            yield urllib.parse.urlsplit(server)._replace(path=f"/{name}").geturl()
        finally:
            postgres.execute(f'DROP DATABASE "{name}" WITH (FORCE)')  # type: ignore[arg-type]


class Quickstart:
    """A quickstart's folder, arguments and result; each start is another run on its data."""

    def __init__(self, folder: Path, database_url: str | None) -> None:
        self.data = folder / "data"
        self.log = folder / "quickstart.log"
        self.database_url = database_url
        self.port = free_port()
        self.agq_port = free_port()
        self.rota_port = free_port()
        self.api = Api(f"http://127.0.0.1:{self.port}")
        self.mark = secrets.token_hex(8)

    def command(self, *arguments: str) -> list[str]:
        given = ["--database-url", self.database_url] if self.database_url else []
        return [
            *(sys.executable, str(ROOT / "manage.py"), "quickstart"),
            *("--port", str(self.port), *given, *arguments),
        ]

    def environment(self, **variables: str) -> dict[str, str]:
        """An environment with no settings but the data folder and a mark."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith((*processes.OURS, "PORT", "GRANIAN_"))
        }
        ours = {
            MARK: self.mark,
            "DJANGO_DATA_DIR": str(self.data),
            "OJS_AGQ_PORT": str(self.agq_port),
            "OJS_ROTA_PORT": str(self.rota_port),
        }
        return inherited | ours | variables

    @contextlib.contextmanager
    def start(self, *arguments: str, **variables: str) -> Iterator[processes.Running]:
        command, environment = self.command(*arguments), self.environment(**variables)
        with processes.running(command, self.log, environment) as run:
            try:
                yield run
            finally:
                run.process.terminate()
                run.wait()
                for pid in self.pids():
                    os.kill(pid, signal.SIGKILL)

    @contextlib.contextmanager
    def up(self, *arguments: str, **variables: str) -> Iterator[processes.Running]:
        with self.start(*arguments, **variables) as run:
            run.wait_for("Ctrl-C")
            self.wait_for_cluster()
            yield run

    def wait_for_cluster(self) -> None:
        """Return once django-q2's cluster can be asked to end: it ignores that while starting."""
        eventually(lambda: "running." in (self.data / "logs" / "cluster.log").read_text())

    def pids(self) -> list[int]:
        """Every process that it started, in whatever session or group."""
        mark = f"{MARK}={self.mark}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            # A process that has ended, or a zombie, has no environment to read.
            with contextlib.suppress(OSError):
                if mark in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def rows(self, query: str) -> list[Any]:
        """Query its database."""
        if self.database_url is None:
            with contextlib.closing(sqlite3.connect(self.data / "ojs.sqlite3")) as database:
                return database.execute(query).fetchall()
        with psycopg.connect(self.database_url) as postgres:
            return postgres.execute(query).fetchall()  # type: ignore[arg-type]

    def lets_in(self, username: str, password: str) -> bool:
        """Log in to the admin, as a browser does."""
        url = f"{self.api.url}/admin/login/?next=/admin/"
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        browser = urllib.request.build_opener(cookies)
        form = browser.open(url, timeout=PATIENCE).read().decode()
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
        assert token is not None
        answers = {"csrfmiddlewaretoken": token[1], "username": username, "password": password}
        with browser.open(url, urllib.parse.urlencode(answers).encode(), timeout=PATIENCE) as page:
            return bool(page.geturl() == f"{self.api.url}/admin/")

    def job_of_type(self, job_type: str) -> dict[str, Any]:
        """The first job of that type, once there is one."""
        path = f"events?types=job.enqueued,job.scheduled&job_types={job_type}"
        eventually(lambda: self.api.get(path)["events"], lambda: f"no {job_type} was enqueued")
        return self.job(self.api.get(path)["events"][0]["data"]["job_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = self.api.get(f"jobs/{job_id}")["job"]
        return job

    def settled(self, job_id: str) -> dict[str, Any]:
        """The job once it has reached a terminal state."""
        ends = {"completed", "discarded", "cancelled"}
        eventually(lambda: self.job(job_id)["state"] in ends, lambda: str(self.job(job_id)))
        return self.job(job_id)


def printed_password(output: str) -> str:
    password = re.search(r"log in as admin with the password (\S+)$", output, re.M)
    assert password is not None, output
    return password[1]

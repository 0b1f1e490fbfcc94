"""The shop with real worker processes, for the tests of `runjobworker`."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobs import engine
from jobs.models import Job
from tests.processes import ROOT, Api, Running, environment, eventually, forked, manage_to
from workers.models import Worker

NOWHERE = "postgresql://nobody@127.0.0.1:1/nowhere"
TIMES = {"HEARTBEAT_INTERVAL": 0.1, "HEARTBEAT_TIMEOUT": 20}


class Shop:
    """A site with workers. `over` is how these reach it: "direct" or "http"."""

    def __init__(self, folder: Path, database_url: str, over: str = "direct") -> None:
        self.folder = folder
        self.over = over
        self.database_url = database_url
        self.url = ""
        self._started = 0

    def environment(self, *, database_url: str | None = None, **options: Any) -> dict[str, str]:
        url = self.database_url if database_url is None else database_url
        return environment(url, **TIMES | {"ALLOW_ANONYMOUS": 1} | options) | {
            "DJANGO_SETTINGS_MODULE": "tests.shop.settings",
            "SHOP_FOLDER": str(self.folder),
        }

    @contextlib.contextmanager
    def worker(self, *arguments: str, **options: Any) -> Iterator[Running]:
        """A worker process, once it has registered."""
        with self.starting(*arguments, **options) as started:
            started.wait_for("jobs at once, of")
            yield started

    @contextlib.contextmanager
    def starting(self, *arguments: str, **options: Any) -> Iterator[Running]:
        over: list[str] = []
        usual = not options
        if self.over == "http":
            # It must not need the database.
            options.setdefault("database_url", NOWHERE)
            over = ["--url", self.url]
        environ = self.environment(**options)
        command = ["runjobworker", *over, *arguments]
        log = self._log("worker")
        # A worker with its own settings starts normally; the usual one is forked, which is faster.
        process = forked(log, environ, *command) if usual else manage_to(log, environ, *command)
        with process as started:
            try:
                yield started
            except BaseException:
                print(started.output)
                raise

    @contextlib.contextmanager
    def server(self, port: int) -> Iterator[Running]:
        """The shop's own server, on a port of our choice, so that it can be restarted there."""
        command = ["runserver", "--noreload", "--skip-checks", f"127.0.0.1:{port}"]
        with forked(self._log("server"), self.environment(), *command) as started:
            self.url = f"http://127.0.0.1:{port}"
            api = Api(self.url)
            eventually(lambda: api.is_there(started.process), lambda: started.output)
            yield started

    def _log(self, of: str) -> Path:
        self._started += 1
        return self.folder / f"{of}{self._started}.log"

    # Marks that handlers leave and wait for

    def go(self, *names: str) -> None:
        for name in names:
            (self.folder / f"{name}.go").touch()

    def has(self, mark: str) -> bool:
        return (self.folder / mark).exists()

    def wait_for(self, *marks: str) -> str:
        """Wait for handlers to leave these marks; return the text of the last one."""
        eventually(
            lambda: all(self.has(mark) for mark in marks),
            lambda: f"no mark {[mark for mark in marks if not self.has(mark)]}",
        )
        return (self.folder / marks[-1]).read_text()


def state_of(job: Any) -> str:
    return str(Job.objects.get(pk=job.id).state)


def becomes(job: Any, state: str) -> None:
    eventually(lambda: state_of(job) == state, lambda: f"{job.type} is {state_of(job)}")


def worker_becomes(state: str) -> Worker:
    eventually(
        lambda: Worker.objects.filter(state=state).exists(),
        lambda: f"no worker is {state}: {list(Worker.objects.values())}",
    )
    return Worker.objects.filter(state=state).get()


def tell(started: Running, number: signal.Signals) -> None:
    started.process.send_signal(number)


def ends_with(started: Running, code: int = 0) -> None:
    try:
        assert started.wait() == code, started.output
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it does not end:\n{started.output}") from None


def reclaim_all() -> None:
    """Reclaim all jobs as if their workers had died."""
    engine.reclaim(set(Job.objects.active().values_list("reserved_by", flat=True)))


def burst(shop: Shop, *arguments: str, **options: Any) -> str:
    """Run the waiting jobs; return the worker's output."""
    with shop.starting("--burst", *arguments, **options) as started:
        ends_with(started)
        return started.output


LATER = {"max_attempts": 3, "initial_interval": "PT1H"}
"""For failing jobs: on a busy machine the usual backoff may pass while a test checks them."""


def the_error_of(job: Any) -> Any:
    return Job.objects.get(pk=job.id).errors.get()


__all__ = [
    "LATER",
    "ROOT",
    "Shop",
    "becomes",
    "burst",
    "ends_with",
    "reclaim_all",
    "state_of",
    "tell",
    "the_error_of",
    "worker_becomes",
]

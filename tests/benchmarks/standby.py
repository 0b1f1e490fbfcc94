"""How much of the operators' reading a standby takes from its primary.

    python -m tests.benchmarks.standby [--smoke]

A primary, an asynchronous standby, a reaper, and a server that reads from the standby or does not,
in turn. What counts is the processor time of that server's own sessions. Both share this machine's
processors, so nothing is said about how long an answer takes.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from tests.campaign.surroundings import Missing, Postgres, postgres
from tests.processes import eventually

from . import servers
from .places import STANDBY
from .plan import OTHERS, given, stop_when_asked, words
from .results import Results
from .soak import reaper

SESSIONS = "measured"
LAG = "OJS-Standby-Lag"
READS: Mapping[str, Sequence[str]] = {
    "dashboard": [
        "admin/ojs_workers/dashboard/",
        "admin/ojs_workers/dashboard/?range=24h",
        "admin/ojs_workers/dashboard/?range=7d",
    ],
    "types and queues": [
        f"admin/ojs_workers/dashboard/breakdown/?by={kind}&range={span}"
        for kind in ("type", "queue")
        for span in ("1h", "24h")
    ],
    "lists of jobs": [
        "admin/ojs_jobs/job/",
        "admin/ojs_jobs/job/?state=completed",
        "admin/ojs_jobs/job/?queue=queue-7",
        "admin/ojs_jobs/job/?q=error:error-7",
        "admin/ojs_jobs/deadjob/",
    ],
    "lists of workers": ["admin/ojs_workers/worker/", "admin/ojs_workers/worker/?q=host-7"],
    "events": ["ojs/v1/events?limit=100"],
    "metrics": ["ojs/v1/metrics"],
}
LEAST = 60
"""Requests of each kind between two readings of the clock, which has steps of 10 ms."""
OPTIONS = ("rounds",)


def arguments(line: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--smoke", action="store_true", help="only see whether everything runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    parser.add_argument("--rounds", type=int, help="how often everything is read (default: 5)")
    return parser.parse_args(line)


def words_of(options: argparse.Namespace) -> list[str]:
    """The arguments of this part among those of `make bench`."""
    return words(options, ["smoke"], *OPTIONS)


@contextlib.contextmanager
def pair(folder: Path) -> Iterator[tuple[Postgres, Postgres]]:
    """A primary and its standby."""
    with postgres(folder / "primary") as primary:
        standby = Postgres(folder / "standby")
        try:
            standby.standby_of(primary)
            standby.start()
            yield primary, standby
        finally:
            standby.stop()


def computed(database: Postgres) -> float:
    """Return the seconds of processor time that the server's sessions have taken so far.

    They stay open, so none is missed.
    """
    query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
    with database.connect() as connection:
        found = [pid for (pid,) in connection.execute(query, [SESSIONS])]
    times = [psutil.Process(pid).cpu_times() for pid in found]
    return sum(time.user + time.system for time in times)


def measure(primary: Postgres, standby: Postgres, rounds: int, results: Results) -> None:
    from jobs.http.authentication import make_key

    from .pages import server, signed_in

    _, key = make_key("standby")
    _, headers = signed_in()
    headers["Authorization"] = f"Bearer {key}"
    alone = {"DATABASE_URL": _named(primary.url)}
    reading = alone | {"READ_DATABASE_URL": _named(standby.url)}
    for _ in range(rounds):
        for is_relieved, how in ((False, alone), (True, reading)):
            with server(**how) as connection:
                for name, addresses in READS.items():
                    reader = Reader(connection, addresses, headers)
                    here, there = reader.cost((primary, standby), is_relieved)
                    with_one = "with a standby" if is_relieved else "without a standby"
                    results.get(STANDBY, f"{name}: primary, {with_one}", "ms").rounds.append(here)
                    if is_relieved:
                        results.get(STANDBY, f"{name}: standby", "ms").rounds.append(there)


class Reader:
    """Reads some addresses, each as often as the others."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        addresses: Sequence[str],
        headers: Mapping[str, str],
    ) -> None:
        self._connection = connection
        self._addresses = addresses
        self._headers = dict(headers)

    def cost(self, databases: Sequence[Postgres], is_relieved: bool) -> list[float]:
        """Return the milliseconds that one request takes of each PostgreSQL.

        Args:
            is_relieved: the standby has to answer; if not, it must not.
        """
        # The first ones connect and fill caches. The record of events is read from the primary
        # until a point is known that the standby has replayed.
        eventually(lambda: self._read() == {is_relieved})
        before = [computed(each) for each in databases]
        times = max(1, LEAST // len(self._addresses))
        for _ in range(times):
            assert self._read() == {is_relieved}, self._addresses
        requests = times * len(self._addresses)
        return [
            1000 * (computed(each) - earlier) / requests
            for each, earlier in zip(databases, before, strict=True)
        ]

    def _read(self) -> set[bool]:
        """Return whether the answers were the standby's."""
        found = set()
        for address in self._addresses:
            self._connection.request("GET", f"/{address}", headers=self._headers)
            reply = self._connection.getresponse()
            body = reply.read()
            assert reply.status == 200, (address, reply.status, body)
            found.add(LAG in reply.headers)
        return found


def _named(url: str) -> str:
    return f"{url}?application_name={SESSIONS}"


def main() -> None:
    stop_when_asked()
    options = arguments()
    # Read as `pages` is imported.
    os.environ["JOBS"] = "6000" if options.smoke else os.environ.get("JOBS", "200000")
    rounds = 1 if options.smoke else given(options, "rounds").get("rounds", 5)
    results = Results()
    results.get(*OTHERS, "%").rounds.append(psutil.cpu_percent(interval=1))
    with tempfile.TemporaryDirectory(prefix="ojs-standby-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            with pair(folder) as (primary, standby):
                os.environ.update(servers.environment(primary.url))
                import django

                django.setup()
                from django.core.management import call_command
                from django.db import connection

                from . import pages

                call_command("migrate", verbosity=0)
                pages.fill()
                with reaper(dict(os.environ)):
                    measure(primary, standby, rounds, results)
                connection.close()
        except Missing as missing:
            sys.exit(f"The part 'standby' cannot be measured: {missing}.")
    if options.json:
        options.json.write_text(json.dumps({"postgres": results.documents()}, indent=2))
    else:
        print(results.table({}))


if __name__ == "__main__":
    main()

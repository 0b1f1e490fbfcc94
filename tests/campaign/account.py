"""The account: the outcome of every job, by the participants' files and by the database."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

EXAMPLES = 5
ENDED = ("completed", "cancelled", "discarded")


class Line(NamedTuple):
    time: float
    what: str
    job: str
    attempt: int
    by: str


class Ledgers:
    """All ledgers of a folder, read as they grow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, int] = {}
        self.lines: dict[str, list[Line]] = defaultdict(list)
        """By their writers: `enqueued-http`, `worker-agq-1`."""
        self.counts: Counter[str] = Counter()

    def read(self) -> None:
        for file in sorted(self.folder.glob("*.txt")):
            with file.open("rb") as opened:
                opened.seek(self._read.get(file, 0))
                whole, newline, _ = opened.read().rpartition(b"\n")
            self._read[file] = self._read.get(file, 0) + len(whole) + len(newline)
            for text in whole.decode().splitlines():
                time, what, job, attempt, by = text.split()
                self.lines[file.stem].append(Line(float(time), what, job, int(attempt), by))
                self.counts[what] += 1

    def all(self, *what: str) -> Iterable[tuple[str, Line]]:
        for who, lines in self.lines.items():
            for line in lines:
                if line.what in what:
                    yield who, line

    def first_after(self, moment: float) -> dict[str, float]:
        """Seconds from `moment` until each first finished something; missing if it did not."""
        found: dict[str, float] = {}
        for who, lines in self.lines.items():
            for line in reversed(lines):
                if line.time < moment:
                    break
                if line.what in SUCCESSES:
                    found[who] = line.time - moment
        return found

    def longest_standstill(self) -> float:
        """The longest pause between the ends of two consecutive jobs, in seconds."""
        times = sorted(line.time for _, line in self.all("finished"))
        return max((after - before for before, after in pairwise(times)), default=0.0)


SUCCESSES = ("enqueued", "finished", "acked", "heard")


@dataclass
class Account:
    """The outcome of the jobs of one part."""

    jobs: int = 0
    """In the database at the end."""
    confirmed: int = 0
    """Whose enqueue was confirmed to a producer."""
    lost: list[str] = field(default_factory=list)
    """Confirmed, and not completed at the end: gone, or stuck."""
    twice: list[str] = field(default_factory=list)
    """Completed more than once, by the server's own record or by the responses to workers."""
    forgotten: list[str] = field(default_factory=list)
    """A worker got a confirmation of a finish that the database does not have."""
    unaccounted: list[str] = field(default_factory=list)
    """Attempts that the record does not explain."""
    run_again: int = 0
    """Executions beyond the first that ended: at-least-once."""
    attempts: int = 0
    unconfirmed: int = 0
    """In the database, although the producer got no response."""
    refused: int = 0
    """Finishes that came too late and were refused."""

    @property
    def broken(self) -> list[str]:
        """The promises that were broken."""
        found = []
        for name in ("lost", "twice", "forgotten", "unaccounted"):
            if some := getattr(self, name):
                found.append(f"{len(some)} {name}: {', '.join(some[:EXAMPLES])}")
        return found


def account(ledgers: Ledgers, connection: psycopg.Connection[Any]) -> Account:
    """Compare everything that was written with the database's current state."""
    ledgers.read()
    jobs = {
        str(job): (state, attempt)
        for job, state, attempt in connection.execute("SELECT id, state, attempt FROM ojs_jobs_job")
    }
    began: dict[str, set[int]] = defaultdict(set)
    completed: Counter[str] = Counter()
    for subject, kind, attempt in connection.execute(
        "SELECT subject, type, attempt FROM ojs_jobs_event"
        " WHERE type IN ('job.started', 'job.completed')"
    ):
        if kind == "job.completed":
            completed[subject] += 1
        else:
            began[subject].add(attempt)
    failed: dict[str, list[int]] = defaultdict(list)
    for job, attempt in connection.execute(
        "SELECT job_id, attempt FROM ojs_jobs_joberror ORDER BY job_id, attempt"
    ):
        failed[str(job)].append(attempt)
    counted = connection.execute("SELECT count(*) FROM ojs_jobs_refusedfinish").fetchone()

    confirmed = {line.job for _, line in ledgers.all("enqueued")}
    acked: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for who, line in ledgers.all("acked"):
        acked[line.job].add((who, line.attempt))
    started: dict[tuple[str, int], set[str]] = defaultdict(set)
    ended: Counter[str] = Counter()
    for who, line in ledgers.all("started", "finished"):
        if line.what == "started":
            started[line.job, line.attempt].add(who)
        else:
            ended[line.job] += 1

    assert counted is not None
    done = Account(jobs=len(jobs), confirmed=len(confirmed), refused=counted[0])
    done.lost = [
        f"{job} ({jobs[job][0] if job in jobs else 'gone'})"
        for job in sorted(confirmed)
        if jobs.get(job, ("", 0))[0] != "completed"
    ]
    done.unconfirmed = len(jobs.keys() - confirmed)
    done.twice = sorted(
        {job for job, times in completed.items() if times > 1}
        | {job for job, finishers in acked.items() if len(finishers) > 1}
    )
    done.forgotten = [
        f"{job} (attempt {attempt} by {who}, now {jobs.get(job)})"
        for job, finishers in acked.items()
        for who, attempt in finishers
        if jobs.get(job) != ("completed", attempt)
    ]
    done.attempts = sum(attempt for _, attempt in jobs.values())
    for job, (state, attempt) in jobs.items():
        if state not in ENDED:
            continue  # lost so far; its current attempt may be anywhere
        ends = attempt - 1 if state == "completed" else attempt
        if began[job] != set(range(1, attempt + 1)) or failed[job] != list(range(1, ends + 1)):
            history = f"{state} {attempt}, began {sorted(began[job])}, failed {failed[job]}"
            done.unaccounted.append(f"{job} ({history})")
    for (job, attempt), workers in started.items():
        if len(workers) > 1:
            done.unaccounted.append(f"{job} (attempt {attempt} given to {sorted(workers)})")
        elif attempt not in began[job]:
            done.unaccounted.append(f"{job} (attempt {attempt} of {workers} is not recorded)")
    done.run_again = sum(times - 1 for times in ended.values() if times > 1)
    return done

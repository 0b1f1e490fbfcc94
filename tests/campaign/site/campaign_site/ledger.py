"""A file in which each process records its own actions, line by line.

A line is one `write` to a file opened for appending, so it is complete once the call has returned,
whatever happens to the process then.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


class Ledger:
    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, what: str, job_id: object, attempt: int = 0, by: str = "") -> None:
        line = f"{time.monotonic():.4f} {what} {job_id} {attempt} {by or '-'}\n"
        os.write(self._file, line.encode())

    def write_all(self, what: str, job_ids: list[str]) -> None:
        now = f"{time.monotonic():.4f}"
        os.write(self._file, "".join(f"{now} {what} {one} 0 -\n" for one in job_ids).encode())


def of_worker(worker_id: str) -> Ledger:
    """The ledger of a worker `place.incarnation`: all incarnations write to that of the place."""
    place = worker_id.partition(".")[0]
    return Ledger(Path(os.environ["CAMPAIGN_FOLDER"]) / f"worker-{place}.txt")

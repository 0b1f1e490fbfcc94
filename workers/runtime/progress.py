"""Sends progress reports to the server (OJS progress §4, §6): the latest of each job, if possible.

A thread of its own, started by the first report, sends them: a handler never waits, and reports
made inside a transaction are seen before it ends. A failed report is dropped; one that is refused
because the worker no longer holds the job cancels the handler (§10.4).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from uuid import UUID

from .client import CONFLICT, Client, Refused, Unavailable
from .context import Progress

logger = logging.getLogger("workers.runtime")

PAUSE = 1.0
"""Seconds between two reports of a job (§6.2)."""


class Reporter:
    """Takes reports from handlers and sends the latest of each job."""

    def __init__(
        self, client: Client, lose: Callable[[list[str]], None] = lambda job_ids: None
    ) -> None:
        self._client = client
        self._lose = lose
        self._latest: dict[UUID, Progress] = {}
        self._lock = threading.Lock()
        self._some = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def report(self, progress: Progress) -> None:
        with self._lock:
            self._latest[progress.job_id] = progress
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._send_on, name="ojs-progress", daemon=True
                )
                self._thread.start()
        self._some.set()

    def forget(self, job_id: UUID) -> None:
        """Drop unsent reports of a job that has ended."""
        if self._latest:
            with self._lock:
                self._latest.pop(job_id, None)

    def stop(self) -> None:
        self._stopped.set()
        self._some.set()

    def _send_on(self) -> None:
        try:
            while not self._stopped.is_set():
                self._some.wait()
                self._some.clear()
                self._send()
                self._stopped.wait(PAUSE)
        finally:
            self._client.release()

    def _send(self) -> None:
        with self._lock:
            reports, self._latest = list(self._latest.values()), {}
        for progress in reports:
            try:
                self._client.report_progress(progress)
            except (Unavailable, Refused) as problem:
                logger.debug("Progress of job %s was not accepted: %s", progress.job_id, problem)
                if isinstance(problem, Refused) and problem.status == CONFLICT:
                    self._lose([str(progress.job_id)])
                self._client.recover()

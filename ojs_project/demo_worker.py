"""A worker for the demonstration jobs: the OJS worker protocol over HTTP, standard library only.

It imports nothing of Django or of the job server, and could as well run on another machine:

    OJS_AUTH_TOKEN=<API key> python -m ojs_project.demo_worker --url https://jobs.example.com

Its main thread owns the state, one thread fetches, one sends heartbeats, and each job has its
own. Marks like §7.2 are sections of the OJS worker protocol.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
import uuid
from datetime import UTC, datetime
from typing import Any

from .demo_client import Client, NoAnswer, Refused
from .demo_handlers import HANDLERS, Abandoned, Execution

RUNNING, QUIET, TERMINATE = "running", "quiet", "terminate"
ORDER = [RUNNING, QUIET, TERMINATE]
WAIT = 1.0
"""Seconds a fetch waits at the server for work; the longest that a shutdown waits for a fetch."""
PAUSE = 0.5
"""Seconds between two fetches that were answered empty at once."""
TRIES = (0.2, 0.5, 1, 2, 4)
"""Seconds between attempts to report an outcome to a server that does not answer."""

logger = logging.getLogger("demo_worker")


class Worker:
    def __init__(
        self, client: Client, *, queues: list[str], concurrency: int, grace: float
    ) -> None:
        self._client = client
        self._queues = queues
        self._concurrency = concurrency
        self._grace = grace
        # Another one for each process: §3.1.
        self.worker_id = f"demo-{uuid.uuid4()}"
        self._started_at = datetime.now(UTC).isoformat()
        self._state = RUNNING
        self._quieted_by_server = False
        self._wishes: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()
        self._active: dict[str, Execution] = {}
        # Guards the state and the active jobs; notified when either changes.
        self._changed = threading.Condition()
        self._interval = 5.0
        self._sequence = 0
        self._beat_now = threading.Event()
        self._gone = threading.Event()

    # The main thread: state

    def wish(self, state: str, *, by_server: bool = False) -> None:
        """Ask for another state; safe in signal handlers and from every thread."""
        self._wishes.put((state, by_server))

    def run(self) -> None:
        """Work until told to terminate, then shut down gracefully (§7.2)."""
        if self._register():
            fetcher = threading.Thread(target=self._fetch_forever, name="fetch")
            heart = threading.Thread(target=self._beat_forever, name="heartbeat")
            fetcher.start()
            heart.start()
            while self._state != TERMINATE:
                self._move(*self._wishes.get())
            fetcher.join()
            self._drain()
            self._gone.set()
            self._beat_now.set()
            heart.join()
            self._deregister()
        logger.info("The worker ends.")

    def _move(self, wanted: str, by_server: bool) -> None:
        """Change the state, where §2.3 allows it: never back from `terminate`."""
        with self._changed:
            forward = ORDER.index(wanted) > ORDER.index(self._state)
            # The server may take its own quiet back; a quiet by SIGTSTP is for SIGCONT to end.
            resumed = (
                wanted == RUNNING
                and self._state == QUIET
                and (self._quieted_by_server or not by_server)
            )
            if not (forward or resumed):
                return
            self._state = wanted
            self._quieted_by_server = wanted == QUIET and by_server
            self._changed.notify_all()
        logger.info("Now %s, as %s asked.", wanted, "the server" if by_server else "a signal")
        self._beat_now.set()

    def _drain(self) -> None:
        """Wait for the active jobs; fail those that outlast the grace period (§7.2, 4 and 5)."""
        with self._changed:
            self._changed.wait_for(lambda: not self._active, self._grace)
            left = list(self._active.values())
        for execution in left:
            if execution.may_settle():
                execution.abandoned.set()
                error = {"type": "shutdown", "message": "The worker is shutting down."}
                self._settle(execution, "nack", {"error": error}, tries=())

    # Registration

    def _description(self) -> dict[str, Any]:
        return {
            "worker_id": self.worker_id,
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "queues": self._queues,
            "concurrency": self._concurrency,
            "labels": ["demo"],
            "started_at": self._started_at,
        }

    def _register(self) -> bool:
        """Register, however long the server takes to come up; False if told to end meanwhile."""
        while self._state != TERMINATE:
            try:
                reply = self._client.post("/ojs/v1/workers/register", self._description())
            except NoAnswer as problem:
                logger.warning("Cannot register yet: %s", problem)
            else:
                self._interval = float(reply.get("heartbeat_interval", self._interval))
                logger.info("Registered as %s for %s.", self.worker_id, ", ".join(self._queues))
                return True
            with contextlib.suppress(queue.Empty):
                self._move(*self._wishes.get(timeout=0.5))
        return False

    def _deregister(self) -> None:
        try:
            self._client.post(
                "/ojs/v1/workers/deregister", {"worker_id": self.worker_id}, timeout=2
            )
        except (NoAnswer, Refused) as problem:
            # The server will notice the silence.
            logger.warning("Could not deregister: %s", problem)

    # The heartbeat thread

    def _beat_forever(self) -> None:
        while not self._gone.is_set():
            self._beat()
            self._beat_now.wait(self._interval)
            self._beat_now.clear()

    def _beat(self) -> None:
        """Say what we are and run, and hear what we shall be (§4)."""
        with self._changed:
            active = dict(self._active)
            state = self._state
        self._sequence += 1
        body = self._description() | {
            "state": state,
            "active_jobs": len(active),
            "active_job_ids": list(active),
            "sequence": self._sequence,
        }
        try:
            reply = self._client.post("/ojs/v1/workers/heartbeat", body, timeout=self._interval)
        except (NoAnswer, Refused) as problem:
            # A missed heartbeat changes nothing (§4.6).
            logger.warning("Heartbeat failed: %s", problem)
            return
        for job_id in reply.get("jobs_lost", ()):
            self._abandon(active.get(job_id))
        if reply.get("state") in ORDER:
            self.wish(reply["state"], by_server=True)

    def _abandon(self, execution: Execution | None) -> None:
        """Stop a job that the server has taken back from us; its outcome is no longer ours."""
        if execution is not None and execution.may_settle():
            logger.warning("Lost job %s.", execution.job_id)
            execution.abandoned.set()
            self._forget(execution)

    # The fetching thread

    def _fetch_forever(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._state == TERMINATE or (self._state == RUNNING and self._free)
                )
                if self._state == TERMINATE:
                    return
                count = self._free
            asked = time.monotonic()
            jobs = self._fetch(count)
            for job in jobs:
                self._take(job)
            if not jobs and time.monotonic() - asked < PAUSE:
                # Not even waited at the server: it is away, or will give us nothing just now.
                with self._changed:
                    self._changed.wait_for(lambda: self._state == TERMINATE, PAUSE)

    @property
    def _free(self) -> int:
        """How many more jobs we may run (§8.2)."""
        return self._concurrency - len(self._active)

    def _fetch(self, count: int) -> list[dict[str, Any]]:
        body = {
            "worker_id": self.worker_id,
            "queues": self._queues,
            "count": count,
            "wait_ms": int(WAIT * 1000),
        }
        try:
            reply = self._client.post("/ojs/v1/workers/fetch", body, timeout=WAIT + 10)
        except (NoAnswer, Refused) as problem:
            logger.warning("Fetch failed: %s", problem)
            return []
        jobs: list[dict[str, Any]] = reply.get("jobs", [])
        return jobs

    def _take(self, job: dict[str, Any]) -> None:
        execution = Execution(job)
        with self._changed:
            late = self._state == TERMINATE
            self._active[execution.job_id] = execution
        if late and execution.may_settle():
            # Claimed while we were told to end: given back, and the attempt with it.
            self._settle(execution, "nack", {"requeue": True})
        else:
            # A daemon, so that a handler that does not notice cannot hold up the exit.
            threading.Thread(target=self._execute, args=[execution], daemon=True).start()

    # A job's thread

    def _execute(self, execution: Execution) -> None:
        logger.info("%s %s, attempt %d", execution.type, execution.job_id, execution.attempt)
        operation, outcome = self._outcome(execution)
        if execution.may_settle():
            self._settle(execution, operation, outcome)

    def _outcome(self, execution: Execution) -> tuple[str, dict[str, Any]]:
        handler = HANDLERS.get(execution.type)
        if handler is None:
            message = f"This worker has no handler for {execution.type!r}."
            return "nack", {
                "error": {"type": "unknown_type", "message": message, "retryable": False}
            }
        try:
            return "ack", {"result": handler(execution, *execution.args)}
        except Abandoned:
            return "nack", {"error": {"type": "abandoned", "message": "Told to stop."}}
        except Exception as problem:
            return "nack", {
                "error": {
                    "type": type(problem).__name__,
                    "message": str(problem),
                    "backtrace": traceback.format_exc().splitlines(),
                }
            }

    def _settle(
        self,
        execution: Execution,
        operation: str,
        outcome: dict[str, Any],
        tries: tuple[float, ...] = TRIES,
    ) -> None:
        """Report an outcome; again and again to a server that does not answer, until it is said.

        Only the attempt we were given is settled: by number, so that a late repetition cannot
        settle another one.
        """
        body = outcome | {
            "job_id": execution.job_id,
            "worker_id": self.worker_id,
            "attempt": execution.attempt,
        }
        for pause in (*tries, None):
            try:
                self._client.post(f"/ojs/v1/workers/{operation}", body)
                break
            except Refused as problem:
                logger.warning("%s of %s refused: %s", operation, execution.job_id, problem)
                break
            except NoAnswer as problem:
                logger.warning("%s of %s unheard: %s", operation, execution.job_id, problem)
                if pause is None or self._gone.wait(pause):
                    break
        self._forget(execution)

    def _forget(self, execution: Execution) -> None:
        with self._changed:
            self._active.pop(execution.job_id, None)
            self._changed.notify_all()


def listen_to_signals(worker: Worker) -> None:
    """§9.1; a second SIGINT ends the process at once (§9.5)."""
    signal.signal(signal.SIGTERM, lambda *_: worker.wish(TERMINATE))
    signal.signal(signal.SIGTSTP, lambda *_: worker.wish(QUIET))
    signal.signal(signal.SIGCONT, lambda *_: worker.wish(RUNNING))

    def interrupt(*_: Any) -> None:
        worker.wish(TERMINATE)
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))

    signal.signal(signal.SIGINT, interrupt)


def main() -> int:
    parser = argparse.ArgumentParser(description="A worker for the demonstration jobs.")
    parser.add_argument("--url", default=os.environ.get("OJS_URL", "http://127.0.0.1:8000"))
    parser.add_argument("--queue", action="append", help="repeatable, in order (default: demo)")
    parser.add_argument("--concurrency", type=int, default=5, help="jobs at once (default: 5)")
    parser.add_argument("--grace", type=float, default=25, help="seconds (default: 25)")
    options = parser.parse_args()
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s"
    )
    worker = Worker(
        # From the environment, where other users of the machine do not see it.
        Client(options.url, os.environ.get("OJS_AUTH_TOKEN", "")),
        queues=options.queue or ["demo"],
        concurrency=options.concurrency,
        grace=options.grace,
    )
    listen_to_signals(worker)
    try:
        worker.run()
    except Refused as problem:
        logger.error("The server refuses this worker: %s", problem)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Worker process: register, fetch, run, report, drain, leave (OJS worker protocol §2, §7).

One thread, that of `run()`, fetches and reports; handlers run in the pool, heartbeats in a thread
of their own. The threads share `ActiveJobs`, `ProcessState` and the event that wakes the loop.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Collection
from typing import Any

from jobs.record import tracing

from . import handlers, memory
from .active import ActiveJob, ActiveJobs
from .backoff import Backoff
from .client import Client, Refused, Request, Unavailable
from .context import JobContext
from .dispatch import Dispatcher
from .health_signal import STALE, HealthSignal
from .heartbeat import HeartbeatThread
from .options import Options
from .outcomes import invalid_result, shutdown
from .progress import Reporter
from .report_batcher import ReportBatcher
from .state import ProcessState
from .wake_event import WakeEvent

logger = logging.getLogger("workers.runtime")

NAP = 1.0
"""Longest sleep of the loop, so that it notices changes that ring no event."""
NEWS = 5.0
"""Seconds between two log lines about jobs that are still active (graceful shutdown §5.2)."""
LAST_WORDS = 4.0
"""Seconds for the last reports and the deregistration, after the grace period."""
PARTING = 1.0
"""Seconds for handlers to stop after they were cancelled."""
RECYCLED = 75
"""Exit code of a process that reached its memory limit: start another one."""
UNREGISTERED = 69
"""Exit code of a burst that could not register: do not start another one."""
BURST_TRIES = 5
"""How often a burst tries to register. A service tries for ever."""


class WorkerProcess:
    """A worker; `run()` returns its exit code when it has ended.

    To embed one, call `run()` in a thread, and `state.terminate("…")` to end it.
    """

    def __init__(
        self, client: Client, options: Options, health_signal: HealthSignal | None = None
    ) -> None:
        self.client = client
        self.options = options
        self.health_signal = health_signal or HealthSignal()
        self.wake_event = WakeEvent()
        self.state = ProcessState(self._state_changed)
        self.active = ActiveJobs(options.concurrency)
        self.heart = HeartbeatThread(client, self.state, self.active, options, self._look_around)
        self.reporter = Reporter(client, self.heart.lose)
        self.dispatcher = Dispatcher(
            self.active,
            self._ended,
            self.heart.extend,
            client.save_checkpoint,
            self.reporter.report,
            is_local=client.is_local,
        )
        self._gathering = ReportBatcher(self.active, self.wake_event)
        self._reports: deque[ActiveJob] = deque()
        self._backoff = Backoff()
        self._changed = threading.Event()
        self._exit_code = 0
        self._parent = os.getppid()
        self._turned_at = time.monotonic()

    def run(self) -> int:
        """
        Raises:
            Refused: the server rejects this worker.
            Unavailable: it cannot be reached, and this is a burst.
        """
        handlers.autodiscover()
        try:
            if self._register():
                self._work()
                self._drain()
                self._leave()
        finally:
            self.dispatcher.stop()
            self.reporter.stop()
            self.heart.stop(0)
            self.client.release()
        return self._exit_code

    def _register(self) -> bool:
        """Register, retrying as long as it takes; False if terminated meanwhile.

        Raises:
            Refused: the server rejects this worker.
            Unavailable: it cannot be reached, and this is a burst.
        """
        while not self.state.is_terminating:
            try:
                terms = self.client.register(self.options.description())
            except Unavailable as problem:
                if self.options.burst and self._backoff.failures + 1 >= BURST_TRIES:
                    raise
                self.health_signal.beat()
                self._wait_out(problem)
                continue
            self._backoff.reset()
            self._turned_at = time.monotonic()
            self.heart.start(terms)
            logger.info(
                "Worker %s runs up to %d jobs at once, of %s.",
                self.client.worker_id,
                self.options.concurrency,
                ", ".join(self.options.queues),
            )
            self.health_signal.ready()
            return True
        return False

    # Fetching and reporting

    def _work(self) -> None:
        """Fetch jobs and report those that have ended, until asked to terminate."""
        while not self.state.is_terminating:
            self.wake_event.clear()
            try:
                if self._turn():
                    self.state.terminate("an empty queue")
            except (Unavailable, Refused) as problem:
                self._wait_out(problem)
            self._time_out()

    def _turn(self) -> bool:
        """Run one round of the loop; True if a burst has ended."""
        self._gathering.gather(self._reports)
        reports = self._take_reports()
        request = self._request(reports)
        if reports:
            self._start(self._send(reports, request))
        elif request is None and not self.client.is_waiting:
            # Full, or quiet: there is nothing to do until something changes.
            self.wake_event.wait(self._patience())
        elif request is not None and self.options.burst:
            jobs = self.client.exchange((), request).jobs
            self._start(jobs)
            if not jobs and not len(self.active):
                return True
            if not jobs:
                self.wake_event.wait(self._patience())
        else:
            self._start(self.client.wait(request, self.wake_event, self._patience()))
        self._backoff.reset()
        return False

    def _request(self, reports: list[ActiveJob]) -> Request | None:
        """What to fetch: at most one job per free place, and none unless running (§6.6, §8.2)."""
        # Reports free places: they are settled before anything is fetched.
        free = self.active.free + sum(not job.is_running for job in reports)
        if not self.state.is_running or free < 1 or self.client.is_waiting:
            return None
        types = self.dispatcher.wanted_types(known_only=self.options.known_types)
        if types == []:
            return None
        return Request(self.options.queues, free, types)

    def _patience(self) -> float:
        deadline = self.active.next_deadline()
        return NAP if deadline is None else max(0.0, min(NAP, deadline - time.monotonic()))

    def _start(self, jobs: Collection[JobContext]) -> None:
        if tracing.recorder is not None and jobs:
            waited = int((time.monotonic() - self._turned_at) * 1e9)
            tracing.recorder.brought(jobs, tracing.clock() - waited)
        if not self.state.is_terminating:
            self.dispatcher.start(jobs)
            return
        for context in jobs:
            self.dispatcher.release(context)

    def _ended(self, job: ActiveJob, report: Any) -> None:
        """Take a job's report; called in the handler's thread when it has returned."""
        self.reporter.forget(job.id)
        if job.decide(report) and report is not None:
            self._reports.append(job)
        self._gathering.ended(self.active.ended(job))

    def _time_out(self) -> None:
        """Handle jobs whose time is up: the last step of each turn of the loop."""
        self._turned_at = time.monotonic()
        for job in self.active.overdue():
            if self.dispatcher.time_out(job):
                self._reports.append(job)

    # Reports

    def _take_reports(self) -> list[ActiveJob]:
        taken = []
        while self._reports:
            taken.append(self._reports.popleft())
        return taken

    def _send(self, reports: list[ActiveJob], request: Request | None) -> list[JobContext]:
        """Send reports to the server, as often as it takes: finished work is not thrown away.

        Raises:
            Unavailable: they could not be sent, and are kept.
        """
        try:
            pairs = [(job.context, job.report) for job in reports if job.report is not None]
            with tracing.reporting(pairs) as answered:
                brought = self.client.exchange([report for _, report in pairs], request)
                answered(
                    {job_id: reason for job_id, reason, _ in brought.refused} | brought.too_large
                )
        except Unavailable:
            self._reports.extendleft(reversed(reports))
            for job in reports:
                job.tries += 1
            raise
        except Refused as problem:
            self._send_singly(reports, problem)
            return []
        refused = {job_id: (reason, state) for job_id, reason, state in brought.refused}
        for job in reports:
            if job.id in refused:
                self._note_refusal(job, *refused[job.id])
            elif job.id in brought.too_large:
                self._fail_for_its_result(job, brought.too_large[job.id])
        self.active.settled([job for job in reports if job.id not in brought.too_large])
        return brought.jobs

    def _send_singly(self, reports: list[ActiveJob], problem: Refused) -> None:
        """Send reports one by one, to find the bad one and continue without it."""
        if len(reports) > 1:
            for job in reports:
                self._send([job], None)
        else:
            for job in reports:
                logger.error("The server does not accept the report of job %s: %s", job.id, problem)
            self.active.settled(reports)

    def _fail_for_its_result(self, job: ActiveJob, reason: str) -> None:
        """Fail a job that is still active: it would run again, although its work is done."""
        job.context.log(reason, level=logging.WARNING)
        job.report = invalid_result(job.context, reason)
        self._reports.append(job)

    def _note_refusal(self, job: ActiveJob, reason: str, state: str) -> None:
        """Log a refused report; the worker goes on (§10.4)."""
        if job.tries and state not in ("active", "available"):
            logger.info("Job %s is %s: an earlier report had arrived.", job.id, state)
            return
        job.context.cancel("lost")
        logger.warning("The report of job %s was refused: %s", job.id, reason)

    def _wait_out(self, problem: Exception, until: float | None = None) -> None:
        """Pause before the next try, unless the state changes; not longer than `until`."""
        delay = self._backoff.next()
        if until is not None:
            delay = max(0.0, min(delay, until - time.monotonic()))
        logger.warning("The server is unavailable, trying again in %.1f s: %s", delay, problem)
        self.client.recover()
        self._changed.wait(delay)
        self._changed.clear()

    # Ending

    def _drain(self) -> None:
        """Wait for active jobs up to the grace period, then fail what remains (§7.2)."""
        deadline = time.monotonic() + self.options.grace_period
        self.health_signal.ending()
        for context in self.client.stop_waiting():
            self.dispatcher.release(context)
        news = time.monotonic() + NEWS
        while self.active.unsettled() and not self.state.is_forced:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            if time.monotonic() >= news:
                logger.info("%d job(s) still active.", len(self.active.unsettled()))
                news += NEWS
            self.wake_event.clear()
            if not self._flush(deadline):
                self.wake_event.wait(min(left, self._patience()))
            self._time_out()
        self._give_up()

    def _flush(self, until: float) -> bool:
        """Send the reports of jobs that have ended; return whether there were any.

        Args:
            until: when the last pause before another try ends.
        """
        reports = self._take_reports()
        if reports:
            try:
                self._send(reports, None)
            except Unavailable as problem:
                self._wait_out(problem, until)
        return bool(reports)

    def _give_up(self) -> None:
        """FAIL jobs that are still active with type `shutdown` (§7.2.5); notify their handlers."""
        for job in self.active.unsettled():
            report = shutdown(job.context)
            if job.decide(report):
                logger.warning("Job %s does not end in time; it is failed.", job.id)
                self._reports.append(job)
                self.dispatcher.cut_short(job)
        until = time.monotonic() + LAST_WORDS
        while self._reports and time.monotonic() < until:
            self._flush(until)
        # Give them time to clean up.
        until = time.monotonic() + PARTING
        while self.active.running and time.monotonic() < until:
            self.wake_event.wait(until - time.monotonic())
        if self._reports:
            logger.error("%d report(s) could not be delivered.", len(self._reports))

    def _leave(self) -> None:
        """Deregister (§3.4); a heartbeat after that would announce the worker again."""
        self.heart.stop(LAST_WORDS)
        try:
            self.client.deregister()
        except (Unavailable, Refused) as problem:
            logger.warning("Could not deregister: %s", problem)
        logger.info("Worker %s has ended.", self.client.worker_id)

    # Notifications

    def _state_changed(self) -> None:
        self._changed.set()
        self.heart.hurry()
        self.wake_event.ring()

    def _look_around(self) -> None:
        """After each heartbeat, give a sign of life and check the supervisor and the memory."""
        self.health_signal.takes(self.state.is_running)
        if time.monotonic() - self._turned_at < STALE:
            self.health_signal.beat()
        if self.options.supervised and os.getppid() != self._parent:
            self.state.terminate("the end of the supervisor")
        limit = self.options.max_memory
        if limit and not self.state.is_terminating:
            taken = memory.resident_megabytes()
            if taken > limit:
                self._exit_code = RECYCLED
                self.state.terminate(f"its memory limit ({taken:.0f} of {limit} MB)")

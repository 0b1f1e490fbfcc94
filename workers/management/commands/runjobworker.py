"""Run jobs: a worker of this site's own queues, or of any OJS server (`--url`)."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from jobs.conf import ojs_settings
from jobs.management import base
from jobs.management.words import Words
from jobs.record import tracing
from jobs.spec.validation import QUEUE_LENGTH, QUEUE_PATTERN
from jobs.spec.worker_ids import SEPARATOR, is_reserved
from jobs.store import keepalive, writable
from workers.chores import in_thread
from workers.management import alive, reloading, schedules
from workers.runtime import handlers, signals
from workers.runtime.client import Client, LocalClient, Refused, Unavailable
from workers.runtime.health_signal import HealthSignal
from workers.runtime.http import HttpClient
from workers.runtime.options import Options, new_worker_id
from workers.runtime.process import UNREGISTERED, WorkerProcess
from workers.runtime.supervisor import Supervisor
from workers.runtime.tasks import is_of_a_task_backend

LINE = "{asctime} {levelname:<7} {name}: {message}"
LEVELS = {0: logging.WARNING, 1: logging.INFO}
"""Log level for each `--verbosity`."""
LONGEST_NAME = 255
RELEASE = re.compile(r"[\x20-\x7e]{0,255}")


def speak(verbosity: int) -> None:
    """Log to stderr, unless the site has configured a worker's logging."""
    for name in ("jobs", "workers"):
        logger = logging.getLogger(name)
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter(LINE, style="{"))
            logger.addHandler(handler)
            logger.setLevel(LEVELS.get(verbosity, logging.DEBUG))


def _refuse_nonsense(given: dict[str, Any], concurrency: int, grace: float) -> None:
    """
    Raises:
        CommandError: the options, alone or together, cannot run a worker.
    """
    # Written so that NaN is refused as well.
    for option, value, is_right in (
        ("grace-period", grace, grace >= 0),
        ("poll-interval", given["poll_interval"], given["poll_interval"] > 0),
        ("max-memory", given["max_memory"], given["max_memory"] >= 0),
        ("concurrency", concurrency, concurrency >= 1),
        ("processes", given["processes"], given["processes"] >= 1),
    ):
        if not is_right:
            raise CommandError(f"--{option} must be positive, not {value}.")
    for queue in given["queues"]:
        if not QUEUE_PATTERN.fullmatch(queue) or len(queue) > QUEUE_LENGTH:
            raise CommandError(f"{queue!r} is not a queue name ({QUEUE_PATTERN.pattern}).")
    if not given["queues"]:
        raise CommandError("--queues must name at least one queue (§6.2).")
    if given["processes"] > 1 and given["worker_id"]:
        raise CommandError("--worker-id is for a single process (§3.1).")
    if given["processes"] > 1 and not hasattr(os, "fork"):
        raise CommandError("--processes needs a system that can fork; start several commands.")
    if any(len(name) > LONGEST_NAME for name in [*given["labels"], given["worker_id"] or ""]):
        raise CommandError(f"Labels and --worker-id have at most {LONGEST_NAME} characters.")
    if not RELEASE.fullmatch(given["release"]):
        raise CommandError(
            "--release has at most 255 visible ASCII characters and spaces, because it is sent as "
            f"the User-Agent: {given['release']!r}."
        )
    if is_reserved(given["worker_id"] or ""):
        raise CommandError(f"--worker-id must not contain '{SEPARATOR}'.")
    if given["url"]:
        try:
            HttpClient("", given["url"])
        except ValueError as problem:
            raise CommandError(f"--url: {problem}") from problem
    if given["reaper"] and given["url"]:
        raise CommandError("--reaper is for this site's own jobs, not for --url.")
    if given["reload"] and given["processes"] > 1:
        raise CommandError("--reload is for one process.")
    alive.check(given)


class Command(base.Command):
    help = __doc__ or ""

    def add_arguments(self, parser: Any) -> None:
        add = parser.add_argument
        add("--queues", action=Words, default=["default"], help="in order of priority: a,b,c")
        add("--concurrency", type=int, help="jobs at once in each process (default: CONCURRENCY)")
        add("--labels", action=Words, default=[], help="to select these workers by: blue,gpu")
        add("--grace-period", type=float, help="seconds for active jobs when asked to end")
        add("--processes", type=int, default=1, help="worker processes; a crashed one is restarted")
        add("--burst", action="store_true", help="run the waiting jobs, then end")
        add("--max-memory", type=int, default=0, metavar="MB", help="then drain and restart")
        alive.add_argument(parser)
        add("--known-types", action="store_true", help="leave types without a handler to others")
        add(
            "--release",
            default=os.environ.get("OJS_RELEASE", ""),
            help="version of your code; a new one is marked in the charts [OJS_RELEASE]",
        )
        add("--reaper", action="store_true", help="run the reaper's sweeps in this process too")
        add("--reload", action="store_true", help="restart when code changes; for development")
        add("--worker-id", help="only with one process (default: a new one each time)")
        add("--url", default=os.environ.get("OJS_URL", ""), help="an OJS server [OJS_URL]")
        add(
            "--api-key",
            default=os.environ.get("OJS_AUTH_TOKEN", ""),
            help="for --url; better in the environment, where `ps` does not show it "
            "[OJS_AUTH_TOKEN]",
        )
        add(
            "--poll-interval",
            type=float,
            default=1.0,
            help="seconds, if --url cannot wait",
        )

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Run the system checks, of which that of the Tasks framework may raise.

        It raises if any alias of `TASKS` names an unusable backend. Our jobs can run regardless.
        """
        try:
            super().check(*args, **kwargs)
        except ImproperlyConfigured as problem:
            if not is_of_a_task_backend(problem):
                raise
            self.stderr.write(f"TASKS: {problem}")
            super().check(*args, **kwargs | {"tags": ["ojs"]})

    def handle(self, *args: Any, **given: Any) -> None:
        speak(given["verbosity"])
        options = self._options(given)
        if given["reload"]:
            reloading.run(lambda started: self._start(options, given, started))
        else:
            self._start(options, given)

    def _start(
        self,
        options: Options,
        given: dict[str, Any],
        started: Callable[[WorkerProcess], object] = lambda process: None,
    ) -> None:
        handlers.autodiscover()
        if not handlers.known():
            self.stderr.write(
                "No handler was found in the modules handlers.py and tasks.py of the installed "
                "apps: jobs of these queues will wait, or fail."
            )
        # Imported objects stay: the collector need not scan them repeatedly, and forked children
        # continue to share them.
        gc.collect()
        gc.freeze()
        self._once = in_thread.Once()
        outside = alive.outside(given)
        keepalive.apply()
        if not given["url"]:
            writable.warn_of_isolation()
            schedules.register()
        if given["processes"] > 1:
            run = functools.partial(self._run, options, given)
            code = Supervisor(given["processes"], run, outside).run()
        else:
            code = self._run(options, given, outside, started)
        if code:
            sys.exit(code)

    def _options(self, given: dict[str, Any]) -> Options:
        concurrency = given["concurrency"]
        if concurrency is None:
            concurrency = ojs_settings.CONCURRENCY
        grace = given["grace_period"]
        if grace is None:
            grace = ojs_settings.GRACE_PERIOD.total_seconds()
        _refuse_nonsense(given, concurrency, grace)
        return Options(
            queues=given["queues"],
            concurrency=concurrency,
            labels=given["labels"],
            grace_period=grace,
            burst=given["burst"],
            known_types=given["known_types"],
            max_memory=given["max_memory"],
            poll_interval=given["poll_interval"],
            release=given["release"],
            supervised=given["processes"] > 1,
        )

    def _run(
        self,
        options: Options,
        given: dict[str, Any],
        health_signal: HealthSignal,
        started: Callable[[WorkerProcess], object] = lambda process: None,
    ) -> int:
        worker_id = given["worker_id"] or new_worker_id()
        client: Client = LocalClient(worker_id)
        if given["url"]:
            client = HttpClient(worker_id, given["url"], given["api_key"], options.poll_interval)
        process = WorkerProcess(client, options, health_signal)
        started(process)
        with signals.handled(process.state), self._sweeping(given):
            try:
                code = process.run()
            except (Refused, Unavailable) as problem:
                what = "refuses" if isinstance(problem, Refused) else "is unavailable"
                logging.getLogger("workers.runtime").error("The server %s: %s", what, problem)
                code = UNREGISTERED if options.burst else 1
        if len(process.active) and not given["reload"]:
            # A handler ignored its shutdown, and would keep the interpreter running.
            tracing.flush()
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    def _sweeping(self, given: dict[str, Any]) -> AbstractContextManager[object]:
        """Run the reaper beside the worker, or check whether another process does."""
        if given["reaper"]:
            return in_thread.sweeping()
        if given["url"]:
            return contextlib.nullcontext()
        return in_thread.missing_reaper_is_logged(self._once)

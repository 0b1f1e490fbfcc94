"""Starts processes, restarts them when they die, and leaves none behind.

Every service is the leader of a session of its own. A Ctrl-C in the terminal therefore reaches
only the supervisor, which stops the services in order; and whatever a dead service left running
is in its process group, which can be ended as a whole.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .stopping import Stopping

GUARD = Path(__file__).with_name("guard.py")
TOO_SOON = 5.0
"""Seconds a service has to live, once everything was well, for its start to count as successful."""
MOST_FAILURES = 3
"""Failed starts in a row after which no more are tried."""
TICK = 0.05
LAST_WORDS = 15
"""Lines of a service's log that are shown when it will not start."""


class ServiceFailed(Exception):
    """A service dies as soon as it is started."""


@dataclass
class Service:
    """A command that is to run as long as we do."""

    name: str
    command: list[str]
    log: Path
    environment: dict[str, str]
    grace: float = 30.0
    """Seconds between being asked to end and being killed; long, since a second Ctrl-C kills at
    once, and on a busy machine django-q2's cluster needs several seconds to end."""
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = 0

    def start(self) -> int:
        """Return the id of the process."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        self.started = time.monotonic()
        return self.process.pid

    def is_running(self) -> bool:
        """Whether it runs. The first call after its end also ends what it left running."""
        if self.process is None or self.process.returncode is not None:
            return False
        # Checked without reaping: until then no other process group can have this id.
        if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return True
        self.kill()
        return False

    def ask_to_end(self) -> None:
        if self.process is not None:
            self.process.terminate()

    def kill(self) -> None:
        """End the process and whatever it has started."""
        if self.process is not None and self.process.returncode is None:
            # macOS forbids signals to a group in which only a dead leader is left.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LAST_WORDS:])


def how_it_ended(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    return f"was ended by {signal.Signals(-returncode).name}"


class Guard:
    """A process that ends the services if we cannot."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            # -I and -S: it needs nothing, and starts in a few milliseconds.
            [sys.executable, "-I", "-S", str(GUARD)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def watch(self, process: int) -> None:
        self._tell(process)

    def forget(self, process: int) -> None:
        self._tell(-process)

    def _tell(self, number: int) -> None:
        assert self._process.stdin is not None
        # Services run just as well if the guard was killed.
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{number}\n".encode())
            self._process.stdin.flush()

    def dismiss(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()


class Supervisor:
    """Keeps services running."""

    def __init__(self, services: Iterable[Service], stopping: Stopping) -> None:
        self.services = list(services)
        self._stopping = stopping
        self._guard = Guard()

    @property
    def last_start(self) -> float:
        """When a service was last started, by `time.monotonic()`."""
        return max(service.started for service in self.services)

    def start(self) -> None:
        for service in self.services:
            self._start(service)

    def _start(self, service: Service) -> int:
        pid = service.start()
        self._guard.watch(pid)
        return pid

    def _is_running(self, service: Service) -> bool:
        if service.process is None:
            return False
        if service.is_running():
            return True
        self._guard.forget(service.process.pid)
        return False

    def revive(self, *, starting: bool) -> Iterator[str]:
        """Restart every service that has ended; yield a sentence about each.

        Args:
            starting: whether not everything has been well yet. Until then, a service that ends has
                failed to start, however long it took: a busy machine makes it slow to fail.

        Raises:
            ServiceFailed: it keeps dying.
        """
        for service in self.services:
            if service.process is None or self._is_running(service):
                continue
            ended = f"The {service.name} {how_it_ended(service.process.returncode)}"
            lived = time.monotonic() - service.started
            failed = starting or lived < TOO_SOON
            service.failures = service.failures + 1 if failed else 0
            if service.failures >= MOST_FAILURES:
                raise ServiceFailed(
                    f"{ended}, {service.failures} times in a row. Its last words, from "
                    f"{service.log}:\n{service.last_words()}"
                )
            yield f"{ended}; started again as process {self._start(service)}."

    def stop(self, say: Callable[[str], None]) -> None:
        """End all services, the first one last: the others need it until they end.

        After a second request to end, nothing is waited for any more.
        """
        first, *others = self.services
        self._stop(others, say)
        self._stop([first], say)
        self._guard.dismiss()

    def _stop(self, services: list[Service], say: Callable[[str], None]) -> None:
        for service in services:
            service.ask_to_end()
        asked = time.monotonic()
        while running := [service for service in services if self._is_running(service)]:
            for service in running:
                if self._stopping.hurry:
                    service.kill()
                elif time.monotonic() - asked > service.grace:
                    say(f"The {service.name} does not end; killing it.")
                    service.kill()
            self._stopping.wait(TICK)

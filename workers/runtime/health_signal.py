"""Signs of life for the process manager: a file that is kept fresh, and systemd's watchdog.

They only show that the threads of this process still run: neither an unavailable server nor a slow
handler is a reason to restart a worker. The content of the file shows whether new jobs are taken,
for a readiness probe (graceful shutdown §8.1).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

logger = logging.getLogger("workers.runtime")

STALE = 60.0
"""Seconds without a turn after which a thread counts as stuck."""
BEAT = 5.0
"""Seconds between two signs of life of a server."""
SLOT = struct.Struct("=d??")
RUNNING = "running"


class HealthSignal:
    """Does nothing; for embedded workers."""

    def beat(self) -> None:
        """Signal that the process is alive."""

    def ready(self) -> None:
        """Signal that the worker has registered and works."""

    def takes(self, jobs: bool) -> None:
        """Signal whether the worker takes new jobs from now on."""

    def ending(self) -> None:
        """Signal that the worker drains."""


class ExternalHealthSignal(HealthSignal):
    """Notifies Kubernetes (through a probe that checks the age of `file`) and systemd."""

    def __init__(self, file: str = "", notify_socket: str = "") -> None:
        self._file = Path(file) if file else None
        self._text: str | None = None
        # A leading @ stands for the NUL of an abstract socket (sd_notify(3)).
        self._address = notify_socket.replace("@", "\0", 1) if notify_socket else ""

    def beat(self) -> None:
        self._leave(lambda file: file.touch())
        self._notify("WATCHDOG=1")

    def ready(self) -> None:
        self._notify("READY=1")
        self.beat()

    def takes(self, jobs: bool) -> None:
        text = RUNNING if jobs else ""
        if text != self._text:
            self._text = text
            self._leave(lambda file: file.write_text(text))

    def ending(self) -> None:
        self._notify("STOPPING=1")

    def _leave(self, sign: Callable[[Path], Any]) -> None:
        if self._file is not None:
            try:
                sign(self._file)
            except OSError as problem:
                logger.warning("Cannot leave a sign of life: %s", problem)

    def _notify(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.connect(self._address)
                line.send(message.encode())
        except OSError as problem:
            logger.warning("Cannot notify systemd of %s: %s", message, problem)


class HealthSignals:
    """Health signals of a supervisor's children, in shared memory."""

    def __init__(self, count: int) -> None:
        self._slots = mmap.mmap(-1, SLOT.size * count)

    def of(self, number: int) -> ChildHealthSignal:
        return ChildHealthSignal(self._slots, number)


class ChildHealthSignal(HealthSignal):
    """Notifies the supervisor."""

    def __init__(self, slots: mmap.mmap, number: int) -> None:
        self._slots = slots
        self._place = SLOT.size * number

    def begin(self) -> None:
        """Start over: a new process has taken this place."""
        self._write(False, False)

    def beat(self) -> None:
        self._write(self.is_ready, self.is_taking)

    def ready(self) -> None:
        self._write(True, self.is_taking)

    def takes(self, jobs: bool) -> None:
        self._write(self.is_ready, jobs)

    def _write(self, ready: bool, taking: bool) -> None:
        SLOT.pack_into(self._slots, self._place, time.monotonic(), ready, taking)

    @property
    def is_ready(self) -> bool:
        return bool(SLOT.unpack_from(self._slots, self._place)[1])

    @property
    def is_taking(self) -> bool:
        return bool(SLOT.unpack_from(self._slots, self._place)[2])

    @property
    def is_alive(self) -> bool:
        beaten: float = SLOT.unpack_from(self._slots, self._place)[0]
        return time.monotonic() - beaten < STALE


@contextlib.asynccontextmanager
async def beating(
    pulse: HealthSignal, in_thread: Callable[..., Awaitable[Any]]
) -> AsyncIterator[None]:
    """Give signs of life for an asyncio server while its loop turns and its threads become free.

    Args:
        in_thread: runs a function in one of those threads.
    """
    pulse.ready()
    pulse.takes(True)
    task = asyncio.create_task(_beat(pulse, in_thread))
    try:
        yield
    finally:
        task.cancel()
        pulse.takes(False)
        pulse.ending()


async def _beat(pulse: HealthSignal, in_thread: Callable[..., Awaitable[Any]]) -> None:
    while True:
        await asyncio.sleep(BEAT)
        await in_thread(pulse.beat)


def outside(file: str) -> ExternalHealthSignal:
    return ExternalHealthSignal(file, os.environ.get("NOTIFY_SOCKET", ""))

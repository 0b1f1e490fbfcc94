"""The signals that ask quickstart to end."""

from __future__ import annotations

import contextlib
import queue
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopping:
    """How often we were asked to end: once is a request, twice means immediately.

    Not an Event: a second signal right after the first would find its lock held by the handler of
    the first, in the same thread, and wait forever.
    """

    def __init__(self) -> None:
        self._received: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._times = 0

    def listen(self) -> None:
        for number in SIGNALS:
            # Ignored by nohup, or by a shell that starts us in the background: leave it so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, frame: self._received.put(number))

    @property
    def asked(self) -> bool:
        self._collect()
        return self._times > 0

    @property
    def hurry(self) -> bool:
        self._collect()
        return self._times > 1

    def wait(self, seconds: float) -> None:
        """Sleep for that long, or until a signal comes."""
        with contextlib.suppress(queue.Empty):
            self._received.get(timeout=seconds)
            self._times += 1

    def _collect(self) -> None:
        while not self._received.empty():
            self.wait(0)

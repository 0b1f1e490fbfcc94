"""Signals that end a server, held back until its WebSockets have said goodbye."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Collection


class HeldSignals:
    """Keeps signals from the event loop for a moment.

    granian drops its WebSockets as soon as the loop learns of SIGTERM. asyncio learns of signals by
    bytes that CPython writes to a descriptor (`signal.set_wakeup_fd()`). These go through a pair of
    sockets first, and are passed on when `goodbye()` has ended, or at a second signal. Servers that
    do not use the loop's signal handlers, uvicorn for one, are not affected. Nor is uvloop, which
    reads the descriptor itself.

    Must be made in the main thread.
    """

    def __init__(self, numbers: Collection[int], goodbye: Callable[[], Awaitable[object]]) -> None:
        """
        Args:
            numbers: the signals to hold back.
            goodbye: what to wait for; it must end soon.
        """
        self._numbers = bytes(numbers)
        self._goodbye = goodbye
        self._loop = asyncio.get_running_loop()
        self._held: asyncio.Task[None] | None = None
        self._onward = -1
        if not isinstance(self._loop, asyncio.SelectorEventLoop):
            return  # another one may expect that the descriptor stays its own
        before = signal.set_wakeup_fd(-1)
        if before == -1:
            return
        self._onward = before
        self._incoming, self._outgoing = socket.socketpair()
        self._incoming.setblocking(False)
        self._outgoing.setblocking(False)
        signal.set_wakeup_fd(self._outgoing.fileno(), warn_on_full_buffer=False)
        self._loop.add_reader(self._incoming.fileno(), self._receive)

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in self._incoming.recv(4096):
                if number in self._numbers and self._held is None:
                    self._held = self._loop.create_task(self._hold(number))
                else:
                    self._pass_on(number)

    async def _hold(self, number: int) -> None:
        try:
            await self._goodbye()
        finally:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        with contextlib.suppress(OSError):  # the loop has ended
            os.write(self._onward, bytes([number]))

    def close(self) -> None:
        """Let signals go their usual way again."""
        if self._onward == -1:
            return
        self._loop.remove_reader(self._incoming.fileno())
        if signal.set_wakeup_fd(-1) == self._outgoing.fileno():
            signal.set_wakeup_fd(self._onward)
        self._onward = -1
        self._incoming.close()
        self._outgoing.close()

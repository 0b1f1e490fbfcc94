"""Output of quickstart: permanent lines and, on a terminal, a status line below them."""

from __future__ import annotations

import contextlib
import shutil
import threading
from typing import TextIO

CLEAR = "\r\x1b[K"


class Console:
    """Safe to use from several threads; a terminal that is closed causes no failure."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self.is_terminal = output.isatty()
        self._lock = threading.Lock()
        self._status = ""
        self._is_over = False

    def say(self, line: str = "") -> None:
        with self._lock:
            if self._status:
                self._write(CLEAR)
            self._write(f"{line}\n{self._status}")

    def show(self, status: str) -> None:
        """Show a status in place of the last one, or as a new line where nothing can be
        rewritten."""
        width = shutil.get_terminal_size().columns - 1
        with self._lock:
            if self._is_over:
                return
            if not self.is_terminal:
                self._write(f"{status}\n")
                return
            self._status = status if len(status) <= width else status[: width - 1] + "…"
            self._write(CLEAR + self._status)

    def end_status(self) -> None:
        """Keep the last status on the screen, show no more, and continue below it."""
        with self._lock:
            self._is_over = True
            if self._status:
                self._status = ""
                self._write("\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._output.write(text)
            self._output.flush()

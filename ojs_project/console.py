"""What quickstart prints: lines that stay, and below them, on a terminal, one that is rewritten."""

from __future__ import annotations

import contextlib
import shutil
import threading
from typing import TextIO

CLEAR = "\r\x1b[K"


class Console:
    """Safe to use from several threads; a terminal that went away is no reason to fail."""

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
        """Show a status: in place of the last one, or as a line where nothing can be rewritten."""
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
        """Leave the last status standing, show no more, and go on below it."""
        with self._lock:
            self._is_over = True
            if self._status:
                self._status = ""
                self._write("\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._output.write(text)
            self._output.flush()

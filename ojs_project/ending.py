"""Makes the readiness endpoint report that the server has been asked to stop."""

from __future__ import annotations

import os
import signal
import threading

from jobs.store import readiness

ENDS = (signal.SIGTERM, signal.SIGINT)


def watch_for_the_end() -> None:
    """Watch for the signals that stop a server, whatever handles them.

    The handlers are the server's own. Python also writes the number of each handled signal to a
    file descriptor of our choice; if a server uses that itself, it is left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)
        return
    threading.Thread(target=_listen, args=[reader], name="ojs-ending", daemon=True).start()


def _listen(reader: int) -> None:
    while numbers := os.read(reader, 1):
        if numbers[0] in ENDS:
            readiness.end()

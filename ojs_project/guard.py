"""Ends the processes that a supervisor left running when it was killed.

Reads from standard input, one a line, the ids of processes that lead a group of their own, and,
with a minus, of those that are no longer to be guarded. The input ends with the supervisor,
however that happens. The guarded processes are then asked to end, and killed after a while.

Run as a script, so that it starts without importing this project. (On Linux each child could be
signalled directly, but more than once if the supervisor has threads, and django-q2's cluster
does not survive a second SIGTERM right after the first: it hangs.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

GRACE = 10.0
TICK = 0.1


def is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def main() -> None:
    # It ends when it has done its work, and not before.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guarded: set[int] = set()
    for line in sys.stdin:
        process = int(line)
        if process > 0:
            guarded.add(process)
        else:
            guarded.discard(-process)
    for process in guarded:
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while (left := [group for group in guarded if is_there(group)]) and time.monotonic() < deadline:
        time.sleep(TICK)
    for group in left:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()

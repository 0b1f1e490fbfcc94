"""Ends what a supervisor has left running when it was itself ended without a chance to do so.

It reads from its standard input the ids of processes that lead a group of their own, one a line,
and of those that are no longer to be guarded, with a minus. The input ends with the supervisor,
however that happens. What is guarded then is asked to end, and ended after a while.

Run as a script, so that it starts without anything of this project. (Linux could tell each child
by itself, but tells it more than once if the supervisor has threads, and django-q2's cluster
does not survive a second SIGTERM on the heels of the first: it hangs.)
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

"""`runhttp --processes N`: uvicorn's supervisor, which ends in time whatever its processes do.

uvicorn looks at its signals between two health checks, and waits for each process as long as it
takes. A single process that hangs would keep the others from being asked to end, until whoever
manages the server loses patience and kills them all.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import time
from types import FrameType

from uvicorn import Config
from uvicorn.supervisors import Multiprocess

logger = logging.getLogger("workers.server")

ENDS = (signal.SIGTERM, signal.SIGINT)


class _Asked(BaseException):
    """Asked to end. Raised wherever the supervisor is: it may be waiting for a process."""


def serve(config: Config, patience: float) -> bool:
    """Serve until SIGTERM or SIGINT; return whether one of these was the reason to end.

    Args:
        patience: seconds for the processes to end; then they are killed.
    """
    supervisor = Multiprocess(config, sockets=[config.bind_socket()])

    def end(number: int, frame: FrameType | None) -> None:
        for each in ENDS:
            signal.signal(each, _hurry)
        # Should the exception be lost, as it is in a destructor, uvicorn finds it there.
        supervisor.signal_queue.append(number)
        raise _Asked

    try:
        for number in ENDS:
            signal.signal(number, end)
        supervisor.run()
    except _Asked:
        pass
    was_asked = signal.getsignal(signal.SIGTERM) is _hurry
    _end(patience)
    return was_asked


def _hurry(number: int, frame: FrameType | None) -> None:
    """At a second Ctrl-C, do not wait for requests in hand."""
    if number == signal.SIGINT:
        for process in multiprocessing.active_children():
            process.kill()


def _end(patience: float) -> None:
    # One that has just been started may not be in the supervisor's own list.
    processes = multiprocessing.active_children()
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + patience
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        if process.is_alive():
            logger.error("Process %s did not end within %g s: killed.", process.pid, patience)
            process.kill()
            process.join()

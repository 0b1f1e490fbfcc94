"""Tells apart the processes that use a worker id, one after the other (worker protocol §3.1)."""

from __future__ import annotations

import enum

from ..lifecycle import WorkerState
from ..models import Worker
from ..store.contract import SAME_START, Description


class Sender(enum.Enum):
    """The process that sent a heartbeat, compared with the one that is known."""

    SAME = enum.auto()
    EARLIER = enum.auto()
    """Its heartbeat was under way while another process took over."""
    LATER = enum.auto()


def sender(known: Worker | None, description: Description | None) -> Sender:
    """Find out which process sent a heartbeat with this description (§10.3).

    A value that one side lacks proves nothing. Without start times, or if they come from the clocks
    of two machines, the process that is heard last counts as the later one; so it does with the
    host and process id of the known one, since a client may not give the same start each time.
    """
    if known is None:
        return Sender.LATER
    said = description or Description()
    moved = bool(said.hostname and known.hostname) and said.hostname != known.hostname
    is_there = bool(said.hostname) and said.hostname == known.hostname
    if said.started_at is not None and known.started_at is not None:
        after = said.started_at - known.started_at
        may_be_it = is_there and said.pid is not None and said.pid == known.pid
        if after < -SAME_START and not moved and not may_be_it:
            return Sender.EARLIER
        if abs(after) > SAME_START:
            return Sender.LATER
    if moved or (None not in (said.pid, known.pid) and said.pid != known.pid):
        return Sender.LATER
    return Sender.SAME


def same_process(known: Worker, description: Description, *, must_say: bool) -> bool:
    """Whether this is the known process, registering again (§10.4).

    Compares host name, pid and start time; a value that one side lacks proves nothing.

    Args:
        must_say: if true, the process counts as new unless both sides have a start time.
    """
    if known.left_at is not None:
        return False
    # A worker known by heartbeats alone may register late, but not while it terminates.
    is_late = known.registered_at is None and known.state != WorkerState.TERMINATE
    if must_say and not is_late and None in (description.started_at, known.started_at):
        return False
    given = description.given()
    return all(
        given[name] == getattr(known, name)
        for name in ("hostname", "pid", "started_at")
        if name in given and getattr(known, name) not in (None, "")
    )

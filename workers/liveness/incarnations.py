"""Checks whether a registering worker is the known process (OJS worker protocol §3.1, §10.4)."""

from __future__ import annotations

from ..lifecycle import WorkerState
from ..models import Worker
from ..store.contract import Description


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

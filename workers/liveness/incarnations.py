"""Whether a worker that registers is the process we know (OJS worker protocol §3.1, §10.4)."""

from __future__ import annotations

from ..lifecycle import WorkerState
from ..models import Worker
from ..store.contract import Description


def same_process(known: Worker, description: Description, *, must_say: bool) -> bool:
    """Whether this is the process we know, registering once more (§10.4).

    Told by what identifies a process; what one side does not say proves nothing.

    Args:
        must_say: but when it started must be said, if it is to be the same.
    """
    if known.left_at is not None:
        return False
    # One that ends does not begin to register, either: its heartbeats were all there was of it.
    is_late = known.registered_at is None and known.state != WorkerState.TERMINATE
    if must_say and not is_late and None in (description.started_at, known.started_at):
        return False
    said = description.given()
    return all(
        said[name] == getattr(known, name)
        for name in ("hostname", "pid", "started_at")
        if name in said and getattr(known, name) not in (None, "")
    )

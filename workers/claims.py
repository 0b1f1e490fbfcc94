"""Whose a worker id is, where a protocol keeps it unique among active workers (AGQ §2.2)."""

from __future__ import annotations

from dataclasses import dataclass

from jobs import clock
from jobs.errors import Conflict

from .models import Worker


@dataclass(frozen=True, slots=True)
class SessionClaim:
    """Why somebody may register under an id that may be in use."""

    session: str
    """Hash of the key used; empty without one."""
    may_resume: bool
    """Whether it may be the same worker that comes back, if the keys are the same."""


class WorkerExists(Conflict):
    """The worker id belongs to another worker that is active (AGQ §2.2)."""


def claimed(worker_id: str, known: Worker | None, claim: SessionClaim) -> Worker:
    """Return the locked row of `worker_id` with the claim written into it."""
    created = False
    if known is None:
        # Two that come at once: one of them makes the row, and the other finds it made.
        known, created = Worker.objects.get_or_create(
            pk=worker_id,
            defaults={"last_heartbeat_at": clock.now(), "session": claim.session},
        )
    if (
        not created
        and not (claim.may_resume and known.session == claim.session)
        and Worker.objects.heard().filter(pk=worker_id).exists()
    ):
        raise WorkerExists("Worker ID already registered", worker_id=worker_id)
    Worker.objects.filter(pk=worker_id).update(session=claim.session)
    return known

"""Whose a worker id is, where a protocol keeps it unique among active workers (AGQ §2.2)."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.errors import Conflict
from jobs.store import clock

from ..models import Worker


@dataclass(frozen=True, slots=True)
class SessionClaim:
    """Why somebody may register under an id that may be in use."""

    sessions: tuple[str, ...]
    """What the key used is known by; one empty text without a key. The first is kept, and any of
    them proves that it is the same key."""
    may_resume: bool
    """Whether it may be the same worker that comes back, if the keys are the same."""


class ForeignWorker(Conflict):
    """The name has just been taken by a worker of another project, or of none.

    It is looked up again, and then is another one (`workers.access.admission.as_worker`).
    """

    retryable = True

    def __init__(self) -> None:
        super().__init__("The worker cannot be recorded at this moment; send the request again.")


def require_own(worker: Worker, project: str | None) -> None:
    """
    Args:
        project: that of the key which speaks for the worker; a key without one speaks for all.

    Raises:
        ForeignWorker: it is another project's, or none's.
    """
    if project and worker.project != project:
        raise ForeignWorker


class WorkerExists(Conflict):
    """The worker id belongs to another worker that is active (AGQ §2.2)."""


def claimed(
    worker_id: str, known: Worker | None, claim: SessionClaim, project: str | None
) -> Worker:
    """Return the locked row of `worker_id` with the claim written into it."""
    created = False
    if known is None:
        # Two that come at once: one of them makes the row, and the other finds it made.
        known, created = Worker.objects.get_or_create(
            pk=worker_id,
            defaults={
                "last_heartbeat_at": clock.now(),
                "session": claim.sessions[0],
                "project": project or "",
            },
        )
        require_own(known, project)
    if (
        not created
        and not (claim.may_resume and known.session in claim.sessions)
        and Worker.objects.heard().filter(pk=worker_id).exists()
    ):
        raise WorkerExists("Worker ID already registered", worker_id=worker_id)
    Worker.objects.filter(pk=worker_id).update(session=claim.sessions[0])
    return known

"""Ownership of worker ids, where a protocol keeps them unique among active workers (AGQ §2.2)."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.errors import Conflict
from jobs.store import clock

from ..models import Worker


@dataclass(frozen=True, slots=True)
class SessionClaim:
    """The right to register under an id that may be in use."""

    sessions: tuple[str, ...]
    """Hashes that identify the key; one empty text without a key. The first is stored, and any of
    them proves that the key is the same."""
    may_resume: bool
    """Whether the same key may resume the registration of an active worker."""


class ForeignWorker(Conflict):
    """The name has just been taken by a worker of another project, or of none.

    A new lookup then returns another name (`workers.access.admission.as_worker`).
    """

    retryable = True

    def __init__(self) -> None:
        super().__init__("The worker cannot be recorded at this moment; send the request again.")


def require_own(worker: Worker, project: str | None) -> None:
    """
    Args:
        project: the project of the key; a key without one may act for all workers.

    Raises:
        ForeignWorker: the worker belongs to another project, or to none.
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
        # Of two concurrent registrations, one creates the row and the other finds it.
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

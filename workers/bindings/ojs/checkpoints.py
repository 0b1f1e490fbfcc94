"""Checkpoints over HTTP (OJS durable execution §7); saved by POST, or by PUT, which clients use."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework.response import Response

from jobs import engine
from jobs.api.jobs import parse_id
from jobs.errors import NotFound
from jobs.http.request import Request
from jobs.spec.timestamps import format_timestamp
from workers.access import admission

from . import requests
from .views import WorkerViewSet


class CheckpointViewSet(WorkerViewSet):
    """`/ojs/v1/jobs/{id}/checkpoint`"""

    resource = "checkpoint"

    def save(self, request: Request, job_id: str) -> Response:
        """Store a state for the job's next attempt (§4.1)."""
        body = self.read()
        state = requests.Checkpoint.state.read(body)
        sender = requests.settling_worker_id(body, self.caller)
        attempt = requests.Checkpoint.attempt.read(body)
        name = self._admit(sender)
        found = parse_id(job_id)
        saved = engine.save_checkpoint(found, state, worker_id=name, attempt=attempt)
        return Response(_reply(found, saved.sequence, saved.at))

    def retrieve(self, request: Request, job_id: str) -> Response:
        """The job's last checkpoint (§4.3)."""
        found = parse_id(job_id)
        kept = engine.find_checkpoint(found, worker_id=self._holder(found))
        if kept is None:
            raise NotFound(
                f"Job '{job_id}' has no checkpoint.",
                resource_type="checkpoint",
                resource_id=job_id,
            )
        return Response(_reply(found, kept.sequence, kept.saved_at, state=kept.state))

    def destroy(self, request: Request, job_id: str) -> Response:
        """Delete it (§4.4); deleting it again is not an error."""
        found = parse_id(job_id)
        engine.clear_checkpoint(found, worker_id=self._holder(found))
        return Response({"deleted": True, "job_id": str(found)})

    def _holder(self, job_id: UUID) -> str | None:
        return admission.holder_of(self.caller, job_id)


def _reply(job_id: UUID, sequence: int, at: Any, **more: Any) -> dict[str, Any]:
    """The document nests the members, the conformance cases read them at the top: both."""
    members = {
        "job_id": str(job_id),
        "sequence": sequence,
        "created_at": format_timestamp(at),
    } | more
    return members | {"checkpoint": members}

"""Checkpoints over HTTP (OJS durable execution §7); saved by POST, or by PUT, which clients use."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework.response import Response

from jobs import engine
from jobs.api.jobs import parse_id
from jobs.errors import NotFound
from jobs.http.request import Request
from jobs.spec.fields import Document
from jobs.spec.timestamps import format_timestamp
from workers.access import admission

from . import requests
from .views import WorkerViewSet

DURABLE = {"state", "step_index", "metadata"}


class CheckpointViewSet(WorkerViewSet):
    """`/ojs/v1/jobs/{id}/checkpoint`"""

    resource = "checkpoint"

    def save(self, request: Request, job_id: str) -> Response:
        """Store a state for the job's next attempt (§4.1)."""
        body = self.read()
        return self._save(
            job_id,
            body,
            requests.Checkpoint.state.read(body),
            requests.Checkpoint.attempt.read(body),
        )

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

    def _save(self, job_id: str, body: Document, state: Any, attempt: int | None) -> Response:
        sender = requests.settling_worker_id(body, self.caller)
        name = self._admit(sender)
        found = parse_id(job_id)
        saved = engine.save_checkpoint(found, state, worker_id=name, attempt=attempt)
        return Response(_reply(found, saved.sequence, saved.at))

    def _holder(self, job_id: UUID) -> str | None:
        return admission.holder_of(self.caller, job_id)


class DurableViewSet(CheckpointViewSet):
    """`/ojs/v1/checkpoints/{id}` and its `/resume`: the same checkpoints for the durable handlers
    of the public Python and JavaScript SDKs.

    They save a number and metadata beside the state. All three are the state of the checkpoint.
    """

    def save(self, request: Request, job_id: str) -> Response:
        """Store a state, with the SDK's own members."""
        body = self.read()
        state = requests.durable_state(body)
        return self._save(job_id, body, state, requests.durable_attempt(body))

    def retrieve(self, request: Request, job_id: str) -> Response:
        """The job's last checkpoint; a job without one begins at its first step."""
        found = parse_id(job_id)
        kept = engine.find_checkpoint(found, worker_id=self._holder(found))
        if kept is None:
            return Response({"has_checkpoint": False})
        state = kept.state
        if type(state) is not dict or state.keys() != DURABLE:
            state = {"state": state}
        checkpoint = _members(found, kept.sequence, kept.saved_at) | state
        return Response({"has_checkpoint": True, "checkpoint": checkpoint})


def _reply(job_id: UUID, sequence: int, at: Any, **more: Any) -> dict[str, Any]:
    """The document nests the members, the conformance cases read them at the top: both."""
    members = _members(job_id, sequence, at) | more
    return members | {"checkpoint": members}


def _members(job_id: UUID, sequence: int, at: Any) -> dict[str, Any]:
    return {"job_id": str(job_id), "sequence": sequence, "created_at": format_timestamp(at)}

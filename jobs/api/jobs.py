"""Jobs over HTTP, producer side: enqueue, look, cancel, activate (OJS HTTP §9)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework.response import Response

from .. import engine
from ..errors import JobNotFound
from ..http.base import OJSViewSet
from ..http.dialects import job_reply
from ..http.renderers import dumps
from ..http.request import Request
from ..models import Job, ProgressReport
from ..spec.bulk_requests import NewPriority
from ..spec.envelope import ERROR_FIELDS, ERRORS_SHOWN, envelope, is_pruned, result_expires_at
from ..spec.identifiers import parse_uuid
from ..spec.lifecycle import TERMINAL, State
from ..spec.timestamps import format_timestamp
from . import verbs


def parse_id(text: str) -> UUID:
    """
    Raises:
        JobNotFound: this cannot be the id of a job.
    """
    job_id = parse_uuid(text)
    if job_id is None:
        raise JobNotFound(text)
    return job_id


def errors_of(job: Job) -> list[dict[str, Any]]:
    """The job's failed attempts, oldest first; the newest of a long history."""
    newest = job.errors.order_by("-id").values(*ERROR_FIELDS)[:ERRORS_SHOWN]
    return list(newest)[::-1]


def result_metadata(job: Job) -> dict[str, Any]:
    """When the result was stored, until when it stays, and its size (§6.2).

    Of a job that was discarded without one, nothing was stored.
    """
    expires_at = result_expires_at(job)
    has_one = job.state == State.COMPLETED or job.result is not None
    if not has_one or job.finished_at is None or expires_at is None:
        return {}
    known: dict[str, Any] = {
        "result_stored_at": format_timestamp(job.finished_at),
        "result_expires_at": format_timestamp(expires_at),
    }
    if job.state == State.COMPLETED:
        known["result_size_bytes"] = len(dumps(job.result))
    return known


def full_envelope(job: Job, project: str = "") -> dict[str, Any]:
    """The whole envelope, with history, progress and what there is to say of the result.

    Args:
        project: that of the key which reads it.
    """
    # Also of a job that has not run yet: one retried from the dead letter keeps its history.
    document = envelope(job, errors_of(job), project=project)
    report = ProgressReport.objects.filter(pk=job.pk).first()
    if report is not None:
        shown = engine.standing(job, report)
        told = {
            "progress": shown.value,
            "progress_data": shown.data,
            "progress_message": shown.message or None,
        }
        document |= {name: value for name, value in told.items() if value is not None}
    if job.state != State.CANCELLED and not (job.result_pruned or is_pruned(job)):
        document |= result_metadata(job)
    return document


def read_priority(body: dict[str, Any]) -> int:
    """
    Raises:
        InvalidRequest: there is none, or it is out of range.
    """
    return NewPriority.priority.read(body)


class JobViewSet(OJSViewSet):
    """`/ojs/v1/jobs`"""

    resource = "jobs"

    def create(self, request: Request) -> Response:
        """PUSH: enqueue one job (OJS HTTP §9.1)."""
        return self.carry_out(verbs.create)

    def batch(self, request: Request) -> Response:
        """PUSH many: all or none (OJS HTTP §9.2)."""
        return self.carry_out(verbs.batch)

    def prioritize(self, request: Request, job_id: str) -> Response:
        """Change the priority of a job that waits (OJS priority §8.1)."""
        change = engine.prioritize(parse_id(job_id), read_priority(self.read(required=True)))
        document = full_envelope(change.job, self.caller.project)
        extra = {"id": document["id"], "priority": document["priority"]}
        extra["previous_priority"] = change.previous_priority
        return Response(job_reply(request.META, document) | extra)

    def retrieve(self, request: Request, job_id: str) -> Response:
        """INFO: everything about a job (OJS HTTP §9.3)."""
        document = self._document(job_id)
        response = self._answer(document)
        if document["state"] not in TERMINAL:
            # For those who poll (OJS results §8.1).
            response["Retry-After"] = "1"
        return response

    def cancel(self, request: Request, job_id: str) -> Response:
        """CANCEL (OJS HTTP §9.4)."""
        change = engine.cancel(parse_id(job_id), cancelled_by=self.caller.name)
        document = full_envelope(change.job, self.caller.project) | {
            "previous_state": str(change.previous_state)
        }
        return self._answer(document)

    def activate(self, request: Request, job_id: str) -> Response:
        """ACTIVATE: release a pending job (OJS HTTP §9.5)."""
        change = engine.activate(parse_id(job_id))
        document = full_envelope(change.job, self.caller.project) | {
            "previous_state": str(change.previous_state),
            "activated_at": format_timestamp(change.job.enqueued_at),
        }
        return self._answer(document)

    def _document(self, job_id: str) -> dict[str, Any]:
        job = Job.objects.filter(pk=parse_id(job_id)).first()
        if job is None:
            raise JobNotFound(job_id)
        return full_envelope(job, self.caller.project)

    def _answer(self, job: dict[str, Any]) -> Response:
        return Response(job_reply(self.request.META, job))

"""Jobs over HTTP, producer side: enqueue, inspect, cancel, activate (OJS HTTP §9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from rest_framework.response import Response

from .. import engine
from ..access.projects import scope_to
from ..access.redaction import redact_job
from ..errors import JobNotFound
from ..http.base import OJSViewSet
from ..http.dialects import job_reply
from ..http.paging import below_id, page
from ..http.parameters import JobsQuery
from ..http.renderers import dumps
from ..http.request import Request
from ..models import Job, JobError, ProgressReport
from ..spec.bulk_requests import NewPriority
from ..spec.durations import format_duration
from ..spec.envelope import (
    ERROR_FIELDS,
    ERRORS_SHOWN,
    envelope,
    error_entry,
    is_pruned,
    result_expires_at,
)
from ..spec.identifiers import parse_uuid
from ..spec.lifecycle import TERMINAL, State
from ..spec.retry import InvalidRetryPolicy, RetryPolicy
from ..spec.timestamps import format_timestamp
from . import verbs
from .admin.paging import count
from .admin.search import filtered


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
    """The job's failed attempts, oldest first; only the newest ones of a long history."""
    newest = job.errors.order_by("-id").values(*ERROR_FIELDS)[:ERRORS_SHOWN]
    return list(newest)[::-1]


def result_metadata(job: Job) -> dict[str, Any]:
    """When the result was stored, until when it is kept, and its size (§6.2).

    A job that was discarded without a result has none of these.
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
    """The full envelope, with history, progress and the result's metadata.

    Args:
        project: the project of the key that reads it.
    """
    # Even for a job that has not run yet: one retried from the dead letter keeps its history.
    document = envelope(job, errors_of(job), project=project)
    report = ProgressReport.objects.filter(pk=job.pk).first()
    if report is not None:
        shown = engine.progress_state(job, report)
        members = {
            "progress": shown.value,
            "progress_data": shown.data,
            "progress_message": shown.message or None,
        }
        document |= {name: value for name, value in members.items() if value is not None}
    if job.state != State.CANCELLED and not (job.result_pruned or is_pruned(job)):
        document |= result_metadata(job)
    return document


def read_priority(body: dict[str, Any]) -> int:
    """
    Raises:
        InvalidRequest: there is none, or it is out of range.
    """
    return NewPriority.priority.read(body)


def errors_by_job(ids: Sequence[UUID]) -> dict[UUID, list[dict[str, Any]]]:
    """The failed attempts of each, oldest first; the newest of a long history."""
    history: dict[UUID, list[dict[str, Any]]] = {}
    for error in JobError.objects.filter(job__in=ids).values("job_id", *ERROR_FIELDS):
        history.setdefault(error["job_id"], []).append(error)
    return {job_id: errors[-ERRORS_SHOWN:] for job_id, errors in history.items()}


def policy(job: Job) -> dict[str, Any] | None:
    """The retry policy in force: what the client left out is what it means."""
    try:
        found = RetryPolicy.parse(job.retry)
    except InvalidRetryPolicy:  # stored before a rule was made stricter
        return job.retry
    return {
        "max_attempts": job.max_attempts,
        "initial_interval": format_duration(found.initial_interval),
        "backoff_coefficient": found.backoff_coefficient,
        "max_interval": format_duration(found.max_interval),
        "jitter": found.jitter,
        "non_retryable_errors": list(found.non_retryable_errors),
        "on_exhaustion": found.on_exhaustion,
    }


class JobViewSet(OJSViewSet):
    """`/ojs/v1/jobs`"""

    resource = "jobs"
    queries = {"list": JobsQuery}

    def create(self, request: Request) -> Response:
        """PUSH: enqueue one job (OJS HTTP §9.1)."""
        return self.carry_out(verbs.create)

    def list(self, request: Request) -> Response:
        """Jobs that match, newest first; of many it is only counted that they are many."""
        parameters, project = request.query_params, self.caller.project
        jobs = filtered(scope_to(Job.objects.order_by("-pk"), project), parameters, project)
        found, pagination = page(
            parameters,
            jobs,
            keys=lambda job: [str(job.pk)],
            after=below_id,
            parts=1,
            count=count,
        )
        history = errors_by_job([job.pk for job in found])
        documents = [envelope(job, history.get(job.pk, ()), project=project) for job in found]
        if self.is_redacted:
            documents = [redact_job(document) for document in documents]
        return Response({"jobs": documents, "total": pagination["total"], "pagination": pagination})

    def retries(self, request: Request, job_id: str) -> Response:
        """The failed attempts of a job, and the policy that decides about the next one."""
        job = self._found(job_id)
        failed = [error_entry(error, project=self.caller.project) for error in errors_of(job)]
        return Response(
            {
                "job_id": str(job.pk),
                "state": job.state,
                "attempt": job.attempt,
                "max_attempts": job.max_attempts,
                "retries": failed,
                "total": len(failed),
                "policy": policy(job),
            }
        )

    def batch(self, request: Request) -> Response:
        """PUSH many: all or none (OJS HTTP §9.2)."""
        return self.carry_out(verbs.batch)

    def prioritize(self, request: Request, job_id: str) -> Response:
        """Change the priority of a waiting job (OJS priority §8.1)."""
        priority = read_priority(self.read(NewPriority, required=True))
        change = engine.prioritize(parse_id(job_id), priority, changed_by=self.caller.name)
        document = full_envelope(change.job, self.caller.project)
        extra = {"id": document["id"], "priority": document["priority"]}
        extra["previous_priority"] = change.previous_priority
        return Response(job_reply(document) | extra)

    def retrieve(self, request: Request, job_id: str) -> Response:
        """INFO: everything about a job (OJS HTTP §9.3)."""
        document = self._document(job_id)
        response = self._answer(document)
        if document["state"] not in TERMINAL:
            # For clients that poll (OJS results §8.1).
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
        change = engine.activate(parse_id(job_id), activated_by=self.caller.name)
        document = full_envelope(change.job, self.caller.project) | {
            "previous_state": str(change.previous_state),
            "activated_at": format_timestamp(change.job.enqueued_at),
        }
        return self._answer(document)

    def _document(self, job_id: str) -> dict[str, Any]:
        return full_envelope(self._found(job_id), self.caller.project)

    @staticmethod
    def _found(job_id: str) -> Job:
        job = Job.objects.filter(pk=parse_id(job_id)).first()
        if job is None:
            raise JobNotFound(job_id)
        return job

    def _answer(self, job: dict[str, Any]) -> Response:
        return Response(job_reply(job))

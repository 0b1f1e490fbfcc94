"""Results over HTTP: read one, wait for one, read many (OJS results §8, §9.3, §10)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework.response import Response

from ..access.projects import scope_to
from ..conf import ojs_settings
from ..errors import JobNotFound, ResultPruned, WaitTimeout
from ..http.base import OJSViewSet
from ..http.job_watch import WaitingForJob
from ..http.parameters import ResultQuery, query_of
from ..http.request import Request
from ..http.verbs import VerbRequest, VerbResponse
from ..http.waiting import Waiting
from ..models import Job
from ..spec.bulk_requests import ResultIds
from ..spec.envelope import is_pruned, result_expires_at
from ..spec.identifiers import parse_uuid
from ..spec.lifecycle import State
from ..spec.timestamps import format_timestamp
from .jobs import errors_of, parse_id, result_metadata

COLUMNS = (
    "state",
    "attempt",
    "result",
    "result_ttl",
    "result_pruned",
    "finished_at",
    "started_at",
)


def retrieve(request: VerbRequest, job_id: str) -> VerbResponse | Waiting[Any]:
    """The outcome of a job; with `wait=true`, waits for it (§8.2)."""
    parameters = query_of(request.meta)
    identifier = parse_id(job_id)
    seconds = ResultQuery.timeout.read(parameters)
    waits = ResultQuery.wait.read(parameters) in ("true", "1")
    job = _job(identifier)
    if not waits or job.finished_at is not None:
        return _response(job)

    def look() -> VerbResponse | None:
        job = _job(identifier)
        return None if job.finished_at is None else _response(job)

    def refuse() -> VerbResponse:
        state = _job(identifier).state
        raise WaitTimeout(f"Job '{job_id}' has not finished yet.", job_id=job_id, state=state)

    longest = ojs_settings.MAX_WAIT.total_seconds()
    return WaitingForJob(identifier, look, min(seconds, longest), refuse)


def _response(job: Job) -> VerbResponse:
    if job.finished_at is not None and (job.result_pruned or is_pruned(job)):
        when = format_timestamp(result_expires_at(job) or job.finished_at)
        raise ResultPruned(f"Result expired at {when}", job_id=str(job.pk))
    response = VerbResponse(_document(job))
    if job.finished_at is None:
        response["Retry-After"] = "1"
    return response


class ResultViewSet(OJSViewSet):
    """`/ojs/v1/jobs/{id}/result`"""

    resource = "results"
    queries = {"retrieve": ResultQuery}

    def retrieve(self, request: Request, job_id: str) -> Response:
        return self.carry_out(retrieve, job_id=job_id)

    def bulk(self, request: Request) -> Response:
        """The results of many jobs; null where there is none (§9.3)."""
        ids = ResultIds.ids.read(self.read(required=True))
        parsed = {text: parse_uuid(text) for text in ids}
        known = [job_id for job_id in parsed.values() if job_id is not None]
        jobs = scope_to(Job.objects.only(*COLUMNS), self.caller.project).in_bulk(known)
        return Response({"results": {text: _entry(jobs.get(pk)) for text, pk in parsed.items()}})


def _job(job_id: UUID) -> Job:
    job = Job.objects.only(*COLUMNS).filter(pk=job_id).first()
    if job is None:
        raise JobNotFound(job_id)
    return job


def _document(job: Job) -> dict[str, Any]:
    document: dict[str, Any] = {"job_id": str(job.pk), "state": job.state, "result": job.result}
    if job.finished_at is None:
        return document
    finished = format_timestamp(job.finished_at)
    document["completed_at"] = finished
    if job.state == State.COMPLETED:
        document |= result_metadata(job)
    else:
        history = errors_of(job)
        if history:
            last = history[-1]
            document["error"] = {
                "type": last["type"],
                "code": last["code"] or last["type"],
                "message": last["message"],
                "attempt": last["attempt"],
            }
    return document


def _entry(job: Job | None) -> dict[str, Any] | None:
    if job is None:
        return None
    kept = job.finished_at is not None and not (job.result_pruned or is_pruned(job))
    return {"state": job.state, "result": job.result if kept else None}

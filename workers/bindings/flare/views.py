"""Zeridion Flare Workers API over HTTP: parse, one call, reply."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework.response import Response

from jobs import engine
from jobs.access import projects
from jobs.errors import (
    Conflict,
    InvalidArguments,
    InvalidPayload,
    InvalidRequest,
    JobNotFound,
    OJSError,
    TenantRequired,
)
from jobs.http import base, errors
from jobs.http.authentication import ApiKeyAuthentication, Caller
from jobs.http.renderers import PlainJSONRenderer
from jobs.http.request import Request
from jobs.http.verbs import VerbResponse
from jobs.spec.identifiers import parse_uuid
from workers import protocol
from workers.access import admission

from . import PROTOCOL, ids, replies, requests, verbs

# All other errors keep their status and code from OJS HTTP.
WORDS: tuple[tuple[type[OJSError], int, str], ...] = (
    (JobNotFound, 404, "job_not_found"),
    (Conflict, 409, "invalid_state"),
    (InvalidArguments, 422, "validation_error"),
    (TenantRequired, 422, "validation_error"),
    (InvalidRequest, 400, "invalid_request"),
    (InvalidPayload, 400, "invalid_request"),
)


def refusal(problem: OJSError, identifier: str, *, retryable: bool) -> tuple[int, dict[str, Any]]:
    """Return the status and the error of a response; `identifier` is that of the request."""
    status, code = next(
        ((status, code) for kind, status, code in WORDS if isinstance(problem, kind)),
        (errors.status_of(problem), problem.code),
    )
    document = errors.error_document(problem, identifier, retryable=retryable) | {"code": code}
    for name in ("docs_url", "doc_url", "type", "hint"):
        document.pop(name, None)
    return status, _in_flare_ids(document)


def _in_flare_ids(document: dict[str, Any]) -> dict[str, Any]:
    """Use the worker's id of the job that an error is about, so that its log agrees."""
    details = dict(document.get("details") or {})
    for name in ("job_id", "resource_id"):
        job_id = parse_uuid(str(details.get(name, "")))
        if job_id is not None:
            known, details[name] = details[name], ids.write(job_id)
            document["message"] = document["message"].replace(known, details[name])
    return document | {"details": details}


class FlareAuthentication(ApiKeyAuthentication):
    protocol = PROTOCOL.name


class FlareViewSet(base.OJSViewSet):
    """Base of the endpoints under `/flare/v1`."""

    binding = PROTOCOL.named_in_table
    authentication_classes = [FlareAuthentication]
    renderer_classes = [PlainJSONRenderer]
    # The client's OJS version does not matter here.
    versioning_class = None
    http_method_names = ["get", "head", "post"]

    @classmethod
    def require_own(cls, caller: Caller, job_id: str) -> None:
        projects.require(ids.read(job_id), caller.project)

    @staticmethod
    def refuse(problem: OJSError, request_id: str) -> VerbResponse:
        status, document = refusal(problem, request_id, retryable=problem.retryable)
        response = errors.refusal(problem, request_id, status=status)
        response.document = {"error": document}
        return response


class WorkerViewSet(FlareViewSet):
    """`/flare/v1/workers`"""

    resource = "workers"

    def register(self, request: Request) -> Response:
        body = self.read()
        worker_id = requests.worker_id(body, self.caller)
        description = requests.registration(body, self.caller)
        schedules = requests.schedules(body, self.caller)
        name = admission.admit(self.caller, worker_id) or worker_id
        for schedule in schedules:
            engine.upsert_cron(schedule)
        admission.as_worker(
            self.caller,
            worker_id,
            lambda name: protocol.register(name, description),
            name=name,
        )
        return Response({"status": "registered"})

    def poll(self, request: Request) -> Response:
        """Claim jobs."""
        return self.carry_out(verbs.poll)

    def ack(self, request: Request) -> Response:
        """Settle a job."""
        return self.carry_out(verbs.ack)

    def heartbeat(self, request: Request) -> Response:
        """Restart the job's liveness deadline."""
        return self.carry_out(verbs.heartbeat)


class JobViewSet(FlareViewSet):
    """`/flare/v1/jobs`"""

    resource = "jobs"

    def create(self, request: Request) -> Response:
        """Enqueue a job."""
        return self.carry_out(verbs.create)

    def retrieve(self, request: Request, job_id: str) -> Response:
        job = projects.find(ids.read(job_id), self.caller.project)
        return self._answer(job)

    def cancel(self, request: Request, job_id: str) -> Response:
        """Cancel a job that has not finished; its worker is notified with its next heartbeat."""
        change = engine.cancel(ids.read(job_id), cancelled_by=self.caller.name)
        return self._answer(change.job)

    def _answer(self, job: Any) -> Response:
        progress = engine.progress_of(job.pk).value
        return Response(replies.job(job, progress=progress, error=replies.last_error(job)))


@csrf_exempt
def not_found(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    """The 404 of every other path under /flare."""
    problem = errors.unknown_path(request.path)
    response = base.refused(request.META, problem, has_version=False)
    response["Content-Type"] = PlainJSONRenderer.media_type
    return response

"""Zeridion Flare Workers API over HTTP: parse, one call, reply."""

from __future__ import annotations

import re
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
from jobs.spec.lifecycle import State
from workers import protocol
from workers.access import admission
from workers.fleet import directory

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
    return status, _in_flare_words(document)


def _in_flare_words(document: dict[str, Any]) -> dict[str, Any]:
    """Use Flare's id of the job that an error is about, and its words for the job's states."""
    details = dict(document.get("details") or {})
    words: dict[str, str] = {}
    for name in ("job_id", "resource_id"):
        job_id = parse_uuid(str(details.get(name, "")))
        if job_id is not None:
            words[details[name]] = ids.write(job_id)
    for name in ("current_state", "expected_state"):
        if details.get(name) in State:
            words[details[name]] = _status(State(details[name]), details.get("job_id"))
    details = {name: words.get(str(value), value) for name, value in details.items()}
    message = re.sub(
        r"'([^']+)'", lambda quoted: f"'{words.get(quoted[1], quoted[1])}'", document["message"]
    )
    return document | {"details": details, "message": message}


def _status(state: State, job_id: Any) -> str:
    """The status of a job in this state."""
    parsed = parse_uuid(str(job_id)) if state == State.DISCARDED else None
    job = directory.job(parsed) if parsed else None
    return replies.status_in(state, dead_letter=bool(job and job.dead_letter))


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
    mends = {"ack": requests.mend_error}

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
    response = base.refused(request.META, problem, refuse=FlareViewSet.refuse, has_version=False)
    response["Content-Type"] = PlainJSONRenderer.media_type
    return response

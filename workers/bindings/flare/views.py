"""The Zeridion Flare Workers API over HTTP: parse, one call, reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from jobs import engine
from jobs.access import projects
from jobs.errors import (
    Conflict,
    InvalidPayload,
    InvalidRequest,
    JobNotFound,
    OJSError,
)
from jobs.http import base
from jobs.http.base import Response
from jobs.spec.identifiers import parse_uuid
from jobs.spec.lifecycle import State
from workers import protocol
from workers.access import admission
from workers.liveness import job_heartbeats as liveness
from workers.protocol import Completion, Description

from . import PROTOCOL, ids, options, replies, requests

MEDIA_TYPE = "application/json"
SHARE = 2 / 3
"""Of a job's `timeout_seconds`: the silence allowed after a heartbeat."""

# Everything else keeps the status and code it has on OJS HTTP.
WORDS: tuple[tuple[type[OJSError], int, str], ...] = (
    (JobNotFound, 404, "job_not_found"),
    (Conflict, 409, "invalid_state"),
    (InvalidRequest, 400, "invalid_request"),
    (InvalidPayload, 400, "invalid_request"),
)


def answer_error(problem: Exception, context: dict[str, Any]) -> Response:
    """Turn what was raised into Flare's words for it."""
    if not isinstance(problem, OJSError):
        return base.answer_error(problem, context)
    request = context["request"]
    status, document = refusal(problem, base.request_id(request), retryable=problem.retryable)
    response = base.error_response(request, problem, status=status)
    response.content = base.dumps({"error": document})
    return response


def refusal(problem: OJSError, identifier: str, *, retryable: bool) -> tuple[int, dict[str, Any]]:
    """Return the status and the error of an answer; `identifier` is that of the request."""
    status, code = next(
        ((status, code) for kind, status, code in WORDS if isinstance(problem, kind)),
        (base.status_of(problem), problem.code),
    )
    document = base.error_document(problem, identifier, retryable=retryable) | {"code": code}
    for name in ("docs_url", "doc_url", "type", "hint"):
        document.pop(name, None)
    return status, _in_flare_ids(document)


def _in_flare_ids(document: dict[str, Any]) -> dict[str, Any]:
    """Call the job that an error is about what the worker calls it, so that its log agrees."""
    details = dict(document.get("details") or {})
    for name in ("job_id", "resource_id"):
        job_id = parse_uuid(str(details.get(name, "")))
        if job_id is not None:
            known, details[name] = details[name], ids.write(job_id)
            document["message"] = document["message"].replace(known, details[name])
    return document | {"details": details}


class FlareViewSet(base.OJSViewSet):
    """What the endpoints under `/flare/v1` share."""

    binding = PROTOCOL.named_in_table
    http_method_names: Any = ["get", "head", "post"]
    protocol = PROTOCOL.name

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        # The version of OJS that a client speaks is no matter here.
        request.META.pop("HTTP_OJS_VERSION", None)
        super().initial(request, *args, **kwargs)

    def require_own(self, job_id: str) -> None:
        projects.require(ids.read(job_id), self.caller.project)

    def get_exception_handler(self) -> Callable[..., Response]:
        return answer_error

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        dress(response)
        return response


def dress(response: Any) -> None:
    del response["OJS-Version"]
    response["Content-Type"] = MEDIA_TYPE


class WorkerViewSet(FlareViewSet):
    """`/flare/v1/workers`"""

    resource = "workers"

    def register(self, request: Any) -> Response:
        body = self.read()
        worker_id = requests.worker_id(body, self.caller)
        description = requests.registration(body, self.caller)
        schedules = requests.schedules(body, self.caller)
        name = self._admit(worker_id)
        for schedule in schedules:
            engine.upsert_cron(schedule)
        admission.as_worker(
            self.caller,
            worker_id,
            lambda name: protocol.register(name, description),
            name=name,
        )
        return Response({"status": "registered"})

    def poll(self, request: Any) -> Response:
        """Claim jobs; an empty array is a normal answer, and all that a quieted worker gets."""
        body = self.read()
        worker_id = requests.worker_id(body, self.caller)
        queues = requests.queues(body)
        capacity = requests.capacity(body)
        types = requests.job_types(body)
        seen = self._description(queues=queues)
        name = self._seen(worker_id, seen)
        jobs = protocol.fetch(
            queues,
            worker_id=name,
            count=capacity,
            # A worker that says nothing here runs what it registered for.
            types=liveness.types_of(name) if types is None else types,
            discover=False,  # it has been, just now
            project=self.caller.project,
        )
        periods = {}
        if jobs:
            periods = liveness.reserve_for_execution(jobs, name)
            liveness.seen(name, seen)
        return Response({"jobs": [replies.polled(job, periods[job.id]) for job in jobs]})

    def ack(self, request: Any) -> Response:
        """Settle a job. A continuation that success sets free is counted in the answer."""
        body = self.read()
        worker_id = requests.worker_id(body, self.caller)
        asked = requests.outcome(body, worker_id)
        project = self.caller.project
        projects.require(asked.job_id, project)
        asked.worker_id = name = self._admit(worker_id)
        if isinstance(asked, Completion):
            (outcome,) = protocol.ack([asked], project=project)
        else:
            (outcome,) = protocol.fail([asked], project=project)
        self._seen(worker_id, self._description(), name)
        if outcome.error is not None:
            raise outcome.error
        children = engine.freed_by(outcome.job_id) if outcome.state == State.COMPLETED else None
        return Response(replies.acknowledged(outcome, children))

    def heartbeat(self, request: Any) -> Response:
        """Restart the job's liveness deadline; `cancel` for a job that was cancelled meanwhile."""
        body = self.read()
        worker_id = requests.worker_id(body, self.caller)
        job_id = requests.job_id(body)
        progress = requests.progress(body)
        projects.require(job_id, self.caller.project)
        name = self._admit(worker_id)
        try:
            goes_on = liveness.keep_alive(
                job_id,
                name,
                share=SHARE,
                at_least=options().MINIMUM_GRACE,
                progress=progress,
                project=self.caller.project,
            )
        finally:
            self._seen(worker_id, self._description(), name)
        return Response({"status": "ok" if goes_on else "cancel"})

    def _description(self, **said: Any) -> Description:
        return Description(protocol=PROTOCOL.name, project=self.caller.project or None, **said)

    def _admit(self, worker_id: str) -> str:
        """The name the worker is stored under."""
        return admission.admit(self.caller, worker_id) or worker_id

    def _seen(self, worker_id: str, description: Description, name: str | None = None) -> str:
        """Record a sign of life; return the name the worker is stored under.

        Args:
            name: that name, where it is known already.
        """

        def act(name: str) -> str:
            liveness.seen(name, description)
            return name

        return admission.as_worker(self.caller, worker_id, act, name=name)


class JobViewSet(FlareViewSet):
    """`/flare/v1/jobs`"""

    resource = "jobs"

    def create(self, request: Any) -> Response:
        """Enqueue a job; one with a `parent_id` waits until that job has succeeded."""
        asked, parent = requests.new_job(self.read(required=True), self.caller)
        job: Any
        if parent is None:
            (job,) = engine.enqueue([asked])
        else:
            projects.find(parent, self.caller.project)
            engine.enqueue_after([asked], {asked.id: [parent]}, pass_results=False)
            # Its parent may have ended before.
            job = projects.find(asked.id, self.caller.project)
        response = Response(replies.job(job), status=201)
        response["Location"] = f"{request.path.rstrip('/')}/{ids.write(job.id)}"
        return response

    def retrieve(self, request: Any, job_id: str) -> Response:
        job = projects.find(ids.read(job_id), self.caller.project)
        return self._answer(job)

    def cancel(self, request: Any, job_id: str) -> Response:
        """Cancel a job that has not finished; its worker hears it at its next heartbeat."""
        change = engine.cancel(ids.read(job_id), cancelled_by=self.caller.name)
        return self._answer(change.job)

    def _answer(self, job: Any) -> Response:
        progress = engine.progress_of(job.pk).value
        return Response(replies.job(job, progress=progress, error=replies.last_error(job)))


@csrf_exempt
def not_found(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    """The 404 of every other path under /flare."""
    response = base.not_found(request)
    dress(response)
    return response

"""Jobs over HTTP, producer side: enqueue, look, cancel, activate (OJS HTTP §9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from .. import engine
from ..access.projects import give
from ..conf import ojs_settings
from ..errors import JobNotFound, QueueFull
from ..http.base import OJSViewSet, Response, dumps
from ..http.dialects import job_reply
from ..http.parameters import BLOCK_TIMEOUT
from ..http.waiting import until
from ..models import Job, ProgressReport
from ..spec.batches import Memory, checked_once, new_jobs
from ..spec.bulk_requests import Batch, Priority
from ..spec.envelope import ERROR_FIELDS, ERRORS_SHOWN, envelope, is_pruned, result_expires_at
from ..spec.identifiers import parse_uuid
from ..spec.lifecycle import TERMINAL, State
from ..spec.timestamps import format_timestamp
from ..spec.validation import NewJob, new_job, read_args
from ..store import clock

memory = Memory()


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
    return Priority.priority.read(body)


def under_pressure(response: Response, jobs: Sequence[NewJob]) -> None:
    """Warn a producer whose queue is nearly full (OJS backpressure §7.3)."""
    pressed = [job.pressure for job in jobs if job.pressure is not None]
    if pressed:
        depth, bound = max(pressed, key=lambda pair: pair[0] / pair[1])
        response["X-OJS-Queue-Depth"] = str(depth)
        response["X-OJS-Queue-Bound"] = str(bound)
        response["X-OJS-Queue-Pressure"] = f"{depth / bound:.2f}"


def show_rate(response: Response, job: NewJob) -> None:
    """Say what the job's own rate limit allows (OJS rate limiting §10.4)."""
    rate = (job.rate_limit or {}).get("rate")
    if rate is None:
        return
    remaining, reset = engine.limits.remaining(job.rate_key, rate)
    response["X-RateLimit-Limit"] = str(rate["limit"])
    response["X-RateLimit-Remaining"] = str(remaining)
    response["X-RateLimit-Reset"] = str(int(reset.timestamp()) + 1)


def enqueued(job: NewJob) -> dict[str, Any]:
    """A job as a batch answers it: the one there was, where a unique policy ignored it."""
    if job.existing is None:
        return envelope(job)
    return envelope(job.existing) | {"deduplicated": True}


def enqueue_or_wait(request: Any, new: Sequence[NewJob]) -> Sequence[NewJob]:
    """Enqueue; where a full queue says `block`, wait for room if the request asks so.

    `OJS-Block-Timeout` says how many seconds, `MAX_WAIT` at most (OJS backpressure §5.2).

    Raises:
        QueueFull: there was no room in that time.
    """
    given = request.META.get("HTTP_OJS_BLOCK_TIMEOUT")
    if given is None:
        return engine.enqueue(new)
    seconds = BLOCK_TIMEOUT.check(given, BLOCK_TIMEOUT.name)
    refused: list[QueueFull] = []

    def look() -> Sequence[NewJob] | None:
        try:
            # A refused attempt leaves its marks on unique jobs.
            fresh = [replace(job, attributes=dict(job.attributes)) for job in new]
            with engine.bounds.patiently():
                return engine.enqueue(fresh)
        except QueueFull as refusal:
            refused[:] = [refusal]
            if refusal.details["strategy"] != "block":
                raise
            return None

    try:
        stored = until(look, min(seconds, ojs_settings.MAX_WAIT.total_seconds()))
        if stored is None:
            raise refused[0]
    except QueueFull as refusal:
        engine.bounds.record_refusal(refusal)
        raise
    return stored


class JobViewSet(OJSViewSet):
    """`/ojs/v1/jobs`"""

    resource = "jobs"

    def create(self, request: Any) -> Response:
        """PUSH: enqueue one job (OJS HTTP §9.1)."""
        check = partial(new_job, now=clock.now())
        asked = checked_once(self.read(required=True), memory, check, read_args)
        (job,) = enqueue_or_wait(request, give([asked], self.caller.project))
        if job.existing is not None:
            # 200: it was there before (OJS unique jobs §5.4).
            known = job_reply(request.META, envelope(job.existing))
            return Response(known | {"deduplicated": True})
        response = self._answer(envelope(job), status=201)
        under_pressure(response, [job])
        show_rate(response, job)
        response["Location"] = f"{request.path.rstrip('/')}/{job.id}"
        return response

    def batch(self, request: Any) -> Response:
        """PUSH many: all or none (OJS HTTP §9.2)."""
        documents = Batch.jobs.read(self.read(required=True))
        asked = new_jobs(documents, clock.now())
        jobs = enqueue_or_wait(request, give(asked, self.caller.project))
        count = len(jobs)
        response = Response(
            {
                "jobs": [enqueued(job) for job in jobs],
                "count": count,
                "enqueued": count,
                "failed": 0,
            },
            status=201,
        )
        under_pressure(response, jobs)
        return response

    def prioritize(self, request: Any, job_id: str) -> Response:
        """Change the priority of a job that waits (OJS priority §8.1)."""
        change = engine.prioritize(parse_id(job_id), read_priority(self.read(required=True)))
        document = full_envelope(change.job, self.caller.project)
        extra = {"id": document["id"], "priority": document["priority"]}
        extra["previous_priority"] = change.previous_priority
        return Response(job_reply(request.META, document) | extra)

    def retrieve(self, request: Any, job_id: str) -> Response:
        """INFO: everything about a job (OJS HTTP §9.3)."""
        document = self._document(job_id)
        response = self._answer(document)
        if document["state"] not in TERMINAL:
            # For those who poll (OJS results §8.1).
            response["Retry-After"] = "1"
        return response

    def cancel(self, request: Any, job_id: str) -> Response:
        """CANCEL (OJS HTTP §9.4)."""
        change = engine.cancel(parse_id(job_id), cancelled_by=self.caller.name)
        document = full_envelope(change.job, self.caller.project) | {
            "previous_state": str(change.previous_state)
        }
        return self._answer(document)

    def activate(self, request: Any, job_id: str) -> Response:
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

    def _answer(self, job: dict[str, Any], status: int = 200) -> Response:
        return Response(job_reply(self.request.META, job), status=status)

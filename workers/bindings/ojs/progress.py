"""Progress over OJS HTTP: workers report it, clients read it (OJS progress §10)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from email.utils import format_datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse
from rest_framework.response import Response

from jobs import engine
from jobs.access import projects
from jobs.api.jobs import parse_id
from jobs.conf import ojs_settings
from jobs.errors import (
    Conflict,
    JobNotFound,
    NeedsEventLoop,
    NotAuthenticated,
    PermissionDenied,
)
from jobs.http import waiting
from jobs.http.dialects import STREAM_HEADERS
from jobs.http.job_watch import ANYWAY, JobWatch
from jobs.http.loop import Loop
from jobs.http.renderers import dumps
from jobs.http.request import Request
from jobs.http.verbs import VerbRequest, VerbResponse
from jobs.spec.fields import missing
from jobs.spec.timestamps import format_timestamp

from . import requests
from .requests import ReportOfJob, ReportProgress
from .views import WorkerViewSet

ACTIVE = "active"


class ProgressViewSet(WorkerViewSet):
    """`/ojs/v1/jobs/{id}/progress`"""

    resource = "progress"

    def retrieve(self, request: Request, job_id: str) -> Response:
        """A job's progress; null if none was reported (§7.1)."""
        return _answer(engine.progress_of(parse_id(job_id)))

    def stream(self, request: Request, job_id: str) -> StreamingHttpResponse:
        """Server-sent events: each report, and the job's end (§7.2).

        The stream ends after `MAX_WAIT` even if the job has not: an `EventSource` reconnects.
        """
        identifier = parse_id(job_id)
        engine.progress_of(identifier)  # refused before the stream begins
        if isinstance(request._request, ASGIRequest):
            raise NeedsEventLoop()  # Django would buffer the whole stream
        events = _events(identifier, self.check_again)
        return StreamingHttpResponse(events, headers=STREAM_HEADERS)

    def report(self, request: Request, job_id: str | None = None) -> Response:
        """PROGRESS (§6.1); the public SDKs send `percentage`."""
        body = self.read(required=True)
        identifier = ReportOfJob.job_id.read(body) if job_id is None else parse_id(job_id)
        worker_id = requests.worker_id(body, self.caller)
        value = ReportProgress.progress.read(body)
        if value is None:
            value = ReportProgress.percentage.read(body)
        data = ReportProgress.data.read(body)
        message = ReportProgress.message.read(body) or ""
        attempt = ReportProgress.attempt.read(body)
        checkpoint = ReportProgress.checkpoint.read(body)
        if value is None and data is None and not message:
            raise missing("progress")
        name = self._admit(worker_id)
        projects.require(identifier, self.caller.project)
        progress = engine.report_progress(
            identifier,
            value=value,
            data=data,
            message=message,
            worker_id=name,
            attempt=attempt,
        )
        if checkpoint is not None and progress.state == ACTIVE:
            # From a worker that has lost the job it is ignored, like the report (§6.4).
            with contextlib.suppress(Conflict):
                engine.save_checkpoint(identifier, checkpoint, worker_id=name, attempt=attempt)
        return _answer(progress)


ENDS = {"completed": "completed", "discarded": "failed", "cancelled": "cancelled"}
"""State → the event that reports it (§7.2)."""


Check = Callable[[], object]
"""Raises if the client may not read the stream any more."""
RETRY = b"retry: 1000\n\n"


def stream(request: VerbRequest, job_id: str) -> VerbResponse:
    """The stream, written by an event loop."""
    identifier = parse_id(job_id)
    engine.progress_of(identifier)  # refused before the stream begins
    events = partial(_events_on_loop, identifier, request.check_again)
    response = VerbResponse(None, stream=events)
    response.headers |= STREAM_HEADERS
    return response


async def _events_on_loop(job_id: UUID, check: Check, loop: Loop) -> AsyncIterator[bytes]:
    news = News()
    yield RETRY
    deadline = time.monotonic() + ojs_settings.MAX_WAIT.total_seconds()
    with loop.shared(JobWatch).watching(job_id) as changed:
        while not loop.ending.is_set():
            changed.clear()
            if part := news.of(await loop.in_thread(_progress_of, job_id, check)):
                yield part
            left = deadline - time.monotonic()
            if news.is_over or left <= 0:
                return
            await waiting.first_of(changed, loop.ending, seconds=min(left, ANYWAY))


def _events(job_id: UUID, check: Check) -> Iterator[bytes]:
    news = News()
    yield RETRY
    for progress in waiting.looks(
        lambda: _progress_of(job_id, check), ojs_settings.MAX_WAIT.total_seconds()
    ):
        if part := news.of(progress):
            yield part
        if news.is_over:
            return


class News:
    """Computes the next event from each query of the job."""

    def __init__(self) -> None:
        self.is_over = False
        self._known: engine.ProgressState | None = None

    def of(self, progress: engine.ProgressState | None) -> bytes:
        """The event for the job's current state; empty if nothing has changed."""
        self.is_over = progress is None or progress.state in ENDS
        if progress is None:
            return b""
        if self.is_over:
            return _event(
                ENDS[progress.state], _selected(progress, "progress", "state", "updated_at")
            )
        if progress.updated_at is None or progress == self._known:
            return b""
        self._known = progress
        return _event("progress", _selected(progress, "progress", "data", "message", "updated_at"))


def _progress_of(job_id: UUID, check: Check) -> engine.ProgressState | None:
    """The job's progress; None if the job has been deleted, or the client may not see it any more:
    the stream ends, and the refusal comes when the client reconnects."""
    try:
        check()
        return engine.progress_of(job_id)
    except (JobNotFound, NotAuthenticated, PermissionDenied):
        return None


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), dumps(data))


def _selected(progress: engine.ProgressState, *names: str) -> dict[str, Any]:
    document = _document(progress)
    return {name: document[name] for name in names if document[name] is not None}


def _document(progress: engine.ProgressState) -> dict[str, Any]:
    return {
        "job_id": str(progress.job_id),
        "state": progress.state,
        "progress": progress.value,
        "data": progress.data,
        "message": progress.message or None,
        "updated_at": format_timestamp(progress.updated_at) if progress.updated_at else None,
    }


def _answer(progress: engine.ProgressState) -> Response:
    response = Response(_document(progress))
    response["Cache-Control"] = "no-cache"
    if progress.value is not None:
        response["X-OJS-Progress"] = repr(progress.value)
    if progress.updated_at is not None:
        response["Last-Modified"] = format_datetime(progress.updated_at, usegmt=True)
    return response

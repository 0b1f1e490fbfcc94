"""Enqueue, of one job and of many: the hot verbs of producers (OJS HTTP §9.1, §9.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from .. import engine
from ..access.projects import give
from ..conf import ojs_settings
from ..errors import QueueFull
from ..http.dialects import job_reply
from ..http.parameters import BLOCK_TIMEOUT
from ..http.request import Meta
from ..http.verbs import VerbRequest, VerbResponse
from ..http.waiting import until
from ..spec.batches import Memory, checked_once, new_jobs
from ..spec.bulk_requests import Batch
from ..spec.envelope import envelope
from ..spec.validation import NewJob, new_job, read_args
from ..store import clock

memory = Memory()


def create(request: VerbRequest) -> VerbResponse:
    """PUSH: enqueue one job (OJS HTTP §9.1)."""
    check = partial(new_job, now=clock.now())
    asked = checked_once(request.read(required=True), memory, check, read_args)
    (job,) = enqueue_or_wait(request.meta, give([asked], request.caller.project))
    if job.existing is not None:
        # 200: it was there before (OJS unique jobs §5.4).
        known = job_reply(request.meta, envelope(job.existing))
        return VerbResponse(known | {"deduplicated": True})
    response = VerbResponse(job_reply(request.meta, envelope(job)), status=201)
    under_pressure(response, [job])
    show_rate(response, job)
    response["Location"] = f"{request.path.rstrip('/')}/{job.id}"
    return response


def batch(request: VerbRequest) -> VerbResponse:
    """PUSH many: all or none (OJS HTTP §9.2)."""
    documents = Batch.jobs.read(request.read(required=True))
    asked = new_jobs(documents, clock.now())
    jobs = enqueue_or_wait(request.meta, give(asked, request.caller.project))
    count = len(jobs)
    response = VerbResponse(
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


def under_pressure(response: VerbResponse, jobs: Sequence[NewJob]) -> None:
    """Warn a producer whose queue is nearly full (OJS backpressure §7.3)."""
    pressed = [job.pressure for job in jobs if job.pressure is not None]
    if pressed:
        depth, bound = max(pressed, key=lambda pair: pair[0] / pair[1])
        response["X-OJS-Queue-Depth"] = str(depth)
        response["X-OJS-Queue-Bound"] = str(bound)
        response["X-OJS-Queue-Pressure"] = f"{depth / bound:.2f}"


def show_rate(response: VerbResponse, job: NewJob) -> None:
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


def enqueue_or_wait(meta: Meta, new: Sequence[NewJob]) -> Sequence[NewJob]:
    """Enqueue; where a full queue says `block`, wait for room if the request asks so.

    `OJS-Block-Timeout` says how many seconds, `MAX_WAIT` at most (OJS backpressure §5.2).

    Raises:
        QueueFull: there was no room in that time.
    """
    given = meta.get("HTTP_OJS_BLOCK_TIMEOUT")
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

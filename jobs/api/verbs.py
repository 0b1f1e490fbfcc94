"""Hot verbs of producers: enqueue one job or many (OJS HTTP §9.1, §9.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from .. import engine
from ..access.projects import assign_project
from ..conf import ojs_settings
from ..errors import OJSError, QueueFull
from ..http.dialects import job_reply
from ..http.errors import error_document
from ..http.parameters import BLOCK_TIMEOUT
from ..http.rates import show_limits_of
from ..http.request import Meta
from ..http.verbs import VerbRequest, VerbResponse, outcome_of
from ..http.waiting import Waiting
from ..spec import cloudevents, traces
from ..spec.batches import Memory, checked_once, new_jobs, shared_targets
from ..spec.bulk_requests import Batch
from ..spec.envelope import envelope
from ..spec.fields import refuse
from ..spec.validation import NewJob, new_job, read_args
from ..store import clock

memory = Memory()
BLOCKS = "HTTP_OJS_BLOCK_TIMEOUT"
"""The WSGI name of that header."""


def create(request: VerbRequest) -> VerbResponse | Waiting[Any]:
    """PUSH: enqueue one job (OJS HTTP §9.1)."""
    if cloudevents.is_batch(request.meta):
        return _take_batch(request)
    return enqueue_or_wait(request.meta, _asked(request), partial(_created, request))


def _take_batch(request: VerbRequest) -> VerbResponse:
    """Enqueue the jobs of a batch of CloudEvents, each by itself (OJS CloudEvents §10.3)."""
    found = request.read(required=True).get(cloudevents.EVENTS)
    if type(found) is not list or not 1 <= len(found) <= ojs_settings.MAX_BATCH:
        raise refuse("", f"A batch has 1 to {ojs_settings.MAX_BATCH} CloudEvents.")
    asked: list[NewJob] = []
    results = [_taken(request, f"[{index}]", each, asked) for index, each in enumerate(found)]
    failed = sum("error" in each for each in results)
    document = {"results": results, "accepted": len(results) - failed, "failed": failed}
    response = VerbResponse(document, status=207)
    show_limits_of(response, asked)
    return response


def _taken(request: VerbRequest, place: str, given: Any, asked: list[NewJob]) -> dict[str, Any]:
    """Enqueue the job of one event, if it makes one.

    Args:
        place: of the event in its batch.
        asked: gets the job, whether or not it is accepted.
    """
    named = given if type(given) is dict else {}
    result: dict[str, Any] = {"id": named.get("id"), "source": named.get("source")}
    project = request.caller.project
    try:
        event = cloudevents.read_structured(given, place)
        (job,) = assign_project([cloudevents.job_of(event, clock.now())], project)
        asked.append(job)
        (job,) = asked[-1:] = engine.enqueue([job])
    except OJSError as refusal:
        error = error_document(refusal, request.request_id, retryable=refusal.retryable)
        return result | {"error": error}
    is_new = job.existing is None
    return result | {"job_id": str(job.id)} | ({} if is_new else {"deduplicated": True})


def _asked(request: VerbRequest) -> Sequence[NewJob]:
    if cloudevents.is_event(request.meta):
        if cloudevents.is_structured(request.meta):
            request.read(required=True)
        event = cloudevents.read(request.meta, request.document)
        asked = cloudevents.job_of(event, clock.now())
    else:
        check = partial(new_job, now=clock.now())
        asked = checked_once(request.read(required=True), memory, check, read_args)
    trace(request.meta, [asked])
    return assign_project([asked], request.caller.project)


def creates(given: Sequence[VerbRequest]) -> list[Any]:
    """Enqueues of one job each that arrived at the same time; most are stored in one batch.

    Jobs that may conflict with stored ones are enqueued separately.
    """
    found: dict[int, Any] = {}
    together: dict[int, NewJob] = {}
    for index, request in enumerate(given):
        if cloudevents.is_batch(request.meta):
            found[index] = outcome_of(create, request)
            continue
        try:
            asked = _asked(request)
            if BLOCKS in request.meta or _may_conflict(asked[0]):
                found[index] = enqueue_or_wait(request.meta, asked, partial(_created, request))
            else:
                together[index] = asked[0]
        except Exception as problem:
            found[index] = problem
    try:
        if together:
            engine.enqueue(list(together.values()))
    except OJSError as refusal:
        if len(together) == 1:
            found |= dict.fromkeys(together, refusal)
        else:
            # Nothing was stored, perhaps because of a single job.
            found |= {index: outcome_of(create, given[index]) for index in together}
    except Exception as problem:
        # They may have been stored nevertheless.
        found |= dict.fromkeys(together, problem)
    else:
        for index, job in together.items():
            found[index] = _created(given[index], [job])
    return [found[index] for index in range(len(given))]


def _may_conflict(job: NewJob) -> bool:
    return job.unique is not None or job.client_id or job.rate_limit is not None


def _created(request: VerbRequest, jobs: Sequence[NewJob]) -> VerbResponse:
    (job,) = jobs
    if job.existing is not None:
        # 200: it was there before (OJS unique jobs §5.4).
        known = job_reply(envelope(job.existing))
        response = VerbResponse(known | {"deduplicated": True})
        show_limits_of(response, [job])
        return response
    response = VerbResponse(job_reply(envelope(job)), status=201)
    show_limits_of(response, [job])
    response["Location"] = f"{request.path.rstrip('/')}/{job.id}"
    return response


def batch(request: VerbRequest) -> VerbResponse | Waiting[Any]:
    """PUSH many: all or none (OJS HTTP §9.2)."""
    documents = Batch.jobs.read(request.read(required=True))
    asked = new_jobs(documents, clock.now())
    trace(request.meta, asked)
    return enqueue_or_wait(
        request.meta, assign_project(asked, request.caller.project), _batch_created
    )


def _batch_created(jobs: Sequence[NewJob]) -> VerbResponse:
    count = len(jobs)
    response = VerbResponse(
        {
            "jobs": [enqueued(job) for job in jobs],
            "count": count,
            "enqueued": sum(job.existing is None for job in jobs),
            "failed": 0,
        },
        status=201,
    )
    show_limits_of(response, jobs)
    return response


def trace(meta: Meta, new: Sequence[NewJob]) -> None:
    """Keep a request's trace context in the `meta` of its jobs (OJS distributed tracing §6)."""
    context = traces.of_headers(meta)
    if context:
        traces.give(context, [job.meta for job in shared_targets(new)])


def enqueued(job: NewJob) -> dict[str, Any]:
    """A job in the response to a batch; the existing job if a unique policy ignored it."""
    if job.existing is None:
        return envelope(job)
    return envelope(job.existing) | {"deduplicated": True}


def enqueue_or_wait(
    meta: Meta, new: Sequence[NewJob], respond: Callable[[Sequence[NewJob]], VerbResponse]
) -> VerbResponse | Waiting[Any]:
    """Enqueue; if a full queue's policy is `block`, wait for room if the request asks for it.

    `OJS-Block-Timeout` gives the seconds, at most `MAX_WAIT` (OJS backpressure §5.2).

    Raises:
        QueueFull: there was no room within that time, or there never will be.
    """
    given = meta.get(BLOCKS)
    if given is None:
        return respond(engine.enqueue(new))
    seconds = BLOCK_TIMEOUT.check(given, BLOCK_TIMEOUT.name)
    refused: list[QueueFull] = []

    def look() -> VerbResponse | None:
        try:
            # A refused attempt modifies unique jobs.
            fresh = [replace(job, attributes=dict(job.attributes)) for job in new]
            with engine.bounds.patiently():
                return respond(engine.enqueue(fresh))
        except QueueFull as refusal:
            refused[:] = [refusal]
            if refusal.details["strategy"] != "block" or not refusal.retryable:
                engine.bounds.record_refusal(refusal)
                raise
            return None

    def refuse() -> VerbResponse:
        engine.bounds.record_refusal(refused[0])
        raise refused[0]

    longest = ojs_settings.MAX_WAIT.total_seconds()
    return Waiting(look, min(seconds, longest), refuse)

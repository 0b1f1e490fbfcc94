"""Hot verbs of workers: heartbeat, fetch, ack and nack (OJS HTTP §10)."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from jobs.api.jobs import parse_id
from jobs.http.authentication import Caller
from jobs.http.verbs import VerbRequest, VerbResponse, outcome_of
from jobs.spec.envelope import claimed_envelope
from workers import protocol
from workers.access import admission
from workers.bindings.shared.long_poll import WaitingForWork

from . import replies, requests


class Outcomes(NamedTuple):
    """The outcomes in a request, by list; None if it has no such list."""

    completions: list[protocol.Completion] | None
    failures: list[protocol.Failure] | None


NO_OUTCOMES = Outcomes(None, None)
LONG = re.compile(rb'"n?acks"|"(?:count|batch_size|max_jobs)"\s*:(?!\s*1\s*[,}])')
"""Bodies about several jobs. These take so long that others should not wait for them."""


def heartbeat(request: VerbRequest) -> VerbResponse:
    """BEAT (§4)."""
    worker_id, members = _heartbeat(request)
    reply = admission.as_worker(
        request.caller,
        worker_id,
        lambda name: protocol.beat(name, **members),
        labels=members["description"].labels,
    )
    return VerbResponse(replies.heartbeat(reply))


def _heartbeat(request: VerbRequest) -> tuple[str, dict[str, Any]]:
    body, caller = request.read(), request.caller
    worker_id = requests.required_worker_id(body, caller)
    return worker_id, {
        "state": requests.reported_state(body),
        "active_job_ids": requests.active_job_ids(body),
        "description": requests.description(body, caller, requests.agent(request.meta)),
        "requested": requests.requested_extension(body),
        "sequence": requests.Heartbeat.sequence.read(body),
        "project": caller.project,
    }


def heartbeats(given: Sequence[VerbRequest]) -> list[VerbResponse | Exception]:
    """Heartbeats that arrived at the same time: most of them are written by one statement."""
    found: dict[int, VerbResponse | Exception] = {}
    together: dict[int, protocol.Heartbeat] = {}
    for index, request in enumerate(given):
        try:
            worker_id, members = _heartbeat(request)
            name = admission.admit(request.caller, worker_id, labels=members["description"].labels)
            together[index] = protocol.Heartbeat(name or worker_id, **members)
        except Exception as problem:
            found[index] = problem
    replied = protocol.beat_all(list(together.values()))
    for index, reply in zip(together, replied, strict=True):
        found[index] = (
            outcome_of(heartbeat, given[index])
            if reply is None
            else VerbResponse(replies.heartbeat(reply))
        )
    return [found[index] for index in range(len(given))]


class _Fetch(NamedTuple):
    """A fetch that has been read, and whose worker has been admitted."""

    asked: dict[str, Any]
    """For `protocol.fetch`."""
    wait: float
    """Seconds."""
    outcomes: Outcomes
    looked_at: float
    """`time.monotonic()` before it looks for jobs."""


def fetch(request: VerbRequest) -> VerbResponse | WaitingForWork[Any]:
    """FETCH: claim jobs; an empty list is a normal response (§6.5).

    `acks` and `nacks` are settled first, so a busy worker needs one round trip.
    """
    return _carry_out(request, _fetch(request))


def fetches(given: Sequence[VerbRequest]) -> list[Any]:
    """Fetches that arrived at the same time: those without outcomes claim together."""
    found: dict[int, Any] = {}
    together: dict[int, _Fetch] = {}
    for index, request in enumerate(given):
        try:
            one = _fetch(request)
            if any(one.outcomes):
                found[index] = _carry_out(request, one)
            else:
                together[index] = one
        except Exception as problem:
            found[index] = problem
    try:
        claimed = protocol.fetch_each([protocol.Fetch.of(**one.asked) for one in together.values()])
    except Exception as problem:
        claimed = [problem] * len(together)
    for (index, one), jobs in zip(together.items(), claimed, strict=True):
        found[index] = jobs if isinstance(jobs, Exception) else _respond(one, jobs, {})
    return [found[index] for index in range(len(given))]


def _fetch(request: VerbRequest) -> _Fetch:
    body, caller = request.read(), request.caller
    sender = requests.worker_id(body, caller)
    asked: dict[str, Any] = {
        "queues": requests.queues(body),
        "pool": requests.Fetch.pool.read(body) or None,
        "count": requests.count(body),
        "types": requests.Fetch.types.read(body),
        "visibility_timeout": requests.requested_extension(body),
        "project": caller.project,
    }
    wait = requests.wait(body)
    outcomes = _outcomes(request, body, sender)
    asked["worker_id"] = _admit_all(caller, outcomes, sender)[sender] or ""
    return _Fetch(asked, wait, outcomes, time.monotonic())


def _carry_out(request: VerbRequest, given: _Fetch) -> VerbResponse | WaitingForWork[Any]:
    outcomes = given.outcomes
    if outcomes.completions and not outcomes.failures:
        done, jobs = protocol.exchange(outcomes.completions, **given.asked)
        return _respond(given, jobs, _settled(request, outcomes, done, []))
    document = _settle(request, outcomes)
    return _respond(given, protocol.fetch(**given.asked), document)


def _respond(
    given: _Fetch, jobs: Sequence[Any], document: dict[str, Any]
) -> VerbResponse | WaitingForWork[Any]:
    def respond(jobs: Sequence[Any]) -> VerbResponse:
        asked = given.asked
        document["jobs"] = [claimed_envelope(job, project=asked["project"]) for job in jobs]
        unsent = partial(protocol.release, jobs, asked["worker_id"]) if jobs else None
        return VerbResponse(document, unsent=unsent)

    if jobs or not given.wait:
        return respond(jobs)
    # The request was its sign of life; by now the worker may be gone.
    claim = partial(protocol.fetch, **given.asked, discover=False)
    return WaitingForWork(claim, respond, given.wait, given.asked, given.looked_at)


def ack(request: VerbRequest, job_id: str | None = None) -> VerbResponse:
    """ACK: one job, or a list of them with a result for each."""
    body, caller = _settling(request, job_id), request.caller
    if body.get("acks") is not None:
        return _several(request, {"acks": body["acks"]}, requests.worker_id(body, caller))
    completion = requests.completion(body, caller)
    requests.trace([completion], [body], request.meta)
    completion.worker_id = admission.admit(caller, completion.worker_id)
    (outcome,) = protocol.ack([completion], project=caller.project)
    if outcome.error is not None:
        raise outcome.error
    return VerbResponse(replies.about_one(replies.completed(outcome)))


def acks(given: Sequence[VerbRequest]) -> list[Any]:
    """ACKs of one job each that arrived at the same time: settled like one request's list."""
    found: dict[int, Any] = {}
    together: dict[str, dict[UUID, tuple[int, protocol.Completion]]] = {}
    for index, request in enumerate(given):
        try:
            body, caller = request.read(), request.caller
            completion = None
            if body.get("acks") is None:
                completion = requests.completion(body, caller)
                requests.trace([completion], [body], request.meta)
                completion.worker_id = admission.admit(caller, completion.worker_id)
            of_project = together.setdefault(caller.project, {})
            if completion is None or completion.job_id in of_project:
                found[index] = outcome_of(ack, request)
            else:
                of_project[completion.job_id] = index, completion
        except Exception as problem:
            found[index] = problem
    for project, items in together.items():
        try:
            outcomes = protocol.ack([item for _, item in items.values()], project=project)
        except Exception as problem:
            found |= {index: problem for index, _ in items.values()}
            continue
        for (index, _), outcome in zip(items.values(), outcomes, strict=True):
            found[index] = outcome.error or VerbResponse(
                replies.about_one(replies.completed(outcome))
            )
    return [found[index] for index in range(len(given))]


def nack(request: VerbRequest, job_id: str | None = None) -> VerbResponse:
    """FAIL: one job, or a list of them with a result for each."""
    body, caller = _settling(request, job_id), request.caller
    if body.get("nacks") is not None:
        return _several(request, {"nacks": body["nacks"]}, requests.worker_id(body, caller))
    failure = requests.failure(body, caller)
    requests.trace([failure], [body], request.meta)
    failure.worker_id = admission.admit(caller, failure.worker_id)
    (outcome,) = protocol.fail([failure], project=caller.project)
    if outcome.error is not None:
        raise outcome.error
    return VerbResponse(replies.about_one(replies.failed(outcome)))


def _settling(request: VerbRequest, job_id: str | None) -> dict[str, Any]:
    body = request.read()
    return body if job_id is None else requests.about(parse_id(job_id), body)


def _several(request: VerbRequest, body: dict[str, Any], sender: str | None) -> VerbResponse:
    outcomes = _outcomes(request, body, sender)
    _admit_all(request.caller, outcomes)
    return VerbResponse(_settle(request, outcomes))


def _outcomes(request: VerbRequest, body: dict[str, Any], sender: str | None) -> Outcomes:
    """Read the outcomes in a request: everything is validated before anything is done."""
    if "acks" not in body and "nacks" not in body:
        return NO_OUTCOMES
    acks, nacks = requests.several(body, "acks"), requests.several(body, "nacks")
    caller = request.caller
    completions = failures = None
    if acks is not None:
        completions = requests.completions(acks, "acks", caller, sender)
    if nacks is not None:
        failures = requests.failures(nacks, "nacks", caller, sender)
    reports = [*(completions or ()), *(failures or ())]
    requests.trace(reports, [*(acks or ()), *(nacks or ())], request.meta)
    return Outcomes(completions, failures)


def _admit_all(
    caller: Caller, outcomes: Outcomes, *senders: str | None
) -> dict[str | None, str | None]:
    """Replace the senders of outcomes by their stored ids; return those, by worker id."""
    items = [*(outcomes.completions or ()), *(outcomes.failures or ())]
    claimed = {*senders, *(item.worker_id for item in items)}
    names = admission.admit_all(caller, claimed)
    for item in items:
        item.worker_id = names[item.worker_id]
    return names


def _settle(request: VerbRequest, outcomes: Outcomes) -> dict[str, Any]:
    completions, failures = outcomes
    project = request.caller.project
    done = protocol.ack(completions, project=project) if completions else []
    failed = protocol.fail(failures, project=project) if failures else []
    return _settled(request, outcomes, done, failed)


def _settled(
    request: VerbRequest,
    outcomes: Outcomes,
    done: list[protocol.Outcome],
    failed: list[protocol.Outcome],
) -> dict[str, Any]:
    """The results of a request's outcomes, each in the list of its outcome."""
    document: dict[str, Any] = {}
    if outcomes.completions is not None:
        document["acks"] = replies.each(done, replies.completed, request.request_id)
    if outcomes.failures is not None:
        document["nacks"] = replies.each(failed, replies.failed, request.request_id)
    return document

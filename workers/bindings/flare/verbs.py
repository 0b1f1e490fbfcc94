"""Hot verbs of Flare: poll, ack, heartbeat and enqueue."""

from __future__ import annotations

from functools import partial
from typing import Any

from jobs import engine
from jobs.access import projects
from jobs.http.authentication import Caller
from jobs.http.rates import show_limits_of
from jobs.http.verbs import VerbRequest, VerbResponse
from jobs.spec import traces
from jobs.spec.lifecycle import State
from workers import protocol
from workers.access import admission
from workers.liveness import job_heartbeats as liveness
from workers.protocol import Completion, Description

from . import PROTOCOL, ids, options, replies, requests

SHARE = 2 / 3
"""Share of a job's `timeout_seconds` that is the allowed silence after a heartbeat."""


def poll(request: VerbRequest) -> VerbResponse:
    """Claim jobs; an empty array is a normal response, and all that a quiet worker gets."""
    body, caller = request.read(), request.caller
    worker_id = requests.worker_id(body, caller)
    queues = requests.queues(body)
    capacity = requests.capacity(body)
    types = requests.job_types(body)
    seen = _description(caller, queues=queues)
    name = _seen(caller, worker_id, seen)
    jobs = protocol.fetch(
        queues,
        worker_id=name,
        count=capacity,
        # Without types, a worker gets those it registered for.
        types=liveness.types_of(name) if types is None else types,
        discover=False,  # it was discovered just now
        project=caller.project,
    )
    periods = {}
    if jobs:
        periods = liveness.reserve_for_execution(jobs, name)
        liveness.seen(name, seen)
    return VerbResponse(
        {"jobs": [replies.polled(job, periods[job.id]) for job in jobs]},
        unsent=partial(protocol.release, jobs, name) if jobs else None,
    )


def ack(request: VerbRequest) -> VerbResponse:
    """Settle a job. The response counts continuations that were released by its success."""
    body, caller = request.read(), request.caller
    worker_id = requests.worker_id(body, caller)
    asked = requests.outcome(body, worker_id)
    projects.require(asked.job_id, caller.project)
    asked.worker_id = name = _admit(caller, worker_id)
    if isinstance(asked, Completion):
        (outcome,) = protocol.ack([asked], project=caller.project)
    else:
        (outcome,) = protocol.fail([asked], project=caller.project)
    _seen(caller, worker_id, _description(caller), name)
    if outcome.error is not None:
        raise outcome.error
    children = engine.freed_by(outcome.job_id) if outcome.state == State.COMPLETED else None
    return VerbResponse(replies.acknowledged(outcome, children))


def heartbeat(request: VerbRequest) -> VerbResponse:
    """Restart the job's liveness deadline; `cancel` for a job that was cancelled meanwhile."""
    body, caller = request.read(), request.caller
    worker_id = requests.worker_id(body, caller)
    job_id = requests.job_id(body)
    progress = requests.progress(body)
    projects.require(job_id, caller.project)
    name = _admit(caller, worker_id)
    try:
        goes_on = liveness.keep_alive(
            job_id,
            name,
            share=SHARE,
            at_least=options().MINIMUM_GRACE,
            progress=progress,
            project=caller.project,
        )
    finally:
        _seen(caller, worker_id, _description(caller), name)
    return VerbResponse({"status": "ok" if goes_on else "cancel"})


def create(request: VerbRequest) -> VerbResponse:
    """Enqueue a job; one with a `parent_id` waits until that job has succeeded."""
    project = request.caller.project
    asked, parent = requests.new_job(request.read(required=True))
    traces.give(traces.of_headers(request.meta), [asked.meta])
    projects.assign_project([asked], project)
    job: Any
    if parent is None:
        (job,) = engine.enqueue([asked])
    else:
        projects.find(parent, project)
        engine.enqueue_after([asked], {asked.id: [parent]}, pass_results=False)
        # Its parent may have ended already.
        job = projects.find(asked.id, project)
    response = VerbResponse(replies.job(job), status=201)
    response["Location"] = f"{request.path.rstrip('/')}/{ids.write(job.id)}"
    show_limits_of(response, [asked])
    return response


def _description(caller: Caller, **members: Any) -> Description:
    return Description(protocol=PROTOCOL.name, project=caller.project or None, **members)


def _admit(caller: Caller, worker_id: str) -> str:
    """The stored id of the worker."""
    return admission.admit(caller, worker_id) or worker_id


def _seen(caller: Caller, worker_id: str, description: Description, name: str | None = None) -> str:
    """Record a sign of life; return the stored id of the worker.

    Args:
        name: that id, if it is known already.
    """

    def act(name: str) -> str:
        liveness.seen(name, description)
        return name

    return admission.as_worker(caller, worker_id, act, name=name)

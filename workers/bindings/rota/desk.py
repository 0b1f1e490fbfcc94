"""What a Rota message does, in plain synchronous code: the worker protocol and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from jobs import engine
from jobs.api.authentication import ANYBODY, caller_of
from jobs.conf import ojs_settings
from jobs.engine import ClaimedJob, Completion, Failure, Outcome
from jobs.errors import JobNotFound, NotAuthenticated, PermissionDenied
from workers import admission, alerts, directory, protocol
from workers.protocol import Reply
from workers.waiting import Look

from .messages import Message, Registration

WORK = "work"


def admit(authorization: str) -> Any:
    """Return who opens a connection, from its Authorization header.

    Raises:
        NotAuthenticated: nobody we know, and anonymous callers are not welcome.
        PermissionDenied: the key was not made for workers.
    """
    scheme, _, key = authorization.partition(" ")
    if key.strip() and scheme.lower() == "bearer":
        caller = caller_of(key.strip())
    elif not authorization and ojs_settings.ALLOW_ANONYMOUS:
        caller = ANYBODY
    else:
        raise NotAuthenticated("Send 'Authorization: Bearer <API key>' with the handshake.")
    caller.require(WORK)
    return caller


def register(caller: Any, registration: Registration, named: Collection[str] | None = None) -> None:
    """Store the worker (Rota, Registration).

    Args:
        named: the jobs it says it has, if it says so. What else is in its hands was on its way
            when an earlier connection broke, and is given back.

    Raises:
        PermissionDenied: the key speaks for another worker, or for workers of another label or
            project.
    """
    description = registration.description
    if caller.worker_id and registration.worker_id != caller.worker_id:
        raise PermissionDenied(f"This API key speaks for worker '{caller.worker_id}' only.")
    admission.check_label(description.labels or (), caller)
    admission.admit([registration.worker_id], caller, said=description.labels)
    description.project = registration.project = caller.project
    protocol.register(registration.worker_id, description)
    if named is not None:
        _give_back_all_but(registration.worker_id, named)


def _give_back_all_but(worker_id: str, named: Collection[str]) -> None:
    held = directory.held_by(worker_id)
    lost = [
        Failure(job_id, worker_id, attempt, release=True)
        for job_id, attempt in held.items()
        if str(job_id) not in named
    ]
    if lost:
        protocol.fail(lost, discover=False)


@dataclass(slots=True)
class Told:
    """What a heartbeat message led to."""

    reply: Reply
    outcomes: list[Outcome] = field(default_factory=list)


def hear(registration: Registration, message: Message, in_hand: Collection[str]) -> Told:
    """Settle the results, extend the rest, keep what was written."""
    worker_id = registration.worker_id
    # What a worker wrote about a job is kept while the job is still its own.
    engine.write_lines(worker_id, message.lines)
    alerts.keep(worker_id, message.alerts)
    outcomes = _settle(message.results, registration.project)
    settled = {str(outcome.job_id) for outcome in outcomes}
    reply = protocol.beat(
        worker_id,
        state=message.state,
        active_job_ids=sorted({*in_hand, *(message.job_ids or ())} - settled),
        sequence=message.sequence,
        project=registration.project,
    )
    _note_progress(registration, message, reply.jobs_extended)
    if message.stats:
        directory.keep_stats(worker_id, message.stats, partial=True)
    return Told(reply, outcomes)


def _settle(results: Sequence[Completion | Failure], project: str) -> list[Outcome]:
    """Settle them all; the outcomes come in the order of the results."""
    completions = [result for result in results if isinstance(result, Completion)]
    failures = [result for result in results if isinstance(result, Failure)]
    done = iter(protocol.ack(completions, project=project) if completions else ())
    failed = iter(protocol.fail(failures, project=project) if failures else ())
    return [next(done if isinstance(result, Completion) else failed) for result in results]


def _note_progress(registration: Registration, message: Message, held: Collection[str]) -> None:
    """Note how far its jobs are; what was said before is not written again."""
    for job_id in registration.told.keys() - set(held):
        del registration.told[job_id]
    for job_id in held:
        said = message.progress.get(job_id)
        if said is None or said == registration.told.get(job_id):
            continue
        # Its retention may pass, or an operator delete it, in this very moment.
        with contextlib.suppress(JobNotFound):
            engine.report_progress(
                UUID(job_id),
                value=said.value,
                message=said.message,
                worker_id=registration.worker_id,
            )
        registration.told[job_id] = said


def look(registration: Registration, count: int) -> Look:
    """Claim up to `count` jobs of the types whose checksum is the registered one."""
    types = engine.matching_types(registration.specs)
    jobs: list[ClaimedJob] = []
    if types:
        jobs = protocol.fetch(
            registration.queues,
            worker_id=registration.worker_id,
            count=count,
            types=types,
            # The server looks while the worker may be silent: its messages are its signs of life.
            discover=False,
            project=registration.project,
        )
    if jobs:
        return Look(jobs)
    may_fetch, able = directory.standing(registration.worker_id) or (False, frozenset())
    return Look([], may_fetch, able | {f"type:{name}" for name in types})


def give_back(worker_id: str, jobs: Sequence[ClaimedJob]) -> None:
    """Return jobs that never reached the worker; the attempt does not count."""
    back = [Failure(job.id, worker_id, job.attempt, release=True) for job in jobs]
    protocol.fail(back, discover=False)


def leave(worker_id: str) -> None:
    protocol.deregister(worker_id)


def specs_of(registration: Registration) -> dict[str, list[str]]:
    """Which of a worker's types it is given, and which not."""
    matching = engine.matching_types(registration.specs)
    others = sorted(registration.specs.keys() - set(matching))
    return {"matching": matching, "mismatching": others}

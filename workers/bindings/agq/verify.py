"""WORKER.VERIFY: asks a worker to prove a declared capability (AGQ §7.3).

The question is sent as a job that requires the capability, so it reaches the worker like any other
job, on whichever connection and server process that worker is waiting.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from jobs import engine
from jobs.access.projects import assign_project
from jobs.errors import OJSError
from jobs.http.authentication import Caller
from jobs.http.renderers import dumps
from jobs.spec.batches import new_jobs
from jobs.spec.lifecycle import TERMINAL
from jobs.store import clock
from workers.fetching.abilities import ITSELF
from workers.fleet import directory

from .resp import Failed, Status

KIND = "agq.verify"
PATIENCE = 10.0
"""Seconds that a worker has to answer."""


@dataclass(frozen=True, slots=True)
class Question:
    job_id: UUID
    queue: str


def ask(capability: str, challenge: dict[str, Any], worker_id: str, caller: Caller) -> Question:
    """Send the question to one of the workers that the caller may see.

    Raises:
        Failed: no active worker could answer it.
    """
    able = directory.active(capability, caller)
    if worker_id and worker_id not in able:
        raise Failed(f"ERR Worker {worker_id} has no capability {capability}")
    if not able:
        raise Failed(f"ERR No active worker has the capability {capability}")
    worker = directory.find(worker_id or able[0], caller)
    queue = (worker.queues if worker else None) or ["ready"]
    needs = [capability, *([f"{ITSELF}{worker_id}"] if worker_id else [])]
    request = {
        "type": KIND,
        "args": [challenge],
        "queue": queue[0],
        "meta": {"capabilities": needs},
        "priority": 100,
        "max_attempts": 1,
        "retry": {"max_attempts": 1, "on_exhaustion": "discard"},
    }
    (job,) = engine.enqueue(assign_project(new_jobs([request], clock.now()), caller.project))
    return Question(job.id, job.queue)


def answer(question: Question) -> Status | None:
    """The worker's answer; None while there is none.

    Raises:
        Failed: the worker failed.
    """
    job = directory.job(question.job_id)
    if job is None or job.state not in TERMINAL:
        return None
    if job.state != "completed":
        raise Failed("ERR the worker could not do it")
    result = job.result
    if isinstance(result, dict) and "output" in result:
        result = result["output"]
    return Status(f"OK output={dumps(result).decode()}")


def give_up(question: Question) -> Failed:
    """Give up on an answer, and cancel the question."""
    # The answer may be arriving at this moment, too late.
    with contextlib.suppress(OJSError):
        engine.cancel(question.job_id, cancelled_by="WORKER.VERIFY")
    return Failed(f"ERR no worker answered within {PATIENCE:g} s")

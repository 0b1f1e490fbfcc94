"""AGQ's commands: parse, one call, reply. They run in a thread, with a database connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jobs import clock, engine, projects
from jobs.batches import new_jobs
from jobs.conf import ojs_settings
from jobs.engine import ClaimedJob
from jobs.errors import JobNotFound, OJSError
from jobs.validation import QUEUE_PATTERN
from workers import directory, protocol
from workers.lifecycle import WorkerState
from workers.protocol import Failure, SessionClaim
from workers.waiting import Look

from . import documents, keys, verify
from .resp import Failed, Status
from .session import Session, valid_worker_id

OK = Status("OK")
WORK, PRODUCE, OPERATE = "work", "produce", "operate"
QUEUE = "queue:"
LONGEST_TEXT = 64 * 1024


def text(argument: bytes) -> str:
    """
    Raises:
        Failed: it is no UTF-8, or absurdly long.
    """
    if len(argument) > LONGEST_TEXT:
        raise Failed("ERR argument too long")
    try:
        found = argument.decode()
    except UnicodeDecodeError:
        raise Failed("ERR argument is not UTF-8") from None
    if "\0" in found:
        raise Failed("ERR argument contains a NUL character")
    return found


def auth(session: Session, *arguments: bytes) -> Status:
    """AUTH <session_key>; AUTH <worker or anything> <session_key> as newer clients send it."""
    if len(arguments) > 1 and text(arguments[0]) not in ("", "default"):
        session.name = text(arguments[0])[:255]
    session.authenticate(text(arguments[-1]))
    bound = session.worker_id
    if bound and len(arguments) > 1 and session.name not in ("", bound):
        session.caller, session.worker_id = None, ""
        raise Failed("WRONGPASS this session key belongs to another worker")
    return OK


def register(session: Session, document: bytes, *, resume: bool = True) -> Status:
    """WORKER.REGISTER <worker_json> (AGQ §2.2)"""
    caller = session.may(WORK)
    worker_id, description = documents.registration(documents.read(document, "worker"))
    session.speak_for(worker_id)
    if caller.label and caller.label not in (description.labels or ()):
        raise Failed(f"ERR This key is for workers tagged {caller.label}")
    # A session key is the worker's own, so whoever has it is that worker. A key that several
    # share proves less: then the connection that registered must have gone.
    may_resume = bool(caller.worker_id) or resume
    known = directory.find(worker_id)
    description.project = caller.project or None
    description.queues = (known.queues if known else None) or ["ready"]
    protocol.register(worker_id, description, claim=SessionClaim(session.key, may_resume))
    session.worker_id = worker_id
    seconds = ojs_settings.AGQ.HEARTBEAT_INTERVAL.total_seconds()
    return Status(f"OK worker_id={worker_id} heartbeat_interval={seconds:g}")


def heartbeat(session: Session, name: bytes, stats: bytes = b"") -> Status:
    """WORKER.HEARTBEAT <worker_id> [stats_json] (AGQ §3.3)

    It restarts no reservation: a job that hangs in a worker which is alive shall be noticed.
    """
    session.may(WORK)
    worker_id = valid_worker_id(text(name))
    session.speak_for(worker_id)
    measured = documents.read(stats, "stats") if stats else None
    # AGQ has no word for a worker's state: what an operator asked for stands until it leaves.
    reply = protocol.beat(worker_id, discover=False)
    if reply.state == WorkerState.TERMINATED:
        raise Failed(f"ERR Worker not registered: {worker_id}")
    session.worker_id = session.worker_id or worker_id
    if measured is not None:
        directory.keep_stats(worker_id, measured)
    return OK


def unregister(session: Session, name: bytes) -> Status:
    """WORKER.UNREGISTER <worker_id> (AGQ §8.1)"""
    session.may(WORK)
    worker_id = valid_worker_id(text(name))
    session.speak_for(worker_id)
    if not protocol.deregister(worker_id):
        raise Failed(f"ERR Worker not registered: {worker_id}")
    if session.worker_id == worker_id and not (session.caller and session.caller.worker_id):
        session.worker_id = ""
    return OK


def queue_name(key: bytes) -> str:
    name = text(key)
    if not name.startswith(QUEUE) or not QUEUE_PATTERN.fullmatch(name.removeprefix(QUEUE)):
        raise Failed("ERR keys to pop from and push to are queue:<name>")
    return name.removeprefix(QUEUE)[:128]


def pop(session: Session, queues: Sequence[str]) -> Look:
    """One look for a job (BRPOP, AGQ §4.1); the waiting is done elsewhere.

    Raises:
        Failed: the worker is not there, so there is no point in waiting.
    """
    session.may(WORK)
    worker_id = session.worker()
    jobs = protocol.fetch(
        queues,
        worker_id=worker_id,
        visibility_timeout=ojs_settings.AGQ.JOB_TIMEOUT,
        project=session.project,
    )
    if tuple(queues) != session.queues:
        directory.keep_queues(worker_id, queues)
        session.queues = tuple(queues)
    if jobs:
        return Look(jobs)
    standing = directory.standing(worker_id)
    if standing is None:
        raise Failed(f"ERR Worker not registered: {worker_id}")
    return Look([], *standing)


def give_back(session: Session, jobs: Sequence[ClaimedJob]) -> None:
    """Nobody is there any more to hand them to: the attempt does not count."""
    worker_id = session.worker_id
    protocol.fail([Failure(job.id, worker_id=worker_id, release=True) for job in jobs])


def update(session: Session, job: bytes, document: bytes) -> Status:
    """JOB.UPDATE <job_id> <update_json> (AGQ §4.2)"""
    session.may(WORK)
    said = documents.read(document, "update")
    job_id = documents.job_id(job)
    if said.get("worker_id") is not None:
        worker_id = valid_worker_id(documents.fields.text(said, "worker_id") or "")
        session.speak_for(worker_id)
        # A connection that speaks for a worker cannot borrow another's name (§7.4).
        worker_id = session.worker_id or worker_id
    else:
        worker_id = session.worker()
    projects.require(job_id, session.project)
    match said.get("status"):
        case "completed":
            (outcome,) = protocol.ack([documents.completion(job_id, worker_id, said)])
            done = outcome.error is None
        case "failed":
            (outcome,) = protocol.fail([documents.failure(job_id, worker_id, said)])
            done = outcome.error is None
        case "running":
            done = directory.extend(job_id, worker_id)
            share = documents.progress(said)
            if done and share is not None:
                directory.report_progress(job_id, worker_id, share, said.get("current_task"))
        case None:
            share = documents.progress(said)
            task = said.get("current_task")
            if share is None and task is None:
                raise Failed("ERR Invalid update: neither status nor progress")
            done = directory.report_progress(job_id, worker_id, share, task)
        case other:
            raise Failed(f"ERR Invalid status: {str(other)[:40]}")
    if not done:
        raise _refusal(job_id, worker_id)
    return OK


def _refusal(job_id: Any, worker_id: str) -> Failed:
    job = directory.job(job_id)
    if job is None:
        return Failed(f"ERR Job not found: {job_id}")
    if job.state == "active":
        holder = job.reserved_by or "a worker without a name"
        return Failed(f"ERR Worker {worker_id} cannot update job claimed by {holder}")
    return Failed(f"ERR Worker {worker_id} cannot update job that is {job.state}")


def push(session: Session, key: bytes, *plans: bytes) -> int:
    """LPUSH queue:<name> <plan_json> […]: all or none; answers how many were pushed."""
    session.may(PRODUCE)
    queue = queue_name(key)
    requests = [documents.pushed(queue, documents.read(plan, "job")) for plan in plans]
    jobs = new_jobs(requests, clock.now())
    return len(engine.enqueue(projects.give(jobs, session.project)))


def keys_like(session: Session, pattern: bytes) -> list[str]:
    """KEYS worker:*:alive (AGQ §9.2)"""
    session.may("")
    return keys.matching(text(pattern), session.project)


def get(session: Session, key: bytes) -> str | None:
    session.may("")
    return keys.get(text(key), session.project)


def ttl(session: Session, key: bytes) -> int:
    session.may("")
    return keys.ttl(text(key), session.project)


def exists(session: Session, *names: bytes) -> int:
    session.may("")
    return sum(keys.ttl(text(name), session.project) != keys.NO_KEY for name in names[:10])


def members(session: Session, key: bytes) -> list[str]:
    session.may("")
    return keys.members(text(key), session.project)


def verify_begin(session: Session, *arguments: bytes) -> Any:
    """WORKER.VERIFY <capability> <challenge_json> [worker_id] (AGQ §7.3): the question is put."""
    session.may(OPERATE)
    worker_id = valid_worker_id(text(arguments[2])) if len(arguments) > 2 else ""
    challenge = documents.read(arguments[1], "challenge")
    return verify.ask(text(arguments[0]), challenge, worker_id, session.project)


Command = tuple[Callable[..., Any], int, int]
COMMANDS: dict[str, Command] = {
    # name: what does it, fewest and most arguments
    "AUTH": (auth, 1, 2),
    "WORKER.REGISTER": (register, 1, 1),
    "WORKER.HEARTBEAT": (heartbeat, 1, 2),
    "WORKER.UNREGISTER": (unregister, 1, 1),
    "JOB.UPDATE": (update, 2, 2),
    "LPUSH": (push, 2, 1001),
    "KEYS": (keys_like, 1, 1),
    "GET": (get, 1, 1),
    "TTL": (ttl, 1, 1),
    "EXISTS": (exists, 1, 10),
    "SMEMBERS": (members, 1, 1),
}


def explained(problem: OJSError) -> Failed:
    """An engine's refusal in AGQ's words."""
    if isinstance(problem, JobNotFound):
        return Failed(f"ERR Job not found: {problem.details['resource_id']}")
    if isinstance(problem, protocol.WorkerExists):
        return Failed("ERR Worker ID already registered")
    if problem.code == "permission_denied":
        return Failed(f"NOPERM {problem.message}")
    return Failed(f"ERR {problem.message}")

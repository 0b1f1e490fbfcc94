"""AGQ's commands: parse, one call, reply. They run in a thread with a database connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

from jobs import engine
from jobs.access import Command, find, projects
from jobs.engine import ClaimedJob, Outcome
from jobs.errors import Conflict, JobNotFound, OJSError, ResultTooLarge
from jobs.spec import reserved
from jobs.spec.batches import new_jobs
from jobs.spec.validation import QUEUE_LENGTH, QUEUE_PATTERN, TYPE_PATTERN
from jobs.store import clock
from workers import protocol
from workers.access import admission
from workers.fetching.waiting import Look
from workers.fleet import directory
from workers.lifecycle import WorkerState
from workers.protocol import Completion, Failure, SessionClaim

from . import PROTOCOL, connection_commands, documents, keys, options, verify
from .resp import Failed, Status
from .session import Session, valid_worker_id
from .transaction import AT_ONCE

OK = Status("OK")
QUEUE = "queue:"
LONGEST_TEXT = 64 * 1024


def text(argument: bytes) -> str:
    """
    Raises:
        Failed: it is not UTF-8, or too long.
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
    """AUTH <session_key>; newer clients send AUTH <worker or anything> <session_key>."""
    if len(arguments) > 1 and text(arguments[0]) not in ("", "default"):
        session.name = text(arguments[0])[:255]
    session.authenticate(text(arguments[-1]))
    if len(arguments) > 1:
        session.require_name(session.name)
    return OK


def register(session: Session, document: bytes, *, resume: bool = True) -> Status:
    """WORKER.REGISTER <worker_json> (AGQ §2.2)"""
    caller = session.speaker
    worker_id, description = documents.registration(documents.read(document, "worker"))
    # A session key belongs to one worker, so its holder is that worker. A key that several workers
    # share proves less: then the connection that registered must have ended.
    may_resume = bool(caller.worker_id) or resume
    description.project = caller.project or None
    # The id of the key, not its secret, which may be replaced meanwhile. The previous release
    # stored the digest.
    keys = (f"key {caller.key_id}", session.key) if session.key else ("",)
    claim = SessionClaim(keys, may_resume)

    def act(name: str) -> None:
        known = directory.find(name)
        description.queues = (known.queues if known else None) or ["ready"]
        worker = protocol.register(name, description, claim=claim)
        session.registrations[name] = worker.registered_at

    session.arrive_as(worker_id, description.labels or (), act)
    session.worker_id, session.queues = worker_id, ()
    seconds = options().HEARTBEAT_INTERVAL.total_seconds()
    return Status(f"OK worker_id={worker_id} heartbeat_interval={seconds:g}")


def heartbeat(session: Session, name: bytes, stats: bytes = b"") -> Status:
    """WORKER.HEARTBEAT <worker_id> [stats_json] (AGQ §3.3)

    Restarts no reservation, so that a job which hangs in a living worker is noticed.
    """
    worker_id = valid_worker_id(text(name))
    stored = session.speak_for(worker_id)
    measured = documents.read(stats, "stats") if stats else None
    # AGQ cannot report a worker's state: an operator's directive remains until the worker leaves.
    reply = protocol.beat(stored, discover=False, project=session.project)
    if reply.state == WorkerState.TERMINATED:
        raise Failed(f"ERR Worker not registered: {worker_id}")
    session.worker_id = session.worker_id or worker_id
    if measured is not None:
        directory.keep_stats(stored, measured)
    return OK


def unregister(session: Session, name: bytes) -> Status:
    """WORKER.UNREGISTER <worker_id> (AGQ §8.1)

    On the connection that registered the worker, this ends that registration and no later one.
    """
    worker_id = valid_worker_id(text(name))
    stored = session.speak_for(worker_id)
    registered_at = session.registrations.get(stored)
    if not protocol.deregister(stored, project=session.project, registered_at=registered_at):
        raise Failed(f"ERR Worker not registered: {worker_id}")
    session.registrations.pop(stored, None)
    if session.worker_id == worker_id and not (session.caller and session.caller.worker_id):
        session.worker_id = ""
    return OK


def queue_name(key: bytes) -> str:
    name = text(key).removeprefix(QUEUE)
    is_queue = text(key).startswith(QUEUE) and QUEUE_PATTERN.fullmatch(name)
    if not is_queue or len(name) > QUEUE_LENGTH:
        raise Failed("ERR keys to pop from and push to are queue:<name>")
    if name in reserved.QUEUES:
        raise Failed(f"ERR {reserved.refused_queue(name, 'queue')}")
    return name


def pop(session: Session, queues: Sequence[str]) -> Look:
    """Try once to claim a job (BRPOP, AGQ §4.1); the waiting is done elsewhere.

    Raises:
        Failed: the worker is not registered, so waiting is pointless.
    """
    session.look_again()
    session.entitle(rule("BRPOP"))
    stored = session.held_as = session.worker()
    jobs = protocol.fetch(
        queues,
        worker_id=stored,
        visibility_timeout=options().JOB_TIMEOUT,
        # A dead worker must register again (§6).
        discover=False,
        project=session.project,
        registered=True,
    )
    if tuple(queues) != session.queues:
        directory.keep_queues(stored, queues)
        session.queues = tuple(queues)
    if jobs:
        return Look(jobs)
    state = directory.fetch_state(stored, registered=True)
    if state is None:
        raise Failed(f"ERR Worker not registered: {session.worker_id}")
    return Look([], *state)


def release(session: Session, jobs: Sequence[ClaimedJob]) -> None:
    """Release jobs whose connection has ended: the attempt does not count."""
    protocol.release(jobs, session.held_as)


def update(session: Session, job: bytes, document: bytes) -> Status:
    """JOB.UPDATE <job_id> <update_json> (AGQ §4.2)"""
    changes = documents.read_update(document)
    job_id = documents.job_id(job)
    if changes.get("worker_id") is not None:
        worker_id = valid_worker_id(documents.Update.worker_id.read(changes) or "")
        stored = session.speak_for(worker_id)
    else:
        stored, worker_id = session.worker(), session.worker_id
    projects.require(job_id, session.project)
    # A connection that acts for one worker cannot use another's id (§7.4).
    if session.worker_id not in ("", worker_id):
        _note_refusal(session, job_id, changes.get("status"), worker_id, session.worker_id)
        raise _refusal(session, job_id, worker_id, session.worker_id)
    match changes.get("status"):
        case "completed":
            completion = documents.completion(job_id, stored, changes)
            done = _is_done(*protocol.ack([completion], discover=False))
        case "failed":
            failure = documents.failure(job_id, stored, changes)
            done = _is_done(*protocol.fail([failure], discover=False))
        case "running":
            share, data = documents.progress(changes)
            done = directory.extend(job_id, stored)
            if done and share is not None:
                directory.report_progress(job_id, stored, share, data)
        case None:
            share, data = documents.progress(changes)
            if share is None and data is None:
                raise Failed("ERR Invalid update: neither status nor progress")
            done = directory.report_progress(job_id, stored, share, data)
        case other:
            raise Failed(f"ERR Invalid status: {str(other)[:40]}")
    if not done:
        raise _refusal(session, job_id, worker_id)
    return OK


def _is_done(outcome: Outcome) -> bool:
    """Whether a job was settled; False if the worker does not hold it.

    Raises:
        OJSError: it was refused for another reason.
    """
    if outcome.error is None:
        return True
    if isinstance(outcome.error, JobNotFound | Conflict):
        return False
    raise outcome.error


def _refusal(session: Session, job_id: Any, *worker_ids: str) -> Failed:
    """
    Args:
        worker_ids: the workers in whose name it was said, one of which does not hold the job.
    """
    job = directory.job(job_id)
    if job is None:
        return Failed(f"ERR Job not found: {job_id}")
    if job.state != "active":
        return Failed(f"ERR Worker {worker_ids[0]} cannot update job that is {job.state}")
    holder = directory.id_of(job.reserved_by, session.speaker)
    other = _other_than(holder, worker_ids)
    named = holder or "a worker without a name"
    return Failed(f"ERR Worker {other} cannot update job claimed by {named}")


def _other_than(holder: str, worker_ids: Sequence[str]) -> str:
    return next((name for name in worker_ids if name != holder), worker_ids[0])


def _note_refusal(session: Session, job_id: UUID, status: Any, *worker_ids: str) -> None:
    """Record that an outcome in the name of another worker is refused, as every other one is."""
    if status not in ("completed", "failed") or (job := directory.job(job_id)) is None:
        return
    holder = directory.id_of(job.reserved_by, session.speaker)
    sender = session.speak_for(_other_than(holder, worker_ids))
    report = Completion if status == "completed" else Failure
    engine.refuse(report(job_id, worker_id=sender))


def push(session: Session, key: bytes, *plans: bytes) -> int:
    """LPUSH queue:<name> <plan_json> […]: all or none; returns how many were pushed."""
    queue = queue_name(key)
    requests = [documents.pushed(queue, documents.read(plan, "job")) for plan in plans]
    jobs = new_jobs(requests, clock.now(), type_pattern=TYPE_PATTERN)
    return len(engine.enqueue(projects.assign_project(jobs, session.project)))


def keys_like(session: Session, pattern: bytes) -> list[str]:
    """KEYS worker:*:alive (AGQ §9.2); any pattern that Redis supports."""
    return keys.matching(pattern, session.speaker)


def scan(session: Session, cursor: bytes, *options: bytes) -> list[Any]:
    """SCAN <cursor> [MATCH <pattern>] [COUNT <keys>] [TYPE <type>]

    Raises:
        Failed: an option is unknown, or not a number.
    """
    place = _number(cursor, "ERR invalid cursor")
    pattern, count, kind = b"*", 0, ""
    if len(options) % 2:
        raise Failed("ERR syntax error")
    for word, value in zip(options[::2], options[1::2], strict=True):
        match word.upper():
            case b"MATCH":
                pattern = value
            case b"COUNT":
                count = _number(value, "ERR value is not an integer or out of range")
                if not count:
                    raise Failed("ERR syntax error")
            case b"TYPE":
                kind = text(value).lower()
            case _:
                raise Failed("ERR syntax error")
    following, found = keys.scan(place, pattern, count, session.speaker, kind)
    return [str(following), found]


def _number(digits: bytes, refusal: str) -> int:
    if not digits.isdigit() or len(digits) > 20:
        raise Failed(refusal)
    return int(digits)


def get(session: Session, key: bytes) -> str | None:
    return keys.get(text(key), session.speaker)


def type_of(session: Session, key: bytes) -> Status:
    return Status(keys.type_of(text(key), session.speaker))


def ttl(session: Session, key: bytes) -> int:
    """TTL <key>, in seconds"""
    return keys.time_to_live(text(key), session.speaker, timedelta(seconds=1))


def pttl(session: Session, key: bytes) -> int:
    """PTTL <key>, in milliseconds"""
    return keys.time_to_live(text(key), session.speaker, timedelta(milliseconds=1))


def exists(session: Session, *names: bytes) -> int:
    return sum(keys.find(text(name), session.speaker) is not None for name in names)


def length(session: Session, key: bytes) -> int:
    """LLEN queue:<name>: the number of available jobs."""
    return keys.length(text(key), session.speaker)


def members(session: Session, key: bytes) -> list[str]:
    return keys.members(text(key), session.speaker)


def verify_begin(session: Session, *arguments: bytes) -> Any:
    """WORKER.VERIFY <capability> <challenge_json> [worker_id] (AGQ §7.3): sends the question."""
    session.look_again()
    session.entitle(rule("WORKER.VERIFY"))
    worker_id = valid_worker_id(text(arguments[2])) if len(arguments) > 2 else ""
    challenge = documents.read(arguments[1], "challenge")
    return verify.ask(text(arguments[0]), challenge, worker_id, session.speaker)


COMMANDS: dict[str, tuple[Callable[..., Any], int, int]] = {
    # name: function, minimum and maximum number of arguments
    "AUTH": (auth, 1, 2),
    "WORKER.REGISTER": (register, 1, 1),
    "WORKER.HEARTBEAT": (heartbeat, 1, 2),
    "WORKER.UNREGISTER": (unregister, 1, 1),
    "JOB.UPDATE": (update, 2, 2),
    "LPUSH": (push, 2, 1001),
    "LLEN": (length, 1, 1),
    "KEYS": (keys_like, 1, 1),
    "SCAN": (scan, 1, 7),
    "GET": (get, 1, 1),
    "TYPE": (type_of, 1, 1),
    "TTL": (ttl, 1, 1),
    "PTTL": (pttl, 1, 1),
    "EXISTS": (exists, 1, 10),
    "SMEMBERS": (members, 1, 1),
}


WAITING = ("BRPOP", "WORKER.VERIFY")
"""Commands that the connection itself retries until there is a result."""
GREETINGS = ("HELLO", "QUIT")


def known() -> list[str]:
    """The names of all commands."""
    return [
        *COMMANDS,
        *connection_commands.WORDS,
        *WAITING,
        *GREETINGS,
        *sorted(AT_ONCE - {"QUIT"}),
    ]


@cache
def rule(name: str) -> Command | None:
    """The declaration of a command."""
    return find(PROTOCOL.named_in_table, name)


def carry_out(session: Session, name: str, *arguments: bytes, **more: Any) -> Any:
    """Carry out one of `COMMANDS`, if the key currently permits it.

    Raises:
        Revoked: the key is no longer valid.
        Failed, PermissionDenied: the key does not permit it.
    """
    declared = rule(name)
    # Except for commands that present a new key, by which a client may follow a rotation.
    if declared is None or not declared.is_open:
        session.look_again()
    session.entitle(declared)
    return COMMANDS[name][0](session, *arguments, **more)


def explained(problem: OJSError) -> Failed:
    """An engine's refusal as an error of AGQ."""
    if isinstance(problem, JobNotFound):
        return Failed(f"ERR Job not found: {problem.details['resource_id']}")
    if isinstance(problem, protocol.WorkerExists):
        return Failed("ERR Worker ID already registered")
    if isinstance(problem, admission.OtherWorker):
        return Failed(f"ERR This session key belongs to worker {problem.bound}")
    if problem.code == "permission_denied":
        return Failed(f"NOPERM {problem.message}")
    if isinstance(problem, ResultTooLarge):
        return Failed(f"ERR {problem.code}: {problem.message}")
    return Failed(f"ERR {problem.message}")

"""Carries out Rota messages, in synchronous code, by the worker protocol alone."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from uuid import UUID

from jobs import engine
from jobs.access import Command, authorize, find, refusals
from jobs.access.address import address_of
from jobs.conf import ojs_settings
from jobs.engine import ClaimedJob, Completion, Failure, Outcome
from jobs.errors import JobNotFound, NotAuthenticated, OJSError, PermissionDenied
from jobs.http.authentication import (
    ANYBODY,
    Caller,
    caller_of,
    confined,
    current_caller,
    digest,
    renewed,
)
from jobs.http.origins import check_socket
from jobs.http.request import Meta
from jobs.spec import fields
from workers import protocol
from workers.access import admission
from workers.fetching.waiting import Look
from workers.fleet import alerts, directory
from workers.protocol import Reply

from . import PROTOCOL
from .messages import Message, Registration

BEARER = "bearer."
"""The only header a browser can set names subprotocols: this prefix marks its key."""
PARTS = {
    "registration": "registration",
    "state": "status",
    "job_ids": "status",
    "progress": "status",
    "stats": "status",
    "lines": "status",
    "alerts": "status",
    "results": "results",
    "wanted": "wanted",
    "received": "wanted",
    "sequence": "status",
}
"""Member of a message → the part of it that is declared in the table of permissions."""


@cache
def rule(part: str) -> Command | None:
    """The declaration of a part of workers' messages."""
    return find(PROTOCOL.named_in_table, part)


@dataclass(slots=True)
class Visitor:
    """The client that opened a connection."""

    caller: Caller
    key: str = ""
    """Digest of the key; empty without one."""
    address: str = ""
    admitted: Caller | None = None
    """The key's rights when it was last checked for the registered worker."""

    def look_again(self) -> None:
        """Check the key again; costs no query while it is cached.

        Raises:
            NotAuthenticated: it is no longer valid.
            PermissionDenied: it belongs to another project than the tenant of the handshake.
        """
        if self.key:
            known = current_caller(self.key, protocol=PROTOCOL.name, address=self.address)
            self.caller = renewed(known, self.caller)

    def has_other_rights(self, caller: Caller) -> bool:
        """Whether the rights of its key are no longer those that it last used."""
        try:
            return renewed(caller, self.caller) != self.caller
        except PermissionDenied:
            return True

    def entitle(self, *parts: str) -> Caller:
        """Return the caller, if it may send these parts.

        Raises:
            PermissionDenied: the key does not permit one of them.
        """
        for part in parts:
            authorize(self.caller, rule(part))
        return self.caller


def admit(meta: Meta, subprotocols: Sequence[str]) -> Visitor:
    """Authenticate the client that opens a connection.

    Args:
        meta: the WSGI environment of the handshake.
        subprotocols: those that the client offers; a key may be among them.

    Raises:
        NotAuthenticated: there is no valid key, and anonymous callers are not allowed.
        PermissionDenied: the key is not for workers, or not of the tenant in `X-OJS-Tenant`; or a
            page of another site sends none.
        InvalidRequest: that is no tenant's id.
    """
    authorization, address = _login(meta, subprotocols), address_of(meta)
    if not authorization:
        check_socket(meta.get("HTTP_ORIGIN", ""))
    visitor = None
    try:
        visitor = _visitor(authorization, address)
        visitor.caller = confined(visitor.caller, meta)
        visitor.entitle("handshake")
    except OJSError as refusal:
        note(refusal, "handshake", address, visitor)
        raise
    return visitor


def _login(meta: Meta, subprotocols: Sequence[str]) -> str:
    """The Authorization header, or its substitute for clients that cannot send one."""
    header: str = meta.get("HTTP_AUTHORIZATION", "")
    offered = [name for name in subprotocols if name.startswith(BEARER)]
    return f"Bearer {offered[0].removeprefix(BEARER)}" if offered and not header else header


def note(problem: OJSError, call: str, address: str, visitor: Visitor | None) -> None:
    """Record a refusal in the audit; other errors are ignored."""
    name = visitor.caller.name if visitor and visitor.key else ""
    refusals.note(problem, protocol=PROTOCOL.name, address=address, call=call, key=name)


def _visitor(authorization: str, address: str) -> Visitor:
    scheme, _, key = authorization.partition(" ")
    key = key.strip()
    if key and scheme.lower() == "bearer":
        caller = caller_of(key, protocol=PROTOCOL.name, address=address)
        return Visitor(caller, digest(key), address)
    if not authorization and ojs_settings.ALLOW_ANONYMOUS:
        return Visitor(ANYBODY, address=address)
    raise NotAuthenticated("Send 'Authorization: Bearer <API key>' with the handshake.")


def speaks_for(visitor: Visitor, registration: Registration) -> None:
    """Require that a connection may still act for the worker it registered.

    Raises:
        NotAuthenticated: the key is no longer valid.
        PermissionDenied: it is bound to another worker, or to workers with another label.
    """
    visitor.look_again()
    caller = visitor.caller
    if caller != visitor.admitted:
        admission.speak_for(caller, registration.worker_id)
        name = admission.admit(caller, registration.worker_id)
        registration.name = name or registration.worker_id
        registration.project = caller.project
        visitor.admitted = caller


def register(
    visitor: Visitor, registration: Registration, named: Collection[str] | None = None
) -> None:
    """Store the worker (Rota, Registration).

    Args:
        named: the jobs that it reports, if any. Other jobs that it holds were on their way when
            an earlier connection broke, and are released.

    Raises:
        NotAuthenticated: the key is no longer valid.
        PermissionDenied: the key is bound to another worker, or to workers with another label.
    """
    visitor.look_again()
    caller = visitor.entitle("registration")
    description = registration.description
    with fields.inside("registration", aloud=True):
        admission.speak_for(caller, registration.worker_id)
    description.project = registration.project = caller.project

    def act(name: str) -> None:
        registration.registered_at = protocol.register(name, description).registered_at
        registration.name = name

    admission.as_worker(caller, registration.worker_id, act, labels=description.labels or [])
    visitor.admitted = caller
    if named is not None:
        _give_back_all_but(registration.name, named)


def _give_back_all_but(name: str, named: Collection[str]) -> None:
    held = directory.held_by(name)
    lost = [
        Failure(job_id, name, attempt, release=True)
        for job_id, attempt in held.items()
        if str(job_id) not in named
    ]
    if lost:
        protocol.fail(lost, discover=False)


@dataclass(slots=True)
class Handled:
    """The outcome of a heartbeat message."""

    reply: Reply
    outcomes: list[Outcome]
    settled: set[str]
    """The jobs that were settled. One whose result was refused may still be the worker's."""


def hear(
    visitor: Visitor, registration: Registration, message: Message, in_hand: Collection[str]
) -> Handled:
    """Settle the results, extend the other jobs, store the logs.

    Raises:
        NotAuthenticated: the key is no longer valid.
        PermissionDenied: the key does not permit this.
    """
    speaks_for(visitor, registration)
    visitor.entitle("status", *(["results"] if message.results else ()))
    # Log lines about a job are stored while the worker still holds it.
    engine.write_lines(registration.name, message.lines)
    alerts.keep(registration.name, message.alerts)
    for result in message.results:
        result.worker_id = registration.name
    outcomes = _settle(message.results, registration.project)
    settled = {str(outcome.job_id) for outcome in outcomes if outcome.error is None}
    # Before the heartbeat: after it, a directive counts as delivered to a worker without states.
    reports_state = registration.reports_state or message.state is not None
    if reports_state != registration.reports_state:
        directory.keep_reports_state(registration.name, reports_state)
        registration.reports_state = reports_state

    def act(name: str) -> Reply:
        registration.name = name
        return protocol.beat(
            name,
            state=message.state,
            active_job_ids=sorted({*in_hand, *(message.job_ids or ())} - settled),
            sequence=message.sequence,
            project=registration.project,
            registered_at=registration.registered_at,
        )

    caller, worker_id = visitor.caller, registration.worker_id
    reply = admission.as_worker(caller, worker_id, act, name=registration.name)
    _note_progress(registration, message, reply.jobs_extended)
    if message.stats:
        directory.keep_stats(registration.name, message.stats, partial=True)
    return Handled(reply, outcomes, settled)


def _settle(results: Sequence[Completion | Failure], project: str) -> list[Outcome]:
    """Settle them all; the outcomes are in the order of the results."""
    completions = [result for result in results if isinstance(result, Completion)]
    failures = [result for result in results if isinstance(result, Failure)]
    done = iter(protocol.ack(completions, project=project) if completions else ())
    failed = iter(protocol.fail(failures, project=project) if failures else ())
    return [next(done if isinstance(result, Completion) else failed) for result in results]


def _note_progress(registration: Registration, message: Message, held: Collection[str]) -> None:
    """Store the progress of its jobs, unless it is unchanged."""
    for job_id in registration.reported.keys() - set(held):
        del registration.reported[job_id]
    for job_id in held:
        share = message.progress.get(job_id)
        if share is None or share == registration.reported.get(job_id):
            continue
        # Its retention may end, or an operator may delete it, at this moment.
        with contextlib.suppress(JobNotFound):
            engine.report_progress(
                UUID(job_id),
                value=share.value,
                message=share.message,
                worker_id=registration.name,
            )
        registration.reported[job_id] = share


def look(visitor: Visitor, registration: Registration, count: int) -> Look:
    """Claim up to `count` jobs of the types whose checksum is the registered one.

    Raises:
        NotAuthenticated: the key is no longer valid.
        PermissionDenied: the key does not permit this.
    """
    speaks_for(visitor, registration)
    visitor.entitle("wanted")
    types = engine.matching_types(registration.specs)
    jobs: list[ClaimedJob] = []
    if types:
        jobs = protocol.fetch(
            registration.queues,
            worker_id=registration.name,
            count=count,
            types=types,
            # The server claims even while the worker is silent: only messages are signs of life.
            discover=False,
            project=registration.project,
        )
    if jobs:
        return Look(jobs)
    may_fetch, able = directory.fetch_state(registration.name) or (False, frozenset())
    return Look([], may_fetch, able | {f"type:{name}" for name in types})


def release(registration: Registration, jobs: Sequence[ClaimedJob]) -> None:
    """Return jobs that never reached the worker; the attempt does not count."""
    protocol.release(jobs, registration.name)


def leave(registration: Registration) -> None:
    """Record that the worker has left, unless it has registered on another connection since."""
    protocol.deregister(
        registration.name,
        project=registration.project,
        registered_at=registration.registered_at,
    )


def specs_of(registration: Registration) -> dict[str, list[str]]:
    """The types of a worker for which it gets jobs, and those for which it does not."""
    matching = engine.matching_types(registration.specs)
    others = sorted(registration.specs.keys() - set(matching))
    return {"matching": matching, "mismatching": others}

"""Session of an AGQ client, and the worker for which it acts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from jobs.access import Command, authorize, refusals
from jobs.conf import ojs_settings
from jobs.errors import KeyExpired, NotAuthenticated, OJSError
from jobs.http.authentication import ANYBODY, Caller, caller_of, current_caller, digest
from workers.access import admission

from . import PROTOCOL
from .resp import Failed

WORKER_ID = re.compile(r"[A-Za-z0-9_-]+")
WORKER_ID_LENGTH = 64
NO_AUTH = "NOAUTH Authentication required."
WRONG_KEY = "WRONGPASS invalid session key"
Result = TypeVar("Result")


class Revoked(Failed):
    """The key of an open connection is no longer valid: the connection ends."""

    def __init__(self) -> None:
        super().__init__("NOAUTH This session key is not valid any more.")


def valid_worker_id(text: str) -> str:
    """
    Raises:
        Failed: it is not a worker id (AGQ §7.2).
    """
    if not WORKER_ID.fullmatch(text):
        raise Failed("ERR Invalid worker ID characters")
    if len(text) > WORKER_ID_LENGTH:
        raise Failed("ERR Worker ID too long")
    return text


@dataclass(slots=True)
class Session:
    """State of a connection, as far as the client has given it."""

    number: int
    address: str = ""
    """The client's address."""
    caller: Caller | None = None
    worker_id: str = ""
    """The worker for which it acts, by the client's name for it: that of its session key, or the
    one it registered."""
    held_as: str = ""
    """The stored id of that worker, when it last asked for jobs."""
    key: str = field(default="", repr=False)
    """Digest of the key it used; empty without one."""
    resp: int = 2
    name: str = ""
    queues: tuple[str, ...] = ()
    """The queues of the last pull, as they were written to the worker's row."""
    failures: int = 0
    registrations: dict[str, datetime | None] = field(default_factory=dict)
    """When each worker registered on this connection, by stored id."""

    @property
    def project(self) -> str:
        """The only project that it can access; empty means all projects."""
        return self.caller.project if self.caller else ""

    @property
    def identity(self) -> tuple[str, str]:
        """Its project, and the worker within it for which the client acts."""
        return self.project, self.worker_id

    @property
    def is_known(self) -> bool:
        return self.caller is not None or ojs_settings.ALLOW_ANONYMOUS

    def authenticate(self, key: str) -> None:
        """
        Raises:
            Failed: it is neither a session key nor an API key.
        """
        try:
            self.caller = caller_of(key, protocol=PROTOCOL.name, address=self.address)
        except NotAuthenticated as problem:
            self._note(problem, "AUTH")
            self.forget()
            self.failures += 1
            if isinstance(problem, KeyExpired):
                raise Failed(f"WRONGPASS {problem.message}") from None
            raise Failed(WRONG_KEY) from None
        self.key = digest(key)
        self.worker_id = self.caller.worker_id

    def require_name(self, name: str) -> None:
        """Refuse the key that has just been used if it belongs to another worker than this one.

        Raises:
            Failed: it does.
        """
        caller = self.speaker
        if caller.worker_id and name not in ("", caller.worker_id):
            self._note(admission.OtherWorker(caller.worker_id, name), "AUTH", caller.name)
            self.forget()
            raise Failed("WRONGPASS this session key belongs to another worker")

    def _note(self, problem: OJSError, call: str = "", key: str = "") -> None:
        refusals.note(problem, protocol=PROTOCOL.name, address=self.address, call=call, key=key)

    def forget(self) -> None:
        """Drop the authentication."""
        self.caller, self.key, self.worker_id = None, "", ""

    def reset(self) -> None:
        """Return to the state of a new connection; failed logins remain counted."""
        self.forget()
        self.resp, self.name, self.queues = 2, "", ()
        self.registrations.clear()

    def look_again(self) -> None:
        """Check the key again; costs no query while it is cached.

        Raises:
            Revoked: it is no longer valid.
        """
        if not self.key:
            return
        try:
            self.caller = current_caller(self.key, protocol=PROTOCOL.name, address=self.address)
        except NotAuthenticated as problem:
            self._note(problem)
            raise Revoked from None

    def entitle(self, command: Command | None) -> Caller:
        """Return the caller.

        Raises:
            Failed: there is no key, and one is required.
            PermissionDenied: the key does not permit the command.
        """
        caller = self.caller
        if caller is None:
            if not (ojs_settings.ALLOW_ANONYMOUS or (command and command.is_open)):
                raise Failed(NO_AUTH)
            caller = ANYBODY
        authorize(caller, command)
        return caller

    @property
    def speaker(self) -> Caller:
        """The caller of a command that has been permitted."""
        return self.caller or ANYBODY

    def speak_for(self, worker_id: str) -> str:
        """Return the stored id of the worker for which it acts, given the name in a command.

        Raises:
            PermissionDenied: the session belongs to another worker, or the worker does not have the
                key's label.
        """
        speaker = self._named(worker_id)
        return admission.admit(self.speaker, speaker) or speaker

    def arrive_as(
        self, worker_id: str, labels: Collection[str], act: Callable[[str], Result]
    ) -> Result:
        """Register: `act` gets the stored id; see `admission.as_worker`.

        Args:
            labels: those that the worker declares.

        Raises:
            PermissionDenied: as above.
        """
        return admission.as_worker(self.speaker, self._named(worker_id), act, labels=labels)

    def _named(self, worker_id: str) -> str:
        return admission.speak_for(self.speaker, worker_id) or worker_id

    def worker(self) -> str:
        """The stored id of the worker for which it acts.

        Raises:
            Failed: it has not named one.
            PermissionDenied: the worker does not have the key's label.
        """
        if not self.worker_id:
            raise Failed("ERR Worker not registered: send WORKER.REGISTER first")
        return self.speak_for(self.worker_id)

"""Who is at the other end of a connection, and which worker it speaks for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from jobs.access import refusals
from jobs.api.authentication import ANYBODY, Caller, caller_of, digest
from jobs.conf import ojs_settings
from jobs.errors import KeyExpired, NotAuthenticated
from workers import admission

from .resp import Failed

WORKER_ID = re.compile(r"[A-Za-z0-9_-]+")
WORKER_ID_LENGTH = 64
NO_AUTH = "NOAUTH Authentication required."
WRONG_KEY = "WRONGPASS invalid session key"


def valid_worker_id(text: str) -> str:
    """
    Raises:
        Failed: it is no worker id (AGQ §7.2).
    """
    if not WORKER_ID.fullmatch(text):
        raise Failed("ERR Invalid worker ID characters")
    if len(text) > WORKER_ID_LENGTH:
        raise Failed("ERR Worker ID too long")
    return text


@dataclass(slots=True)
class Session:
    """What a connection has told us so far."""

    number: int
    address: str = ""
    """Where the client is."""
    caller: Caller | None = None
    worker_id: str = ""
    """The worker it speaks for: that of its session key, or the one it registered."""
    key: str = field(default="", repr=False)
    """Hash of the key it used; empty without one."""
    resp: int = 2
    name: str = ""
    queues: tuple[str, ...] = ()
    """The queues last pulled from, as they were written into the worker's row."""
    failures: int = 0

    @property
    def project(self) -> str:
        """The only project it sees; empty means all of them."""
        return self.caller.project if self.caller else ""

    @property
    def is_known(self) -> bool:
        return self.caller is not None or ojs_settings.ALLOW_ANONYMOUS

    def authenticate(self, key: str) -> None:
        """
        Raises:
            Failed: it is neither a session key nor an API key.
        """
        try:
            self.caller = caller_of(key, protocol="agq", address=self.address)
        except NotAuthenticated as problem:
            refusals.note(problem, protocol="agq", address=self.address, call="AUTH")
            self.caller = None
            self.failures += 1
            if isinstance(problem, KeyExpired):
                raise Failed(f"WRONGPASS {problem.message}") from None
            raise Failed(WRONG_KEY) from None
        self.key = digest(key)
        self.worker_id = self.caller.worker_id

    def may(self, scope: str) -> Caller:
        """Return who asks.

        Raises:
            Failed: nobody we know.
            PermissionDenied: the key was not made for this.
        """
        caller = self.caller
        if caller is None:
            if not ojs_settings.ALLOW_ANONYMOUS:
                raise Failed(NO_AUTH)
            caller = ANYBODY
        if scope:
            caller.require(scope)
        return caller

    def speak_for(self, worker_id: str) -> None:
        """
        Raises:
            Failed: the session is another worker's.
            PermissionDenied: the worker is another project's.
        """
        bound = self.caller.worker_id if self.caller else ""
        if bound and worker_id != bound:
            raise Failed(f"ERR This session key belongs to worker {bound}")
        if self.caller is not None:
            admission.check_project([worker_id], self.caller)

    def worker(self) -> str:
        """The worker it speaks for.

        Raises:
            Failed: none so far.
            PermissionDenied: it is another project's.
        """
        if not self.worker_id:
            raise Failed("ERR Worker not registered: send WORKER.REGISTER first")
        self.speak_for(self.worker_id)
        return self.worker_id

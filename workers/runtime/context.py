"""Context passed to a handler: the job, and the link to the worker that runs it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from inspect import isawaitable
from types import TracebackType
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from jobs.engine import Failure
from jobs.options import JSON
from jobs.spec.error_texts import legible
from jobs.spec.jsonable import jsonable

from .blocking import in_thread

logger = logging.getLogger("workers.job")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an attempt."""

    job_id: UUID
    attempt: int
    value: float | None
    """From 0 to 1; None if only the data is reported."""
    data: dict[str, Any] | None


class Vault(Protocol):
    """Encodes what an execution writes (`jobs.codecs.Decode`)."""

    def seal(self, value: Any) -> Any: ...
    def conceal(self, failure: Failure) -> Failure: ...


class WorkerLink:
    """Connects a context to the worker that runs it; this base class does nothing."""

    places = 1
    """Jobs that the worker runs at once."""

    def keep(self, context: JobContext, state: Any) -> None:
        """Send a checkpoint to the server."""

    def tell(self, context: JobContext, value: float | None, data: dict[str, Any] | None) -> None:
        """Take a progress report."""

    def beat(self) -> None:
        """Send a heartbeat of the worker."""


ExceptionInfo: TypeAlias = (
    bool
    | BaseException
    | tuple[type[BaseException], BaseException, TracebackType | None]
    | tuple[None, None, None]
    | None
)
"""What `logging` takes as `exc_info`."""
NO_LINK = WorkerLink()
STEPS, STATE = "ojs.steps", "state"
"""Members of the checkpoint of a job with steps."""
NO_TIME = timedelta()


class JobContext:
    """A job in execution (OJS middleware §4.4)."""

    def __init__(
        self,
        *,
        id: UUID,
        type: str,
        queue: str,
        args: list[JSON],
        meta: dict[str, JSON],
        attempt: int,
        max_attempts: int,
        worker_id: str = "",
        timeout: timedelta | None = None,
        grace_period: Any = None,
        document: Callable[[], dict[str, Any]] = dict,
        checkpoint: dict[str, Any] | None = None,
    ) -> None:
        self.id = id
        self.type = type
        self.queue = queue
        self.args = args
        self.meta = meta
        self.attempt = attempt
        """Number of this attempt, counted from 1."""
        self.max_attempts = max_attempts
        self.worker_id = worker_id
        self.timeout = timeout
        # As its producer wrote it: whole seconds (OJS timeouts §6).
        self.grace_period = (
            timedelta(seconds=grace_period) if isinstance(grace_period, int) else NO_TIME
        )
        """Time for cleanup once `timeout` has passed and it is `cancelled`."""
        self.traceparent = ""
        """W3C trace context of the span around the handler; empty if there is none."""
        self.metadata: dict[str, object] = {}
        """Shared between the middleware and the handler of this execution."""
        self.document = document
        """Returns the whole envelope, as OJS JSON."""
        self.vault: Vault | None = None
        """Encodes what this execution writes, if its arguments were encoded."""
        self.has_checkpoint = False
        """Whether an earlier attempt, or this one, has saved its state."""
        self.last_checkpoint: JSON = None
        """What `checkpoint()` saved last; None if nothing was."""
        self._done: dict[str, JSON] = {}
        """Step → its result, of the steps that are done."""
        self._called: set[str] = set()
        if checkpoint is not None:
            self.restore(checkpoint.get("state"))
        self.line = NO_LINK
        self._is_cancelled = False
        self.cancelled_because = ""
        """`lost`, `timeout` or `shutdown`, once `cancelled`."""

    @property
    def job(self) -> dict[str, Any]:
        """The whole envelope, as OJS JSON."""
        return self.document()

    @property
    def version(self) -> JSON:
        """The version of its arguments, as its producer wrote it; None if it has none."""
        return self.job.get("version")

    @property
    def is_last_attempt(self) -> bool:
        return self.attempt >= self.max_attempts

    @property
    def cancelled(self) -> bool:
        """Whether to stop: the reservation was lost, time is up or the worker ends (§10.4)."""
        return self._is_cancelled

    def cancel(self, reason: str) -> None:
        if not self._is_cancelled:
            self.cancelled_because = reason
            self._is_cancelled = True
        event = self.__dict__.get("_cancellation")
        if event is not None:
            event.set()

    def when_ended(self, call: Callable[[BaseException | None], object]) -> None:
        """Have `call` called once this attempt is settled: with what it failed with, or None.

        A result that is not JSON and a commit that fails come after the middleware.
        """
        self.__dict__.setdefault("_at_end", []).append(call)

    def ended(self, problem: BaseException | None) -> None:
        """Call what waits for the end of this attempt, the innermost first."""
        waiting = self.__dict__.get("_at_end")
        while waiting:
            try:
                waiting.pop()(problem)
            except Exception:
                logger.exception("What observes job %s failed.", self.id)

    def wait(self, seconds: float) -> bool:
        """Sleep, at most until the job is cancelled; return whether it is."""
        # Few handlers wait, and creating an event takes longer than the rest of a context.
        event: threading.Event = self.__dict__.setdefault("_cancellation", threading.Event())
        if self._is_cancelled:
            event.set()
        return event.wait(seconds)

    def heartbeat(self) -> bool:
        """Restart the job's visibility timeout now (§5.4); return whether it is still held.

        Every heartbeat of the worker does this anyway; call it only to learn the result.
        """
        if not self.cancelled:
            self.line.beat()
        return not self.cancelled

    async def aheartbeat(self) -> bool:
        return await in_thread(self.heartbeat)()

    def checkpoint(self, state: object) -> None:
        """Store `state` for the next attempt, should this one fail (OJS durable execution §4).

        Inside a transaction on the jobs' database it is part of that transaction:
        its effects and the checkpoint are committed together, or neither.

        Raises:
            InvalidRequest: the state is not JSON.
            Refused: it exceeds 1 MB, or the worker no longer holds the job; `cancelled` is then
                True (§10.4).
            Unavailable: over HTTP, the server could not be reached; nothing was saved.
        """
        kept: JSON = jsonable(state, "checkpoint")
        self._keep(kept, self._done)
        self.has_checkpoint, self.last_checkpoint = True, kept

    def _keep(self, state: JSON, done: dict[str, JSON]) -> None:
        # A job has one checkpoint: with steps, the handler's own state is a part of it.
        together: dict[str, Any] = {STEPS: done}
        if state is not None:
            together[STATE] = state
        kept = together if done else state
        self.line.keep(self, kept if self.vault is None else self.vault.seal(kept))

    def restore(self, kept: JSON) -> None:
        """Take what an earlier attempt saved, once it is decoded."""
        self.has_checkpoint, self.last_checkpoint = True, kept
        if isinstance(kept, dict) and STEPS in kept:
            self._take_steps(kept)

    def _take_steps(self, kept: dict[str, Any]) -> None:
        """Take apart what `_keep` has put together."""
        self._done = dict(kept[STEPS])
        self.last_checkpoint = kept.get(STATE)
        self.has_checkpoint = STATE in kept

    async def acheckpoint(self, state: object) -> None:
        await in_thread(self.checkpoint)(state)

    def step(self, name: str, function: Callable[..., object], *args: Any, **kwargs: Any) -> JSON:
        """Call `function` once, even if the job takes several attempts; return its result.

            charge = context.step("charge", pay, order.pk)

        The result is part of the job's checkpoint. An attempt after a failure, or after a crash,
        gets it from there and goes on behind the step. A crash between the end of the function and
        the checkpoint runs it again, unless both are in one transaction on the jobs' database:
        around the call, or of a handler with `atomic_ack`.

        An exception of the function is one of the handler: `raise Retry(in_=60)` ends the attempt,
        and the next one begins with this step.

        Raises:
            ValueError: this attempt has called a step of this name already.
            InvalidRequest: the result is not JSON.
            Refused, Unavailable: as for `checkpoint()`; the results of all steps count.
        """
        if self._begin(name):
            return self._done[name]
        return self._end(name, function(*args, **kwargs))

    async def astep(
        self, name: str, function: Callable[..., object], *args: Any, **kwargs: Any
    ) -> JSON:
        """`step()` for async handlers; the function may be async."""
        if self._begin(name):
            return self._done[name]
        result = function(*args, **kwargs)
        if isawaitable(result):
            result = await result
        return await in_thread(self._end)(name, result)

    def _begin(self, name: str) -> bool:
        """Return whether the step is done."""
        if name in self._called:
            raise ValueError(f"The step {name!r} was called before in this attempt.")
        self._called.add(name)
        return name in self._done

    def _end(self, name: str, result: object) -> JSON:
        kept: JSON = jsonable(result, f"step {name}")
        done = self._done | {name: kept}
        self._keep(self.last_checkpoint, done)
        self._done = done
        return kept

    def progress(
        self,
        value: float | None = None,
        message: str = "",
        data: Mapping[str, object] | None = None,
    ) -> None:
        """Report the job's progress: `progress(0.4, "page 2 of 5")` (OJS progress §6.1).

        Never blocks and never fails: the latest report is sent if possible, at most once a second.

        Args:
            value: from 0 to 1, never less than before; None to report only the rest.
            data: small extra data for a status page.

        Raises:
            InvalidRequest: the data is not JSON.
        """
        reported = dict(data or {}) | ({"message": legible(str(message))} if message else {})
        number = None if value is None else min(1.0, max(0.0, float(value)))
        self.line.tell(self, number, jsonable(reported, "data") or None)

    @property
    def parent_results(self) -> list[JSON]:
        """The results of the jobs this one waited for, in their order (OJS workflows §6)."""
        return list(self.job.get("parent_results") or ())

    def log(
        self,
        message: str,
        *args: object,
        level: int = logging.INFO,
        exc_info: ExceptionInfo = None,
        **attributes: object,
    ) -> None:
        """Log a line that names the job; `attributes` are for structured logs."""
        details: dict[str, Any] = {"job_id": str(self.id), "job_type": self.type}
        details |= {"queue": self.queue, "attempt": self.attempt, "attributes": attributes}
        line = f"[{self.type} {self.id}] {message}"
        logger.log(level, line, *args, exc_info=exc_info, extra=details)

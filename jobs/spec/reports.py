"""Workers' reports about their jobs (OJS core §7.3, §7.4; worker protocol §5.6)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID


@dataclass(slots=True)
class Completion:
    """An ACK as received."""

    job_id: UUID
    worker_id: str | None = None
    """The reporting worker; None if the request does not name it."""
    attempt: int | None = None
    """Fences against an older attempt of the same worker."""
    result: Any = None
    traceparent: str = ""
    """The trace context in which the worker sent it (OJS distributed tracing §7.2)."""


@dataclass(slots=True)
class Failure:
    """A FAIL as received (OJS core §8, retry §7.3)."""

    job_id: UUID
    worker_id: str | None = None
    attempt: int | None = None
    type: str = "handler_error"
    code: str = ""
    message: str = ""
    backtrace: list[str] | None = None
    details: dict[str, Any] | None = None
    retryable: bool | None = None
    release: bool = False
    """Return the job unfinished: no error, no backoff, and the attempt does not count."""
    retry_in: timedelta | None = None
    """The delay that the handler requests instead of the policy's backoff; also with `release`."""
    rate_limit_until: datetime | None = None
    """The API it calls is limited until then: hold the job's rate limit (rate limiting §9)."""
    traceparent: str = ""
    """As in `Completion`."""

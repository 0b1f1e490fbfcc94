"""Limits of a job besides the timeout of an attempt (OJS timeouts §5, §6). No database here."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from .members import Members, Seconds
from .timestamps import format_timestamp, parse_timestamp


class TimeLimits(Members):
    """Each in whole seconds."""

    total_timeout = Seconds("Seconds for all attempts together, from its creation on.", echoed=True)
    enqueue_ttl = Seconds("Seconds it may wait for its first attempt.", echoed=True)
    grace_period = Seconds(
        "Seconds its worker may take to clean up after `timeout`.", least=0, echoed=True
    )
    heartbeat_timeout = Seconds("Seconds its worker may be silent.", echoed=True)


TIME_LIMITS = tuple(TimeLimits.members)
USUAL = re.compile(
    r"[0-9-]{10}[Tt][0-9]{2}:[0-9]{2}:[0-5][0-9](\.[0-9]+)?([Zz]|[+-](0[0-9]|1[0-4]):[0-9]{2})"
)
"""Timestamps that PostgreSQL reads as well; it refuses some that RFC 3339 allows, such as a leap
second's fraction or an offset of 16 hours."""


def expire_unstarted(job: Any, now: datetime) -> None:
    """Set `expires_at` of a new job from its `enqueue_ttl`, if that is sooner (§5.3)."""
    ttl = enqueue_ttl(job)
    if ttl is None:
        return
    if job.expires_at is not None and not USUAL.fullmatch(job.attributes.get("expires_at", "")):
        # Applies again once the job has been started in time and must be retried.
        job.attributes["expires_at"] = format_timestamp(job.expires_at)
    job.expires_at = min(now + ttl, job.expires_at or now + ttl)


def enqueue_ttl(job: Any) -> timedelta | None:
    """How long the job may wait for its first attempt, if its producer set a limit (§5.3)."""
    return _own(job, "enqueue_ttl")


def grace_period(job: Any) -> timedelta | None:
    """How much longer than its `timeout` a job's worker may take to clean up (§5.4)."""
    return _own(job, "grace_period")


def _own(job: Any, name: str) -> timedelta | None:
    seconds = (job.attributes or {}).get(name)
    return timedelta(seconds=seconds) if type(seconds) is int else None


def is_about_its_start(job: Any) -> bool:
    """Whether the job's `enqueue_ttl` passes before its own `expires_at`, if it has one."""
    own = expires_at_once_started(job)
    # Stored in milliseconds.
    sooner = own is None or job.expires_at <= own - timedelta(milliseconds=1)
    return enqueue_ttl(job) is not None and sooner


def expires_at_once_started(job: Any) -> datetime | None:
    """The job's `expires_at` without its `enqueue_ttl`, which concerns only the first attempt."""
    sent = (job.attributes or {}).get("expires_at")
    return None if sent is None else parse_timestamp(sent)

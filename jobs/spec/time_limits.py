"""What bounds a job beside the timeout of one attempt (OJS timeouts §5, §6). No database here."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from . import fields
from .fields import Document, refuse
from .timestamps import format_timestamp, parse_timestamp

TIME_LIMITS = ("total_timeout", "enqueue_ttl", "grace_period", "heartbeat_timeout")
"""Whole seconds, each of them."""
USUAL = re.compile(
    r"[0-9-]{10}[Tt][0-9]{2}:[0-9]{2}:[0-5][0-9](\.[0-9]+)?([Zz]|[+-](0[0-9]|1[0-4]):[0-9]{2})"
)
"""Timestamps that PostgreSQL reads as well; it refuses some that RFC 3339 allows, such as a leap
second's fraction or an offset of 16 hours."""


def take_time_limits(job: Any, options: Document, now: datetime) -> None:
    """Read the limits of a new job whose `timeout` and `expires_at` have been read.

    Raises:
        InvalidRequest: one breaks its rule; `details["field"]` names it.
    """
    if not any(options.get(name) is not None for name in TIME_LIMITS):
        return
    job.total_timeout = _seconds(options, "total_timeout")
    job.grace_period = _seconds(options, "grace_period", least=0)
    # A worker extends its reservation with each heartbeat: the silence allowed is its length.
    silence = _seconds(options, "heartbeat_timeout")
    job.visibility_timeout = job.visibility_timeout or silence
    if job.total_timeout is not None and job.total_timeout < (job.timeout or timedelta(0)):
        raise refuse("total_timeout", "The 'total_timeout' field must not be less than 'timeout'.")
    if _seconds(options, "enqueue_ttl") is not None:
        job.attributes["enqueue_ttl"] = options["enqueue_ttl"]
        expire_unstarted(job, now)


def expire_unstarted(job: Any, now: datetime) -> None:
    """Let the `enqueue_ttl` of a new job say when it expires, where that is sooner (§5.3)."""
    ttl = enqueue_ttl(job)
    if ttl is None:
        return
    if job.expires_at is not None and not USUAL.fullmatch(job.attributes.get("expires_at", "")):
        # What holds again once the job has been started in time and must be tried again.
        job.attributes["expires_at"] = format_timestamp(job.expires_at)
    job.expires_at = min(now + ttl, job.expires_at or now + ttl)


def _seconds(options: Document, name: str, *, least: int = 1) -> timedelta | None:
    most = int(fields.LONGEST.total_seconds())
    seconds = fields.integer(options, name, least=least, most=most)
    return None if seconds is None else timedelta(seconds=seconds)


def enqueue_ttl(job: Any) -> timedelta | None:
    """How long the job may wait for its first attempt, if its producer said so (§5.3)."""
    seconds = (job.attributes or {}).get("enqueue_ttl")
    return timedelta(seconds=seconds) if type(seconds) is int else None


def is_about_its_start(job: Any) -> bool:
    """Whether the job's `enqueue_ttl` passes before its own `expires_at`, if it has one."""
    own = expires_at_once_started(job)
    # Written in milliseconds.
    sooner = own is None or job.expires_at <= own - timedelta(milliseconds=1)
    return enqueue_ttl(job) is not None and sooner


def expires_at_once_started(job: Any) -> datetime | None:
    """The job's `expires_at` without its `enqueue_ttl`, which is about the first attempt alone."""
    sent = (job.attributes or {}).get("expires_at")
    return None if sent is None else parse_timestamp(sent)

"""Enqueue from Python: `jobs.enqueue("email.send", ["user@example.com"], queue="mail")`.

A job is part of the caller's transaction: it is rolled back with it, becomes visible when it
commits, and waiting workers are woken only then (OJS framework adapters §6.1). The rules are those
of the HTTP binding; values are Python objects that JSON can represent without loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial, reduce
from typing import Any, Unpack
from uuid import UUID

import orjson
from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils import timezone

from . import engine
from .access.projects import assign_project
from .errors import InvalidRequest, Unsupported
from .handles import Handles, JobHandle, identified
from .middleware import enqueue_chain
from .options import JobOptions, Moment, Period, Retry, RetryPolicy
from .place import current
from .running import adopt
from .spec import fields, rate_policy
from .spec import retry as retries
from .spec.batches import STRICTLY, Arguments, Memory, checked_once, uniform
from .spec.durations import LONGEST, format_duration
from .spec.envelope import limit_milliseconds
from .spec.fields import refuse, wrong_type
from .spec.identifiers import uuid7
from .spec.jsonable import DEEPEST, jsonable, may_have_large_float
from .spec.time_limits import TIME_LIMITS, expire_unstarted
from .spec.timestamps import format_timestamp
from .spec.validation import TYPE_PATTERN, NewJob, new_job

OPTIONS = frozenset(
    {
        "queue",
        "priority",
        "scheduled_at",
        "expires_at",
        "retry",
        "max_attempts",
        "unique",
        "meta",
        "tags",
        "timeout",
        "visibility_timeout",
        *TIME_LIMITS,
        "pending",
        "schema",
        "id",
        "rate_limit",
        "version",
    }
)
MOMENTS = ("scheduled_at", "expires_at")
PERIODS = ("timeout", "visibility_timeout")
INTERVALS = ("initial_interval", "max_interval")

memory = Memory()


def enqueue(
    type: str,
    args: Sequence[object] = (),
    *,
    queue: str | None = None,
    priority: int | None = None,
    scheduled_at: Moment | None = None,
    expires_at: Moment | None = None,
    retry: RetryPolicy | None = None,
    max_attempts: int | None = None,
    unique: Mapping[str, object] | None = None,
    meta: Mapping[str, object] | None = None,
    tags: Sequence[str] | None = None,
    timeout: Period | None = None,
    visibility_timeout: Period | None = None,
    total_timeout: Period | None = None,
    enqueue_ttl: Period | None = None,
    grace_period: Period | None = None,
    heartbeat_timeout: Period | None = None,
    pending: bool | None = None,
    schema: str | None = None,
    rate_limit: Mapping[str, object] | None = None,
    version: str | int | None = None,
    id: UUID | str | None = None,
) -> JobHandle | None:
    """Enqueue a job, in the caller's transaction (OJS core §7.1).

    Returns a handle on the job, or None if an enqueue middleware dropped it.

    Args:
        scheduled_at, expires_at: a moment, or a timedelta from now.
        timeout: of each attempt, in seconds or a timedelta; 0 is none.
        visibility_timeout: seconds or a timedelta.
        total_timeout: for all attempts together, in whole seconds (OJS timeouts §5.2).
        enqueue_ttl: how long the job may wait for its first attempt (§5.3).
        grace_period: how much longer than `timeout` the worker may take to clean up (§5.4).
        heartbeat_timeout: how long its worker may be silent (§5.5).
        retry: a `jobs.Retry`, or a policy as a dictionary (OJS retry §2); its intervals may be
            timedeltas.
        rate_limit: `{"key": "stripe", "rate": {"limit": 100, "period": "PT1M"}}`
            (OJS rate limiting §6).
        version: of the arguments, such as `"2.0"`: only workers that accept it get the job
            (OJS job versioning §5). It may also be part of `type`: `"email.send@2.0"`.

    Raises:
        InvalidRequest: a value is invalid; `details["field"]` names its field.
        DuplicateJob: a job with this id exists.
        QueueFull: the queue is at its bound.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    return enqueue_many([given])[0]


def enqueue_many(items: Iterable[Mapping[str, object]]) -> Sequence[JobHandle | None]:
    """Enqueue many jobs, all or none: `[{"type": "email.send", "args": [1], "queue": "mail"}, …]`.

    Each item takes what `enqueue()` takes. Enqueue middleware sees each job separately; a job it
    drops is None in the result, and the others are enqueued. After an error none of them is (OJS
    middleware §9.2, option B).

    Building the job objects of a large batch takes as long as validating and sending them: if the
    jobs differ only in their arguments, each object is built when it is first accessed.
    """
    place = current()
    now = place.now()
    batch = items if isinstance(items, Sequence) else list(items)
    check = partial(_read, now=now)
    has_middleware = bool(enqueue_chain)
    together = None if has_middleware else uniform(batch, check, _all_plain_args)
    if together is not None:
        adopt(assign_project(together, ""))
        return Handles(place.deliver(together), place)
    made: list[NewJob | None] = []
    known = {} if len(batch) > 1 else memory
    for index, item in enumerate(batch):
        try:
            if has_middleware:
                made.append(_passed_on(item, now))
            else:
                made.append(checked_once(item, known, check, _plain_args))
        except (InvalidRequest, Unsupported) as refusal:
            if len(batch) > 1:
                refusal.message = f"Job {index} of the batch: {refusal.message}"
                refusal.details["index"] = index
                refusal.args = (refusal.message,)
            raise
    new = [job for job in made if job is not None]
    adopt(assign_project(new, ""))
    place.deliver(new)
    return Handles(made, place)


async def aenqueue(
    type: str, args: Sequence[object] = (), **options: Unpack[JobOptions]
) -> JobHandle | None:
    """`enqueue()` for async code."""
    return await sync_to_async(enqueue)(type, args, **options)


async def aenqueue_many(
    items: Iterable[Mapping[str, object]],
) -> Sequence[JobHandle | None]:
    """`enqueue_many()` for async code."""
    return await sync_to_async(enqueue_many)(items)


def cancel(job_id: JobHandle | UUID | str, *, reason: str = "") -> None:
    """Cancel an unfinished job, even a running one: its worker is notified (OJS core §7.6).

    Part of the caller's transaction, like `enqueue()`.

    Raises:
        JobNotFound: there is no such job.
        InvalidTransition: it has ended already.
    """
    place = current()
    with place.inside():
        engine.cancel(identified(job_id), reason=reason)


async def acancel(job_id: JobHandle | UUID | str, *, reason: str = "") -> None:
    """`cancel()` for async code."""
    await sync_to_async(cancel)(job_id, reason=reason)


def _passed_on(item: Mapping[str, Any], now: datetime) -> NewJob | None:
    """Pass an item through the enqueue middleware; None if it was dropped."""
    document = envelope_of(item)
    # Middleware sees the whole envelope, so the id must already be set (OJS middleware §3.4).
    own_id = "id" not in document
    document.setdefault("id", str(uuid7()))
    identifier = document["id"]
    passed = enqueue_chain.run(document)
    if passed is None:
        return None
    if passed.get("id") != identifier:
        raise refuse("id", "An enqueue middleware changed the job's id (OJS middleware §3.5).")
    job = checked(passed, now)
    job.client_id = not own_id
    return job


def _read(item: Mapping[str, Any], now: datetime) -> NewJob:
    return checked(envelope_of(item), now)


def _plain_args(item: Mapping[str, Any]) -> list[Any]:
    args: list[Any] = jsonable(_args(item), "args")
    return args


# Nested in this many lists, values deeper than `jsonable` allows exceed orjson's own limit.
DEEP = 252 - DEEPEST
PLAIN = STRICTLY | orjson.OPT_STRICT_INTEGER


def _all_plain_args(items: Sequence[Any]) -> Arguments | None:
    """Do `_plain_args` for many items at once; None unless all of it is already plain JSON."""
    given: Any = [[] if item.get("args") is None else item["args"] for item in items]
    if not all(type(args) is list for args in given):
        return None
    try:
        written = orjson.dumps(reduce(lambda inner, _: [inner], range(DEEP), given), option=PLAIN)
    except TypeError:
        return None
    copies: Arguments = orjson.loads(written[DEEP : len(written) - DEEP])
    # It writes a UUID as text and NaN as null: those do not survive unchanged.
    is_plain = copies == given and rb"\u0000" not in written and not may_have_large_float(written)
    return copies if is_plain else None


def envelope_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the envelope of one item, as middleware sees it."""
    if not isinstance(item, Mapping):
        raise refuse("", "Each job must be a mapping such as {'type': …, 'args': […]}.")
    document: dict[str, Any] = {"specversion": "1.0", "queue": "default", "args": ()}
    document |= {name: value for name, value in item.items() if value is not None}
    unknown = document.keys() - OPTIONS - {"specversion", "type", "args"}
    if unknown:
        name = min(unknown)
        raise refuse(name, f"There is no option {name!r}; there are {', '.join(sorted(OPTIONS))}.")
    document["args"] = _args(document)
    document["meta"] = dict(_mapping(document, "meta"))
    if isinstance(document.get("id"), UUID):
        document["id"] = str(document["id"])
    return document


def _args(item: Mapping[str, Any]) -> list[Any]:
    args = item.get("args")
    if args is None:
        return []
    if not isinstance(args, list | tuple):
        raise wrong_type("args", "array", args)
    return list(args)


def checked(document: dict[str, Any], now: datetime) -> NewJob:
    """Convert Python values to JSON, then check the envelope by the rules of the HTTP binding."""
    wire = _wire(document)
    moments = {name: document[name] for name in MOMENTS if document.get(name) is not None}
    wire |= {name: value for name, value in moments.items() if isinstance(value, str)}
    job = new_job(wire, now, type_pattern=TYPE_PATTERN)
    for name, value in moments.items():
        if not isinstance(value, str):
            setattr(job, name, _moment(name, value, now))
            if name == "expires_at":
                expire_unstarted(job, now)
    return job


def step_document(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job as JSON, as it would be sent over HTTP, to be made later, perhaps repeatedly.

    A timedelta counts from when the job is made.

    Raises:
        InvalidRequest: an option does not exist, or a value is not JSON.
    """
    document = envelope_of(item)
    for name in ("id", "pending"):
        if document.get(name) is not None:
            raise refuse(name, f"A job that is made later has no '{name}' of its own.")
    wire = _wire(document)
    for name in MOMENTS:
        value = document.get(name)
        if isinstance(value, timedelta):
            if value < timedelta(0):
                raise refuse(name, f"The '{name}' field must not be negative.")
            value = f"+{format_duration(value)}"
        elif isinstance(value, datetime):
            value = format_timestamp(_moment(name, value, value))
        if value is not None:
            wire[name] = value
    return wire


def _wire(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the envelope as JSON, without its moments."""
    wire = {name: value for name, value in document.items() if name not in MOMENTS + PERIODS}
    for name in PERIODS:
        if document.get(name) is not None:
            wire[f"{name}_ms"] = _milliseconds(name, document[name])
    for name in TIME_LIMITS:
        if document.get(name) is not None:
            wire[name] = -(-_milliseconds(name, document[name]) // 1000)
    if document.get("retry") is not None:
        wire["retry"] = retry_document(document["retry"])
    if document.get("rate_limit") is not None:
        wire["rate_limit"] = jsonable(document["rate_limit"], "rate_limit")
        rate_policy.refuse_misspelt(wire["rate_limit"])
    return {name: jsonable(value, name) for name, value in wire.items()}


def _mapping(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name, {})
    if not isinstance(value, Mapping):
        raise wrong_type(name, "object", value)
    return value


def _moment(name: str, value: Any, now: datetime) -> datetime:
    try:
        if isinstance(value, timedelta):
            return now + value
        if isinstance(value, datetime):
            if value.utcoffset() is None and not settings.USE_TZ:
                value = timezone.make_aware(value)
            if value.utcoffset() is not None:
                return value
            raise refuse(
                name,
                f"The '{name}' field is a datetime without a time zone; use "
                "django.utils.timezone.now() or timezone.make_aware().",
                hint="Use django.utils.timezone.now() or timezone.make_aware().",
            )
    except OverflowError:
        raise refuse(name, f"The '{name}' field is beyond the calendar.") from None
    raise refuse(
        name,
        f"The '{name}' field must be a datetime, a timedelta or a timestamp, not "
        f"{fields.json_name(value)}.",
    )


def _milliseconds(name: str, value: Any) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            # Not rounded to nothing, which means something else.
            value = timedelta(seconds=value) or timedelta.resolution * (value > 0)
        except (OverflowError, ValueError):
            raise refuse(name, f"The '{name}' field is not a duration: {value!r}.") from None
    if not isinstance(value, timedelta):
        raise refuse(
            name,
            f"The '{name}' field must be seconds or a timedelta, not {fields.json_name(value)}.",
        )
    # Here, since the reader of the document would name the member in milliseconds.
    if value < timedelta(0) or (not value and name == "visibility_timeout"):
        raise refuse(name, f"The '{name}' field must be positive.", validation="range")
    if value > LONGEST:
        problem = f"The '{name}' field is longer than the 100 years a duration may last."
        raise refuse(name, problem, validation="range")
    return limit_milliseconds(value)


def retry_document(policy: RetryPolicy) -> dict[str, Any]:
    """Return a retry policy in its document form: timedeltas become text.

    Raises:
        InvalidRequest: an interval is negative, or there is no such key in a policy. A client's
            policy may be newer than this server; in the site's own code it is a misspelling.
    """
    if isinstance(policy, Retry):
        policy = policy.policy()
    if not isinstance(policy, Mapping):
        raise wrong_type("retry", "object", policy)
    retries.refuse_misspelt(policy)
    retry = dict(policy)
    for name in INTERVALS:
        interval = retry.get(name)
        if isinstance(interval, timedelta):
            if interval < timedelta(0):
                raise refuse(f"retry.{name}", f"The 'retry.{name}' field must be positive.")
            retry[name] = format_duration(interval)
    return retry

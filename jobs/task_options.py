"""Options of a Django task beside `@task`: how workers run it, and when they retry it.

    @task
    @task_options(concurrency=2, timeout=30, atomic_ack=True, retry={"max_attempts": 5})
    def charge(order): ...

    @task
    @task_options(version="2.1", versions=">=2.0 <3.0")
    def invoice(order, currency="EUR"): ...

The framework has no place for a backend's options of a task, so they are kept with its function.
The decorator works below or above `@task`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured

from .errors import InvalidRequest, OJSError
from .options import Moment, Retry, RetryPolicy
from .producer import retry_document, step_document
from .spec.durations import LONGEST
from .spec.retry import InvalidRetryPolicy
from .spec.retry import RetryPolicy as Policy
from .spec.validation import new_job
from .spec.versions import ALL, Versions, read_versions, version_number

F = TypeVar("F")
Errors = tuple[type[Exception], ...]
SOMETIME = datetime(2000, 1, 1, tzinfo=UTC)
ATTRIBUTE = "ojs_options"


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options of one task; see `task_options()`."""

    concurrency: int | None = None
    timeout: timedelta | None = None
    atomic_ack: bool = False
    versions: Versions = ALL
    retry_on: Errors | None = None
    discard_on: Errors = ()
    enqueue: dict[str, object] = field(default_factory=dict)
    """The options of its jobs, as `jobs.enqueue()` takes them."""


NONE = TaskOptions()


def task_options(
    *,
    concurrency: int | None = None,
    timeout: timedelta | float | None = None,
    atomic_ack: bool = False,
    retry: RetryPolicy | None = None,
    retry_on: Errors | None = None,
    discard_on: Errors = (),
    version: str | None = None,
    versions: str = "*",
    priority: int | None = None,
    tags: Sequence[str] | None = None,
    unique: Mapping[str, object] | None = None,
    expires_at: Moment | None = None,
    rate_limit: Mapping[str, object] | None = None,
) -> Callable[[F], F]:
    """Set how `runjobworker` runs a task, and the options of its jobs.

    Args:
        concurrency: most executions at once in one process.
        timeout: seconds or a timedelta, after which the task is interrupted and the attempt fails.
        atomic_ack: run in a transaction that also completes the job, so that its effects in this
            database happen exactly once. Not for async tasks.
        retry: a policy (OJS retry §2) in place of `OPTIONS["RETRY"]`; intervals may be timedeltas.
        retry_on: retry only after these exceptions; any other is final.
        discard_on: after these exceptions, give the job up at once, without a dead letter.
        version: of the arguments that this code enqueues it with, such as `"2.1"` (OJS job
            versioning §5).
        versions: those it can run (§8.1): `2.0`, `>=1.0 <3.0`; jobs of other versions stay in the
            queue for workers that accept them.
        priority: of jobs for which neither `@task` nor `using()` sets one.
        tags, unique, rate_limit: as for `jobs.enqueue()`.
        expires_at: as for `jobs.enqueue()`; a timedelta counts from each enqueue.

    Raises:
        ImproperlyConfigured: a value is invalid.
    """

    def remember(decorated: F) -> F:
        function: Any = getattr(decorated, "func", decorated)
        name = f"Task {function.__module__}.{function.__qualname__}"
        limit = checked_limits(name, function, concurrency, timeout, atomic_ack)
        asked = TaskOptions(
            concurrency,
            limit,
            atomic_ack,
            checked_versions(name, versions),
            *checked_errors(name, retry_on, discard_on),
            checked_options(
                name,
                retry=retry,
                version=version,
                priority=priority,
                tags=tags,
                unique=unique,
                expires_at=expires_at,
                rate_limit=rate_limit,
            ),
        )
        setattr(function, ATTRIBUTE, asked)
        return decorated

    return remember


def checked_options(name: str, **options: Any) -> dict[str, object]:
    """Check the options of a handler's or task's jobs, and return those that are set.

    Raises:
        ImproperlyConfigured: one of them is invalid.
    """
    given = {option: value for option, value in options.items() if value is not None}
    if "retry" in given:
        given["retry"] = checked_policy(name, given["retry"])
    version = given.get("version")
    if version is not None and version_number(version) is None:
        raise ImproperlyConfigured(f"{name}: {version!r} is no version such as '2.0'.")
    try:
        # Any time will do, because nothing is stored.
        new_job(step_document({"type": "checked", **given}), SOMETIME)
    except OJSError as problem:
        raise ImproperlyConfigured(f"{name}: {problem}") from None
    return given


def checked_errors(
    name: str, retry_on: Errors | None, discard_on: Errors
) -> tuple[Errors | None, Errors]:
    """
    Raises:
        ImproperlyConfigured: one is not a tuple of exceptions.
    """
    for option, errors in (("retry_on", retry_on), ("discard_on", discard_on)):
        if errors is None:
            continue
        if not isinstance(errors, tuple) or not all(
            isinstance(error, type) and issubclass(error, Exception) for error in errors
        ):
            raise ImproperlyConfigured(
                f"{name}: {option} must be a tuple of exceptions, not {errors!r}."
            )
    return retry_on, discard_on


def checked_policy(name: str, policy: RetryPolicy) -> dict[str, Any]:
    """
    Raises:
        ImproperlyConfigured: it is not a valid retry policy.
    """
    if not isinstance(policy, Mapping | Retry):
        raise ImproperlyConfigured(f"{name}: retry: must be a dictionary, not {policy!r}.")
    try:
        document = retry_document(policy)
        Policy.parse(document)
    except (InvalidRequest, InvalidRetryPolicy) as problem:
        raise ImproperlyConfigured(f"{name}: retry: {problem}") from None
    return document


def checked_versions(name: str, text: str) -> Versions:
    """
    Raises:
        ImproperlyConfigured: it is not a valid range of versions.
    """
    try:
        return read_versions(text if isinstance(text, str) else repr(text))
    except ValueError as problem:
        raise ImproperlyConfigured(f"{name}: versions: {problem}") from None


def options_of(function: Any) -> TaskOptions:
    found: TaskOptions = getattr(function, ATTRIBUTE, NONE)
    return found


def checked_limits(
    name: str,
    function: Any,
    concurrency: int | None,
    timeout: timedelta | float | None,
    atomic_ack: bool,
) -> timedelta | None:
    """Check the options of a handler or task; return the timeout as a timedelta.

    Raises:
        ImproperlyConfigured: one of them is invalid.
    """
    if not callable(function):
        raise ImproperlyConfigured(f"{name}: {function!r} is no function.")
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise ImproperlyConfigured(
            f"{name}: concurrency must be at least 1, a whole number, not {concurrency!r}."
        )
    limit = _read_timeout(name, timeout)
    if atomic_ack and iscoroutinefunction(function):
        raise ImproperlyConfigured(
            f"{name}: atomic_ack needs a synchronous function; Django's transactions do not span "
            "await."
        )
    return limit


def _read_timeout(name: str, timeout: timedelta | float | None) -> timedelta | None:
    limit = timeout
    if type(timeout) in (int, float):
        try:
            limit = timedelta(seconds=timeout)  # type: ignore[arg-type]
        except (OverflowError, ValueError):
            limit = timedelta.max
    if limit is None:
        return None
    if not isinstance(limit, timedelta) or limit > LONGEST:
        raise ImproperlyConfigured(
            f"{name}: timeout must be seconds or a timedelta, 100 years at most, not {timeout!r}."
        )
    if limit <= timedelta(0):
        raise ImproperlyConfigured(f"{name}: timeout must be more than zero.")
    return limit

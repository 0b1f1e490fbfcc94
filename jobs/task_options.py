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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured

from .errors import InvalidRequest
from .producer import retry_document
from .spec.durations import LONGEST
from .spec.retry import InvalidRetryPolicy, RetryPolicy
from .spec.versions import ALL, Versions, read_versions, version_number

F = TypeVar("F")
ATTRIBUTE = "ojs_options"


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options of one task; see `task_options()`."""

    concurrency: int | None = None
    timeout: timedelta | None = None
    atomic_ack: bool = False
    retry: dict[str, Any] | None = None
    version: str | None = None
    versions: Versions = ALL


NONE = TaskOptions()


def task_options(
    *,
    concurrency: int | None = None,
    timeout: timedelta | float | None = None,
    atomic_ack: bool = False,
    retry: Mapping[str, Any] | None = None,
    version: str | None = None,
    versions: str = "*",
) -> Callable[[F], F]:
    """Set how `runjobworker` runs a task.

    Args:
        concurrency: most executions at once in one process.
        timeout: seconds or a timedelta, after which the task is interrupted and the attempt fails.
        atomic_ack: run in a transaction that also completes the job, so that its effects in this
            database happen exactly once. Not for async tasks.
        retry: a policy (OJS retry §2) in place of `OPTIONS["RETRY"]`; intervals may be timedeltas.
        version: of the arguments that this code enqueues it with, such as `"2.1"` (OJS job
            versioning §5).
        versions: those it can run (§8.1): `2.0`, `>=1.0 <3.0`; jobs of other versions stay in the
            queue for workers that accept them.

    Raises:
        ImproperlyConfigured: a value is invalid.
    """

    def remember(decorated: F) -> F:
        function: Any = getattr(decorated, "func", decorated)
        name = f"Task {function.__module__}.{function.__qualname__}"
        policy = None if retry is None else checked_policy(name, retry)
        limit = checked_limits(name, function, concurrency, timeout, atomic_ack)
        taken = checked_versions(name, versions)
        if version is not None and version_number(version) is None:
            raise ImproperlyConfigured(f"{name}: {version!r} is no version such as '2.0'.")
        asked = TaskOptions(concurrency, limit, atomic_ack, policy, version, taken)
        setattr(function, ATTRIBUTE, asked)
        return decorated

    return remember


def checked_policy(name: str, policy: Mapping[str, Any]) -> dict[str, Any]:
    """
    Raises:
        ImproperlyConfigured: it is not a valid retry policy.
    """
    if not isinstance(policy, Mapping):
        raise ImproperlyConfigured(f"{name}: retry: must be a dictionary, not {policy!r}.")
    try:
        document = retry_document(policy)
        RetryPolicy.parse(document)
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

"""Django tasks as handlers, called as the framework calls them, including its signals.

`task_started` and `task_finished` are sent for every attempt: a monitor that pairs them counts what
runs. After an attempt that another one will follow, the task's status is READY, as in
`get_result()`; the framework's own receiver logs an error for FAILED alone.
"""

from __future__ import annotations

import sys
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.utils import timezone

from jobs.engine import Failure, is_final
from jobs.spec.retry import RetryPolicy
from jobs.spec.timestamps import parse_timestamp
from jobs.task_options import options_of

from .context import JobContext
from .handling import Handler
from .outcomes import shutdown

RESULT = "task_result"
"""Key of the framework's `TaskResult` in the context's `metadata`, for middleware too."""


def _framework() -> Any:
    """`jobs.backends` if the site has the Tasks framework, else None."""
    try:
        from jobs import backends
    except ImportError:
        return None
    return backends


def is_of_a_task_backend(problem: Exception) -> bool:
    """Whether the Tasks framework could not make a backend of one of its aliases."""
    framework = _framework()
    return framework is not None and isinstance(problem, framework.InvalidBackend)


def task_handler(type: str) -> Handler | None:
    """The handler of a Django task, or None if the type names none."""
    framework = _framework()
    task = framework.find_task(type) if framework else None
    if task is None:
        return None
    runs = _Runs(framework, task)
    asked = options_of(task.func)
    return Handler(
        type,
        runs.call_async if iscoroutinefunction(task.func) else runs.call,
        asked.concurrency,
        asked.timeout,
        asked.atomic_ack,
        runs.ended,
        asked.versions,
        asked.retry_on,
        asked.discard_on,
    )


def imported_types() -> list[str]:
    """Types of the tasks in modules that are imported."""
    framework = _framework()
    if framework is None:
        return []
    found = {
        value.get_backend().type_of(value)
        for module in list(sys.modules.values())
        for value in list(vars(module).values() if hasattr(module, "__dict__") else ())
        if framework.is_ours(value)
    }
    return sorted(found)


class _Runs:
    """Executions of one task."""

    def __init__(self, framework: Any, task: Any) -> None:
        self.framework = framework
        self.task = task
        self.backend = task.get_backend()

    def call(self, context: JobContext, *args: Any) -> Any:
        given, named = self._begin(context)
        return self._normalized(self.task.func(*given, **named))

    async def call_async(self, context: JobContext, *args: Any) -> Any:
        given, named = await sync_to_async(self._begin)(context)
        return self._normalized(await self.task.func(*given, **named))

    def _normalized(self, value: Any) -> Any:
        """Convert a result as the framework does; what it refuses, the worker reports."""
        try:
            return self.framework.normalize_json(value)
        except (TypeError, ValueError):
            return value

    def ended(self, context: JobContext, outcome: Any) -> None:
        """Send `task_finished`, unless the job is no longer this worker's.

        Runs in the `except` clause of a failure, so that receivers can use `sys.exc_info()`. A
        receiver that raises changes nothing: the job's outcome is decided.
        """
        if context.cancelled_because == "lost":
            return
        if context.cancelled_because == "shutdown":
            # What has been reported, however the handler ended after that.
            outcome = shutdown(context)
        result: Any = context.metadata.get(RESULT) or self._result(context)
        status = self.framework.TaskResultStatus.SUCCESSFUL
        if isinstance(outcome, Failure):
            status = self.framework.TaskResultStatus.FAILED
            if not _is_last(context, outcome):
                status = self.framework.TaskResultStatus.READY
            if not outcome.release:
                about = outcome.type, outcome.backtrace, outcome.message, outcome.details
                result.errors.append(self.framework.task_error(*about))
        else:
            value = outcome.result
            if context.vault is not None:
                value = self.framework.opened(value)
            object.__setattr__(result, "_return_value", value)
        object.__setattr__(result, "status", status)
        if status != self.framework.TaskResultStatus.READY:
            object.__setattr__(result, "finished_at", timezone.now())
        self.framework.task_finished.send_robust(type(self.backend), task_result=result)

    def _begin(self, context: JobContext) -> tuple[list[Any], dict[str, Any]]:
        """Send `task_started`; return the arguments of the task."""
        result = context.metadata[RESULT] = self._result(context)
        task_context = self.framework.TaskContext(task_result=result)
        self.framework.task_started.send(type(self.backend), task_result=result)
        return [
            task_context,
            *result.args,
        ] if self.task.takes_context else result.args, result.kwargs

    def _result(self, context: JobContext) -> Any:
        job = context.job
        args, kwargs = self.framework.decode_arguments(self.task, context.args, context.meta)
        errors = job.get("errors", [])
        now = timezone.now()
        workers = [error.get("worker_id", "") for error in errors][: context.attempt - 1]
        missing = [""] * (context.attempt - 1 - len(workers))
        return self.framework.make_result(
            self.backend,
            self.task,
            args,
            kwargs,
            id=str(context.id),
            status=self.framework.TaskResultStatus.RUNNING,
            enqueued_at=parse_timestamp(job["created_at"]),
            started_at=now,
            last_attempted_at=now,
            worker_ids=[*workers, *missing, context.worker_id],
            errors=[
                self.framework.task_error(
                    error["type"], error.get("backtrace"), error["message"], error.get("details")
                )
                for error in errors
            ],
        )


def _is_last(context: JobContext, failure: Failure) -> bool:
    """Whether no attempt will follow one with this failure."""
    if failure.release:
        return False
    policy = RetryPolicy.parse(context.job.get("retry"))
    return context.is_last_attempt or is_final(failure, policy)

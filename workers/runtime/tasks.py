"""Django tasks as handlers: called as the framework calls them, its signals included."""

from __future__ import annotations

import sys
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.utils import timezone

from .context import JobContext
from .handlers import Handler
from .outcomes import FRAMES, backtrace, type_name


def _framework() -> Any:
    """`jobs.backends`, where the site has a Tasks framework; None where it has not."""
    try:
        from jobs import backends
    except ImportError:
        return None
    return backends


def task_handler(type: str) -> Handler | None:
    """The handler of a Django task, or None if the type names none."""
    framework = _framework()
    task = framework.find_task(type) if framework else None
    if task is None:
        return None
    call = _async_call if iscoroutinefunction(task.func) else _sync_call
    return Handler(type, call(framework, task))


def imported_types() -> list[str]:
    """Types of the tasks in modules that are imported."""
    framework = _framework()
    if framework is None:
        return []
    found = {
        value.get_backend().type_of(value)
        for module in list(sys.modules.values())
        for value in list(vars(module).values() if hasattr(module, "__dict__") else ())
        if isinstance(value, framework.Task) and framework.is_ours(value)
    }
    return sorted(found)


def _sync_call(framework: Any, task: Any) -> Any:
    def run(context: JobContext, *args: Any) -> Any:
        call = _Call(framework, task, context)
        try:
            returned = task.func(*call.args, **call.kwargs)
        except BaseException as problem:
            call.failed(problem)
            raise
        return call.succeeded(returned)

    return run


def _async_call(framework: Any, task: Any) -> Any:
    async def run(context: JobContext, *args: Any) -> Any:
        call = _Call(framework, task, context)
        try:
            returned = await task.func(*call.args, **call.kwargs)
        except BaseException as problem:
            call.failed(problem)
            raise
        return call.succeeded(returned)

    return run


class _Call:
    """One execution of a task, told to the framework's signals."""

    def __init__(self, framework: Any, task: Any, context: JobContext) -> None:
        self.framework = framework
        self.backend = task.get_backend()
        args, self.kwargs = framework.decode_arguments(task, context.args, context.meta)
        now = timezone.now()
        errors = context.job.get("errors", [])
        told = [error.get("worker_id", "") for error in errors][: context.attempt - 1]
        missing = [""] * (context.attempt - 1 - len(told))
        self.result = framework.make_result(
            self.backend,
            task,
            args,
            self.kwargs,
            id=str(context.id),
            status=framework.TaskResultStatus.RUNNING,
            enqueued_at=None,
            started_at=now,
            last_attempted_at=now,
            worker_ids=[*told, *missing, context.worker_id],
        )
        first = [framework.TaskContext(task_result=self.result)] if task.takes_context else []
        self.args = [*first, *args]
        framework.task_started.send(type(self.backend), task_result=self.result)

    def succeeded(self, returned: Any) -> Any:
        self._finish(self.framework.TaskResultStatus.SUCCESSFUL)
        return returned

    def failed(self, problem: BaseException) -> None:
        frames = backtrace(problem)[-FRAMES:]
        error = self.framework.task_error(type_name(type(problem)), frames, str(problem))
        self.result.errors.append(error)
        self._finish(self.framework.TaskResultStatus.FAILED)

    def _finish(self, status: Any) -> None:
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "finished_at", timezone.now())
        self.framework.task_finished.send(type(self.backend), task_result=self.result)

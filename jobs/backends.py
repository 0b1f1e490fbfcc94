"""Backend for Django Tasks (DEP 14).

    TASKS = {"default": {"BACKEND": "jobs.backends.OJSBackend"}}

For `django.tasks`, part of Django since 6.0, and for the package `django-tasks` before that.

A task is a job whose type is the task's dotted path, or the name given to it in `OPTIONS["TYPES"]`:
`{"email.send": "shop.tasks.send_email"}`. A worker in another language runs it by that type, and a
job that a client in another language enqueues under that type runs the task. Positional arguments
are the job's `args`. A task whose parameters are all keyword-only sends and receives the single
object that other languages use; keyword arguments of any other task are in `meta["ojs.kwargs"]`.

`OPTIONS["QUEUE_NAMES"]` maps names of queues that OJS does not allow: `{"My_Queue": "my-queue"}`.
`OPTIONS["RETRY"]` is the retry policy of all tasks (OJS retry §2); the default has three attempts,
because a worker that dies must not lose the task. Use `task_options()` to set options of one task,
such as its own policy.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

import django
from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from .models import Job
from .payloads.chain import open_args, open_error, opened
from .payloads.codecs import CodecError
from .place import current
from .producer import enqueue_many
from .spec.identifiers import parse_uuid
from .spec.lifecycle import State
from .spec.validation import QUEUE_LENGTH, QUEUE_PATTERN, TYPE_PATTERN
from .task_options import checked_policy, options_of

FRAMEWORK = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
try:
    _base: Any = import_module(f"{FRAMEWORK}.base")
except ImportError:
    raise ImportError(
        "jobs.backends needs Django 6.0, or before that the package django-tasks: "
        "pip install 'django-ojs[tasks]'"
    ) from None
_exceptions: Any = import_module(f"{FRAMEWORK}.exceptions")
_signals: Any = import_module(f"{FRAMEWORK}.signals")
_backend_base: Any = import_module(f"{FRAMEWORK}.backends.base")

BaseTaskBackend = _backend_base.BaseTaskBackend
Task, TaskContext, TaskError = _base.Task, _base.TaskContext, _base.TaskError
TaskResult, TaskResultStatus = _base.TaskResult, _base.TaskResultStatus
# The package uses a different name from Django's.
InvalidTask = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
InvalidBackend = (
    getattr(_exceptions, "InvalidTaskBackend", None) or _exceptions.InvalidTaskBackendError
)
TaskResultDoesNotExist = _exceptions.TaskResultDoesNotExist
task_enqueued, task_started = _signals.task_enqueued, _signals.task_started
task_finished = _signals.task_finished
task_backends: Any = import_module(FRAMEWORK).task_backends
normalize_json: Any = _base.normalize_json

logger = logging.getLogger("jobs.tasks")

KWARGS = "ojs.kwargs"
"""The key of keyword arguments in `meta`."""
OPTIONS = ("TYPES", "RETRY", "QUEUE_NAMES")
STATUS = {
    State.ACTIVE: TaskResultStatus.RUNNING,
    State.COMPLETED: TaskResultStatus.SUCCESSFUL,
    State.DISCARDED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
"""All other states wait to run: READY."""


class JobFailed(Exception):
    """Represents, in a task's errors, one that is not a Python exception: a timeout, a Go error."""


class OJSBackend(BaseTaskBackend):  # type: ignore[misc, valid-type]
    """Tasks as jobs."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @property
    def paths(self) -> dict[str, str]:
        """Job type → dotted path of the task, for types that are not the path itself."""
        return dict(self.options.get("TYPES", {}))

    @property
    def queue_names(self) -> dict[str, str]:
        """The framework's name of a queue → its OJS name, for names that OJS does not allow."""
        names = self.options.get("QUEUE_NAMES")
        # Anything else is an error of `check()`.
        return dict(names) if isinstance(names, Mapping) else {}

    def queue_of(self, name: str) -> str:
        return self.queue_names.get(name, name)

    def queue_name_of(self, queue: str) -> str:
        names = (name for name, mapped in self.queue_names.items() if mapped == queue)
        return next(names, queue)

    def type_of(self, task: Any) -> str:
        path: str = task.module_path
        return next((name for name, named in self.paths.items() if named == path), path)

    def validate_task(self, task: Any) -> None:
        """
        Raises:
            InvalidTask: it breaks the framework's rules or those for OJS names.
        """
        super().validate_task(task)
        if not TYPE_PATTERN.fullmatch(self.type_of(task)):
            raise InvalidTask(
                f"{self.type_of(task)!r} is not a job type; give the task one in OPTIONS['TYPES']."
            )
        if not _is_queue(self.queue_of(task.queue_name)):
            raise InvalidTask(
                f"{task.queue_name!r} is not a queue name ({QUEUE_PATTERN.pattern}); map it to one "
                "in OPTIONS['QUEUE_NAMES']."
            )

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue in the caller's transaction."""
        given = normalize_json(list(args)), normalize_json(dict(kwargs))
        place = current()
        # In `inline()` of jobs.testing the task has run when this context has ended.
        with place.announcing():
            (job,) = enqueue_many([self.item_of(task, *given)])
            if job is None:
                raise InvalidTask("An enqueue middleware dropped the task.")
            result = make_result(self, task, *given, id=str(job.id), enqueued_at=job.created_at)
            task_enqueued.send(type(self), task_result=result)
        return self.get_result(result.id) if place.is_memory else result

    def item_of(self, task: Any, args: list[Any], kwargs: dict[str, Any]) -> dict[str, object]:
        """Return what `jobs.enqueue()` takes for a call of the task.

        Raises:
            InvalidTask: it breaks the framework's rules or those for OJS names.
        """
        self.validate_task(task)
        sent, meta = encode_arguments(task, args, kwargs)
        item: dict[str, object] = {"retry": self.options.get("RETRY")}
        # `@task` and `using()` take precedence over options that the framework knows as well.
        item |= options_of(task.func).enqueue
        item |= {"type": self.type_of(task), "args": sent, "meta": meta}
        item["queue"] = self.queue_of(task.queue_name)
        if task.priority:
            item["priority"] = task.priority
        if task.run_after is not None:
            item["scheduled_at"] = task.run_after
        return item

    def get_result(self, result_id: str) -> Any:
        """
        Raises:
            TaskResultDoesNotExist: there is no such job, or it is not a task of this site.
        """
        job_id = parse_uuid(str(result_id))
        with current().inside():
            jobs = Job.objects.prefetch_related("errors")
            job = jobs.filter(pk=job_id).first() if job_id else None
        task = find_task(job.type) if job else None
        if job is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        errors = list(job.errors.all())
        result = make_result(
            self,
            self._as_enqueued(task, job),
            *decode_arguments(
                task,
                open_args(job.args, job.meta),
                {name: opened(value) for name, value in job.meta.items()},
            ),
            id=str(job.pk),
            status=STATUS.get(State(job.state), TaskResultStatus.READY),
            enqueued_at=job.created_at,
            started_at=job.started_at,
            last_attempted_at=job.started_at,
            finished_at=job.finished_at,
            errors=[
                task_error(error.type, error.backtrace, error.message, error.details)
                for error in errors
            ],
            worker_ids=[error.worker_id for error in errors] + _present_worker(job),
        )
        if result.status == TaskResultStatus.SUCCESSFUL:
            object.__setattr__(result, "_return_value", opened(job.result))
        return result

    def _as_enqueued(self, task: Any, job: Job) -> Any:
        """Return the task with its priority as enqueued, and its queue if this backend has it."""
        changes: dict[str, Any] = {"priority": job.priority, "backend": self.alias}
        name = self.queue_name_of(job.queue)
        if not self.queues or name in self.queues:
            changes["queue_name"] = name
        return task.using(**changes)

    def check(self, **kwargs: Any) -> Iterator[checks.CheckMessage]:
        yield from super().check(**kwargs)
        place = f"TASKS[{self.alias!r}]"
        if not apps.is_installed("jobs"):
            yield checks.Error(f"{place}: 'jobs' is not in INSTALLED_APPS.", id="ojs.E010")
        for name in self.options.keys() - set(OPTIONS):
            yield checks.Error(
                f"{place}: unknown option {name!r}; there are {', '.join(OPTIONS)}.", id="ojs.E011"
            )
        for queue in sorted(self.queues):
            if not _is_queue(self.queue_of(queue)):
                yield checks.Error(f"{place}: {queue!r} is not a queue name.", id="ojs.E012")
        names = self.options.get("QUEUE_NAMES") or {}
        if not isinstance(names, Mapping):
            message = f"{place}: QUEUE_NAMES must be a dictionary, not {names!r}."
            yield checks.Error(message, id="ojs.E012")
        mapped = list(self.queue_names.values())
        for queue in mapped:
            if not _is_queue(queue) or mapped.count(queue) > 1:
                message = f"{place}: QUEUE_NAMES: {queue!r} is not the name of one queue."
                yield checks.Error(message, id="ojs.E012")
        types = self.options.get("TYPES", {})
        if not isinstance(types, Mapping):
            message = f"{place}: TYPES must be a dictionary, not {types!r}."
            yield checks.Error(message, id="ojs.E013")
            types = {}
        for name, path in types.items():
            named = isinstance(name, str) and TYPE_PATTERN.fullmatch(name)
            if not named:
                yield checks.Error(f"{place}: TYPES: {name!r} is no job type.", id="ojs.E013")
            elif not isinstance(path, str) or _load(path) is None:
                yield checks.Error(f"{place}: {name!r}: {path!r} is no task.", id="ojs.E013")
        paths = [path for path in types.values() if isinstance(path, str)]
        for path in sorted({path for path in paths if paths.count(path) > 1}):
            first, *others = (repr(name) for name, named in types.items() if named == path)
            yield checks.Warning(
                f"{place}: TYPES gives the task {path!r} several names. It is enqueued as {first}; "
                f"workers with --known-types leave jobs of type {', '.join(others)} waiting.",
                hint="Keep one of the names, once no jobs of the others are left.",
                id="ojs.W040",
            )
        if self.options.get("RETRY") is not None:
            try:
                checked_policy(place, self.options["RETRY"])
            except ImproperlyConfigured as problem:
                yield checks.Error(str(problem), id="ojs.E014")


def _is_queue(name: Any) -> bool:
    fits = isinstance(name, str) and QUEUE_PATTERN.fullmatch(name) is not None
    return fits and len(name) <= QUEUE_LENGTH


def item_of_task(task: Any, args: list[Any], kwargs: dict[str, Any]) -> dict[str, object]:
    """Return what `jobs.enqueue()` takes for a call of a task.

    Raises:
        TypeError: the task belongs to another backend.
    """
    backend = task.get_backend()
    if not isinstance(backend, OJSBackend):
        raise TypeError(
            f"{task.module_path} is a task of {type(backend).__name__}, not of OJSBackend."
        )
    return backend.item_of(task, normalize_json(args), normalize_json(kwargs))


def make_result(
    backend: Any, task: Any, args: list[Any], kwargs: dict[str, Any], **fields: Any
) -> Any:
    """Create a TaskResult; fields not given mean that something has not happened yet."""
    empty = dict.fromkeys(("started_at", "last_attempted_at", "finished_at"))
    return TaskResult(
        task=task,
        args=args,
        kwargs=kwargs,
        backend=backend.alias,
        **{"status": TaskResultStatus.READY, "errors": [], "worker_ids": [], **empty, **fields},
    )


def _present_worker(job: Job) -> list[str]:
    """Return the worker of the running or the successful attempt, which has no error."""
    if job.state == State.ACTIVE:
        return [job.reserved_by]
    return [job.finished_by] if job.state == State.COMPLETED else []


def task_error(type: str, backtrace: list[str] | None, message: str, details: Any = None) -> Any:
    """Return an error as the framework has it, in clear if this process has the key."""
    with contextlib.suppress(CodecError):
        message, backtrace = open_error(message, backtrace, details)
    return TaskError(
        exception_class_path=_exception_path(type),
        traceback="".join(backtrace) if backtrace else f"{type}: {message}",
    )


def _exception_path(type: str) -> str:
    """Return the path of a known exception; nothing is imported because a worker names it."""
    if type == "invalid_result":
        # What the framework raises for a result that is not JSON.
        type = "TypeError"
    path = type if "." in type else f"builtins.{type}"
    module, _, name = path.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    if inspect.isclass(found) and issubclass(found, BaseException):
        return path
    return f"{JobFailed.__module__}.{JobFailed.__qualname__}"


def _takes_keywords_only(task: Any) -> bool:
    parameters = list(inspect.signature(task.func).parameters.values())
    own = parameters[1:] if task.takes_context else parameters
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    return bool(own) and all(parameter.kind in named for parameter in own)


def encode_arguments(
    task: Any, args: list[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Convert the arguments of a task call to the args and meta of a job."""
    if not kwargs:
        return args, {}
    if not args and _takes_keywords_only(task):
        return [kwargs], {}
    return args, {KWARGS: kwargs}


def decode_arguments(
    task: Any, args: list[Any], meta: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Convert a job to the arguments of a task call, whichever client enqueued it."""
    kwargs = meta.get(KWARGS)
    if isinstance(kwargs, dict):
        return args, kwargs
    if len(args) == 1 and isinstance(args[0], dict) and _takes_keywords_only(task):
        return [], args[0]
    return args, {}


def backends() -> Iterable[OJSBackend]:
    """Yield our backends, whatever is wrong with the others."""
    for alias in task_backends:
        try:
            backend = task_backends[alias]
        except Exception as problem:
            # Django's checks report it. Our tasks work regardless.
            if alias not in _broken:
                _broken.add(alias)
                logger.warning("TASKS[%r] cannot be used: %s", alias, problem)
            continue
        if isinstance(backend, OJSBackend):
            yield backend


_broken: set[str] = set()
"""Aliases that have been reported."""


def find_task(type: str) -> Any:
    """Return the task that runs jobs of `type`, or None.

    A type comes from a client: only modules of installed apps are imported for it.
    """
    named = {name: path for backend in backends() for name, path in backend.paths.items()}
    if type in named:
        return _load(named[type])
    module, _, name = type.rpartition(".")
    if type in named.values() or not name or not _is_of_site(module):
        return None
    return _load(type)


def _is_of_site(module: str) -> bool:
    return module in sys.modules or any(
        module == app.name or module.startswith(f"{app.name}.") for app in apps.get_app_configs()
    )


def _load(path: str) -> Any:
    try:
        found = import_string(path)
    except ImportError:
        return None
    return found if is_ours(found) else None


def is_ours(found: Any) -> bool:
    # Not isinstance(), which would evaluate a lazy object to get its class.
    if not issubclass(type(found), Task):
        return False
    try:
        return isinstance(found.get_backend(), OJSBackend)
    except Exception:  # whatever is wrong with the backend of another alias
        return False


__all__ = [
    "JobFailed",
    "OJSBackend",
    "Task",
    "TaskContext",
    "TaskResultStatus",
    "decode_arguments",
    "find_task",
    "is_ours",
    "make_result",
    "task_error",
    "task_finished",
    "task_started",
]

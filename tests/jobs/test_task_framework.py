"""What the documentation of Django's Tasks framework says of any backend, asked of ours.

Written from its pages "Tasks" (topics and reference); what differs is named in docs/django.md and,
here, in tests that say so. It runs with `django.tasks`, and with `django-tasks` before Django 6.
"""

from __future__ import annotations

import logging
import pickle
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from jobs import testing
from jobs.backends import (
    FRAMEWORK,
    InvalidTask,
    OJSBackend,
    Task,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from jobs.errors import InvalidRequest
from jobs.models import Job
from jobs.task_options import task_options
from tests.shop import TASKS

framework: Any = import_module(FRAMEWORK)
task = framework.task
ONCE = task_options(retry={"max_attempts": 1})


@task
def same(value: Any) -> Any:
    return value


@task
def nothing() -> None:
    pass


@task
async def same_async(value: Any) -> Any:
    return value


@task(priority=7, takes_context=True)
def of_context(context: Any, *, key: str) -> list[Any]:
    result = context.task_result
    return [context.attempt, result.status, result.kwargs, result.id]


@task
@ONCE
def fails(message: str) -> None:
    raise ValueError(ValueError(message))


@task
@ONCE
def leaves() -> None:
    raise SystemExit("enough")


@task
@ONCE
def returns(kind: str) -> Any:
    return {"object": object(), "set": {1}, "bytes": b"text", "tuple": (1, (2,))}[kind]


@pytest.fixture(autouse=True)
def ours(settings):
    settings.TASKS = TASKS | {"other": TASKS["default"] | {"QUEUES": ["slow"]}}


MODES = {"fake": testing.fake, "inline": testing.inline}


@pytest.fixture(params=["fake", "database"])
def place(request):
    """In memory, as in the tests of a site, and in the database."""
    with in_place(request):
        yield


@pytest.fixture(params=["fake", "inline", "database"])
def place_of_success(request):
    """`inline()` as well, out of which the errors of tasks come."""
    with in_place(request):
        yield


@contextmanager
def in_place(request):
    mode = MODES.get(request.param)
    if mode is None:
        request.getfixturevalue("db")
    with mode() if mode else nullcontext():
        yield


def run(called):
    testing.run_jobs()
    called.refresh()
    return called


# Defining


def test_a_task_has_the_attributes_of_the_reference():
    assert (of_context.name, of_context.module_path) == ("of_context", f"{__name__}.of_context")
    assert (of_context.priority, of_context.backend, of_context.queue_name) == (
        7,
        "default",
        "default",
    )
    assert (of_context.takes_context, of_context.run_after) == (True, None)
    assert (same.takes_context, same.priority) == (False, 0)
    assert isinstance(same.get_backend(), OJSBackend)


def test_using_returns_another_task_and_leaves_the_first_alone():
    later = timezone.now() + timedelta(hours=1)

    changed = same.using(priority=-3, queue_name="slow", backend="other", run_after=later)

    assert (changed.priority, changed.queue_name, changed.backend) == (-3, "slow", "other")
    assert changed.run_after == later
    assert (same.priority, same.queue_name, same.backend) == (0, "default", "default")
    assert same.using() == same


def test_a_task_is_called_in_place():
    assert (same.call(1), same_async.call(2)) == (1, 2)
    assert async_to_sync(same.acall)(3) == 3
    assert async_to_sync(same_async.acall)(4) == 4


@pytest.mark.skipif(not hasattr(Task, "_reconstruct"), reason="as of Django 6.1")
def test_tasks_and_results_can_be_pickled(place):
    result = same.enqueue(1)

    assert pickle.loads(pickle.dumps(result)).id == result.id


@pytest.mark.parametrize(
    "changes",
    [
        {"priority": 101},
        {"priority": -101},
        {"priority": 3.1},
        {"run_after": datetime(2030, 1, 1)},
        {"backend": "other"},
    ],
    ids=str,
)
def test_what_the_framework_refuses_is_refused(changes):
    with pytest.raises(InvalidTask):
        same.using(**changes)


def test_only_functions_of_a_module_are_tasks():
    def inner() -> None:
        pass

    for function in (inner, lambda: None):
        with pytest.raises(InvalidTask):
            task(function)


def test_the_first_parameter_of_a_task_with_a_context_is_called_so():
    with pytest.raises(InvalidTask):
        task(takes_context=True)(same.func)


def test_an_alias_that_is_not_there_is_refused():
    with pytest.raises(Exception, match="missing"):
        same.using(backend="missing")


def test_the_backend_says_what_it_can():
    backend = task_backends["default"]

    assert backend.supports_defer and backend.supports_async_task
    assert backend.supports_get_result and backend.supports_priority


# Enqueueing


def test_a_new_result_says_that_nothing_has_happened_yet(place):
    before = timezone.now() - timedelta(seconds=5)

    result = same.enqueue(1)

    assert isinstance(result.id, str) and len(result.id) <= 64
    assert result.status == TaskResultStatus.READY
    assert before < result.enqueued_at < timezone.now() + timedelta(seconds=5)
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert (result.is_finished, result.attempts) == (False, 0)
    assert (result.errors, result.worker_ids) == ([], [])
    assert (result.task, result.backend) == (same, "default")
    assert (result.args, result.kwargs) == ([1], {})


def test_a_result_belongs_to_the_backend_it_was_enqueued_with(place_of_success):
    result = same.using(backend="other", queue_name="slow").enqueue(1)

    assert result.backend == "other"
    assert run(result).return_value == 1
    assert task_backends["other"].get_result(result.id).task.queue_name == "slow"


def test_arguments_become_what_json_has(place):
    result = same.enqueue((1, (2, {"three": b"four"})))

    assert result.args == [[1, [2, {"three": "four"}]]]
    assert run(result).return_value == [1, [2, {"three": "four"}]]


@pytest.mark.parametrize("value", [object(), {1, 2}, timezone.now()], ids=type)
def test_arguments_that_json_does_not_have_are_a_type_error(place, value):
    with pytest.raises(TypeError):
        same.enqueue(value)
    with pytest.raises(TypeError):
        same.enqueue(value=value)


def test_every_call_is_a_job_of_its_own(place_of_success):
    assert len({same.enqueue(1).id for _ in range(3)}) == 3


@pytest.mark.django_db
def test_priority_decides_which_is_first():
    for priority in (-10, 10, 0):
        same.using(priority=priority).enqueue(priority)

    testing.run_jobs(max_jobs=1)

    assert [job.args for job in Job.objects.filter(state="completed")] == [[10]]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("one", [same, same_async], ids=lambda one: one.name)
def test_the_twins_for_async_code(one):
    async def view():
        made = await one.aenqueue(1)
        await made.arefresh()
        return made, await one.aget_result(made.id)

    made, found = async_to_sync(view)()

    assert made == found
    assert run(made).return_value == 1


# Results


@pytest.mark.parametrize("value", [1, None, "text", [1, {"a": 2.5}], {"a": None}], ids=str)
@pytest.mark.parametrize("one", [same, same_async], ids=lambda one: one.name)
def test_a_task_that_succeeded(place_of_success, one, value):
    result = run(one.enqueue(value))

    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, value)
    assert (result.is_finished, result.attempts, result.errors) == (True, 1, [])
    assert len(result.worker_ids) == 1
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at


def test_none_is_a_value_too(place_of_success):
    assert run(nothing.enqueue()).return_value is None


def test_a_value_is_there_when_the_task_has_succeeded_and_not_before(place):
    with pytest.raises(ValueError, match="not finished"):
        _ = same.enqueue(1).return_value
    with pytest.raises(ValueError, match="failed"):
        _ = run(fails.enqueue("no")).return_value


def test_a_task_that_raised(place):
    result = run(fails.enqueue("no such mailbox"))

    assert (result.status, result.is_finished) == (TaskResultStatus.FAILED, True)
    (error,) = result.errors
    assert (error.exception_class, error.exception_class_path) == (
        ValueError,
        "builtins.ValueError",
    )
    assert "no such mailbox" in error.traceback
    assert "in fails\n" in error.traceback
    assert result.finished_at


def test_a_task_that_leaves_has_failed(place):
    result = run(leaves.enqueue())

    assert [error.exception_class for error in result.errors] == [SystemExit]


@pytest.mark.parametrize("kind", ["object", "set"])
def test_a_value_that_json_does_not_have_is_a_type_error(place, kind):
    result = run(returns.enqueue(kind))

    assert result.status == TaskResultStatus.FAILED
    assert [error.exception_class for error in result.errors] == [TypeError]


@pytest.mark.parametrize(("kind", "value"), [("bytes", "text"), ("tuple", [1, [2]])])
def test_a_value_becomes_what_json_has(place_of_success, kind, value):
    assert run(returns.enqueue(kind)).return_value == value


def test_a_task_with_a_context_is_given_it(place_of_success):
    result = of_context.enqueue(key="a")

    assert run(result).return_value == [1, "RUNNING", {"key": "a"}, result.id]


def test_a_result_is_found_by_its_id(place_of_success):
    result = same.enqueue(1)

    assert same.get_result(result.id) == result
    assert task_backends["default"].get_result(result.id) == result
    with pytest.raises(TaskResultDoesNotExist):
        same.get_result("no-such-result")


def test_a_result_is_read_again_only_when_asked(place):
    result = same.enqueue(1)

    testing.run_jobs()

    assert result.status == TaskResultStatus.READY
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL


# Signals, and the lines that the framework logs for them


@pytest.mark.parametrize(
    ("call", "end"),
    [((same, 1), TaskResultStatus.SUCCESSFUL), ((fails, "no"), TaskResultStatus.FAILED)],
    ids=["succeeds", "fails"],
)
def test_the_signals_and_their_lines(place_of_success, call, end, caplog):
    heard = []

    def hear(signal, sender, task_result, **kwargs):
        heard.append((signal, sender, task_result.id, task_result.status))

    signals = (task_enqueued, task_started, task_finished)
    for signal in signals:
        signal.connect(hear, weak=False, dispatch_uid="heard")
    called, argument = call
    try:
        with caplog.at_level(logging.DEBUG, FRAMEWORK):
            try:
                result_id = called.enqueue(argument).id
            except ValueError:
                # Out of `inline()`.
                (job,) = testing.all_enqueued()
                result_id = str(job.id)
            testing.run_jobs()
    finally:
        for signal in signals:
            signal.disconnect(dispatch_uid="heard")

    begun = [(task_enqueued, "READY"), (task_started, "RUNNING"), (task_finished, end)]
    assert heard == [(signal, OJSBackend, result_id, status) for signal, status in begun]
    lines = [(line.levelname, line.message) for line in caplog.records if line.name == FRAMEWORK]
    last = "INFO" if end == TaskResultStatus.SUCCESSFUL else "ERROR"
    about = f"Task id={result_id} path={called.module_path}"
    assert lines == [
        ("DEBUG", f"{about} enqueued backend=default"),
        ("INFO", f"{about} state=RUNNING"),
        (last, f"{about} state={end}"),
    ]


# What differs


@pytest.mark.django_db
def test_started_at_is_that_of_the_last_attempt():
    result = same.enqueue(1)
    testing.fail_next(same.module_path, ValueError("once"))

    testing.run_jobs()
    result.refresh()
    first = result.last_attempted_at
    testing.run_jobs(with_scheduled=True)
    result.refresh()

    assert result.attempts == 2
    assert first < result.started_at == result.last_attempted_at


def test_keys_of_dictionaries_are_text(place):
    with pytest.raises(InvalidRequest, match="must be a string"):
        same.enqueue({1: 2})

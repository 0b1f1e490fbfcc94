"""Handlers that are called like functions: directly, or as a job."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured

import jobs
from jobs import testing
from workers.runtime import Retry, handler, handlers

pytest_plugins = ["jobs.pytest_plugin"]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    known = set(handlers._handlers)
    yield
    for name in set(handlers._handlers) - known:
        handlers.forget(name)


@handler(
    "test.handlers.send", queue="mail", priority=5, tags=["a"], retry=jobs.Retry(max_attempts=8)
)
def send(context: Any, to: str, template: str = "plain", *, loud: bool = False) -> str:
    """Send a letter."""
    return f"{to}: {template}"


handlers.forget("test.handlers.send")


def test_a_handler_is_still_called_like_its_function():
    assert send(None, "ann", template="gift") == "ann: gift"
    assert (send.__name__, send.__doc__) == ("send", "Send a letter.")


@pytest.mark.parametrize(
    ("args", "kwargs", "sent"),
    [
        (("ann",), {}, ["ann"]),
        (("ann", "gift"), {}, ["ann", "gift"]),
        (("ann",), {"template": "gift"}, ["ann", "gift"]),
        ((), {"template": "gift", "to": "ann"}, ["ann", "gift"]),
        (("ann",), {"loud": False}, ["ann", "plain"]),
    ],
)
def test_a_job_has_the_arguments_of_the_call(fake_jobs, args, kwargs, sent):
    handle = send.enqueue(*args, **kwargs)

    assert (handle.type, handle.args) == ("test.handlers.send", sent)
    assert (handle.queue, handle.priority, handle.max_attempts, handle.tags) == (
        "mail",
        5,
        8,
        ["a"],
    )
    assert send.job(*args, **kwargs).item["args"] == sent


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        (("ann", "gift", 3), {}),
        (("ann",), {"tempalte": "gift"}),
        (("a",), {"loud": True}),
    ],
)
def test_a_call_that_does_not_fit_is_refused_when_it_is_enqueued(fake_jobs, args, kwargs):
    for call in (send.enqueue, send.job):
        with pytest.raises(TypeError, match=r"test\.handlers\.send"):
            call(*args, **kwargs)
    with pytest.raises(TypeError):
        jobs.job(send, args, kwargs)
    assert fake_jobs.jobs == []


def test_options_of_one_call_are_added_to_those_of_the_handler(fake_jobs):
    handle = send.using(queue="slow", scheduled_at=timedelta(hours=1)).enqueue("ann")

    assert (handle.queue, handle.state, handle.priority) == ("slow", "scheduled", 5)
    assert send.enqueue("ann").queue == "mail"


def test_async_handlers_are_enqueued_from_async_code(inline_jobs):
    @handler("test.handlers.later")
    async def later(context: Any, number: int) -> int:
        return number + 1

    assert iscoroutinefunction(later)
    handle = async_to_sync(later.aenqueue)(41)
    assert handle.refresh().result == 42


def test_one_function_may_handle_several_types(inline_jobs):
    @handler("test.handlers.one")
    @handler("test.handlers.two")
    def both(context: Any, word: str) -> str:
        return f"{context.type} {word}"

    assert both.enqueue("x").refresh().result == "test.handlers.one x"
    assert jobs.enqueue("test.handlers.two", ["x"]).refresh().result == "test.handlers.two x"


def test_handlers_are_composed(inline_jobs):
    @handler("test.handlers.add")
    def add(context: Any, number: int) -> int:
        return number + sum(context.parent_results)

    flow = jobs.chain(add.job(1), add.job(2), jobs.job(add, [3])).enqueue()

    assert flow.results() == [1, 3, 7]


# Retry by exception


class Throttled(Exception):
    pass


class NoSuchMailbox(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "state", "dead"),
    [
        (Throttled(), "retryable", False),
        (Retry(), "retryable", False),
        (NoSuchMailbox(), "discarded", False),
        (ValueError("another"), "discarded", True),
    ],
)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_exception_decides_whether_there_is_another_attempt(
    fake_jobs, kind, error, state, dead
):
    decorate = handler("test.handlers.mail", retry_on=(Throttled,), discard_on=(NoSuchMailbox,))

    def mail(context: Any) -> None:
        raise error

    async def amail(context: Any) -> None:
        raise error

    handle = decorate(mail if kind == "sync" else amail).enqueue()
    testing.run_jobs()

    assert handle.refresh().state == state
    (job,) = fake_jobs.jobs
    assert job.dead_letter is dead


def test_what_is_discarded_is_never_retried(fake_jobs):
    """The same class of exceptions in both options."""

    @handler("test.handlers.mail", retry_on=(Exception,), discard_on=(NoSuchMailbox,))
    def mail(context: Any) -> None:
        raise NoSuchMailbox

    handle = mail.enqueue()
    testing.run_jobs()

    assert handle.refresh().state == "discarded"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retry": {"max_atempts": 3}}, "max_atempts"),
        ({"retry": jobs.Retry(max_attempts=-1)}, "max_attempts"),
        ({"retry_on": Throttled}, "tuple"),
        ({"discard_on": ("Throttled",)}, "tuple"),
        ({"discard_on": (KeyboardInterrupt,)}, "tuple"),
        ({"queue": "Mail"}, "queue"),
        ({"priority": 101}, "priority"),
        ({"unique": {"keys": ["nothing"]}}, "dimension"),
        ({"rate_limit": {"key": 3}}, "rate_limit"),
        ({"version": "new"}, "version"),
    ],
)
def test_a_wrong_option_is_refused_at_import(options, said):
    with pytest.raises(ImproperlyConfigured, match=said):
        handler("test.handlers.wrong", **options)(lambda context: None)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_log_of_a_failure_begins_with_the_frames_of_the_handler(caplog, kind):
    from uuid import uuid4

    from workers.runtime import JobContext
    from workers.runtime.execution import execute, execute_async

    def fail(context: Any) -> None:
        raise ZeroDivisionError

    async def afail(context: Any) -> None:
        fail(context)

    context = JobContext(
        id=uuid4(), type="a", queue="b", args=[], meta={}, attempt=1, max_attempts=1
    )
    handler("test.handlers.fail")(fail if kind == "sync" else afail)
    found = handlers.find("test.handlers.fail")
    assert found is not None
    if kind == "sync":
        execute(found, context)
    else:
        async_to_sync(execute_async)(found, context)

    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.exc_info[2].tb_frame.f_globals["__name__"] == __name__

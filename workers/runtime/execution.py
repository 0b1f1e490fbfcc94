"""Runs one handler inside its middleware and returns the outcome (OJS middleware §4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async

from jobs.engine import Completion, Failure
from jobs.errors import InvalidRequest, ResultTooLarge
from jobs.middleware import execution_chain
from jobs.record import tracing
from jobs.running import current_job
from jobs.spec.error_texts import message_of
from jobs.spec.jsonable import jsonable
from jobs.store.database import atomic
from workers import protocol

from .blocking import in_thread
from .context import JobContext
from .handling import Handler
from .outcomes import Directive, InvalidResult, JobTimeout, described, failure_of, frames_of


@dataclass(frozen=True, slots=True)
class Settled:
    """The job was completed in the handler's own transaction: nothing is left to report."""

    result: Any


def execute(handler: Handler, context: JobContext) -> Completion | Failure | Settled:
    """Run a synchronous handler and return what to report. Raises nothing but an interrupt.

    Code that calls sys.exit() ends its job, not the worker; so does anything else that is not an
    Exception: a cancelled asyncio task, the timeout of gevent.
    """
    token = current_job.set(context)
    outcome: Completion | Failure | Settled
    try:
        if handler.atomic_ack:
            outcome = _in_one_transaction(handler, context)
        else:
            outcome = completion(context, _call(handler, context))
        handler.tell(context, outcome)
        context.ended(None)
    except BaseException as problem:
        context.ended(problem)
        _log(context, problem)
        outcome = failed(context, problem, handler)
        handler.tell(context, outcome)
    finally:
        current_job.reset(token)
    return outcome


async def execute_async(handler: Handler, context: JobContext) -> Completion | Failure:
    """Run an asynchronous handler and return what to report, also if it was cancelled."""
    token = current_job.set(context)
    outcome: Completion | Failure
    try:
        outcome = completion(context, await _acall(handler, context))
        await handler.atell(context, outcome)
        context.ended(None)
    except BaseException as problem:
        if isinstance(problem, asyncio.CancelledError) and context.cancelled:
            context.ended(interruption(context).with_traceback(problem.__traceback__))
            outcome = interrupted(context)
        else:
            context.ended(problem)
            _log(context, problem)
            outcome = failed(context, problem, handler)
        await handler.atell(context, outcome)
    finally:
        current_job.reset(token)
    return outcome


def run_inline(handler: Handler, context: JobContext) -> Any:
    """Run a handler of either kind in this thread and return its result; its errors propagate."""
    token = current_job.set(context)
    try:
        if handler.atomic_ack:
            with atomic():
                result = _call(handler, context)
        else:
            result = _call(handler, context)
        done = completion(context, result)
        handler.tell(context, done)
        context.ended(None)
        return done.result
    except BaseException as problem:
        context.ended(problem)
        handler.tell(context, failed(context, problem, handler))
        raise
    finally:
        current_job.reset(token)


def completion(context: JobContext, result: Any) -> Completion:
    """
    Raises:
        InvalidResult: the handler returned something that is not JSON-serializable.
    """
    if result is not None:
        try:
            result = jsonable(result, "result")
        except InvalidRequest as refusal:
            raise InvalidResult(refusal.message) from None
    return Completion(context.id, context.worker_id, context.attempt, result)


def failed(context: JobContext, problem: BaseException, handler: Handler | None = None) -> Failure:
    failure = failure_of(problem, context.id, context.worker_id, context.attempt)
    if context.vault is not None and not isinstance(problem, JobTimeout):
        failure = context.vault.conceal(failure)
    return failure if handler is None else handler.judge(failure, problem)


def _log(context: JobContext, problem: BaseException) -> None:
    """Log that an attempt failed, and where (OJS logging §6.3)."""
    if isinstance(problem, Directive):
        if context.vault is not None:
            context.log("Ended by %r.", type(problem).__name__)
        elif problem.cause is None:
            context.log("Ended by %r.", problem)
        else:
            context.log("Ended by %r, because of %s", problem, described(problem.cause))
        return
    level = logging.WARNING if context.cancelled else logging.ERROR
    template = "Attempt %d of %d failed: %s"
    if context.vault is not None:
        # Neither its message nor its frames: they may quote the arguments.
        hidden = f"{type(problem).__qualname__} [encrypted]"
        context.log(template, context.attempt, context.max_attempts, hidden, level=level)
        return
    said = message_of(problem)
    where = type(problem), problem, frames_of(problem)
    context.log(template, context.attempt, context.max_attempts, said, level=level, exc_info=where)


def interruption(context: JobContext) -> JobTimeout:
    """What an asynchronous handler that was cancelled has failed with."""
    problem = JobTimeout(f"The job was interrupted: {context.cancelled_because}.")
    problem.is_error = context.cancelled_because == "timeout"
    return problem


def interrupted(context: JobContext) -> Failure:
    """The failure to report for an asynchronous handler that was cancelled."""
    return failed(context, interruption(context))


def _in_one_transaction(handler: Handler, context: JobContext) -> Settled:
    """Commit the handler's work and the job's completion together, or neither.

    If the reservation was lost, the work is rolled back: another worker has the job now.
    """
    with atomic():
        done = completion(context, _call(handler, context))
        with tracing.reporting([(context, done)]):
            (outcome,) = protocol.ack([done])
        if isinstance(outcome.error, ResultTooLarge):
            raise InvalidResult(outcome.error.message)
        if outcome.error is not None:
            context.cancel("lost")
            raise outcome.error
    return Settled(done.result)


def _call(handler: Handler, context: JobContext) -> Any:
    chain = execution_chain.build()
    call: Callable[[], Any] = lambda: handler.call(context)  # noqa: E731 (the innermost link)
    if handler.is_async:
        call = async_to_sync(_awaiting(call))
    for middleware in reversed(chain):
        if _is_async(middleware):
            middleware = _as_sync(middleware)
        call = _link(middleware, context, once(call))
    return call()


async def _acall(handler: Handler, context: JobContext) -> Any:
    chain = execution_chain.build()
    call: Callable[[], Any] = lambda: handler.call(context)  # noqa: E731 (the innermost link)
    for is_async, together in groupby(reversed(chain), _is_async):
        if is_async:
            for middleware in together:
                call = _link(middleware, context, once(call))
        else:
            call = _in_thread(list(together), context, call)
    return await call()


def _is_async(middleware: Any) -> bool:
    return iscoroutinefunction(middleware) or iscoroutinefunction(type(middleware).__call__)


def _link(middleware: Any, context: JobContext, next: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: middleware(context, next)


def once(call: Callable[[], Any]) -> Callable[[], Any]:
    """Guard against a middleware that calls `next()` twice (OJS middleware §4.3)."""
    called = False

    def guarded() -> Any:
        nonlocal called
        if called:
            raise RuntimeError("An execution middleware called next() more than once.")
        called = True
        return call()

    return guarded


def _as_sync(middleware: Any) -> Any:
    def run(context: JobContext, next: Callable[[], Any]) -> Any:
        return async_to_sync(middleware)(context, sync_to_async(next))

    return run


def _in_thread(
    middlewares: Sequence[Any], context: JobContext, next: Callable[[], Any]
) -> Callable[[], Any]:
    """Let synchronous middleware, the innermost first, wait for `next` in one thread.

    The thread is the job's own until then: with a limited number of them, jobs would wait for each
    other. The handler's calls of the ORM are made in it, too.
    """

    def run() -> Any:
        call: Callable[[], Any] = async_to_sync(_awaiting(next))
        for middleware in middlewares:
            call = _link(middleware, context, once(call))
        return call()

    return in_thread(run)


def _awaiting(next: Callable[[], Any]) -> Any:
    async def run() -> Any:
        return await next()

    return run

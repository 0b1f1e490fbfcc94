"""Runs one job right here, without a worker process, for `jobs.testing`."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import orjson

from jobs import engine
from jobs.engine import Completion, Failure

from . import handlers
from .context import JobContext
from .execution import failed, run_inline
from .outcomes import InvalidResult, not_found, not_this_version


class HandlerNotFound(LookupError):
    """There is no handler for this type of job."""


def perform(
    document: dict[str, Any],
    *,
    worker_id: str,
    error: BaseException | None = None,
) -> tuple[Completion | Failure, BaseException | None]:
    """Run a job given as its envelope; return what a worker would report, and the error.

    Args:
        error: an error to treat as if the handler had raised it.
    """
    # Through JSON and back, as on its way to a worker.
    document = orjson.loads(orjson.dumps(document))
    attempt = max(document["attempt"], 1)
    context = JobContext(
        id=UUID(document["id"]),
        type=document["type"],
        queue=document["queue"],
        args=document["args"],
        meta=document["meta"],
        attempt=attempt,
        max_attempts=document["max_attempts"],
        worker_id=worker_id,
        document=lambda: document,
        checkpoint=document.get("checkpoint"),
    )
    handler = handlers.find(context.type)
    if handler is None:
        handlers.autodiscover()
        handler = handlers.find(context.type)
    try:
        if error is not None:
            raise error
        if handler is None:
            missing = HandlerNotFound(f"There is no handler for jobs of type '{context.type}'.")
            return not_found(context), missing
        if not handler.takes(context):
            return not_this_version(context), None
        result = _of_size(run_inline(handler, context))
    except (Exception, SystemExit, asyncio.CancelledError) as problem:
        return failed(context, problem, handler), problem
    return Completion(context.id, worker_id, attempt, result), None


def _of_size(result: Any) -> Any:
    """
    Raises:
        InvalidResult: no server would accept it.
    """
    if engine.is_too_large(result):
        raise InvalidResult(engine.too_large().message)
    return result

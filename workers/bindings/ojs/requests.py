"""What workers may send over OJS HTTP, in every dialect: validation only (OJS HTTP §10)."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any
from uuid import UUID

from jobs.conf import ojs_settings
from jobs.http.authentication import Caller
from jobs.http.request import Meta
from jobs.spec import fields, versions
from jobs.spec.fields import Document, missing, refuse, wrong_type
from jobs.spec.identifiers import parse_uuid
from jobs.spec.validation import QUEUE_LENGTH, QUEUE_PATTERN, queue_names
from jobs.store import clock
from workers.access import admission
from workers.lifecycle import WorkerState
from workers.protocol import Completion, Description, Failure

REPORTED = {
    "running": WorkerState.RUNNING,
    "quiet": WorkerState.QUIET,
    "terminate": WorkerState.TERMINATE,
    # The graceful shutdown extension's word.
    "drain": WorkerState.QUIET,
}
LARGEST_PID = 2**32
MOST_HANDLERS = 10_000
MOST_ATTEMPTS = 2**31 - 1
STRATEGIES = ("strict", "weighted")
"""How a fetch looks into its queues (OJS priority §7)."""


def worker_id(body: Document, caller: Caller) -> str | None:
    """Who speaks: the body's `worker_id`, else the one the key is bound to; None if neither.

    Raises:
        PermissionDenied: the key speaks for another worker only.
    """
    return admission.speak_for(caller, fields.text(body, "worker_id"))


def required_worker_id(body: Document, caller: Caller) -> str:
    found = worker_id(body, caller)
    if found is None:
        raise missing("worker_id")
    return found


def settling_worker_id(body: Document, caller: Caller) -> str | None:
    """Who settles a job; asked for only where `REQUIRE_WORKER_ID` says so (§5.6)."""
    found = worker_id(body, caller)
    if found is None and ojs_settings.REQUIRE_WORKER_ID:
        raise missing("worker_id")
    return found


def agent(meta: Meta) -> str:
    """What a worker's program calls itself, kept as the version of the worker."""
    found: str = meta.get("HTTP_USER_AGENT", "")
    return found


def description(body: Document, caller: Caller, version: str) -> Description:
    found = Description(
        hostname=fields.text(body, "hostname"),
        pid=fields.integer(body, "pid", most=LARGEST_PID),
        queues=queue_names(body),
        concurrency=fields.integer(body, "concurrency", least=1, most=1_000_000),
        labels=fields.texts(body, "labels"),
        started_at=fields.when(body, "started_at", clock.now()),
        version=version[:255] or None,
        job_versions=job_versions(body),
        project=caller.project or None,
    )
    return found


def job_versions(body: Document) -> dict[str, list[int | None]] | None:
    """What `handlers` says of versions: those a worker takes, by job type (OJS versioning §8.1)."""
    given = fields.array(body, "handlers")
    if given is None:
        return None
    if len(given) > MOST_HANDLERS:
        raise refuse("handlers", f"At most {MOST_HANDLERS} handlers may be named.")
    found: dict[str, list[int | None]] = {}
    seen = set()
    for index, handler in enumerate(given):
        place = f"handlers[{index}]"
        if type(handler) is not dict:
            raise wrong_type(place, "object", handler)
        with fields.inside(place):
            kind = fields.required_text(handler, "type")
            text = fields.text(handler, "versions", "*", longest=versions.LONGEST) or "*"
            if kind in seen:
                raise refuse("type", f"The type {kind!r} is named twice.", validation="unique")
            try:
                read = versions.read_versions(text)
            except ValueError as problem:
                raise refuse("versions", str(problem), validation="format") from None
        seen.add(kind)
        if read != versions.ALL:
            found[kind] = list(read)
    return found


def registration(body: Document, caller: Caller, version: str) -> Description:
    """Read a registration; everything of §3.1 but labels and start must be there."""
    for name in ("hostname", "pid", "queues", "concurrency"):
        if body.get(name) is None:
            raise missing(name)
    found = description(body, caller, version)
    if not found.queues:
        raise refuse(
            "queues", "The 'queues' field must name at least one queue.", validation="min_items"
        )
    return found


def reported_state(body: Document) -> WorkerState | None:
    text = fields.text(body, "state")
    if text is None:
        return None
    if text not in REPORTED:
        raise refuse(
            "state",
            f"The 'state' field must be one of {', '.join(REPORTED)}, not {text!r}.",
            validation="enum",
        )
    return REPORTED[text]


def active_job_ids(body: Document) -> list[str] | None:
    """The jobs a worker says it runs: ids, however it spells the list (§4.2, HTTP §10.4).

    `active_jobs` is the number of them in one document and the list itself in the other.
    """
    ids = fields.texts(body, "active_job_ids")
    listed = None
    if type(body.get("active_jobs")) is list:
        listed = fields.texts(body, "active_jobs")
    else:
        fields.integer(body, "active_jobs")
    if ids is not None:
        return ids
    if listed is not None:
        return listed
    one = fields.text(body, "job_id")
    return [one] if one else None


def requested_extension(body: Document) -> timedelta | None:
    return fields.period(body, "visibility_timeout", least=timedelta(milliseconds=1))


def queues(body: Document) -> list[str]:
    """The queues to fetch from, in the order to look into them (§6.3).

    With the strategy `weighted` that order is drawn anew for each fetch: a queue of weight 5 is
    looked into first five times as often as one of weight 1, and every one has its turn
    (OJS priority §7.2).
    """
    strategy = fields.text(body, "strategy", "strict")
    if strategy not in STRATEGIES:
        raise refuse("strategy", f"'strategy' must be one of {', '.join(STRATEGIES)}.")
    weights = _weights(body)
    found = _queues({"queues": list(weights)} if weights else body)
    if strategy == "strict":
        return found
    # The largest of u ** (1 / weight) is the queue's in proportion to its weight.
    drawn = {name: random.random() ** (1 / weights.get(name, 1)) for name in found}
    return sorted(found, key=lambda name: drawn[name], reverse=True)


def _weights(body: Document) -> dict[str, int]:
    """The weights of queues that are given as objects (OJS priority §7.3)."""
    given = body.get("queues")
    if type(given) is not list or not any(type(item) is dict for item in given):
        return {}
    weights = {}
    for index, item in enumerate(given):
        named = item if type(item) is dict else {"name": item}
        with fields.inside(f"queues[{index}]"):
            name = fields.required_text(named, "name", pattern=QUEUE_PATTERN, longest=QUEUE_LENGTH)
            weights[name] = fields.integer(named, "weight", 1, least=1, most=1_000_000) or 1
    return weights


def _queues(body: Document) -> list[str]:
    found = queue_names(body)
    if found is None:
        raise missing("queues")
    if not found:
        raise refuse(
            "queues", "The 'queues' field must name at least one queue.", validation="min_items"
        )
    return list(dict.fromkeys(found))


def count(body: Document) -> int:
    """How many jobs to fetch: `count`, or what other clients call it."""
    for name in ("count", "batch_size", "max_jobs"):
        found = fields.integer(body, name, least=1, most=2**31)
        if found is not None:
            return min(found, ojs_settings.MAX_FETCH)
    return 1


def wait(body: Document) -> float:
    """Seconds a fetch may wait for work (`wait_ms`), at most `MAX_WAIT`."""
    asked = (fields.integer(body, "wait_ms", 0) or 0) / 1000
    return min(asked, ojs_settings.MAX_WAIT.total_seconds())


def several(body: Document, name: str) -> list[Document] | None:
    """The outcomes of a list form, or None if there is no such list."""
    items = fields.array(body, name)
    if items is None:
        return None
    if len(items) > ojs_settings.MAX_BATCH:
        raise refuse(name, f"At most {ojs_settings.MAX_BATCH} outcomes in one request.")
    for index, item in enumerate(items):
        if type(item) is not dict:
            raise wrong_type(f"{name}[{index}]", "object", item)
    return items


def completions(
    items: list[Document], name: str, caller: Caller, sender: str | None
) -> list[Completion]:
    is_named = sender is not None or not ojs_settings.REQUIRE_WORKER_ID
    found = []
    for index, item in enumerate(items):
        plain = _plain_completion(item, sender) if is_named else None
        if plain is None:
            with fields.inside(f"{name}[{index}]", aloud=True):
                plain = completion(_signed(item, sender), caller)
        found.append(plain)
    return found


def _plain_completion(item: Document, sender: str | None) -> Completion | None:
    """What `completion` would read of one among a hundred; None where it must look closer."""
    job_id, attempt = parse_uuid(item.get("job_id")), item.get("attempt")
    if job_id is None or "worker_id" in item:
        return None
    if attempt is not None and (type(attempt) is not int or not 1 <= attempt <= MOST_ATTEMPTS):
        return None
    return Completion(job_id, sender, attempt, item.get("result"))


def failures(items: list[Document], name: str, caller: Caller, sender: str | None) -> list[Failure]:
    found = []
    for index, item in enumerate(items):
        with fields.inside(f"{name}[{index}]", aloud=True):
            found.append(failure(_signed(item, sender), caller))
    return found


def _signed(item: Document, sender: str | None) -> Document:
    """One outcome of a list with who sends it: an empty `worker_id` is none, there too."""
    return item if item.get("worker_id") not in (None, "") else {**item, "worker_id": sender}


def about(job: UUID, body: dict[str, Any]) -> dict[str, Any]:
    """What a request says of the job that its address names.

    Raises:
        InvalidRequest: it speaks of another one, or of several.
    """
    if body.get("job_id") is not None and fields.job_id(body) != job:
        raise refuse("job_id", f"The address of the request names the job '{job}'.")
    for name in ("acks", "nacks"):
        if body.get(name) is not None:
            raise refuse(name, "The address of the request names a job; send a list without one.")
    return body | {"job_id": str(job)}


def completion(body: Document, caller: Caller) -> Completion:
    return Completion(
        fields.job_id(body),
        worker_id=settling_worker_id(body, caller),
        attempt=fields.integer(body, "attempt", least=1, most=MOST_ATTEMPTS),
        result=body.get("result"),
    )


def failure(body: Document, caller: Caller) -> Failure:
    """Read a FAIL: HTTP's `error.code`, core's `error.type`, or a plain string."""
    found = Failure(
        fields.job_id(body),
        worker_id=settling_worker_id(body, caller),
        attempt=fields.integer(body, "attempt", least=1, most=MOST_ATTEMPTS),
        release=fields.boolean(body, "requeue"),
        retry_in=fields.period(body, "retry_in"),
    )
    error = body.get("error")
    if error is None:
        if not found.release:
            raise missing("error")
        return found
    if type(error) is str:
        found.message = error
        return found
    if type(error) is not dict:
        raise wrong_type("error", "object", error)
    with fields.inside("error"):
        _read_error(found, error)
    return found


def _read_error(found: Failure, error: Document) -> None:
    found.code = fields.text(error, "code") or ""
    found.message = fields.text(error, "message", longest=2**20) or ""
    found.retryable = fields.boolean_or_none(error, "retryable")
    found.details = fields.mapping(error, "details")
    found.rate_limit_until = fields.when(error, "rate_limit_until", clock.now())
    named = fields.text(error, "type")
    # `code` is what HTTP §10.3 asks for, `type` what core §8.1 does; `message` both do.
    if not (named or found.code):
        raise missing("code")
    if error.get("message") is None:
        raise missing("message")
    inner = (found.details or {}).get("error_class")
    found.type = named or (inner if type(inner) is str else "") or found.code or found.type
    found.type = found.type[:255]
    for name in ("backtrace", "stack_trace"):
        trace = error.get(name)
        if type(trace) is str:
            found.backtrace = trace.splitlines()
        elif trace is not None:
            found.backtrace = fields.texts(error, name, longest=2**20)
        if found.backtrace:
            break

"""What a queue may be told: one checked document, whichever of the spellings it came in.

The queue configuration document says `max_size` and `overflow_policy`, the backpressure document
`backpressure.max_depth` and `strategy`; both mean the same. A job's own value always wins over its
queue's (OJS queue configuration §7.3), and what we cannot do is refused, never ignored.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ..errors import Unsupported
from . import fields, rate_policy
from .durations import format_duration, parse_duration
from .fields import Document, refuse, wrong_type
from .retry import InvalidRetryPolicy, RetryPolicy

STRATEGIES = ("reject", "block", "drop_oldest")
WARNING_THRESHOLD = 0.8
MOST = 2**31 - 1
TYPE_WILDCARD = re.compile(r"[a-zA-Z*][a-zA-Z0-9_.*-]*")
RETAINED = ("completed", "discarded", "cancelled")
NOT_SUPPORTED = frozenset(
    {
        "max_size_bytes",
        "dead_letter_queue",
        "dead_letter_max_size",
        "dead_letter_ttl",
        "producers",
    }
)


def parse(document: Document) -> dict[str, Any]:
    """Return the configuration in our own spelling; a member that is null takes the old one away.

    Raises:
        InvalidRequest: a member breaks its rule; `details["field"]` names it.
        Unsupported: a member of the documents that this server does not have.
    """
    config: dict[str, Any] = {}
    for name, value in document.items():
        if name in NOT_SUPPORTED:
            raise Unsupported(f"This server does not support '{name}' for queues.", field=name)
        if name not in READERS:
            raise refuse(
                name,
                f"There is no queue option '{name}'; there are {', '.join(sorted(READERS))}.",
            )
        if value is None:
            config[SPELLED.get(name, name)] = None
        else:
            config |= READERS[name](document, name)
    if "backpressure" in document and document["backpressure"] is None:
        config.pop("backpressure", None)
        config |= dict.fromkeys(("max_depth", "strategy", "warning_threshold"))
    return config


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return `old` changed by `new`: members not named stay, null takes one away."""
    return {name: value for name, value in (old | new).items() if value is not None}


def says_something_about_new_jobs(config: dict[str, Any]) -> bool:
    return any(name in config for name in ABOUT_NEW_JOBS)


ABOUT_NEW_JOBS = (
    "max_depth",
    "allowed_job_types",
    "default_timeout",
    "default_retry",
    "visibility_timeout",
)


def allows(config: dict[str, Any], job_type: str) -> bool:
    """Whether jobs of this type may enter the queue (OJS queue configuration §6.5)."""
    patterns = config.get("allowed_job_types")
    return patterns is None or any(fnmatch.fnmatchcase(job_type, each) for each in patterns)


def public(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration as it is answered: both spellings of the bound."""
    document = {name: value for name, value in config.items() if name not in BOUND}
    if config.get("max_depth"):
        strategy = config.get("strategy", "reject")
        document["max_size"] = config["max_depth"]
        document["overflow_policy"] = strategy
        document["backpressure"] = {
            "max_depth": config["max_depth"],
            "strategy": strategy,
            "warning_threshold": config.get("warning_threshold", WARNING_THRESHOLD),
        }
    return document


BOUND = ("max_depth", "strategy", "warning_threshold")


def retention(config: dict[str, Any], state: str) -> timedelta | None:
    """How long this queue keeps jobs that ended in `state`; None means as long as all do."""
    text = config.get("retention", {}).get(state)
    return None if text is None else parse_duration(text)


def _depth(document: Document, name: str) -> dict[str, Any]:
    # 0 means unbounded (OJS backpressure §6.2).
    return {"max_depth": fields.integer(document, name, most=MOST) or None}


def _strategy(document: Document, name: str) -> dict[str, Any]:
    value = fields.text(document, name)
    if value not in STRATEGIES:
        raise refuse(name, f"The '{name}' field must be one of {', '.join(STRATEGIES)}.")
    return {"strategy": value}


def _backpressure(document: Document, name: str) -> dict[str, Any]:
    inner = fields.mapping(document, name) or {}
    config: dict[str, Any] = {}
    readers = {
        "max_depth": _depth,
        "max_size": _depth,
        "strategy": _strategy,
        "warning_threshold": _threshold,
    }
    for key, value in inner.items():
        if key == "max_size_bytes" and value in (0, None):
            continue
        if key == "max_size_bytes":
            raise Unsupported(
                "This server bounds queues by depth, not by bytes.", field=f"{name}.{key}"
            )
        if key not in readers:
            raise refuse(f"{name}.{key}", f"There is no member '{key}' in '{name}'.")
        if value is not None:
            path = f"{name}.{key}"
            config |= readers[key]({path: value}, path)
    return config


def _threshold(document: Document, name: str) -> dict[str, Any]:
    value = document[name]
    if type(value) not in (int, float):
        raise wrong_type(name, "number", value)
    if not 0 <= value <= 1:
        raise refuse(name, f"The '{name}' field must be between 0 and 1, not {value}.")
    return {"warning_threshold": float(value)}


def _concurrency(document: Document, name: str) -> dict[str, Any]:
    return {"concurrency": fields.integer(document, name, most=MOST)}


def _rate_limit(document: Document, name: str) -> dict[str, Any]:
    policy = rate_policy.queue_policy(document[name], name)
    config: dict[str, Any] = {}
    if "concurrency" in policy:
        config["concurrency"] = policy.pop("concurrency")
    return config | {"rate_limit": policy or None}


def _seconds(document: Document, name: str) -> dict[str, Any]:
    return {name: fields.integer(document, name, least=1, most=100 * 365 * 86_400)}


def _retry(document: Document, name: str) -> dict[str, Any]:
    policy = fields.mapping(document, name) or {}
    try:
        RetryPolicy.parse(policy)
    except InvalidRetryPolicy as problem:
        raise refuse(f"{name}.{problem.field}", str(problem)) from None
    return {name: policy}


def _retention(document: Document, name: str) -> dict[str, Any]:
    kept: dict[str, str] = {}
    for state, value in (fields.mapping(document, name) or {}).items():
        if state not in RETAINED:
            raise refuse(f"{name}.{state}", f"There is no retention of '{state}' jobs.")
        if value is not None:
            period = fields.period({state: value}, state)
            kept[state] = format_duration(period or timedelta(0))
    return {name: kept}


def _types(document: Document, name: str) -> dict[str, Any]:
    patterns = fields.texts(document, name, pattern=TYPE_WILDCARD) or []
    if len(patterns) > 1000:
        raise refuse(name, f"The '{name}' field may name at most 1000 types.")
    return {name: None if "*" in patterns else patterns}


READERS: dict[str, Callable[[Document, str], dict[str, Any]]] = {
    "max_size": _depth,
    "max_depth": _depth,
    "overflow_policy": _strategy,
    "strategy": _strategy,
    "warning_threshold": _threshold,
    "backpressure": _backpressure,
    "concurrency": _concurrency,
    "rate_limit": _rate_limit,
    "retention": _retention,
    "visibility_timeout": _seconds,
    "default_timeout": _seconds,
    "default_retry": _retry,
    "allowed_job_types": _types,
}
SPELLED = {"max_size": "max_depth", "overflow_policy": "strategy"}

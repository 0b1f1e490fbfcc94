"""Requests about worker pools (OJS fair scheduling §6)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from .durations import format_duration
from .fields import Document, inside, missing, refuse
from .members import (
    Boolean,
    Choice,
    Duration,
    Integer,
    Member,
    Members,
    Number,
    Object,
    Schema,
    Text,
    words,
)
from .validation import OpenQueue, QueueNames

LABEL = "pool:"
"""Prefix of the label by which a worker says its pool."""
MOST_WEIGHT = 1_000_000
MOST_QUEUES = 100
MOST = 2**31 - 1
INTERVAL = timedelta(seconds=30)
RATIO = 0.05
STRATEGIES = words("strict", "round-robin", "weighted", "least-loaded")
WEIGHT = Integer(least=1, most=MOST_WEIGHT)
QUEUE = OpenQueue()


class WeightOfQueue(Members, closed=True):
    weight = WEIGHT


class PoolQueues(Member[dict[str, int] | None]):
    """Names of queues; or an object of names with their weights, as the public cases have it."""

    plain = QueueNames()

    def check(self, value: Any, place: str) -> dict[str, int]:
        if type(value) is not dict:
            found = dict.fromkeys(self.plain.check(value, place), 0)
        else:
            found = {}
            for name, about in value.items():
                QUEUE.check(name, place)
                with inside(f"{place}.{name}"):
                    known = Object().check(about, "weight")
                    WeightOfQueue.refuse_others(known)
                    found[name] = WeightOfQueue.weight.read(known) or 0
        if not found:
            raise missing(place)
        if len(found) > MOST_QUEUES:
            raise refuse(place, f"A pool has at most {MOST_QUEUES} queues.", limit=MOST_QUEUES)
        return found

    def rules(self) -> Schema:
        weighted = {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": WeightOfQueue.json_schema(),
        }
        return {"oneOf": [self.plain.rules() | {"minItems": 1}, weighted]}


class StarvationPrevention(Members, closed=True):
    enabled = Boolean().default(False)
    rotation_interval = Duration(
        "The sliding window in which each queue gets its share.", least=timedelta(seconds=1)
    ).default(INTERVAL)
    min_dispatch_ratio = Number(
        "The share of the dispatches that each queue with waiting jobs gets at least. All queues "
        "together: at most 1.",
        least=0,
        most=1,
    )


class ChangePool(Members, closed=True):
    name = Text("The same as in the path.")
    queues = PoolQueues("The queues that its workers search.").required()
    strategy = Choice(STRATEGIES, "In which order.").default("round-robin")
    weights = Object("Queue → its weight, for the strategy `weighted`; 1 where it is absent.")
    concurrency = Integer("Jobs that may be active at once through it.", least=1, most=MOST)
    isolated = Boolean("No other workers get jobs of its queues.").default(False)
    starvation_prevention = Object(
        "Each of its queues gets a share of the dispatches, whatever the strategy.",
        of=StarvationPrevention,
    )
    reason = Text("Why, for the audit.", longest=2000).default("")


def pool_of(able: Iterable[str]) -> str:
    """Return the pool that a worker belongs to by its labels, given its abilities; or empty."""
    return next((word[len(LABEL) :] for word in able if word.startswith(LABEL)), "")


def read_pool(document: Document, name: str) -> dict[str, Any]:
    """Return a pool as its columns.

    Raises:
        InvalidRequest: a member is invalid.
    """
    ChangePool.refuse_others(document)
    named = ChangePool.name.read(document)
    if named not in (None, name):
        raise refuse("name", f"The path names the pool '{name}', not {named!r}.")
    queues = ChangePool.queues.read(document)
    weights = {queue: weight for queue, weight in queues.items() if weight}
    for queue, weight in (ChangePool.weights.read(document) or {}).items():
        if queue not in queues:
            raise refuse(f"weights.{queue}", f"The pool has no queue '{queue}'.")
        weights[queue] = WEIGHT.check(weight, f"weights.{queue}")
    return {
        "queues": list(queues),
        "strategy": ChangePool.strategy.read(document),
        "weights": weights,
        "concurrency": ChangePool.concurrency.read(document),
        "is_isolated": ChangePool.isolated.read(document),
        "starvation_prevention": _starvation_prevention(document, len(queues)),
    }


def _starvation_prevention(document: Document, queues: int) -> dict[str, Any]:
    """Return it in the spelling of the document, complete; empty if it is not said."""
    place = "starvation_prevention"
    given = ChangePool.starvation_prevention.read(document)
    if given is None:
        return {}
    for member in given:
        if member not in StarvationPrevention.names:
            raise refuse(f"{place}.{member}", f"There is no member '{member}' in '{place}'.")
    interval = StarvationPrevention.rotation_interval.under(given, place)
    ratio = StarvationPrevention.min_dispatch_ratio.under(given, place)
    if ratio is None:
        ratio = min(RATIO, 1 / queues)
    elif ratio * queues > 1:
        raise refuse(
            f"{place}.min_dispatch_ratio",
            f"{queues} queues cannot have {ratio} of the dispatches each.",
            maximum=1 / queues,
        )
    return {
        "enabled": StarvationPrevention.enabled.under(given, place),
        "rotation_interval": format_duration(interval),
        "min_dispatch_ratio": ratio,
    }

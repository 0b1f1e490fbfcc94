"""Requests about worker pools (OJS fair scheduling §6)."""

from __future__ import annotations

from typing import Any

from ..errors import Unsupported
from .fields import Document, inside, missing, refuse
from .members import Choice, Integer, Member, Members, Object, Schema, Text, Texts, words
from .validation import QUEUE_LENGTH, QUEUE_PATTERN

LABEL = "pool:"
"""Prefix of the label by which a worker says its pool."""
MOST_WEIGHT = 1_000_000
MOST_QUEUES = 100
STRATEGIES = words("strict", "round-robin", "weighted", "least-loaded")
NOT_SUPPORTED = frozenset({"concurrency", "isolated", "starvation_prevention"})
WEIGHT = Integer(least=1, most=MOST_WEIGHT)
QUEUE = Text(pattern=QUEUE_PATTERN, longest=QUEUE_LENGTH)


class WeightOfQueue(Members, closed=True):
    weight = WEIGHT


class PoolQueues(Member[dict[str, int] | None]):
    """Names of queues; or an object of names with their weights, as the public cases have it."""

    plain = Texts(pattern=QUEUE_PATTERN, longest=QUEUE_LENGTH)

    def check(self, value: Any, place: str) -> dict[str, int]:
        if type(value) is not dict:
            found = dict.fromkeys(self.plain.check(value, place), 0)
        else:
            found = {}
            for name, about in value.items():
                QUEUE.check(name, place)
                with inside(f"{place}.{name}"):
                    known = Object().check(about, "weight")
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


class ChangePool(Members, closed=True):
    name = Text("The same as in the path.")
    queues = PoolQueues("The queues that its workers search.").required()
    strategy = Choice(STRATEGIES, "In which order.").default("round-robin")
    weights = Object("Queue → its weight, for the strategy `weighted`; 1 where it is absent.")
    reason = Text("Why, for the audit.", longest=2000).default("")


def read_pool(document: Document, name: str) -> dict[str, Any]:
    """Return a pool as its columns.

    Raises:
        InvalidRequest: a member is invalid.
        Unsupported: the document has this member, but this server does not.
    """
    for member in document:
        if member in NOT_SUPPORTED:
            raise Unsupported(f"This server does not support '{member}' of pools.", field=member)
        if member not in ChangePool.names:
            known = ", ".join(ChangePool.members)
            raise refuse(member, f"There is no member '{member}'; there are {known}.")
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
    }

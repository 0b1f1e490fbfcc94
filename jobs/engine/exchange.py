"""A busy worker's whole turn: what it finished is settled, and it gets more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..store.database import is_postgresql, run_together
from .claim import ask, claim, given, statement
from .claimed import ClaimedJob
from .outcomes import Completion, Outcome
from .settle import complete


def exchange(
    completions: Sequence[Completion], queues: Sequence[str], **asked: Any
) -> tuple[list[Outcome], list[ClaimedJob]]:
    """`complete`, then `claim`; on PostgreSQL in one transaction and one round trip.

    Jobs that others wait for are completed, and jobs behind limits claimed, afterwards and in
    transactions of their own, as ever.

    Args:
        asked: see `claim.ask`.
    """
    claiming = ask(queues, **asked)
    if not completions or claiming is None or not is_postgresql():
        return complete(completions) if completions else [], claim(queues, **asked)
    taken: list[Any] = []

    def both(settling: str, parameters: Any) -> list[tuple[Any, ...]]:
        settled, rows = run_together((settling, parameters), statement(claiming))
        taken.append(rows)
        return settled

    outcomes = complete(completions, execute=both)
    return outcomes, given(claiming, taken[0])

"""ACK: a worker finished its jobs (OJS core §7.3; worker protocol §5.6).

Takes many completions at once and answers each separately: one refusal does not undo the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import orjson

from ..conf import ojs_settings
from ..errors import ResultTooLarge
from ..models import Job
from ..signals import jobs_completed, send_on_commit
from ..spec.lifecycle import State
from ..spec.reports import Completion
from ..store.contract import Completed
from ..store.stores import store
from .flow import ending
from .outcomes import Outcome, explain


def complete(completions: Sequence[Completion]) -> list[Outcome]:
    """Record that jobs finished successfully (ACK, OJS core §7.3); one outcome for each, in order.

    A refused one carries its error: `JobNotFound`, `ReservationLost` (another worker or attempt
    holds the job), `InvalidTransition` (it is not active) or `ResultTooLarge` (it stays active, OJS
    results §7.2).
    """
    settlement = Settlement(completions)
    return settlement.outcomes(store().complete(settlement.first) if settlement.first else [])


class Settlement:
    """Completions of one request: those in the first statement, and those left to do."""

    def __init__(self, completions: Sequence[Completion]) -> None:
        self.completions = completions
        self.first: list[Completion] = []
        """The storable completions, one for each job."""
        self._places: list[int] = []
        self._repeated: list[int] = []
        self._too_large: list[int] = []
        named: set[UUID] = set()
        for place, item in enumerate(completions):
            if is_too_large(item.result):
                self._too_large.append(place)
            elif item.job_id in named:
                # The same job several times in one request: only one of them can succeed.
                self._repeated.append(place)
            else:
                named.add(item.job_id)
                self.first.append(item)
                self._places.append(place)

    def outcomes(self, completed: Sequence[Completed]) -> list[Outcome]:
        """Return the outcome of each, given how the `first` were completed."""
        outcomes = [Outcome(item.job_id) for item in self.completions]
        left: list[int] = []
        for one in completed:
            place = self._places[one.place]
            if one.attempt is None:
                left.append(place)
            else:
                _note(outcomes[place], one)
        if left:
            self._complete_rest(left, outcomes)
        if self._repeated:
            self._complete_repeated(outcomes)
        explain(self.completions, outcomes, "ack", spare=self._too_large)
        for place in self._too_large:
            outcomes[place].error = too_large()
        if jobs_completed.has_listeners():
            done = [outcome.job_id for outcome in outcomes if outcome.state is not None]
            if done:
                send_on_commit(jobs_completed, Job, job_ids=done)
        return outcomes

    def _complete_rest(self, places: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        """Complete jobs that others may wait for, and free these, in one transaction."""
        with ending() as ended:
            items = [self.completions[place] for place in places]
            for one in store().complete(items, followed=True):
                outcome = outcomes[places[one.place]]
                _note(outcome, one)
                ended.append(outcome.job_id)

    def _complete_repeated(self, outcomes: Sequence[Outcome]) -> None:
        """Apply a further completion of a job if those before it were refused."""
        settled = {outcome.job_id for outcome in outcomes if outcome.state is not None}
        for place in self._repeated:
            if outcomes[place].job_id not in settled:
                self._complete_rest([place], outcomes)
                if outcomes[place].state is not None:
                    settled.add(outcomes[place].job_id)


def _note(outcome: Outcome, completed: Completed) -> None:
    outcome.state, outcome.at = State.COMPLETED, completed.at
    outcome.attempt, outcome.max_attempts = completed.attempt or 0, completed.max_attempts or 0


def is_too_large(result: Any) -> bool:
    return (
        isinstance(result, dict | list | str)
        and len(orjson.dumps(result)) > ojs_settings.MAX_RESULT_SIZE
    )


def too_large() -> ResultTooLarge:
    limit = ojs_settings.MAX_RESULT_SIZE
    return ResultTooLarge(
        f"The result may have at most {limit} bytes of JSON.", field="result", max_bytes=limit
    )

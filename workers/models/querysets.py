"""Named WHERE conditions about workers, and the one guarded UPDATE of a directive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Now

from jobs.conf import ojs_settings

from ..lifecycle import WorkerState

if TYPE_CHECKING:
    from . import Worker  # noqa: F401


SILENT = Q(heartbeat_timeout__lte=Now() - F("last_heartbeat_at"))
"""Not heard for its heartbeat timeout, by the database's clock (OJS worker protocol §10.1).

A time minus an interval depends on the time zone for PostgreSQL, so that Citus would refuse an
UPDATE with this condition; a time minus a time does not.

For a loaded instance, use `Worker.is_silent`. Check separately that the worker is live: one that
left is silent as well.
"""


MAY_FETCH = Q(state=WorkerState.RUNNING, directive__in=("", WorkerState.RUNNING)) | Q(
    state=WorkerState.QUIET, directive=WorkerState.RUNNING
)
"""Gets jobs when it fetches: it is not quiet or terminating, nor asked to be (§6.6).

For a loaded instance, use `Worker.may_fetch`, as the fetch gate does. On PostgreSQL, the gate is a
statement of its own, `workers/store/postgres/gate.sql`.
"""


def is_late() -> Q:
    """Not heard for two of the heartbeat intervals that workers are given."""
    return Q(last_heartbeat_at__lte=Now() - 2 * ojs_settings.HEARTBEAT_INTERVAL)


class WorkerQuerySet(models.QuerySet["Worker"]):
    def live(self) -> WorkerQuerySet:
        """Workers that have neither left nor been declared dead."""
        return self.exclude(state=WorkerState.TERMINATED)

    def dead(self) -> WorkerQuerySet:
        """Workers that were declared dead and not heard since, except those that left."""
        return self.filter(state=WorkerState.TERMINATED, left_at__isnull=True)

    def silent(self) -> WorkerQuerySet:
        """Live workers that missed their heartbeat timeout (OJS worker protocol §10.1)."""
        return self.live().filter(SILENT)

    def heard(self) -> WorkerQuerySet:
        """Live workers that are not silent."""
        return self.live().exclude(SILENT)

    def given_jobs(self) -> WorkerQuerySet:
        """Workers that are heard, and get jobs when they fetch."""
        return self.heard().filter(MAY_FETCH)

    def late(self) -> WorkerQuerySet:
        """Live workers that missed two heartbeats or more."""
        return self.live().filter(is_late())

    def behind(self, directive: WorkerState) -> WorkerQuerySet:
        """Live workers to which `directive` would be news."""
        milder = [state for state in WorkerState if state.rank < directive.rank]
        behind = Q(state__in=milder, directive__in=["", *milder])
        # Resumed, but not yet running: the state that it reports is about to change.
        resuming = Q(state=directive, directive=WorkerState.RUNNING)
        return self.live().filter(behind | resuming)

    def quieted(self) -> WorkerQuerySet:
        """Live workers that an operator quieted, and that may run again."""
        return self.live().filter(
            state__in=(WorkerState.RUNNING, WorkerState.QUIET), directive=WorkerState.QUIET
        )

    def direct(self, directive: WorkerState) -> int:
        """Ask every matched worker to move to `directive`; return for how many it is new.

        The request is relayed in each worker's next heartbeat response (§4.4). Workers already
        at or past `directive` are left alone: there is no way back from `terminate` (§2.3).
        """
        return self.behind(directive).update(directive=directive, directed_at=Now())

    def resume(self) -> int:
        """Withdraw `quiet` from matched workers; return how many of them are to run again.

        Only workers that an operator quieted: one that quieted itself has its own reasons, and only
        its own SIGCONT ends them (docs/architecture.md). A worker that has not received the `quiet`
        does not receive its withdrawal either: if it quieted itself meanwhile, `running` would
        end that.
        """
        heard = Q(state=WorkerState.QUIET) | Q(last_heartbeat_at__gte=F("directed_at"))
        return self.quieted().update(
            directive=Case(When(heard, then=Value(WorkerState.RUNNING)), default=Value("")),
            directed_at=Now(),
        )

"""Named WHERE conditions of the engine, and the one guarded UPDATE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import Exists, F, Func, OuterRef, Q
from django.db.models.functions import Now

from ..spec.lifecycle import TERMINAL, WAITING, Event, State, sources
from ..store.expressions import Among, JSONArrayWithin
from ..store.references import references_of_sites

if TYPE_CHECKING:
    from . import Job


class EventTxid(Func):
    """The number of the writing transaction on PostgreSQL; 0 where writes are serialized anyway."""

    output_field = models.BigIntegerField()
    allowed_default = True
    template = "0"

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return super().as_sql(
            compiler, connection, template="(pg_current_xact_id()::text::bigint)", **extra
        )


TO_FAIL = (
    *("id", "type", "queue", "state", "attempt", "max_attempts", "retry", "timeout", "deadline"),
    *("reserved_by", "started_at", "followed", "attributes", "rate_key"),
)
"""What must be known of a job to decide what follows a failed attempt."""


class JobQuerySet(models.QuerySet["Job"]):
    def these(self, jobs: Iterable[Job]) -> JobQuerySet:
        """Jobs that were read before, usually a locked batch."""
        return self.filter(Among("pk", [job.pk for job in jobs]))

    def active(self) -> JobQuerySet:
        return self.filter(state=State.ACTIVE)

    def held_by(self, worker_id: str) -> JobQuerySet:
        """Active jobs whose reservation is `worker_id`'s (OJS worker protocol §5.6)."""
        # `reserved_for` lets PostgreSQL use the partial index on `reserved_by`, here and below.
        return self.active().filter(reserved_by=worker_id, reserved_for__isnull=False)

    def overdue(self) -> JobQuerySet:
        """Active jobs whose visibility timeout has passed (OJS worker protocol §5.5).

        Not those whose execution timeout had passed before: they are `overrun`.
        """
        return self.active().filter(
            Q(timeout__isnull=True) | ~_time_is_up(F("reserved_until")),
            reserved_until__lte=Now(),
            reserved_for__isnull=False,
        )

    def overrun(self) -> JobQuerySet:
        """Active jobs past their execution timeout and their grace (OJS core §5.2, timeouts §7).

        Not those whose visibility timeout had passed before: they are `overdue`.
        """
        return self.active().filter(
            _time_is_up(Now()),
            _time_is_up(F("reserved_until")),
            timeout__isnull=False,
            reserved_for__isnull=False,
        )

    def overdrawn(self) -> JobQuerySet:
        """Unfinished jobs past the total time for all attempts (OJS timeouts §5.2)."""
        return self.filter(deadline__lte=Now(), finished_at__isnull=True)

    def due(self) -> JobQuerySet:
        """Scheduled and retryable jobs whose time has come."""
        return self.filter(state__in=(State.SCHEDULED, State.RETRYABLE), scheduled_at__lte=Now())

    def suiting(
        self,
        types: Sequence[str] | None,
        able: Sequence[str],
        versions: Mapping[str, Sequence[int | None]],
    ) -> JobQuerySet:
        """Jobs that a worker can take: of its types, in versions that it accepts, and requiring no
        ability that it lacks."""
        jobs = self if types is None else self.filter(type__in=types)
        for name, (least, below) in versions.items():
            other = Q(version_number__lt=least or 0)
            if below is not None:
                other |= Q(version_number__gte=below)
            jobs = jobs.exclude(other, type=name)
        needs_nothing = Q(needs__isnull=True)
        if not able:
            return jobs.filter(needs_nothing)
        return jobs.filter(needs_nothing | Q(JSONArrayWithin("needs", able)))

    def protected(self) -> JobQuerySet:
        """Jobs that a row of a site's own keeps, by a key with `PROTECT` or `RESTRICT`."""
        kept = _kept(self.model)
        return self.filter(kept) if kept else self.none()

    def unprotected(self) -> JobQuerySet:
        """All others: those that may be deleted."""
        kept = _kept(self.model)
        return self.exclude(kept) if kept else self

    def to_fail(self) -> models.QuerySet[Any]:
        """With what a failed attempt needs to know of them, and the database's `now`."""
        return self.annotate(now=Now()).only(*TO_FAIL)

    def unexpired(self) -> JobQuerySet:
        return self.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=Now()))

    def expired(self) -> JobQuerySet:
        """Jobs that still wait, past their expiry (OJS core §5.2)."""
        return self.filter(state__in=sorted(WAITING), expires_at__lte=Now())

    def dead(self) -> JobQuerySet:
        """The dead letter (OJS dead letter §4)."""
        # Only discarded jobs are in it (see `transition`). Asking for their state as well would
        # make the planner expect a hundredth of them, and then any of their indexes will do.
        return self.filter(dead_letter=True)

    def transition(self, event: Event, to: State, **changes: Any) -> int:
        """Move every matched job that may take `event` to state `to`; return how many moved.

        One guarded UPDATE. Jobs whose current state does not allow the event are left alone and
        not counted, so two racing callers cannot both win.
        """
        implied: dict[str, Any] = {}
        if to != State.ACTIVE:
            implied = {"reserved_by": "", "reserved_until": None, "reserved_for": None}
        implied["finished_at"] = Now() if to in TERMINAL else None
        if to != State.DISCARDED:
            implied["dead_letter"] = False
        return self.filter(state__in=sources(event, to)).update(state=to, **(implied | changes))


def _time_is_up(moment: Any) -> Q:
    """Whether the execution timeout of an attempt, and its grace, are over by a moment."""
    over = moment - F("timeout")
    is_past_grace = Q(started_at__lte=over - F("grace_period"))
    return Q(Q(grace_period__isnull=True) | is_past_grace, started_at__lte=over)


def _kept(job: Any) -> Q:
    kept = Q()
    for field in references_of_sites(job):
        if field.remote_field.on_delete in (models.PROTECT, models.RESTRICT):
            kept |= Q(Exists(field.model._base_manager.filter(**{field.name: OuterRef("pk")})))
    return kept

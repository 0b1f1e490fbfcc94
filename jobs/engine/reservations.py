"""Reservations last as long as heartbeats extend them (OJS worker §5.4)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import models
from django.db.models import F, Value
from django.db.models.functions import Coalesce, Now
from django.db.models.lookups import LessThan

from ..database import atomic, connection
from ..models import Job

BATCH_SIZE = 1000


def extend(
    job_ids: Collection[UUID],
    *,
    worker_id: str,
    requested: timedelta | None = None,
    at_least: timedelta | None = None,
) -> set[UUID]:
    """Restart the visibility timeout of the jobs `worker_id` holds; return which (§5.4).

    A job's own visibility timeout wins over the one requested; without either the period of its
    reservation starts again. Jobs fetched without a worker id are adopted by the worker that
    says it runs them.

    Args:
        at_least: shortest period, so that a terminating worker's reservations last its grace
            period even if it sends no more heartbeats.
    """
    if not job_ids:
        return set()
    period: Any = F("reserved_for")
    if requested is not None:
        period = Coalesce(F("visibility_timeout"), _duration(requested))
    if at_least is not None and connection().vendor == "postgresql":
        period = models.functions.Greatest(period, _duration(at_least))
    elif at_least is not None:
        # Two-argument MAX() of SQLite loses the type of a duration.
        period = models.Case(
            models.When(LessThan(period, _duration(at_least)), then=_duration(at_least)),
            default=period,
        )
    until = models.ExpressionWrapper(Now() + period, output_field=models.DateTimeField())
    with atomic():
        # Locked in the order of ids, as every batch does: no deadlock with a batch of ACKs.
        held = list(
            Job.objects.active()
            .filter(pk__in=job_ids, reserved_by__in=(worker_id, ""))
            .order_by("pk")
            .select_for_update()
            .values_list("pk", flat=True)
        )
        if held:
            Job.objects.active().filter(pk__in=held).update(
                reserved_until=until, reserved_by=worker_id
            )
    return set(held)


def _duration(value: timedelta) -> Value:
    return Value(value, output_field=models.DurationField())

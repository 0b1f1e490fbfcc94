"""A worker's condition as operators see it: its state combined with its silence and its load.

The protocol knows four states. An operator also needs to know whether a terminated worker crashed
or had finished its work.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import (
    Case,
    Count,
    ExpressionWrapper,
    F,
    IntegerField,
    OuterRef,
    Q,
    Subquery,
    Value,
    When,
)
from django.db.models.functions import Coalesce
from django.db.models.lookups import Exact
from django.utils.translation import gettext_lazy as _

from jobs.models import Job

from ..lifecycle import WorkerState
from ..models.querysets import MAY_FETCH, SILENT


class Condition(models.TextChoices):
    RUNNING = "running", _("running")
    QUIET = "quiet", _("quiet")
    """Takes no more jobs, and finishes those it has."""
    TERMINATE = "terminate", _("terminating")
    SILENT = "silent", _("silent")
    """Past its heartbeat timeout, with work that may be lost."""
    DRAINED = "drained", _("drained")
    """Gone, or leaving, and holding no jobs: nothing was lost."""
    LEFT = "left", _("left")
    """Deregistered although it still held jobs."""
    DEAD = "dead", _("dead")
    """Declared dead: its jobs were reclaimed."""


def in_hand() -> Any:
    """How many jobs a worker holds; see `liveness.holdings`."""
    theirs = Q(project="") | Q(project=OuterRef("project")) | Q(Exact(OuterRef("project"), ""))
    held = (
        Job.objects.held_by(OuterRef("pk"))  # type: ignore[arg-type]
        .filter(theirs)
        .order_by()
        .values("reserved_by")
        .annotate(jobs=Count("pk"))
        .values("jobs")
    )
    return Coalesce(Subquery(held, output_field=IntegerField()), 0)


def is_given_jobs() -> Any:
    """Whether a worker is heard, and gets jobs when it fetches: `WorkerQuerySet.given_jobs`.

    Its condition does not say: a running worker may have an order that it has not received.
    """
    return ExpressionWrapper(MAY_FETCH & ~SILENT, output_field=models.BooleanField())


def condition() -> Any:
    """A worker's condition; needs the annotation `in_hand`."""
    gone = Q(state=WorkerState.TERMINATED)
    stopped = Q(state__in=(WorkerState.QUIET, WorkerState.TERMINATE))
    idle = Q(in_hand=0)
    return Case(
        When(gone & Q(left_at__isnull=True), then=Value(Condition.DEAD)),
        When(gone & ~idle, then=Value(Condition.LEFT)),
        When(gone | (SILENT & stopped & idle), then=Value(Condition.DRAINED)),
        When(SILENT, then=Value(Condition.SILENT)),
        default=F("state"),
        output_field=models.CharField(),
    )

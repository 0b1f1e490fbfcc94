"""What the verbs of bulk operations accept, and which jobs a filter matches (OJS bulk §6 to §8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Exists, Min, OuterRef, TextField
from django.db.models.functions import Cast

from ..access.redaction import is_hidden
from ..errors import PermissionDenied
from ..models import Job, JobError, Scope, Workflow, WorkflowState
from ..models.querysets import JobQuerySet
from ..spec.bulk_requests import BulkFilter
from ..spec.fields import Document, refuse
from ..spec.identifiers import parse_uuid
from ..spec.lifecycle import State
from ..store import clock
from ..store.expressions import JSONObjectHas
from . import bulk
from .inheritance import subtree

WAITING = frozenset({State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.PENDING})


@dataclass(frozen=True)
class Operation:
    """A verb of the document: its words, the states it accepts, and a filter's default states."""

    did: str
    states: frozenset[State]
    default: frozenset[State]
    act: Callable[..., list[UUID]]
    permission: str
    takes: Callable[[JobQuerySet], JobQuerySet] = JobQuerySet.all
    """Those in these states that it would change."""

    def of(self, jobs: JobQuerySet) -> JobQuerySet:
        """Those that it would change."""
        # `bulk.cancel` itself would cancel active jobs, too.
        return self.takes(jobs.filter(state__in=sorted(self.states)))


OPERATIONS = {
    # Active jobs are running on a worker: each is cancelled on its own (§6.1; core §7.6).
    "cancel": Operation(
        "cancelled",
        WAITING,
        frozenset({State.AVAILABLE, State.SCHEDULED}),
        bulk.cancel,
        "cancel_job",
    ),
    "retry": Operation(
        "retried",
        bulk.RETRIABLE,
        frozenset({State.DISCARDED}),
        bulk.retry,
        "retry_job",
        bulk.again,
    ),
    "delete": Operation(
        "deleted",
        bulk.DELETABLE,
        bulk.DELETABLE,
        bulk.delete,
        "discard_job",
        bulk.deletable,
    ),
}


def filtered(
    wanted: Document,
    default: frozenset[State],
    *,
    now: datetime | None = None,
    sees_all: bool = True,
) -> JobQuerySet:
    """The jobs that a filter matches (OJS bulk §6.1; admin API §8.1).

    Args:
        default: the states of a filter that names none.
        now: what relative moments count from; by default, now.
        sees_all: False for a caller who could otherwise guess hidden values of `meta` by counting.

    Raises:
        InvalidRequest: a member is invalid, or there is none, which would mean all jobs.
        PermissionDenied: a value in it is hidden from the caller.
    """
    for name in wanted:
        if name not in BulkFilter.names:
            raise refuse(f"filter.{name}", f"There is no filter '{name}'.")
    if not any(value is not None for value in wanted.values()):
        raise refuse("filter", "The 'filter' field must say which jobs.", validation="required")
    states = BulkFilter.state.read(wanted) or default
    jobs = Job.objects.filter(state__in=sorted(states))
    for member in (BulkFilter.type, BulkFilter.queue, BulkFilter.project):
        if (value := member.read(wanted)) is not None:
            jobs = jobs.filter(**{member.name: value})
    now = now or clock.now()
    for limit, lookup in (
        (BulkFilter.enqueued_before, "enqueued_at__lt"),
        (BulkFilter.until, "enqueued_at__lt"),
        (BulkFilter.enqueued_after, "enqueued_at__gt"),
        (BulkFilter.since, "enqueued_at__gte"),
        (BulkFilter.finished_before, "finished_at__lt"),
        (BulkFilter.older_than, "finished_at__lt"),
        (BulkFilter.finished_after, "finished_at__gt"),
    ):
        if (moment := limit.read(wanted, now)) is not None:
            jobs = jobs.filter(**{lookup: moment})
    priority = BulkFilter.priority.read(wanted)
    if priority is not None:
        jobs = jobs.filter(priority=priority)
    for name, value in (BulkFilter.meta.read(wanted) or {}).items():
        if not sees_all and is_hidden([name]):
            raise PermissionDenied(
                f"Values of '{name}' are hidden from this API key: to select jobs by them, it "
                f"needs the scope '{Scope.ADMIN_ARGS}'.",
                scope=str(Scope.ADMIN_ARGS),
            )
        jobs = jobs.filter(JSONObjectHas("meta", name, value))
    if (error_type := BulkFilter.error_type.read(wanted)) is not None:
        jobs = failed_with(jobs, error_type)
    if (workflow := BulkFilter.workflow.read(wanted)) is not None:
        jobs = _within(jobs, workflow)
    return jobs


def failed_with(jobs: JobQuerySet, error_type: str) -> JobQuerySet:
    """Jobs whose last error is of this type (OJS dead letter §9.1)."""
    # Starts from the errors, because most jobs have none.
    later = JobError.objects.filter(job=OuterRef("job"), pk__gt=OuterRef("pk"))
    latest = JobError.objects.filter(type=error_type).exclude(Exists(later))
    return jobs.filter(pk__in=latest.values("job"))


def _within(jobs: JobQuerySet, workflow: str) -> JobQuerySet:
    """Those of a workflow and of all inside it, but not of what compensates: that goes on.

    Raises:
        InvalidRequest: this cannot be the id of a workflow.
    """
    workflow_id = parse_uuid(workflow)
    if workflow_id is None:
        raise refuse("filter.workflow", "The 'workflow' field must be the id of a workflow.")
    # Not the steps, of which there may be very many: every batch asks again.
    root = Workflow.objects.filter(pk=workflow_id).only("root_id", "depth").first()
    if root is None:
        return jobs.none()
    inside = Workflow.objects.filter(pk__in=[item.pk for item in subtree(root)])
    ids = list(inside.exclude(state=WorkflowState.COMPENSATING).values_list("pk", flat=True))
    # In a large table, all jobs before its own would be walked through. Their ids are asked for:
    # they say what the clocks of several servers said. As text, whose order is the same: not every
    # PostgreSQL knows the least of UUIDs.
    text = Cast("pk", TextField())
    first = Job.objects.filter(workflow__in=ids).aggregate(first=Min(text))["first"]
    return jobs.none() if first is None else jobs.filter(workflow__in=ids, pk__gte=UUID(first))

"""Workers as operators see them (OJS admin API §9)."""

from __future__ import annotations

from typing import Any

from django.db.models import Case, CharField, Count, F, Q, Value, When
from django.db.models.functions import Substr

from jobs.api.admin.documents import moment
from jobs.spec.fields import Document
from jobs.spec.versions import Versions
from jobs.spec.worker_ids import qualified, shown

from ..fleet.condition import condition, in_hand
from ..fleet.orders import answer_of
from ..lifecycle import WorkerState
from ..models import Directive, Worker
from ..models.querysets import SILENT

STALE = "stale"
STATES = (WorkerState.RUNNING, WorkerState.QUIET, WorkerState.TERMINATE, STALE)
"""States of a listed worker: as reported, unless it is silent or was declared dead."""


def known() -> Any:
    """Every worker that has not left: running, quiet, terminating or stale."""
    return Worker.objects.filter(left_at__isnull=True).annotate(shown_state=shown_state())


def with_load(workers: Any) -> Any:
    return workers.annotate(in_hand=in_hand()).annotate(condition=condition())


def shown_state() -> Any:
    gone = Q(state=WorkerState.TERMINATED)
    return Case(
        When(gone & Q(left_at__isnull=False), then=Value(WorkerState.TERMINATED)),
        When(gone | SILENT, then=Value(STALE)),
        default=F("state"),
        output_field=CharField(),
    )


def shown_id(project: str) -> Any:
    """The id by which a key of `project` knows a worker, for sorting."""
    prefix = qualified("", project) if project else ""
    if not prefix:
        return F("pk")
    return Case(
        When(pk__startswith=prefix, then=Substr("pk", len(prefix) + 1)),
        default=F("pk"),
        output_field=CharField(),
    )


def summary(workers: Any) -> dict[str, int]:
    """The number of workers in each state (§9.1)."""
    rows = workers.order_by().values_list("shown_state").annotate(workers=Count("pk"))
    counts = dict.fromkeys(map(str, STATES), 0) | dict(rows)
    return {"total": sum(counts.values())} | counts


def worker_document(worker: Any, project: str) -> dict[str, Any]:
    """A worker of a list; annotated by `known` and `with_load`.

    Args:
        project: the project of the key that reads it.
    """
    return {
        "id": shown(worker.pk, project),
        "project": worker.project or None,
        "hostname": worker.hostname,
        "pid": worker.pid,
        "state": worker.shown_state,
        "reported_state": worker.state,
        "directive": worker.directive or None,
        "desired_state": str(worker.desired_state),
        "condition": worker.condition,
        "queues": worker.queues,
        "labels": worker.labels,
        "capabilities": worker.capabilities,
        "versions": {
            name: str(Versions(*bounds)) for name, bounds in (worker.job_versions or {}).items()
        },
        "concurrency": worker.concurrency,
        "active_jobs": worker.in_hand,
        "jobs_done": worker.jobs_done,
        "jobs_failed": worker.jobs_failed,
        "started_at": moment(worker.started_at),
        "last_heartbeat_at": moment(worker.last_heartbeat_at),
        "protocol": worker.protocol,
        "version": worker.version,
        "metadata": _metadata(worker.details),
    }


def _metadata(details: Any) -> Document:
    """The worker's own description, without members that are returned separately."""
    return details.get("metadata") or {} if isinstance(details, dict) else {}


def directive_document(directive: Directive, worker: Worker) -> dict[str, Any]:
    """One order to a worker, and its outcome (OJS worker protocol §4.4)."""
    answer, when = answer_of(directive, worker)
    return {
        "directive": directive.state,
        "asked_by": directive.asked_by,
        "source": directive.source,
        "reason": directive.reason,
        "asked_at": moment(directive.asked_at),
        "answer": answer,
        "answered_at": moment(when),
    }

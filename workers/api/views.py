"""Workers for operators, and statistics of the whole server (OJS admin API §9, §10)."""

from __future__ import annotations

import time
from typing import Any

from rest_framework.response import Response

from jobs.api.admin.base import AdminViewSet, reason_of
from jobs.api.admin.documents import COLUMNS, line
from jobs.api.admin.paging import page
from jobs.api.system import STARTED
from jobs.errors import Conflict
from jobs.http.request import Request
from jobs.models import Job
from jobs.record import counts, dashboard
from jobs.spec.fields import Document
from jobs.spec.operator_requests import Reason
from jobs.store.expressions import JSONArrayHas

from ..fleet import orders as fleet
from ..fleet.removal import remove
from ..lifecycle import WorkerState
from ..models import Directive, Worker
from .documents import (
    directive_document,
    known,
    shown_id,
    shown_state,
    summary,
    with_load,
    worker_document,
)
from .requests import Direct, WorkerSearch

SHOWN = 100


class AdminWorkerViewSet(AdminViewSet):
    """`/ojs/v1/admin/workers`"""

    resource = "workers"
    queries = {"list": WorkerSearch}
    worker: Worker
    """The worker that the URL names."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        super().initial(request, *args, **kwargs)
        if "worker_id" in kwargs:
            self.worker = fleet.find(kwargs["worker_id"], project=self.caller.project)

    def list(self, request: Request) -> Response:
        """Every worker that has not left, and the number in each state (§9.1)."""
        parameters = request.query_params
        workers = _matching(self.scoped(known()), parameters)
        counted = summary(workers)
        wanted = WorkerSearch.state.read(parameters)
        if wanted:
            workers = workers.filter(shown_state=wanted)
        project = self.caller.project
        workers = with_load(workers).order_by(shown_id(project), "pk")
        found, pagination = page(parameters, workers)
        return Response(
            {
                "items": [worker_document(worker, project) for worker in found],
                "summary": counted,
                "pagination": pagination,
            }
        )

    def retrieve(self, request: Request, worker_id: str) -> Response:
        """A worker, the jobs that it holds and the directives it got (§9.2)."""
        return Response(self._detail())

    def quiet(self, request: Request, worker_id: str) -> Response:
        """Ask the worker to take no more jobs (§9.3)."""
        return self._order(WorkerState.QUIET, self.read(Reason))

    def terminate(self, request: Request, worker_id: str) -> Response:
        """Ask the worker to finish its jobs and stop."""
        return self._order(WorkerState.TERMINATE, self.read(Reason))

    def resume(self, request: Request, worker_id: str) -> Response:
        """Ask the worker to resume."""
        return self._order(WorkerState.RUNNING, self.read(Reason))

    def direct(self, request: Request, worker_id: str) -> Response:
        """Send the directive in the body: `quiet`, `terminate` or `running`."""
        body = self.read(Direct, required=True)
        return self._order(Direct.directive.read(body), body)

    def _order(self, directive: WorkerState, body: Document) -> Response:
        """
        Raises:
            NotFound: the worker is unknown.
            Conflict: it is gone, or cannot return to running.
        """
        order = fleet.order(
            self.scoped(Worker.objects.live()).filter(pk=self.worker.pk),
            directive,
            actor=self.actor,
            reason=reason_of(body),
        )
        self.worker = fleet.find(self.kwargs["worker_id"], project=self.caller.project)
        if not order.heard:
            _explain(self.worker, self.kwargs["worker_id"], directive)
        return Response(self._detail() | {"signalled": bool(order.heard)})

    def destroy(self, request: Request, worker_id: str) -> Response:
        """Remove a stale worker, and reclaim its jobs (§9.4)."""
        reason = reason_of(self.read(Reason))
        removal = remove(worker_id, actor=self.actor, reason=reason, project=self.caller.project)
        return Response(
            {
                "id": worker_id,
                "deregistered": True,
                "removed": removal.removed,
                "jobs_rescheduled": removal.jobs_taken_back,
            }
        )

    def _detail(self) -> dict[str, Any]:
        workers = Worker.objects.filter(pk=self.worker.pk).annotate(shown_state=shown_state())
        worker, project = with_load(workers).get(), self.caller.project
        held = self.scoped(dashboard.held([worker.pk])).only(*COLUMNS)[:SHOWN]
        orders: Any = Directive.objects.filter(worker_id=worker.pk)
        if project:
            # Orders from before this record may concern a worker of another project.
            orders = orders.filter(asked_at__gte=worker.created_at)
        return worker_document(worker, project) | {
            "jobs": [line(job, project=project) for job in held],
            "directives": [directive_document(order, worker) for order in orders[:SHOWN]],
        }


def _matching(workers: Any, parameters: Any) -> Any:
    for name, column in (("label", "labels"), ("queue", "queues")):
        if parameters.get(name):
            workers = workers.filter(JSONArrayHas(column, parameters[name]))
    for name in ("hostname", "version", "protocol"):
        if parameters.get(name):
            workers = workers.filter(**{name: parameters[name]})
    return workers


def _explain(worker: Worker, worker_id: str, directive: WorkerState) -> None:
    """
    Args:
        worker_id: the worker's id as the caller knows it.

    Raises:
        Conflict: the directive is impossible. Being in the requested state already is no error.
    """
    if worker.state == WorkerState.TERMINATED:
        problem = f"Worker '{worker_id}' is gone."
    elif directive != WorkerState.RUNNING or worker.desired_state == WorkerState.RUNNING:
        return
    elif worker.desired_state == WorkerState.TERMINATE:
        problem = f"Worker '{worker_id}' is terminating, and nothing leads back from that."
    else:
        problem = f"Worker '{worker_id}' went quiet by itself; only it can end that."
    raise Conflict(problem, worker_id=worker_id, state=worker.state)


class StatisticsViewSet(AdminViewSet):
    """`/ojs/v1/admin/stats`"""

    resource = "statistics"

    def retrieve(self, request: Request) -> Response:
        """Queues, workers and jobs of the whole server (§10.1)."""
        return Response(
            {
                "queues": counts.queues(),
                "workers": Worker.objects.live().count(),
                "jobs": counts.by_state(Job.objects.all()),
                "throughput": counts.pace().throughput(),
                "uptime_seconds": int(time.monotonic() - STARTED),
            }
        )

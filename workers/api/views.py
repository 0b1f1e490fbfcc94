"""Workers for operators, and how the whole server is doing (OJS admin API §9, §10)."""

from __future__ import annotations

import time
from typing import Any

from jobs.api.admin.base import AdminViewSet, reason_of
from jobs.api.admin.documents import COLUMNS, line
from jobs.api.admin.paging import page
from jobs.api.system import STARTED
from jobs.errors import Conflict
from jobs.http.base import Response
from jobs.models import Job
from jobs.record import counts, dashboard
from jobs.spec.fields import Document
from jobs.store.expressions import JSONArrayHas

from ..fleet import orders as fleet
from ..fleet.removal import remove
from ..lifecycle import WorkerState
from ..models import Directive, Worker
from .documents import (
    directive_document,
    known,
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

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        worker_id = kwargs.get("worker_id")
        if worker_id is not None:
            fleet.find(worker_id, project=self.caller.project)

    def list(self, request: Any) -> Response:
        """Every worker that has not left, and how many there are of each state (§9.1)."""
        parameters = request.query_params
        workers = _matching(self.own(known()), parameters)
        counted = summary(workers)
        wanted = WorkerSearch.state.read(parameters)
        if wanted:
            workers = workers.filter(shown_state=wanted)
        found, pagination = page(parameters, with_load(workers).order_by("pk"))
        return Response(
            {
                "items": [worker_document(worker) for worker in found],
                "summary": counted,
                "pagination": pagination,
            }
        )

    def retrieve(self, request: Any, worker_id: str) -> Response:
        """A worker, the jobs in its hands and what was asked of it (§9.2)."""
        return Response(_detail(worker_id))

    def quiet(self, request: Any, worker_id: str) -> Response:
        """Ask it to take no more jobs (§9.3)."""
        return self._order(worker_id, WorkerState.QUIET, self.read())

    def terminate(self, request: Any, worker_id: str) -> Response:
        """Ask it to finish what it has, and to stop."""
        return self._order(worker_id, WorkerState.TERMINATE, self.read())

    def resume(self, request: Any, worker_id: str) -> Response:
        """Take that back."""
        return self._order(worker_id, WorkerState.RUNNING, self.read())

    def direct(self, request: Any, worker_id: str) -> Response:
        """Ask it for `quiet`, `terminate` or `running`, whichever the body names."""
        body = self.read(required=True)
        return self._order(worker_id, Direct.directive.read(body), body)

    def _order(self, worker_id: str, directive: WorkerState, body: Document) -> Response:
        """
        Raises:
            NotFound: nobody knows the worker.
            Conflict: it is gone, or nothing leads back to running.
        """
        order = fleet.order(
            Worker.objects.live().filter(pk=worker_id),
            directive,
            actor=self.actor,
            reason=reason_of(body),
        )
        worker = fleet.find(worker_id)
        if not order.heard:
            _explain(worker, directive)
        return Response(_detail(worker_id) | {"signalled": bool(order.heard)})

    def destroy(self, request: Any, worker_id: str) -> Response:
        """Forget a stale worker, and take its jobs back (§9.4)."""
        removal = remove(worker_id, actor=self.actor, reason=reason_of(self.read()))
        return Response(
            {
                "id": worker_id,
                "deregistered": True,
                "removed": removal.removed,
                "jobs_rescheduled": removal.jobs_taken_back,
            }
        )


def _matching(workers: Any, parameters: Any) -> Any:
    for name, column in (("label", "labels"), ("queue", "queues")):
        if parameters.get(name):
            workers = workers.filter(JSONArrayHas(column, parameters[name]))
    for name in ("hostname", "version", "protocol"):
        if parameters.get(name):
            workers = workers.filter(**{name: parameters[name]})
    return workers


def _detail(worker_id: str) -> dict[str, Any]:
    workers = Worker.objects.filter(pk=worker_id).annotate(shown_state=shown_state())
    worker = with_load(workers).get()
    held = dashboard.held([worker_id]).only(*COLUMNS)[:SHOWN]
    orders = Directive.objects.filter(worker_id=worker_id)[:SHOWN]
    return worker_document(worker) | {
        "jobs": [line(job) for job in held],
        "directives": [directive_document(order, worker) for order in orders],
    }


def _explain(worker: Worker, directive: WorkerState) -> None:
    """
    Raises:
        Conflict: what was asked for cannot be. Being so already is no error.
    """
    if worker.state == WorkerState.TERMINATED:
        problem = f"Worker '{worker.pk}' is gone."
    elif directive != WorkerState.RUNNING or worker.desired_state == WorkerState.RUNNING:
        return
    elif worker.desired_state == WorkerState.TERMINATE:
        problem = f"Worker '{worker.pk}' is terminating, and nothing leads back from that."
    else:
        problem = f"Worker '{worker.pk}' went quiet by itself; only it can end that."
    raise Conflict(problem, worker_id=worker.pk, state=worker.state)


class StatisticsViewSet(AdminViewSet):
    """`/ojs/v1/admin/stats`"""

    resource = "statistics"

    def retrieve(self, request: Any) -> Response:
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

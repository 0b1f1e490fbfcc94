"""Sends an order to many workers, selected by label or any other filter of OJS admin API §9.1.

In the document, an order goes to one worker at a time. This does for workers what its §8 does for
jobs, in the same form: a filter, a dry run, a confirmation.
"""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from jobs.access.projects import scope_to
from jobs.api.admin.base import AdminViewSet, confirmed, reason_of
from jobs.api.admin.search import choice
from jobs.http.request import Request
from jobs.record.dashboard import held
from jobs.spec.fields import Document, missing, refuse
from jobs.spec.worker_ids import shown, spellings
from jobs.store.expressions import JSONArrayHas

from ..fleet import orders as fleet
from ..lifecycle import WorkerState
from ..models import Worker
from .documents import STATES, known
from .requests import DirectMany, OneOrSeveral, OrderMany, WorkerFilter

MOST = 10_000
"""Maximum number of workers per request."""
ACTIONS = {
    WorkerState.QUIET: "quiet",
    WorkerState.RUNNING: "resume",
    WorkerState.TERMINATE: "terminate",
}
LISTED = 100
"""Maximum number of workers that a response lists."""


class AdminWorkerBulkViewSet(AdminViewSet):
    """`/ojs/v1/admin/workers/bulk/{quiet|resume|terminate}`, and `…/workers/directive`"""

    resource = "workers-bulk"

    def quiet(self, request: Request) -> Response:
        """Ask every worker that matches to take no more jobs."""
        return self._answer(WorkerState.QUIET)

    def resume(self, request: Request) -> Response:
        """Ask every worker that matches to resume."""
        return self._answer(WorkerState.RUNNING)

    def terminate(self, request: Request) -> Response:
        """Ask every worker that matches to finish its jobs and stop."""
        return self._answer(WorkerState.TERMINATE)

    def direct(self, request: Request) -> Response:
        """Any of these orders, as the public command line gives it: without a filter, to all."""
        body = self.read(DirectMany, required=True)
        return self._carry_out(DirectMany.directive.read(body), body, to_all=True)

    def _answer(self, directive: WorkerState) -> Response:
        return self._carry_out(directive, self.read(OrderMany, required=True))

    def _carry_out(
        self, directive: WorkerState, body: Document, *, to_all: bool = False
    ) -> Response:
        is_dry, reason = OrderMany.dry_run.read(body), reason_of(body)
        wanted, everybody = OrderMany.filter.read(body), OrderMany.all.read(body) or to_all
        if not is_dry:
            confirmed(body, "every worker that matches is ordered.")
        workers = self.scoped(known()).exclude(state=WorkerState.TERMINATED)
        if wanted is not None:
            workers = matching(workers, wanted, self.caller.project)
        elif not everybody:
            raise missing("filter")
        ids = list(workers.order_by("pk").values_list("pk", flat=True)[: MOST + 1])
        chosen = Worker.objects.live().filter(pk__in=ids[:MOST])
        report = _report(chosen, directive, self.caller.project)
        report["has_more"] = len(ids) > MOST
        if is_dry:
            return Response(report | {"dry_run": True})
        selection = {"all": True} if wanted is None else {"filter": wanted}
        order = fleet.order(chosen, directive, actor=self.actor, reason=reason, selection=selection)
        return Response(report | {"signalled": len(order.heard)})


def _report(chosen: Any, directive: WorkerState, project: str) -> dict[str, Any]:
    """The workers that an order would address, for a dry run.

    Args:
        project: the project of the key that asks; only its workers. Empty means all workers.
    """
    ids = list(chosen.order_by("pk").values_list("pk", flat=True))
    will_hear = chosen.quieted() if directive == WorkerState.RUNNING else chosen.behind(directive)
    resumes = directive == WorkerState.RUNNING
    unserved = [] if resumes else fleet.unserved_without(ids, project)
    return {
        "action": ACTIONS[directive],
        "matched": len(ids),
        "signalled": will_hear.count(),
        "active_jobs": scope_to(held(ids), project).count(),
        "workers": sorted(shown(name, project) for name in ids)[:LISTED]
        if project
        else ids[:LISTED],
        "unserved_queues": unserved,
    }


def matching(workers: Any, wanted: Document, project: str) -> Any:
    """Narrow `workers` by a filter; of several labels all must match, of other values any.

    Args:
        project: the project of the key that asks; only its workers. Empty means all workers.

    Raises:
        InvalidRequest: a member is invalid, or there is none, which would mean all workers.
    """
    chosen = {name: _texts(name, value) for name, value in wanted.items() if value is not None}
    if not chosen:
        raise refuse("filter", "The 'filter' field must say which workers.", validation="required")
    for name, texts in chosen.items():
        if name == "label":
            for text in texts:
                workers = workers.filter(JSONArrayHas("labels", text))
        elif name == "queue":
            workers = workers.filter(fleet.any_of("queues", texts))
        elif name == "state":
            for text in texts:
                choice({"filter.state": text}, "filter.state", STATES, "")
            workers = workers.filter(shown_state__in=texts)
        elif name == "worker_id":
            names = [name for text in texts for name in spellings(text, project)]
            workers = workers.filter(pk__in=names)
        else:
            workers = workers.filter(**{f"{name}__in": texts})
    return workers


def _texts(name: str, value: Any) -> list[str]:
    """One value or several."""
    place = f"filter.{name}"
    member = WorkerFilter.members.get(name)
    if not isinstance(member, OneOrSeveral):
        known = ", ".join(WorkerFilter.members)
        raise refuse(place, f"There is no filter '{name}'; there are {known}.")
    return member.check(value, place)

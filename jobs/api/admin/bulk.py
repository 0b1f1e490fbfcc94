"""Retries, cancels and deletes many jobs, selected by a filter (OJS admin API §8).

A limited number per request, all of them or none; `has_more` means that there are more to change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from rest_framework.response import Response

from ...engine import bulk
from ...engine.dependencies import ended_with_workflow
from ...engine.retention import attached
from ...http.request import Request
from ...models import Job
from ...models.querysets import JobQuerySet
from ...spec.fields import Document, refuse
from ...spec.lifecycle import State
from ...spec.members import Text
from ...spec.operator_requests import AdminChange, AdminFilter
from ...store.database import atomic
from .base import AdminViewSet, confirmed, reason_of
from .paging import COUNTED
from .search import filtered

LISTED = 100
"""Skipped jobs that a response lists with the reason."""
FILTERS = [name for name in AdminFilter.members if name != "state"]


@dataclass(frozen=True)
class Verb:
    """An operation, the states it applies to, and the default states of its filter."""

    did: str
    permission: str
    states: frozenset[State]
    default: frozenset[State]
    act: Callable[..., list[UUID]]
    spares: Callable[[JobQuerySet], JobQuerySet] = JobQuerySet.none
    """The jobs that it skips though their state allows it."""
    takes: Callable[[JobQuerySet], JobQuerySet] = JobQuerySet.all
    """The others, of any state."""


VERBS = {
    "retry": Verb(
        "retried",
        "retry_job",
        bulk.RETRIABLE | {State.CANCELLED},
        frozenset({State.DISCARDED}),
        bulk.retry,
        lambda jobs: jobs.filter(ended_with_workflow()),
        lambda jobs: jobs.exclude(ended_with_workflow()),
    ),
    "cancel": Verb("cancelled", "cancel_job", bulk.CANCELLABLE, bulk.CANCELLABLE, bulk.cancel),
    "delete": Verb(
        "deleted",
        "discard_job",
        bulk.DELETABLE,
        bulk.DELETABLE,
        bulk.delete,
        attached,
        bulk.deletable,
    ),
}


class AdminBulkViewSet(AdminViewSet):
    """`/ojs/v1/admin/jobs/bulk/{retry|cancel|delete}`"""

    resource = "bulk"

    def retry(self, request: Request) -> Response:
        """Give discarded, cancelled or retryable jobs fresh attempts (§8.1)."""
        return self._answer("retry", lambda reason: {"cancelled": True})

    def retry_dead(self, request: Request) -> Response:
        """The same, for jobs that entered the dead letter in a period (dead letter §6.2)."""
        return self._answer("retry", lambda reason: {}, Job.objects.dead(), time="finished_at")

    def cancel(self, request: Request) -> Response:
        """Cancel jobs that have not finished, including active ones (§8.2)."""
        return self._answer(
            "cancel", lambda reason: {"cancelled_by": self.caller.name, "reason": reason}
        )

    def delete_finished(self, request: Request) -> Response:
        """Delete finished jobs permanently (§8.3)."""
        return self._answer("delete", lambda reason: {})

    def _answer(
        self,
        name: str,
        how: Callable[[str], dict[str, Any]],
        among: Any = None,
        *,
        time: str = "created_at",
    ) -> Response:
        verb, body = VERBS[name], self.read(AdminChange, required=True)
        is_dry = AdminChange.dry_run.read(body)
        if not is_dry:
            confirmed(body, f"every job that matches is {verb.did}.")
        reason, wanted = reason_of(body), AdminChange.filter.read(body)
        among = Job.objects.all() if among is None else among
        parameters = read_filter(wanted)
        jobs = filtered(self.scoped(among), parameters, self.caller.project, time=time)
        if "state" not in parameters:
            jobs = jobs.filter(state__in=sorted(verb.default))
        states = sorted(verb.states)
        able = verb.takes(jobs.filter(state__in=states))
        unable = jobs.exclude(state__in=states) | verb.spares(jobs)
        if is_dry:
            matched, more = bulk.preview(able)
            return Response(_report(name, matched, unable, has_more=more) | {"dry_run": True})
        with atomic():
            report = _report(name, 0, unable)
            done = len(verb.act(able, **how(reason)))
            self.audit(
                verb.permission,
                kind="job",
                count=done,
                selection={"filter": wanted},
                reason=reason,
            )
        _, more = bulk.preview(able, most=0)
        report |= {"matched": done + report["failed"], "succeeded": done, "has_more": more}
        return Response(report)


def read_filter(wanted: Document) -> dict[str, str]:
    """Read a filter, as the parameters of a list (§8.1).

    Raises:
        InvalidRequest: a member is invalid, or there is none, which would mean all jobs.
    """
    parameters: dict[str, str] = {}
    for name, value in wanted.items():
        place = f"filter.{name}"
        member = AdminFilter.members.get(name)
        if not isinstance(member, Text):
            raise refuse(place, f"There is no filter '{name}'; there are {', '.join(FILTERS)}.")
        if value is not None:
            parameters[name] = member.check(value, place)
    if not parameters:
        raise refuse("filter", "The 'filter' field must say which jobs.", validation="required")
    return parameters


def _report(name: str, matched: int, unable: Any, **more: Any) -> dict[str, Any]:
    """How many jobs would be or were changed; and which were skipped, and why."""
    left = list(unable.order_by("pk").values_list("pk", "state", "workflow")[:LISTED])
    failed = unable.order_by().values("pk")[:COUNTED].count() if len(left) == LISTED else len(left)
    return {
        "action": name,
        "matched": matched + failed,
        "succeeded": 0,
        "failed": failed,
        "errors": [
            {"job_id": str(job_id), "error": _why(name, state, workflow)}
            for job_id, state, workflow in left
        ],
    } | more


def _why(name: str, state: str, workflow: UUID | None) -> str:
    if state in VERBS[name].states:
        return bulk.why_spared(workflow, VERBS[name].did)
    return f"Job is currently {state} and cannot be {VERBS[name].did}"

"""Cron over HTTP (OJS cron §8, HTTP §13).

The documents disagree about an existing name: the cron document requires an update (CRON-26), the
HTTP binding a refusal. This server updates, because sites register their schedules at every start.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rest_framework.response import Response

from .. import engine
from ..access.audit import of_caller, record_action
from ..access.projects import scope_to
from ..errors import NotFound
from ..http.authentication import Caller
from ..http.base import OJSViewSet
from ..http.paging import page
from ..http.parameters import CronHistoryQuery, CronQuery
from ..http.request import Request
from ..models import CronJob, CronRun
from ..spec.cron_requests import ChangeCron, changed_cron_job, new_cron_job
from ..spec.fields import refuse
from ..spec.timestamps import format_timestamp
from ..store import clock
from ..store.database import atomic


def cron_document(cron: CronJob) -> dict[str, Any]:
    """A cron job, with the names of every document and public client."""
    template = cron.template
    options = template.get("options") or {}
    document: dict[str, Any] = {
        "id": cron.pk,
        "name": cron.pk,
        "cron": cron.expression,
        "expression": cron.expression,
        "schedule": cron.expression,
        "timezone": cron.timezone,
        "type": template["type"],
        "args": template["args"],
        "queue": options.get("queue") or template.get("queue") or "default",
        "options": options,
        "job_template": template,
        "overlap_policy": cron.overlap_policy,
        "enabled": cron.enabled,
        "status": "active" if cron.enabled else "paused",
        "description": cron.description or None,
        "last_run_at": format_timestamp(cron.last_run_at) if cron.last_run_at else None,
        "next_run_at": format_timestamp(cron.next_run_at) if cron.next_run_at else None,
        "run_count": cron.run_count,
        "created_at": format_timestamp(cron.created_at),
    }
    if template.get("meta"):
        document["meta"] = template["meta"]
    return document


def reply(cron: CronJob, **more: Any) -> dict[str, Any]:
    document = cron_document(cron)
    return document | {"cron_job": document, "cron": document} | more


class CronViewSet(OJSViewSet):
    """`/ojs/v1/cron`"""

    resource = "cron"
    queries = {"list": CronQuery, "history": CronHistoryQuery}

    @classmethod
    def confine(cls, caller: Caller, **named: str) -> None:
        """
        Raises:
            NotFound: the caller's project has no such cron job.
        """
        name = named.get("name")
        # A cron job's project never changes, so checking first is not a race.
        if name and not scope_to(CronJob.objects.filter(pk=name), caller.project).exists():
            raise _unknown(name)

    def list(self, request: Request) -> Response:
        """Every registered cron job; `enabled` filters (§8.2)."""
        rows = scope_to(CronJob.objects.order_by("name"), self.caller.project)
        enabled = CronQuery.enabled.read(request.query_params)
        if enabled:
            rows = rows.filter(enabled=enabled == "true")
        found, pagination = page(
            request.query_params,
            rows,
            keys=lambda cron: [cron.pk],
            after=lambda rows, keys: rows.filter(pk__gt=keys[0]),
            parts=1,
        )
        documents = [cron_document(cron) for cron in found]
        names = ("cron_jobs", "crons", "entries", "items")
        wrapped: dict[str, Any] = dict.fromkeys(names, documents)
        return Response(wrapped | {"count": pagination["total"], "pagination": pagination})

    def create(self, request: Request) -> Response:
        """Register a cron job, or update the one with this name (§8.1)."""
        new = new_cron_job(self.read(required=True), clock.now())
        with atomic():
            cron, created = engine.upsert_cron(replace(new, project=self.caller.project))
            self._audit("add_cron" if created else "change_cron", cron.pk)
        response = Response(reply(cron), status=201 if created else 200)
        if created:
            response["Location"] = f"{request.path.rstrip('/')}/{cron.pk}"
        return response

    def retrieve(self, request: Request, name: str) -> Response:
        """One cron job (§8.3)."""
        cron = CronJob.objects.filter(pk=name).first()
        if cron is None:
            raise _unknown(name)
        return Response(reply(cron))

    def destroy(self, request: Request, name: str) -> Response:
        """Remove a registration (§8.4)."""
        with atomic():
            cron = engine.delete_cron(name)
            self._audit("delete_cron", name)
        return Response(reply(cron, deleted=True))

    def update(self, request: Request, name: str) -> Response:
        """Enable or disable (§8.5); or change the schedule, the template and the rest."""
        body = self.read(required=True)
        named = [member for member in ChangeCron.members if body.get(member) is not None]
        if not named:
            there = ", ".join(member.name for member in ChangeCron.described())
            raise refuse("enabled", f"Name what is to change, one of {there}.")
        if named == [ChangeCron.enabled.name]:
            return self._switch(name, bool(ChangeCron.enabled.read(body)))
        with atomic():
            cron = engine.change_cron(
                name, lambda before: changed_cron_job(body, before, clock.now())
            )
            self._audit("change_cron", name)
        return Response(reply(cron))

    def pause(self, request: Request, name: str) -> Response:
        return self._switch(name, False)

    def resume(self, request: Request, name: str) -> Response:
        return self._switch(name, True)

    def _switch(self, name: str, enabled: bool) -> Response:
        with atomic():
            cron = engine.set_cron_enabled(name, enabled=enabled)
            self._audit("enable_cron" if enabled else "disable_cron", name)
        return Response(reply(cron))

    def _audit(self, verb: str, name: str) -> None:
        actor = of_caller(self.caller, self.request)
        record_action(actor, verb, kind="cronjob", count=1, selection={"ids": [name]})

    def trigger(self, request: Request, name: str) -> Response:
        """Run once now; the overlap policy holds."""
        with atomic():
            run = engine.run_cron_now(name)
            self._audit("run_now_cron", name)
        return Response(run_document(run), status=201 if run.job_id else 200)

    def history(self, request: Request, name: str) -> Response:
        """The outcomes of its occurrences, newest first."""
        if not CronJob.objects.filter(pk=name).exists():
            raise _unknown(name)
        limit = CronHistoryQuery.limit.read(request.query_params)
        runs = CronRun.objects.filter(cron_name=name).order_by("-id")[:limit]
        documents = [run_document(run) for run in runs]
        # `executions`: as the command line reads them.
        return Response({"name": name, "runs": documents, "executions": documents})


def run_document(run: CronRun) -> dict[str, Any]:
    return {
        "cron_name": run.cron_name,
        "job_id": str(run.job_id) if run.job_id else None,
        "outcome": run.outcome,
        "reason": run.reason,
        "scheduled_at": format_timestamp(run.scheduled_for),
        "decided_at": format_timestamp(run.decided_at),
    }


def _unknown(name: str) -> NotFound:
    return NotFound(
        f"Cron job '{name}' not found.",
        hint="See the registered ones: GET /ojs/v1/cron.",
        resource_type="cron_job",
        resource_id=name,
    )

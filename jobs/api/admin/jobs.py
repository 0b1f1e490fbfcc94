"""Jobs for operators: search, inspect, cancel, retry, prioritize (OJS admin API §7)."""

from __future__ import annotations

from rest_framework.response import Response

from ... import engine
from ...errors import JobNotFound
from ...http.parameters import JobSearch
from ...http.request import Request
from ...models import Job
from ...spec.operator_requests import Prioritize, Reason
from ...spec.timestamps import format_timestamp
from ...store.database import atomic
from ..jobs import parse_id
from .base import AdminViewSet, reason_of
from .documents import COLUMNS, line, reply
from .paging import page
from .search import filtered, ordered


class AdminJobViewSet(AdminViewSet):
    """`/ojs/v1/admin/jobs`"""

    resource = "jobs"
    queries = {"list": JobSearch}

    def list(self, request: Request) -> Response:
        """Jobs that match, newest first by default (§7.1)."""
        parameters = request.query_params
        jobs = self.scoped(Job.objects.only(*COLUMNS))
        project = self.caller.project
        rows, by_id = ordered(filtered(jobs, parameters, project), parameters)
        found, pagination = page(parameters, rows, by_id=by_id)
        items = [line(job, project=project) for job in found]
        return Response({"items": items, "pagination": pagination})

    def retrieve(self, request: Request, job_id: str) -> Response:
        """Everything about a job (§7.2)."""
        job = Job.objects.filter(pk=parse_id(job_id)).first()
        if job is None:
            raise JobNotFound(job_id)
        return Response(reply(job, is_redacted=self.is_redacted, project=self.caller.project))

    def prioritize(self, request: Request, job_id: str) -> Response:
        """Change the priority of a waiting job."""
        body = self.read(Prioritize, required=True)
        priority = Prioritize.priority.read(body)
        with atomic():
            change = engine.prioritize(parse_id(job_id), priority, changed_by=self.caller.name)
            chosen = {"priority": priority}
            self.audit("change_job", [change.job], selection=chosen, reason=reason_of(body))
        extra = {"previous_priority": change.previous_priority}
        return Response(
            reply(change.job, is_redacted=self.is_redacted, project=self.caller.project, **extra)
        )

    def cancel(self, request: Request, job_id: str) -> Response:
        """Cancel a job that has not finished, even an active one (§7.3)."""
        reason = reason_of(self.read(Reason))
        with atomic():
            change = engine.cancel(parse_id(job_id), cancelled_by=self.caller.name, reason=reason)
            self.audit("cancel_job", [change.job], reason=reason)
        extra = {"previous_state": str(change.previous_state)}
        return Response(
            reply(change.job, is_redacted=self.is_redacted, project=self.caller.project, **extra)
        )

    def retry(self, request: Request, job_id: str) -> Response:
        """Give a discarded or cancelled job fresh attempts (§7.4)."""
        reason = reason_of(self.read(Reason))
        with atomic():
            change = engine.retry_finished(parse_id(job_id))
            self.audit("retry_job", [change.job], reason=reason)
        extra = {
            "previous_state": str(change.previous_state),
            "re_enqueued_at": format_timestamp(change.job.enqueued_at),
        }
        return Response(
            reply(change.job, is_redacted=self.is_redacted, project=self.caller.project, **extra)
        )

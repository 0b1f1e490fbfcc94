"""Workflows over HTTP: create, inspect, list, cancel (OJS workflows §11, HTTP §14)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework.response import Response

from .. import engine
from ..access.audit import of_caller
from ..access.projects import scope_to
from ..errors import WorkflowNotFound
from ..http.base import OJSViewSet
from ..http.dialects import workflow_reply, workflow_request
from ..http.paging import below_id, page
from ..http.parameters import WorkflowQuery
from ..http.rates import show_rate_of_tenants
from ..http.request import Request
from ..http.workflow_document import progress_document, summaries, workflow_document
from ..models import Workflow
from ..spec import traces
from ..spec.identifiers import parse_uuid
from ..spec.workflow_plans import plan_of
from ..store import clock


class WorkflowViewSet(OJSViewSet):
    """`/ojs/v1/workflows`"""

    resource = "workflows"
    queries = {"list": WorkflowQuery}

    def create(self, request: Request) -> Response:
        """Create and start a workflow (OJS workflows §11.1)."""
        document = self.read(required=True)
        document = workflow_request(request.META, document)
        traces.give_to_workflow(traces.of_headers(request.META), document)
        plan = plan_of(document, clock.now())
        workflow = engine.create_workflow(plan, project=self.caller.project)
        response = self._answer(workflow_document(workflow), status=201)
        response["Location"] = f"{request.path.rstrip('/')}/{workflow.pk}"
        show_rate_of_tenants(response, {workflow.project})
        return response

    def retrieve(self, request: Request, workflow_id: str) -> Response:
        """The workflow with all its steps (OJS workflows §11.2)."""
        return self._answer(workflow_document(self._find(workflow_id)))

    def list(self, request: Request) -> Response:
        """Newest first, without nested workflows; `state`, `type` and `name` filter."""
        parameters = request.query_params
        rows = Workflow.objects.filter(parent__isnull=True).order_by("-id")
        rows = scope_to(rows, self.caller.project)
        for member in (WorkflowQuery.state, WorkflowQuery.type):
            value = member.read(parameters)
            if value:
                rows = rows.filter(**{member.name: value})
        if parameters.get("name"):
            rows = rows.filter(name=parameters["name"])
        found, pagination = page(
            parameters,
            rows,
            keys=lambda workflow: [str(workflow.pk)],
            after=below_id,
            parts=1,
        )
        documents = summaries(found)
        return Response(
            {
                "workflows": documents,
                "items": documents,
                "pagination": pagination,
                "total": pagination["total"],
            }
        )

    def cancel(self, request: Request, workflow_id: str) -> Response:
        """Cancel; active jobs may finish (OJS workflows §11.3)."""
        # A workflow's project never changes, so checking first is not a race.
        actor = of_caller(self.caller, request)
        workflow = engine.cancel_workflow(self._find(workflow_id).pk, actor=actor)
        document = workflow_document(self._find(str(workflow.pk)))
        nodes = document.get("jobs") or document.get("steps") or []
        states = [node["state"] for node in nodes]
        document |= {
            "steps_cancelled": states.count("cancelled"),
            "steps_already_completed": states.count("completed"),
        }
        return self._answer(document)

    def progress(self, request: Request, workflow_id: str) -> Response:
        """The progress of the workflow (OJS progress §9.2)."""
        response = Response(progress_document(self._find(workflow_id)))
        response["Cache-Control"] = "no-cache"
        return response

    def _find(self, text: str) -> Workflow:
        rows = scope_to(Workflow.objects.filter(pk=_parse(text)), self.caller.project)
        workflow: Workflow | None = rows.first()
        if workflow is None:
            raise WorkflowNotFound(text)
        return workflow

    def _answer(self, document: dict[str, Any], status: int = 200) -> Response:
        return Response(workflow_reply(document), status=status)


def _parse(text: str) -> UUID:
    """
    Raises:
        WorkflowNotFound: this cannot be the id of a workflow.
    """
    workflow_id = parse_uuid(text)
    if workflow_id is None:
        raise WorkflowNotFound(text)
    return workflow_id

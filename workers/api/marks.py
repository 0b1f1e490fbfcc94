"""Marks of charts: deployments and notes, and what the audit knows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from rest_framework.response import Response

from jobs.api.admin.base import AdminViewSet
from jobs.api.admin.search import moment_of
from jobs.errors import InvalidRequest
from jobs.http.request import Request
from jobs.spec.timestamps import format_timestamp
from jobs.spec.worker_ids import shown
from jobs.store import clock

from ..fleet import marks
from .requests import MarkSearch, NewMark

DAY = timedelta(days=1)


class MarkViewSet(AdminViewSet):
    """`/ojs/v1/admin/marks`"""

    resource = "marks"
    queries = {"list": MarkSearch}

    def list(self, request: Request) -> Response:
        """The marks of a time, the newest first; of the last day if none is given."""
        parameters, now = request.query_params, clock.now()
        until = moment_of(parameters, "until", now) or now
        since = moment_of(parameters, "since", now) or until - DAY
        if since > until:
            raise InvalidRequest("'since' is later than 'until'.", field="since")
        kind, limit = MarkSearch.kind.read(parameters), MarkSearch.limit.read(parameters)
        project = self.caller.project
        found = marks.entries(
            since, until, kinds=[kind] if kind else (), project=project, most=limit + 1
        )
        items = [document(entry, project) for entry in found[:limit]]
        return Response({"items": items, "has_more": len(found) > limit})

    def create(self, request: Request) -> Response:
        """Mark this moment: a deployment, or anything worth knowing."""
        body = self.read(NewMark, required=True)
        kind, text = NewMark.kind.read(body), NewMark.text.read(body)
        project = self.caller.project
        made = marks.add(self.actor, kind, text, project=project)
        return Response(document(marks.of_mark(made), project), status=201)


def document(entry: marks.Entry, project: str) -> dict[str, Any]:
    action = None
    if entry.action_id is not None:
        action = {
            "id": entry.action_id,
            "verb": entry.verb,
            "count": entry.count,
            "targets": list(entry.targets),
            "change": entry.change or None,
        }
    return {
        "id": entry.mark_id,
        "kind": entry.kind,
        "text": entry.text,
        "at": format_timestamp(entry.at),
        "project": entry.project or None,
        "by": shown(entry.by, project),
        "source": entry.source,
        "action": action,
    }

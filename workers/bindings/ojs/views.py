"""Worker endpoints of OJS HTTP: parse, one call, reply (OJS HTTP §10)."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from rest_framework.response import Response

from jobs.api.system import backend_health, health_document
from jobs.errors import WorkerNotFound
from jobs.http.base import OJSViewSet
from jobs.http.request import Request
from jobs.spec.timestamps import format_timestamp
from jobs.store import clock
from workers import protocol
from workers.access import admission
from workers.chores import reaper
from workers.fleet import directory

from . import replies, requests, verbs


class WorkerViewSet(OJSViewSet):
    """`/ojs/v1/workers`"""

    resource = "workers"
    mends = {"nack": requests.mend_errors, "fetch": requests.mend_errors}

    def register(self, request: Request) -> Response:
        """Store a worker (§3.2)."""
        body = self.read()
        worker_id = requests.required_worker_id(body, self.caller)
        description = requests.registration(body, self.caller, requests.agent(request.META))
        admission.as_worker(
            self.caller,
            worker_id,
            lambda name: protocol.register(name, description, starts=True),
            labels=description.labels or [],
        )
        return Response(replies.registered(worker_id))

    def deregister(self, request: Request, worker_id: str | None = None) -> Response:
        """A worker leaves (§3.4); leaving again is not an error."""
        body = self.read() if worker_id is None else {"worker_id": worker_id}
        leaving = requests.required_worker_id(body, self.caller)
        name = self._admit(leaving) or leaving
        known = protocol.deregister(name, project=self.caller.project)
        return Response({"ok": True, "worker_id": leaving, "deregistered": known})

    def health(self, request: Request, worker_id: str) -> Response:
        """How a worker is, by its last heartbeat: `ready` while it fetches jobs."""
        worker = directory.find(worker_id, self.caller)
        if worker is None:
            raise WorkerNotFound(worker_id)
        held = len(directory.held_by(worker.pk))
        return Response(replies.health(worker, worker_id, held))

    def heartbeat(self, request: Request) -> Response:
        """BEAT (§4)."""
        return self.carry_out(verbs.heartbeat)

    def fetch(self, request: Request) -> Response:
        """FETCH: claim jobs, and settle others (§6)."""
        return self.carry_out(verbs.fetch)

    def ack(self, request: Request, **named: str) -> Response:
        """ACK: one job, or a list of them with a result for each."""
        return self.carry_out(verbs.ack, **named)

    def nack(self, request: Request, **named: str) -> Response:
        """FAIL: one job, or a list of them with a result for each."""
        return self.carry_out(verbs.nack, **named)

    def _admit(self, worker_id: str | None) -> str | None:
        """The stored id of the worker; None for an anonymous worker."""
        return admission.admit(self.caller, worker_id)


class LeavingViewSet(WorkerViewSet):
    """`/ojs/v1/workers/{id}`, which matches any path: except for a worker that leaves (§3.4), any
    path below `workers/` without a view of its own is unknown.
    """

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        if not self.action:
            raise Http404
        super().initial(request, *args, **kwargs)


class HealthViewSet(OJSViewSet):
    """`/ojs/v1/health`: the database, and the reaper, which reclaims dead workers' jobs."""

    resource = "health"

    def retrieve(self, request: Request) -> Response:
        backend = backend_health()
        document = health_document(backend)
        if backend["status"] == "unhealthy":
            return Response(document, status=503)
        document["reaper"] = _reaper_health()
        if document["reaper"]["status"] != "healthy":
            document["status"] = "degraded"
        return Response(document)


def _reaper_health() -> dict[str, Any]:
    seen = reaper.last_seen()
    if seen is None:
        return {"status": "unhealthy", "message": "No reaper has ever run."}
    document: dict[str, Any] = {"status": "healthy", "last_seen_at": format_timestamp(seen)}
    if reaper.is_silent(seen):
        age = int((clock.now() - seen).total_seconds())
        document |= {"status": "unhealthy", "message": f"The reaper has not run for {age} s."}
    return document

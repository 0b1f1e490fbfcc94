"""The worker endpoints of OJS HTTP: parse, one call, reply (OJS HTTP §10)."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from django.http import Http404

from jobs.api.jobs import parse_id
from jobs.api.system import backend_health, health_document
from jobs.http import waiting
from jobs.http.base import OJSViewSet, Response, request_id
from jobs.spec.envelope import claimed_envelope
from jobs.spec.timestamps import format_timestamp
from jobs.store import clock, wakeup
from workers import protocol
from workers.access import admission
from workers.chores import reaper

from . import replies, requests


class Outcomes(NamedTuple):
    """What a request says of jobs that have ended; None where it has no such list."""

    completions: list[protocol.Completion] | None
    failures: list[protocol.Failure] | None


NO_OUTCOMES = Outcomes(None, None)


class WorkerViewSet(OJSViewSet):
    """`/ojs/v1/workers`"""

    resource = "workers"

    def register(self, request: Any) -> Response:
        """Store a worker (§3.2)."""
        body = self.read()
        worker_id = requests.required_worker_id(body, self.caller)
        description = requests.registration(body, self.caller, self._agent)
        admission.as_worker(
            self.caller,
            worker_id,
            lambda name: protocol.register(name, description, starts=True),
            said=description.labels or [],
        )
        return Response(replies.registered(worker_id))

    def deregister(self, request: Any, worker_id: str | None = None) -> Response:
        """A worker leaves (§3.4); leaving twice is no error."""
        body = self.read() if worker_id is None else {"worker_id": worker_id}
        leaving = requests.required_worker_id(body, self.caller)
        name = self._admit(leaving) or leaving
        known = protocol.deregister(name, project=self.caller.project)
        return Response({"ok": True, "worker_id": leaving, "deregistered": known})

    def heartbeat(self, request: Any) -> Response:
        """BEAT (§4)."""
        body = self.read()
        worker_id = requests.required_worker_id(body, self.caller)
        description = requests.description(body, self.caller, self._agent)
        said: dict[str, Any] = {
            "state": requests.reported_state(body),
            "active_job_ids": requests.active_job_ids(body),
            "description": description,
            "requested": requests.requested_extension(body),
            "sequence": requests.Heartbeat.sequence.read(body),
            "project": self.caller.project,
        }
        reply = admission.as_worker(
            self.caller,
            worker_id,
            lambda name: protocol.beat(name, **said),
            said=description.labels,
        )
        return Response(replies.heartbeat(reply))

    def fetch(self, request: Any) -> Response:
        """FETCH: claim jobs; an empty list is a normal answer (§6.5).

        `acks` and `nacks` are settled first, so a busy worker needs one round trip.
        """
        body = self.read()
        sender = requests.worker_id(body, self.caller)
        asked: dict[str, Any] = {
            "queues": requests.queues(body),
            "count": requests.count(body),
            "types": requests.Fetch.types.read(body),
            "visibility_timeout": requests.requested_extension(body),
            "project": self.caller.project,
        }
        wait = requests.wait(body)
        outcomes = self._outcomes(body, sender)
        asked["worker_id"] = self._admit_all(outcomes, sender)[sender] or ""
        jobs: list[Any]
        if outcomes.completions and not outcomes.failures:
            done, jobs = protocol.exchange(outcomes.completions, **asked)
            document = self._settled(outcomes, done, [])
        else:
            document = self._settle(outcomes)
            jobs = protocol.fetch(**asked)
        if not jobs and wait:
            jobs = _wait_for_jobs(asked, wait)
        project = self.caller.project
        document["jobs"] = [claimed_envelope(job, project=project) for job in jobs]
        return Response(document)

    def ack(self, request: Any, job_id: str | None = None) -> Response:
        """ACK: one job, or a list of them with an answer for each."""
        body = self._settling(job_id)
        if body.get("acks") is not None:
            return self._several({"acks": body["acks"]}, self._sender(body))
        completion = requests.completion(body, self.caller)
        completion.worker_id = self._admit(completion.worker_id)
        (outcome,) = protocol.ack([completion], project=self.caller.project)
        if outcome.error is not None:
            raise outcome.error
        return _answer(replies.completed(outcome), job_id)

    def nack(self, request: Any, job_id: str | None = None) -> Response:
        """FAIL: one job, or a list of them with an answer for each."""
        body = self._settling(job_id)
        if body.get("nacks") is not None:
            return self._several({"nacks": body["nacks"]}, self._sender(body))
        failure = requests.failure(body, self.caller)
        failure.worker_id = self._admit(failure.worker_id)
        (outcome,) = protocol.fail([failure], project=self.caller.project)
        if outcome.error is not None:
            raise outcome.error
        return _answer(replies.failed(outcome), job_id)

    def _admit(self, worker_id: str | None) -> str | None:
        """The name the worker is stored under; None is one without a name."""
        return admission.admit(self.caller, worker_id)

    @property
    def _agent(self) -> str:
        agent: str = self.request.META.get("HTTP_USER_AGENT", "")
        return agent

    def _sender(self, body: dict[str, Any]) -> str | None:
        return requests.worker_id(body, self.caller)

    def _settling(self, job_id: str | None) -> dict[str, Any]:
        body = self.read()
        return body if job_id is None else requests.about(parse_id(job_id), body)

    def _several(self, body: dict[str, Any], sender: str | None) -> Response:
        outcomes = self._outcomes(body, sender)
        self._admit_all(outcomes)
        return Response(self._settle(outcomes))

    def _outcomes(self, body: dict[str, Any], sender: str | None) -> Outcomes:
        """Read the outcomes a request carries: everything is checked before anything is done."""
        if "acks" not in body and "nacks" not in body:
            return NO_OUTCOMES
        acks, nacks = requests.several(body, "acks"), requests.several(body, "nacks")
        completions = failures = None
        if acks is not None:
            completions = requests.completions(acks, "acks", self.caller, sender)
        if nacks is not None:
            failures = requests.failures(nacks, "nacks", self.caller, sender)
        return Outcomes(completions, failures)

    def _admit_all(self, outcomes: Outcomes, *senders: str | None) -> dict[str | None, str | None]:
        """Give outcomes the names their senders are stored under; return those, by worker id."""
        items = [*(outcomes.completions or ()), *(outcomes.failures or ())]
        said = {*senders, *(item.worker_id for item in items)}
        names = admission.admit_all(self.caller, said)
        for item in items:
            item.worker_id = names[item.worker_id]
        return names

    def _settle(self, outcomes: Outcomes) -> dict[str, Any]:
        completions, failures = outcomes
        project = self.caller.project
        done = protocol.ack(completions, project=project) if completions else []
        failed = protocol.fail(failures, project=project) if failures else []
        return self._settled(outcomes, done, failed)

    def _settled(
        self, outcomes: Outcomes, done: list[protocol.Outcome], failed: list[protocol.Outcome]
    ) -> dict[str, Any]:
        """The answers to a request's outcomes, each list where it was sent."""
        document: dict[str, Any] = {}
        if outcomes.completions is not None:
            document["acks"] = replies.each(done, replies.completed, request_id(self.request))
        if outcomes.failures is not None:
            document["nacks"] = replies.each(failed, replies.failed, request_id(self.request))
        return document


class LeavingViewSet(WorkerViewSet):
    """`/ojs/v1/workers/{id}`, which takes any path: for all but a worker that leaves (§3.4), there
    is nothing below `workers/` but what has a path of its own.
    """

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        if not self.action:
            raise Http404
        super().initial(request, *args, **kwargs)


def _answer(document: dict[str, Any], job_id: str | None) -> Response:
    """What became of a job; what was sent to it by its path is answered about `job`, as others."""
    if job_id is not None:
        document["job"] = {name: document[name] for name in ("id", "state", "attempt")}
    return Response(document)


def _wait_for_jobs(asked: dict[str, Any], seconds: float) -> list[Any]:
    """Claim as soon as there is something, for at most `seconds`.

    Without a place to wait in, nothing: the caller has looked already.
    """
    deadline = time.monotonic() + seconds
    with waiting.place() as granted:
        if not granted:
            return []
        with wakeup.subscription(asked["queues"]) as bell:
            while True:
                # Its sign of life was the request; by now the worker may be gone.
                jobs = protocol.fetch(**asked, discover=False)
                left = deadline - time.monotonic()
                if jobs or left <= 0:
                    return jobs
                bell.wait(left)


class HealthViewSet(OJSViewSet):
    """`/ojs/v1/health`: the database, and the reaper without which dead workers' jobs wait."""

    resource = "health"

    def retrieve(self, request: Any) -> Response:
        backend = backend_health()
        document = health_document(backend)
        if backend["status"] != "healthy":
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

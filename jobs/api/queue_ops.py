"""Operations on queues over HTTP (OJS HTTP §11; admin API §6; queue configuration §9)."""

from __future__ import annotations

from typing import Any

from django.db.models import Count
from rest_framework.response import Response

from .. import engine
from ..access.audit import of_caller, record_action
from ..access.projects import scope_to
from ..engine.queue_policy import DEFAULT
from ..errors import NotFound
from ..http.base import OJSViewSet
from ..http.dialects import purge_reply, queue_member
from ..http.request import Request
from ..models import Job, Queue
from ..record import counts, dashboard
from ..spec import queue_config
from ..spec.fields import missing, refuse
from ..spec.lifecycle import State
from ..spec.operator_requests import DeleteQueue, NewQueue, Pause, Purge
from ..spec.rate_policy import QueueLimits
from ..spec.timestamps import format_timestamp
from ..store import clock
from ..store.database import atomic
from .queues import full_document, queue_document


def pause_document(queue: Queue) -> dict[str, Any]:
    """Who paused a queue, why, and until when."""
    if not queue.is_paused:
        return {}
    until = queue.paused_until
    return {
        "paused_by": queue.paused_by,
        "reason": queue.pause_reason,
        "paused_until": None if until is None else format_timestamp(until),
    }


class QueueOperationsViewSet(OJSViewSet):
    """`/ojs/v1/queues/{name}` and `/ojs/v1/admin/queues/{name}`"""

    resource = "queues"

    def retrieve(self, request: Request, name: str) -> Response:
        """A queue, its configuration and its depth (queue configuration §9.3)."""
        queue = found(name)
        document = full_document(queue)
        stats = statistics(queue, self.caller.project)
        by_state = {state: stats[state] for state in State.values}
        extra = {"queue": document, "stats": stats, "counts": by_state}
        return Response(document | extra)

    def stats(self, request: Request, name: str) -> Response:
        """The number of its jobs by state (OJS HTTP §11.2)."""
        queue = found(name)
        project = self.caller.project
        stats = statistics(queue, project)
        total = sum(stats[state] for state in State.values)
        # At the top level as well, where the JavaScript and Ruby SDKs read it.
        flat = queue_document(queue) | stats
        recently = counts.last_hour(name, project)
        return Response(
            flat
            | {
                "queue": queue_member(self.request.META, flat),
                "status": queue.status,
                "stats": {"queue": name, "total": total} | stats | recently,
                "computed_at": format_timestamp(clock.now()),
            }
        )

    def priorities(self, request: Request, name: str) -> Response:
        """The number of available jobs by priority (OJS priority §10.3)."""
        found(name)
        rows = scope_to(Job.objects.filter(queue=name, state=State.AVAILABLE), self.caller.project)
        rows = rows.order_by("priority")
        levels = dict(rows.values_list("priority").annotate(jobs=Count("pk")))
        return Response(
            {
                "queue": name,
                "counts_by_priority": {str(level): jobs for level, jobs in levels.items()},
                # As the admin UI reads it.
                "distribution": [
                    {"priority": level, "count": jobs} for level, jobs in levels.items()
                ],
                "total": sum(levels.values()),
            }
        )

    def pause(self, request: Request, name: str) -> Response:
        """Stop handing out its jobs, until `until` or until it is resumed (OJS HTTP §11.3).

        New ones are still accepted.
        """
        body = self.read(Pause)
        reason, until = Pause.reason.read(body), Pause.until.read(body, clock.now())
        with atomic():
            queue = engine.pause(
                checked(name), paused_by=self.caller.name, reason=reason, until=until
            )
            self._trace("pause_queue", name, reason=reason)
        assert queue.paused_at is not None
        at = format_timestamp(queue.paused_at)
        return Response(self._state(queue) | pause_document(queue) | {"paused_at": at})

    def drain(self, request: Request, name: str) -> Response:
        """Accept no new jobs, and work off those there are (queue configuration §5.1).

        `resume` accepts them again.
        """
        with atomic():
            queue = engine.queues.drain(checked(name))
            self._trace("drain_queue", name)
        return Response(self._state(queue) | {"draining_since": format_timestamp(clock.now())})

    def resume(self, request: Request, name: str) -> Response:
        """Hand out its jobs again (OJS HTTP §11.4)."""
        with atomic():
            queue = engine.resume(checked(name), resumed_by=self.caller.name)
            self._trace("resume_queue", name)
        return Response(self._state(queue) | {"resumed_at": format_timestamp(clock.now())})

    def _trace(
        self, verb: str, name: str, *, count: int = 1, reason: str = "", **chosen: Any
    ) -> None:
        record_action(
            of_caller(self.caller, self.request),
            verb,
            kind="queue",
            count=count,
            selection={"ids": [name]} | chosen,
            reason=reason,
        )

    def _state(self, queue: Queue) -> dict[str, Any]:
        return {
            "queue": queue_member(self.request.META, queue_document(queue)),
            "name": queue.name,
            "status": queue.status,
            "paused": queue.is_paused,
        }

    def configuration(self, request: Request, name: str) -> Response:
        if name == DEFAULT:
            policy = engine.queue_policy.default_policy()
            return Response({"queue": name, "config": queue_config.public(policy)})
        queue = found(name)
        return Response({"queue": name, "config": full_document(queue)["config"]})

    def configure(self, request: Request, name: str) -> Response:
        """Change the given members; null removes one (§9.1; backpressure §6.2)."""
        document = self._configured(name, self.read(required=True))
        return Response(document | {"queue": document})

    def _configured(self, name: str, wanted: dict[str, Any]) -> dict[str, Any]:
        changes = queue_config.parse(wanted)
        if name == DEFAULT:
            with atomic():
                policy = engine.queue_policy.change_default(changes)
                self._trace("change_queue", name, config=changes)
            return {"name": name, "config": queue_config.public(policy)}
        with atomic():
            queue = engine.queues.configure(checked(name), changes)
            self._trace("change_queue", name, config=changes)
        return full_document(queue)

    def limit(self, request: Request, name: str) -> Response:
        """Set the rate limit of a whole queue (OJS rate limiting §7.2)."""
        wanted = {"rate_limit": self.read(QueueLimits, required=True)}
        return Response(self._configured(name, wanted))

    def destroy(self, request: Request, name: str) -> Response:
        """Delete a queue; the request decides about its jobs (queue configuration §5.3)."""
        body = self.read(DeleteQueue)
        strategy = DeleteQueue.strategy.read(body)
        target = ""
        if strategy == "move":
            target = DeleteQueue.target_queue.read(body) or ""
            if not target:
                raise missing("target_queue")
            if target == name:
                raise refuse("target_queue", "A queue cannot be moved to itself.")
        touched, gone = engine.queues.delete(checked(name), strategy=strategy, target=target)
        self._trace("delete_queue", name, count=touched, strategy=strategy, target=target)
        state = "deleted" if gone else "draining"
        document = {"queue": name, "strategy": strategy, "jobs_affected": touched, "state": state}
        if target:
            document["target_queue"] = target
        return Response(document, status=200 if gone else 202)

    def purge(self, request: Request, name: str) -> Response:
        """Delete its jobs in the given states; a limited number per request (admin API §6.5)."""
        body = self.read(Purge)
        if not Purge.confirm.read(body):
            raise refuse("confirm", "The 'confirm' field must be true: purging is final.")
        names = Purge.states.read(body)
        if not names:
            raise missing("states")
        for state in names:
            if state not in State.values or state == State.ACTIVE:
                raise refuse("states", f"Jobs in state {state!r} cannot be purged.")
        found(name)
        jobs = scope_to(Job.objects.filter(queue=name), self.caller.project)
        before = Purge.older_than.read(body, clock.now())
        if before is not None:
            jobs = jobs.filter(finished_at__lt=before)
        states = [State(state) for state in names]
        reason = Purge.reason.read(body)
        purged = len(engine.bulk.purge(jobs, states))
        _, more = engine.bulk.preview(engine.bulk.purgeable(jobs, states), most=0)
        self._trace("purge_queue", name, count=purged, reason=reason, states=names)
        document = {"purged_count": purged, "states": names, "has_more": more}
        return Response(purge_reply(request.method, document))


def checked(name: str) -> str:
    """
    Raises:
        InvalidRequest: this is not a valid queue name.
    """
    return NewQueue.name.check(name, "queue")


def found(name: str) -> Queue:
    """
    Raises:
        NotFound: there is no such queue.
    """
    queue = Queue.objects.filter(pk=name).first()
    if queue is None:
        raise NotFound(f"Queue '{name}' not found.", resource_type="queue", resource_id=name)
    return queue


def statistics(queue: Queue, project: str = "") -> dict[str, Any]:
    """The number of its jobs by state; a bound limits `depth` (OJS backpressure §3).

    Args:
        project: counts only its jobs; empty means all jobs.
    """
    jobs = scope_to(Job.objects.filter(queue=queue.pk).order_by(), project)
    found = dict.fromkeys(State.values, 0)
    for index in dashboard.INDEXED:
        rows = jobs.filter(**index).values_list("state").annotate(jobs=Count("pk"))
        found |= dict(rows)
    found[State.PENDING] = jobs.filter(state=State.PENDING).count()
    finished = jobs.filter(finished_at__isnull=False)
    found |= dict(finished.values_list("state").annotate(jobs=Count("pk")))
    document: dict[str, Any] = {str(state): count for state, count in found.items()}
    waiting = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.PENDING)
    document["depth"] = sum(found[state] for state in waiting)
    if queue.max_depth is not None:
        document["max_depth"] = queue.max_depth
    return document

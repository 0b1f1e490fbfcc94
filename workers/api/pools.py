"""Worker pools for operators, and what they were given (OJS fair scheduling §10)."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from jobs import engine
from jobs.api.admin.base import AdminViewSet, reason_of
from jobs.api.admin.paging import page
from jobs.conf import ojs_settings
from jobs.errors import InvalidRequest
from jobs.http.parameters import AdminPage
from jobs.http.request import Request
from jobs.models import Pool, Queue
from jobs.record import dashboard, scheduling, tenants
from jobs.record.scheduling import Dispatches
from jobs.spec.durations import format_duration
from jobs.spec.lifecycle import State
from jobs.spec.operator_requests import Reason
from jobs.spec.pools import ChangePool, read_pool
from jobs.spec.timestamps import format_timestamp
from jobs.store.database import atomic

from ..chores import tallies
from ..fleet import pools

MOST = 1_000
"""Most queues, pools and tenants in the statistics."""
LONGEST = 255


class PoolViewSet(AdminViewSet):
    """`/ojs/v1/admin/pools`"""

    resource = "pools"
    queries = {"list": AdminPage}

    def list(self, request: Request) -> Response:
        """Every pool, with its workers and their jobs."""
        found, pagination = page(request.query_params, Pool.objects.order_by("name"))
        does = pools.activity(found)
        items = [document(pool, does[pool.pk]) for pool in found]
        # `pools`: as the admin UI reads them.
        return Response({"items": items, "pools": items, "pagination": pagination})

    def retrieve(self, request: Request, name: str) -> Response:
        """One pool."""
        return Response(_reply(engine.pools.find(name)))

    def configure(self, request: Request, name: str) -> Response:
        """Make or replace a pool."""
        body = self.read(required=True)
        if len(name) > LONGEST:
            raise InvalidRequest(f"A pool's name has at most {LONGEST} characters.", field="name")
        columns, reason = read_pool(body, name), ChangePool.reason.read(body)
        with atomic():
            pool, created = engine.pools.configure(name, columns)
            self.audit("manage_pool", [pool], selection={"pool": columns}, reason=reason)
        return Response(_reply(pool), status=201 if created else 200)

    def destroy(self, request: Request, name: str) -> Response:
        """Delete a pool; fetches that name it are refused from then on."""
        reason = reason_of(self.read(Reason))
        with atomic():
            engine.pools.delete(name)
            chosen = {"ids": [name], "deleted": True}
            self.audit("manage_pool", kind="pool", count=1, selection=chosen, reason=reason)
        return Response({"name": name, "deleted": True})


class SchedulingViewSet(AdminViewSet):
    """`/ojs/v1/admin/scheduling/stats`"""

    resource = "scheduling"

    def retrieve(self, request: Request) -> Response:
        """What queues, pools and tenants were given in the last minute (§10.2)."""
        is_counted = ojs_settings.METRICS and ojs_settings.RECORD_EVENTS
        if is_counted:
            # Events since the last sweep.
            tallies.count(batches=1)
        lately = scheduling.lately()
        return Response(
            {
                "queues": _of_queues(lately, is_counted),
                "pools": _of_pools(lately, is_counted),
                "tenants": _of_tenants(),
                "window": format_duration(scheduling.WINDOW),
            }
        )


def _dispatched(lately: scheduling.Lately, found: Dispatches | None, counted: bool) -> Any:
    found = found or Dispatches()
    return {
        "dispatch_count_1m": found.jobs if counted else None,
        "dispatch_ratio_1m": lately.ratio(found) if counted else None,
        "avg_wait_ms": found.wait_ms if counted else None,
    }


def _of_queues(lately: scheduling.Lately, counted: bool) -> list[dict[str, Any]]:
    names = list(Queue.objects.order_by("pk").values_list("pk", flat=True)[:MOST])
    depths = dashboard.depths(names)
    return [
        {
            "name": name,
            **_dispatched(lately, lately.queues.get(name), counted),
            "active_jobs": depths[name].of(State.ACTIVE),
            "waiting_jobs": depths[name].of(State.AVAILABLE),
        }
        for name in names
    ]


def _of_pools(lately: scheduling.Lately, counted: bool) -> list[dict[str, Any]]:
    rows = list(Pool.objects.order_by("pk")[:MOST])
    does = pools.activity(rows)
    depths = dashboard.depths({name for row in rows for name in row.queues})
    return [
        {
            "name": row.pk,
            **_dispatched(lately, lately.pools.get(row.pk), counted),
            "active_workers": does[row.pk].workers,
            "active_jobs": does[row.pk].jobs,
            "waiting_jobs": sum(depths[name].of(State.AVAILABLE) for name in row.queues),
            "concurrency": row.concurrency,
        }
        for row in rows
    ]


def _of_tenants() -> list[dict[str, Any]]:
    """Their share is that of the jobs that completed lately: the events do not have tenants."""
    jobs, shares = tenants.by_state(), tenants.shares()
    return [
        {
            "tenant_id": name,
            "active_jobs": jobs.get(name, {}).get(State.ACTIVE, 0),
            "waiting_jobs": jobs.get(name, {}).get(State.AVAILABLE, 0),
            "completed_ratio": shares.get(name, 0.0),
        }
        for name in sorted({*jobs, *shares})[:MOST]
    ]


def document(pool: Pool, does: pools.Activity) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": pool.name,
        "queues": pool.queues,
        "strategy": pool.strategy,
        "concurrency": pool.concurrency,
        "isolated": pool.is_isolated,
        "active_workers": does.workers,
        "active_jobs": does.jobs,
        "updated_at": format_timestamp(pool.updated_at),
    }
    if pool.weights:
        found["weights"] = pool.weights
    if pool.starvation_prevention:
        found["starvation_prevention"] = pool.starvation_prevention
    return found


def _reply(pool: Pool) -> dict[str, Any]:
    """As the document has it, and below `pool`, as the public cases have it."""
    found = document(pool, pools.activity([pool])[pool.pk])
    return found | {"pool": found}

"""Worker pools for operators (OJS fair scheduling §10.1)."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from jobs import engine
from jobs.api.admin.base import AdminViewSet
from jobs.api.admin.paging import page
from jobs.errors import InvalidRequest
from jobs.http.parameters import AdminPage
from jobs.http.request import Request
from jobs.models import Job, Pool
from jobs.spec.pools import LABEL, ChangePool, read_pool
from jobs.spec.timestamps import format_timestamp
from jobs.store.database import atomic
from jobs.store.expressions import JSONArrayHas

from ..models import Worker

LONGEST = 255


class PoolViewSet(AdminViewSet):
    """`/ojs/v1/admin/pools`"""

    resource = "pools"
    queries = {"list": AdminPage}

    def list(self, request: Request) -> Response:
        """Every pool, with its workers and their jobs."""
        found, pagination = page(request.query_params, Pool.objects.order_by("name"))
        return Response({"items": [document(pool) for pool in found], "pagination": pagination})

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
        reason = ChangePool.reason.read(self.read())
        with atomic():
            engine.pools.delete(name)
            chosen = {"ids": [name], "deleted": True}
            self.audit("manage_pool", kind="pool", count=1, selection=chosen, reason=reason)
        return Response({"name": name, "deleted": True})


def document(pool: Pool) -> dict[str, Any]:
    members = Worker.objects.live().filter(JSONArrayHas("labels", LABEL + pool.name))
    names = list(members.values_list("pk", flat=True))
    held = Job.objects.active().filter(reserved_by__in=names, reserved_for__isnull=False)
    found: dict[str, Any] = {
        "name": pool.name,
        "queues": pool.queues,
        "strategy": pool.strategy,
        "active_workers": len(names),
        "active_jobs": held.count(),
        "updated_at": format_timestamp(pool.updated_at),
    }
    if pool.weights:
        found["weights"] = pool.weights
    return found


def _reply(pool: Pool) -> dict[str, Any]:
    """As the document has it, and below `pool`, as the public cases have it."""
    found = document(pool)
    return found | {"pool": found}

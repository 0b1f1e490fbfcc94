"""Tenants for operators: limits, shares and figures (OJS multi-tenancy §10)."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from ... import engine
from ...access.projects import scope_to
from ...http.parameters import AdminPage, JobSearch
from ...http.request import Request
from ...models import Job, Tenant
from ...record import tenants as figures
from ...spec import tenants
from ...spec.lifecycle import State
from ...spec.operator_requests import Reason
from ...spec.timestamps import format_timestamp
from ...store.database import atomic
from .base import AdminViewSet, reason_of
from .documents import COLUMNS, line
from .paging import page, page_of_list
from .search import filtered, ordered

WAITING = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.PENDING)


class TenantViewSet(AdminViewSet):
    """`/ojs/v1/admin/tenants`"""

    resource = "tenants"
    queries = {"list": AdminPage, "jobs": JobSearch}

    def list(self, request: Request) -> Response:
        """Every tenant that is configured, has keys or unfinished jobs, and these by state."""
        found, pagination = page_of_list(request.query_params, figures.names())
        rows, counts = Tenant.objects.in_bulk(found), figures.by_state()
        items = [
            document(name, rows.get(name)) | {"jobs": counts.get(name, figures.NO_JOBS)}
            for name in found
        ]
        return Response({"items": items, "tenants": items, "pagination": pagination})

    def retrieve(self, request: Request, tenant_id: str) -> Response:
        """A tenant: its limits and its share."""
        return Response(_reply(tenant_id, self._found(tenant_id)))

    def configure(self, request: Request, tenant_id: str) -> Response:
        """Make a tenant, or change the members that are given; null removes a limit."""
        tenants.check_name(tenant_id)
        body = self.read()
        return self._configured(
            tenant_id,
            tenants.read_tenant(body, tenant_id),
            tenants.ChangeTenant.reason.read(body),
        )

    def limit(self, request: Request, tenant_id: str) -> Response:
        """Change the limits that are given; null removes one (§9.3)."""
        tenants.check_name(tenant_id)
        body = dict(self.read(required=True))
        reason = tenants.ChangeTenantLimits.reason.read(body)
        body.pop("reason", None)
        return self._configured(tenant_id, tenants.read_limits(body), reason)

    def _configured(self, name: str, changes: dict[str, Any], reason: str) -> Response:
        with atomic():
            row, created = engine.tenants.configure(name, changes, reason=reason)
            self.audit("manage_tenant", [row], selection={"changes": changes}, reason=reason)
        return Response(_reply(name, row), status=201 if created else 200)

    def destroy(self, request: Request, tenant_id: str) -> Response:
        """Delete its limits and its share; its jobs stay."""
        reason = reason_of(self.read(Reason))
        with atomic():
            engine.tenants.delete(tenant_id)
            self.audit(
                "manage_tenant",
                kind="tenant",
                count=1,
                selection={"ids": [tenant_id], "deleted": True},
                reason=reason,
            )
        return Response({"tenant_id": tenant_id, "deleted": True})

    def stats(self, request: Request, tenant_id: str) -> Response:
        """What a tenant has and does (§10.2)."""
        return Response(statistics(tenant_id, self._found(tenant_id)))

    def jobs(self, request: Request, tenant_id: str) -> Response:
        """The jobs of a tenant (§10.3)."""
        self._found(tenant_id)
        parameters = request.query_params
        jobs = scope_to(Job.objects.only(*COLUMNS), tenant_id)
        rows, by_id = ordered(filtered(jobs, parameters, ""), parameters)
        found, pagination = page(parameters, rows, by_id=by_id)
        return Response({"items": [line(job) for job in found], "pagination": pagination})

    def _found(self, name: str) -> Tenant | None:
        """
        Raises:
            NotFound: nothing is known of such a tenant.
        """
        row = Tenant.objects.filter(pk=name).first()
        if row is None and not scope_to(Job.objects.all(), name).exists():
            raise engine.tenants.not_found(name)
        return row


def document(name: str, row: Tenant | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "tenant_id": name,
        "limits": row.limits if row else {},
        "fairness_weight": row.fairness_weight if row else 1.0,
        "priority_boost": row.priority_boost if row else 0,
        "quota": "soft" if row and row.is_soft else "hard",
    }
    if row is not None:
        found["created_at"] = format_timestamp(row.created_at)
        found["updated_at"] = format_timestamp(row.updated_at)
    return found


def _reply(name: str, row: Tenant | None) -> dict[str, Any]:
    found = document(name, row)
    return found | {"tenant": found}


def statistics(name: str, row: Tenant | None) -> dict[str, Any]:
    """OJS multi-tenancy §10.2."""
    found = figures.figures(name)
    limits = row.limits if row else {}
    current = {
        "max_concurrency": found.jobs[State.ACTIVE],
        "max_queue_depth": sum(found.jobs[state] for state in WAITING),
        "max_scheduled": found.jobs[State.SCHEDULED],
    }
    return {
        "tenant_id": name,
        "jobs": {
            "available": found.jobs[State.AVAILABLE],
            "active": found.jobs[State.ACTIVE],
            "scheduled": found.jobs[State.SCHEDULED],
            "retryable": found.jobs[State.RETRYABLE],
            "pending": found.jobs[State.PENDING],
            "completed_24h": found.completed,
            "failed_24h": found.failed,
        },
        "throughput": {
            "processed_per_minute": found.processed_per_minute,
            "enqueued_per_minute": found.enqueued_per_minute,
        },
        "limits": {
            limit: {"limit": limits[limit], "current": number}
            for limit, number in current.items()
            if limit in limits
        },
        "fairness": {
            "weight": row.fairness_weight if row else 1.0,
            "effective_share": figures.effective_share(name),
            "actual_share": found.share or 0.0,
        },
    }

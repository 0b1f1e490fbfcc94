"""Job specs over HTTP: registered checksums, so that only workers with a matching one get jobs.

An extension: the OJS documents have no such endpoint. See `docs/protocols/rota.md`.
"""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from .. import engine
from ..access.audit import of_caller, record_action
from ..errors import NotFound
from ..http.base import OJSViewSet
from ..http.paging import page
from ..http.parameters import Page
from ..http.request import Request
from ..models import JobSpec
from ..spec.operator_requests import RegisterSpecs
from ..spec.timestamps import format_timestamp
from ..store.database import atomic


def spec_document(spec: JobSpec) -> dict[str, Any]:
    return {
        "type": spec.pk,
        "checksum": spec.checksum,
        "registered_at": format_timestamp(spec.registered_at),
    }


class SpecViewSet(OJSViewSet):
    """`/ojs/v1/job-specs`"""

    resource = "job-specs"
    queries = {"list": Page}

    def list(self, request: Request) -> Response:
        """Registered specs, by type."""
        found, pagination = page(
            request.query_params,
            JobSpec.objects.order_by("type"),
            keys=lambda spec: [spec.pk],
            after=lambda rows, keys: rows.filter(pk__gt=keys[0]),
            parts=1,
        )
        return Response(
            {"specs": [spec_document(spec) for spec in found], "pagination": pagination}
        )

    def create(self, request: Request) -> Response:
        """Register the checksums in `specs` (type → checksum): all of them or none."""
        checksums = RegisterSpecs.specs.read(self.read(RegisterSpecs, required=True))
        with atomic():
            changed = engine.register_specs(checksums)
            if changed:
                self._record(request, changed, {"registered": checksums})
        return Response({"registered": changed, "unchanged": len(checksums) - changed})

    def destroy(self, request: Request, name: str) -> Response:
        """Delete one."""
        with atomic():
            if not engine.forget_specs([name]):
                raise NotFound(
                    f"Job spec '{name}' not found.", resource_type="job_spec", resource_id=name
                )
            self._record(request, 1, {"withdrawn": [name]})
        return Response({"type": name, "deleted": True})

    def _record(self, request: Request, count: int, what: dict[str, Any]) -> None:
        actor = of_caller(self.caller, request)
        record_action(actor, "register_spec", kind="jobspec", count=count, selection=what)

"""Schema registry over HTTP (OJS schema registry §4, §10; OJS HTTP §15)."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from ..access.audit import of_caller, record_action
from ..engine import schemas
from ..http.base import OJSViewSet
from ..http.dialects import schema_version
from ..http.paging import page
from ..http.parameters import Page
from ..http.request import Request
from ..models import JobSchema
from ..spec.fields import missing, refuse
from ..spec.operator_requests import NewSchema, Reason
from ..spec.timestamps import format_timestamp
from ..store.database import atomic
from .admin.schemas import compatible_versions


class SchemaViewSet(OJSViewSet):
    """`/ojs/v1/schemas`"""

    resource = "schemas"
    queries = {"list": Page}

    def list(self, request: Request) -> Response:
        """All versions of all types, in the order of their registration (OJS HTTP §15.1)."""
        rows, pagination = page(
            request.query_params,
            JobSchema.objects.order_by("pk").defer("schema", "compatible_with"),
            keys=lambda row: [str(row.pk)],
            after=lambda found, keys: found.filter(pk__gt=_number(keys[0])),
            parts=1,
        )
        return Response({"schemas": [self._line(row) for row in rows], "pagination": pagination})

    def register(self, request: Request) -> Response:
        """Register the schema of a version that has none (OJS schema registry §4.1)."""
        body = self.read(NewSchema, required=True)
        named, same = NewSchema.job_type.read(body), NewSchema.type.read(body)
        kind = named or same
        if kind is None:
            raise missing("job_type")
        if kind != (same or kind):
            raise refuse("type", "The 'type' field must be the same as 'job_type'.")
        with atomic():
            row, _ = schemas.register(
                kind,
                NewSchema.version.read(body),
                NewSchema.schema.read(body),
                uri=NewSchema.uri.read(body) or "",
                compatible_with=compatible_versions(body),
            )
            self._record({"registered": str(row)}, body)
        return Response({"schema": self._document(row)}, status=201)

    def retrieve(self, request: Request, name: str) -> Response:
        """The latest schema of a type (§4.2), or the one with a URI (OJS HTTP §15.3)."""
        found = schemas.find_by_uri(name) if is_uri(name) else schemas.latest(name)
        return Response({"schema": self._document(found)})

    def versions(self, request: Request, type: str) -> Response:
        """The versions of a type, newest first (§4.3)."""
        found = schemas.versions(type)
        lines = [self._line(row) | {"is_latest": row is found[0]} for row in found]
        return Response({"versions": lines})

    def version(self, request: Request, type: str, version: str) -> Response:
        """The schema of one version."""
        return Response({"schema": self._document(self._found(type, version))})

    def destroy(self, request: Request, name: str) -> Response:
        """Delete the schema with a URI (OJS HTTP §15.4)."""
        return self._deleted(schemas.find_by_uri(name))

    def destroy_version(self, request: Request, type: str, version: str) -> Response:
        """Delete the schema of a version (§4.4)."""
        return self._deleted(self._found(type, version))

    @staticmethod
    def _found(type: str, version: str) -> JobSchema:
        # A URI may contain a slash.
        if is_uri(type):
            return schemas.find_by_uri(f"{type}/{version}")
        return schemas.find(type, version)

    def _deleted(self, found: JobSchema) -> Response:
        with atomic():
            row = schemas.delete(found.type, found.version)
            self._record({"deleted": str(row)}, self.read(Reason))
        return Response({"deleted": True} | self._line(row))

    def _line(self, row: JobSchema) -> dict[str, Any]:
        """A schema in a list, by the names of both documents."""
        return {
            "uri": row.uri,
            "job_type": row.type,
            "type": row.type,
            "version": schema_version(self.request.META, row.sent_version),
            "created_at": format_timestamp(row.created_at),
        }

    def _document(self, row: JobSchema) -> dict[str, Any]:
        about = {"schema": row.schema, "compatible_with": row.compatible_with}
        return self._line(row) | about

    def _record(self, what: dict[str, Any], body: Any) -> None:
        record_action(
            of_caller(self.caller, self.request),
            "manage_schema",
            kind="jobschema",
            count=1,
            selection=what,
            reason=Reason.reason.read(body),
        )


def is_uri(name: str) -> bool:
    """Whether this is a URI; a job type contains no colon."""
    return ":" in name


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError
    return int(text)

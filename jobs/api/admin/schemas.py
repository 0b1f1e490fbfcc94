"""A registry of job type schemas by version (OJS job versioning §6.1, §11)."""

from __future__ import annotations

from typing import Any

import orjson
from rest_framework.response import Response

from ...errors import NotFound
from ...http.request import Request
from ...models import JobSchema
from ...spec.fields import Document, missing, refuse
from ...spec.members import Text
from ...spec.operator_requests import MOST_VERSIONS, RegisterSchema
from ...spec.timestamps import format_timestamp
from ...spec.validation import TYPE_LENGTH, TYPE_PATTERN
from ...spec.versions import version_number
from ...store import clock
from ...store.database import atomic
from .base import AdminViewSet, reason_of

SCHEMA_SIZE = 64 * 1024
"""Bytes of JSON."""
TYPE = Text(pattern=TYPE_PATTERN, longest=TYPE_LENGTH, filled=True)


class SchemaViewSet(AdminViewSet):
    """`/ojs/v1/admin/schemas/{type}[/{version}]`"""

    resource = "schemas"

    def register(self, request: Request, type: str, version: str) -> Response:
        """Register the schema of a version, or replace it (§11.1)."""
        body = self.read(required=True)
        TYPE.check(type, "type")
        number = _number(version)
        now = clock.now()
        wanted = {
            "version": version,
            "schema": _schema(body),
            "compatible_with": _versions(body),
            "updated_at": now,
        }
        with atomic():
            known = JobSchema.objects.filter(type=type)
            found, created = known.update_or_create(
                type=type,
                version_number=number,
                defaults=wanted,
                create_defaults=wanted | {"created_at": now},
            )
            if created and known.count() > MOST_VERSIONS:
                raise refuse("version", f"'{type}' has {MOST_VERSIONS} versions already.")
            self._record({"registered": str(found)}, reason_of(body))
        return Response(_document(found), status=201 if created else 200)

    def list(self, request: Request, type: str) -> Response:
        """The latest schema of a type, and its versions, newest first (§11.2)."""
        found = list(JobSchema.objects.filter(type=type).defer("schema", "compatible_with"))
        if not found:
            raise _not_found(type)
        return Response(
            _document(JobSchema.objects.get(pk=found[0].pk))
            | {"versions": [_line(row) | {"is_latest": row is found[0]} for row in found]}
        )

    def retrieve(self, request: Request, type: str, version: str) -> Response:
        """The schema of a version."""
        return Response(_document(_find(type, version)))

    def destroy(self, request: Request, type: str, version: str) -> Response:
        """Delete the schema of a version."""
        with atomic():
            found = _find(type, version)
            JobSchema.objects.filter(pk=found.pk).delete()
            self._record({"deleted": str(found)}, reason_of(self.read()))
        return Response({"type": type, "version": _sent(found.version), "deleted": True})

    def _record(self, what: dict[str, Any], reason: str) -> None:
        self.audit("register_spec", kind="jobschema", count=1, selection=what, reason=reason)


def _number(version: str) -> int:
    number = version_number(version)
    if number is None:
        raise refuse("version", f"{version[:64]!r} is no version such as '2.0'.")
    return number


def _schema(body: Document) -> dict[str, Any]:
    """`schema`, or `args_schema`, its name in §6.1."""
    sent = RegisterSchema.schema
    if body.get(sent.name) is None:
        sent = RegisterSchema.args_schema
    found = sent.read(body)
    if not found:
        raise missing("schema")
    if len(orjson.dumps(found)) > SCHEMA_SIZE:
        raise refuse(
            sent.name, f"A schema may have at most {SCHEMA_SIZE} bytes.", limit=SCHEMA_SIZE
        )
    return found


def _versions(body: Document) -> list[str]:
    found = RegisterSchema.compatible_with.read(body) or []
    for index, version in enumerate(found):
        if version_number(version) is None:
            raise refuse(f"compatible_with[{index}]", f"{version!r} is no version such as '2.0'.")
    return found


def _find(type: str, version: str) -> JobSchema:
    found = JobSchema.objects.filter(type=type, version_number=_number(version)).first()
    if found is None:
        raise _not_found(f"{type}@{version}")
    return found


def _not_found(name: str) -> NotFound:
    return NotFound(
        f"No schema of '{name}' is registered.", resource_type="schema", resource_id=name
    )


def _sent(version: str) -> str | int:
    """A major version without a minor one is a number, as on a job."""
    return int(version) if version.isdigit() else version


def _line(row: JobSchema) -> dict[str, Any]:
    return {
        "type": row.type,
        "version": _sent(row.version),
        "created_at": format_timestamp(row.created_at),
        "updated_at": format_timestamp(row.updated_at),
    }


def _document(row: JobSchema) -> dict[str, Any]:
    document = {"schema": row.schema, "args_schema": row.schema}
    return _line(row) | document | {"compatible_with": row.compatible_with}

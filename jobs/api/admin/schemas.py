"""Schemas for operators: the paths of OJS job versioning §11, and validation modes
(OJS schema registry §7)."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from ...engine import schemas
from ...http.dialects import schema_version
from ...http.request import Request
from ...models import JobSchema
from ...spec.fields import Document, missing, refuse
from ...spec.members import Text
from ...spec.operator_requests import Reason, RegisterSchema, SetValidation
from ...spec.timestamps import format_timestamp
from ...spec.validation import TYPE_LENGTH, TYPE_PATTERN
from ...spec.versions import version_number
from ...store.database import atomic
from .base import AdminViewSet, reason_of

TYPE = Text(pattern=TYPE_PATTERN, longest=TYPE_LENGTH, filled=True)


class SchemaViewSet(AdminViewSet):
    """`/ojs/v1/admin/schemas/{type}[/{version}]`"""

    resource = "schemas"

    def register(self, request: Request, type: str, version: str) -> Response:
        """Register the schema of a version, or replace it (§11.1)."""
        body = self.read(RegisterSchema, required=True)
        TYPE.check(type, "type")
        wanted = schemas.read_version(version)
        if RegisterSchema.type.read(body) not in (None, type):
            raise refuse("type", f"The path names the type '{type}'.")
        named = RegisterSchema.version.read(body)
        if named is not None and schemas.read_version(named) != wanted:
            raise refuse("version", f"The path names the version '{version}'.")
        with atomic():
            found, created = schemas.register(
                type,
                version,
                _schema(body),
                compatible_with=compatible_versions(body),
                replaces=True,
                # Public clients of this path send lists in `items`.
                as_before=True,
            )
            self._record({"registered": str(found)}, reason_of(body))
        return Response(self._document(found), status=201 if created else 200)

    def list(self, request: Request, type: str) -> Response:
        """The latest schema of a type, and its versions, newest first (§11.2)."""
        found = schemas.versions(type)
        return Response(
            self._document(JobSchema.objects.get(pk=found[0].pk))
            | {"versions": [self._line(row) | {"is_latest": row is found[0]} for row in found]}
        )

    def retrieve(self, request: Request, type: str, version: str) -> Response:
        """The schema of a version."""
        return Response(self._document(schemas.find(type, version)))

    def destroy(self, request: Request, type: str, version: str) -> Response:
        """Delete the schema of a version."""
        with atomic():
            found = schemas.delete(type, version)
            self._record({"deleted": str(found)}, reason_of(self.read(Reason)))
        shown = schema_version(self.request.META, found.sent_version)
        return Response({"type": type, "version": shown, "deleted": True})

    def validation(self, request: Request) -> Response:
        """The validation modes that are set, and the one in force for the rest."""
        return Response(_modes())

    def set_validation(self, request: Request) -> Response:
        """Set the mode of a type, a queue, a type in a queue, or, without both, of the rest."""
        body = self.read(SetValidation, required=True)
        if "mode" not in body:
            raise missing("mode")
        target = {name: getattr(SetValidation, name).read(body) for name in ("type", "queue")}
        mode = SetValidation.mode.read(body)
        with atomic():
            schemas.set_mode(mode, **target)
            self._record(target | {"mode": mode}, reason_of(body))
        return Response(_modes())

    def _line(self, row: JobSchema) -> dict[str, Any]:
        return {
            "type": row.type,
            "version": schema_version(self.request.META, row.sent_version),
            "created_at": format_timestamp(row.created_at),
            "updated_at": format_timestamp(row.updated_at),
        }

    def _document(self, row: JobSchema) -> dict[str, Any]:
        document = {"schema": row.schema, "args_schema": row.schema, "uri": row.uri}
        return self._line(row) | document | {"compatible_with": row.compatible_with}

    def _record(self, what: dict[str, Any], reason: str) -> None:
        self.audit("manage_schema", kind="jobschema", count=1, selection=what, reason=reason)


def _modes() -> dict[str, Any]:
    modes = schemas.modes()
    return {
        "default_mode": schemas.mode_of(modes, "", ""),
        "modes": [
            {"type": type, "queue": queue, "mode": mode}
            for (type, queue), mode in modes.items()
            if type or queue
        ],
    }


def _schema(body: Document) -> dict[str, Any]:
    """`schema`, or `args_schema`, its name in §6.1."""
    sent = RegisterSchema.schema
    if body.get(sent.name) is None:
        sent = RegisterSchema.args_schema
    found = sent.read(body)
    if not found:
        raise missing("schema")
    return found


def compatible_versions(body: Document) -> list[str]:
    found = RegisterSchema.compatible_with.read(body) or []
    for index, version in enumerate(found):
        if version_number(version) is None:
            raise refuse(f"compatible_with[{index}]", f"{version!r} is no version such as '2.0'.")
    return found

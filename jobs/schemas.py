"""Schemas of a site's job types (OJS schema registry).

from jobs import schemas

schemas.register("invoice.generate", "2.0.0", {"type": "object", "required": ["amount"]})
schemas.set_mode("strict", type="invoice.generate")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from .engine import schemas as registry
from .errors import SchemaExists
from .models import JobSchema
from .options import JSON
from .place import current
from .spec.jsonable import jsonable
from .spec.operator_requests import NewSchema
from .store.database import atomic

__all__ = ["RegisteredSchema", "delete", "latest", "mistakes", "register", "set_mode", "versions"]


class RegisteredSchema(NamedTuple):
    """A schema in the registry."""

    type: str
    version: str
    schema: dict[str, JSON]
    uri: str
    created_at: datetime


def register(
    type: str, version: str | int, schema: Mapping[str, object], *, uri: str = ""
) -> RegisteredSchema:
    """Register the schema of a version of a job type, in the caller's transaction.

    Registering the same schema again does nothing, so that a site may do it whenever it starts.

    Args:
        version: major, minor and patch, such as `"2.0.0"`.
        schema: JSON Schema 2020-12 of the arguments; if it describes an object, of the only one.
        uri: how jobs may name it; by default `urn:ojs:schema:TYPE:vVERSION`.

    Raises:
        InvalidSchema: it is no JSON Schema 2020-12, or asks for more than is evaluated.
        SchemaExists: the version has a different schema.
        BreakingChange: it breaks the version before it, whose major number is the same (§8.4).
        NotInstalled: the extra `schemas` is not installed.
    """
    NewSchema.type.check(type, "type")
    if uri:
        NewSchema.uri.check(uri, "uri")
    document: Any = jsonable(dict(schema), "schema")
    with current().inside():
        try:
            with atomic():
                row, _ = registry.register(type, version, document, uri=uri)
        except SchemaExists:
            number, patch = registry.read_version(version)
            same = JobSchema.objects.filter(type=type, version_number=number, patch=patch).first()
            if same is None or same.schema != document or (uri and same.uri != uri):
                raise
            row = same
        return _described(row)


def latest(type: str) -> RegisteredSchema:
    """Return the schema of the highest version.

    Raises:
        NotFound: the type has none.
    """
    with current().inside():
        return _described(registry.latest(type))


def versions(type: str) -> list[str]:
    """Return the registered versions, newest first; none for a type without a schema."""
    with current().inside():
        rows = JobSchema.objects.filter(type=type).order_by("-version_number", "-patch")
        return list(rows.values_list("version", flat=True))


def delete(type: str, version: str | int) -> None:
    """Delete the schema of a version; jobs that were enqueued with it are not affected.

    Raises:
        NotFound: the version has none.
        SchemaInUse: live workers declare that they take this version.
    """
    with current().inside():
        registry.delete(type, version)


def set_mode(mode: str | None, *, type: str = "", queue: str = "") -> None:
    """Set what happens to jobs that do not match: `strict`, `warn`, `off` (§7.2).

    The most specific mode is in force: that of a type in a queue, of the type, of the queue, the
    one without both, `OJS["SCHEMA_VALIDATION"]`.

    Args:
        mode: None: remove it.

    Raises:
        InvalidRequest: there is no such mode, or cannot be such a type or queue.
    """
    with current().inside():
        registry.set_mode(mode, type=type, queue=queue)


def mistakes(type: str, args: Sequence[object], *, version: str | int | None = None) -> list[str]:
    """Return what is wrong with arguments, each with a JSON pointer; nothing is enqueued.

    Args:
        version: None: the latest.

    Raises:
        NotFound: there is no such schema.
        NotInstalled: the extra `schemas` is not installed.
    """
    given: Any = jsonable(list(args), "args")
    with current().inside():
        _, found = registry.mistakes_in(type, given, version=version)
    return [str(mistake) for mistake in found]


def _described(row: JobSchema) -> RegisteredSchema:
    return RegisteredSchema(row.type, row.version, row.schema, row.uri, row.created_at)

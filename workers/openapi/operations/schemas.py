"""Schemas of job types by version."""

from __future__ import annotations

from jobs.errors import NotFound
from jobs.spec.operator_requests import RegisterSchema
from jobs.spec.versions import Version

from ..operation import Operation, Reply
from ..refusals import refuses
from ..schema import TIME, array, boolean, free, obj, text

BASE = "/ojs/v1/admin/schemas/{type}"
NUMBER = Version("As it was sent; a major version without a minor one is a number.").json_schema()
LINE = {"type": text(), "version": NUMBER, "created_at": TIME, "updated_at": TIME}
ABOUT = {
    "schema": free("JSON Schema of the arguments."),
    "args_schema": free("The same."),
    "compatible_with": array(text()),
}
SCHEMA = obj(" ".join([*LINE, *ABOUT]), **LINE, **ABOUT)
SENT = {
    "type": "array",
    "prefixItems": [{"type": "object", "required": ["customer_id", "amount", "currency"]}],
}
GIVEN = {
    "type": "invoice.generate",
    "version": "2.0",
    "created_at": "2026-02-12T10:30:00.000Z",
    "updated_at": "2026-02-12T10:30:00.000Z",
    "schema": SENT,
    "args_schema": SENT,
    "compatible_with": ["1.0"],
}
SHORT = {name: GIVEN[name] for name in LINE} | {"is_latest": True}
ALL = Operation(
    "Admin",
    "Show the latest schema of a job type, and its versions",
    {
        200: Reply(
            "The latest schema, and all versions, newest first.",
            obj(
                " ".join([*LINE, *ABOUT, "versions"]),
                **LINE,
                **ABOUT,
                versions=array(obj(" ".join(SHORT), **LINE, is_latest=boolean())),
            ),
            GIVEN | {"versions": [SHORT]},
        )
    },
    refusals=refuses(NotFound, "No version of this type has a schema."),
)
NONE = refuses(NotFound, "This version has no schema.")

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", BASE): ALL,
    ("GET", f"{BASE}/{{version}}"): Operation(
        "Admin",
        "Show the schema of a version",
        {200: Reply("The schema.", SCHEMA, GIVEN)},
        refusals=NONE,
    ),
    ("PUT", f"{BASE}/{{version}}"): Operation(
        "Admin",
        "Register the schema of a version, or replace it",
        {
            200: Reply("The schema was replaced.", SCHEMA, GIVEN),
            201: Reply("The schema was added.", SCHEMA, GIVEN),
        },
        "OJS job versioning §6.1. For producers and workers to read; jobs are not validated by it.",
        body=RegisterSchema,
        example={"args_schema": SENT, "compatible_with": ["1.0"]},
    ),
    ("DELETE", f"{BASE}/{{version}}"): Operation(
        "Admin",
        "Delete the schema of a version",
        {
            200: Reply(
                "The schema was deleted.",
                obj("type version deleted", type=text(), version=NUMBER, deleted=boolean()),
                {"type": "invoice.generate", "version": "2.0", "deleted": True},
            )
        },
        refusals=NONE,
    ),
}
ALIASES = {("GET", f"{BASE}/versions"): ("GET", BASE)}

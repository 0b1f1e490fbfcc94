"""Schemas of job types by version."""

from __future__ import annotations

from jobs.errors import (
    BreakingChange,
    InvalidSchema,
    NotFound,
    NotInstalled,
    SchemaExists,
    SchemaInUse,
)
from jobs.spec.operator_requests import NewSchema, RegisterSchema, SetValidation
from jobs.spec.versions import Version

from ..operation import Operation, Reply
from ..refusals import refuses
from ..schema import TIME, array, boolean, enum, free, obj, ref, text
from .admin import WHY

BASE = "/ojs/v1/admin/schemas/{type}"
NUMBER = Version(
    "As it was sent; a major version without a minor one is a number, unless the request has "
    "`OJS-Version`."
).json_schema()
LINE = {"type": text(), "version": NUMBER, "created_at": TIME, "updated_at": TIME}
ABOUT = {
    "schema": free("JSON Schema of the arguments."),
    "args_schema": free("The same."),
    "uri": text("By which jobs may name it."),
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
    "uri": "urn:ojs:schema:invoice.generate:v2.0",
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
IN_USE = refuses(SchemaInUse, "Live workers declare that they take this version.")
UNSUITABLE = (
    *refuses(InvalidSchema, "It is no JSON Schema 2020-12, or more than is evaluated."),
    *refuses(BreakingChange, "It breaks the version before, whose major number is the same."),
    *refuses(NotInstalled, "The extra `schemas` is not installed."),
)
PLAIN = "/ojs/v1/schemas"
MODES = "/ojs/v1/admin/schema-validation"
ABOUT_ENTRY = {
    "uri": text(),
    "job_type": text(),
    "type": text("The same."),
    "version": NUMBER,
    "created_at": TIME,
}
LISTED = ABOUT_ENTRY | {"is_latest": boolean()}
ENTRY = obj(" ".join(ABOUT_ENTRY), **ABOUT_ENTRY)
REGISTERED = {
    "uri": "urn:ojs:schema:invoice.generate:v2.0.0",
    "job_type": "invoice.generate",
    "type": "invoice.generate",
    "version": "2.0.0",
    "created_at": "2026-02-12T10:30:00.000Z",
}
WHOLE = Reply(
    "The schema.",
    obj(
        "schema",
        schema=obj(
            f"{' '.join(ABOUT_ENTRY)} schema compatible_with",
            **ABOUT_ENTRY,
            schema=free("JSON Schema of the arguments."),
            compatible_with=array(text()),
        ),
    ),
    {"schema": REGISTERED | {"schema": SENT, "compatible_with": []}},
)
GONE = Reply(
    "The schema was deleted.",
    obj(f"deleted {' '.join(ABOUT_ENTRY)}", deleted=boolean(), **ABOUT_ENTRY),
    {"deleted": True} | REGISTERED,
)
MODE = enum("strict", "warn", "off")
MODES_IN_FORCE = Reply(
    "The modes that are set, and the one in force for all others.",
    obj(
        "default_mode modes",
        default_mode=MODE,
        modes=array(obj("type queue mode", type=text(), queue=text(), mode=MODE)),
    ),
    {
        "default_mode": "warn",
        "modes": [{"type": "invoice.generate", "queue": "", "mode": "strict"}],
    },
)

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
        "OJS job versioning §6.1. Jobs of this version are checked by it from now on. A schema "
        "that does not name its dialect may have a list in `items`.",
        body=RegisterSchema,
        example={"args_schema": SENT, "compatible_with": ["1.0"]},
        refusals=UNSUITABLE,
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
        refusals=NONE + IN_USE,
        **WHY,
    ),
    ("GET", MODES): Operation(
        "Admin", "Show what happens to jobs that do not match", {200: MODES_IN_FORCE}
    ),
    ("PUT", MODES): Operation(
        "Admin",
        "Set what happens to jobs that do not match",
        {200: MODES_IN_FORCE},
        "OJS schema registry §7. The most specific mode is in force: that of a type in a queue, of "
        'the type, of the queue, the one without both, `OJS["SCHEMA_VALIDATION"]`.',
        body=SetValidation,
        example={"type": "invoice.generate", "mode": "strict"},
    ),
    ("GET", PLAIN): Operation(
        "Schemas",
        "List all schemas",
        {
            200: Reply(
                "Without the schemas themselves.",
                obj("schemas pagination", schemas=array(ENTRY), pagination=ref("Pagination")),
                {
                    "schemas": [REGISTERED],
                    "pagination": {"total": 1, "limit": 50, "offset": 0, "has_more": False},
                },
            )
        },
        "OJS HTTP §15.1.",
    ),
    ("POST", PLAIN): Operation(
        "Schemas",
        "Register the schema of a version",
        {201: WHOLE},
        "OJS schema registry §4.1; OJS HTTP §15.2. A minor version must not break the one before.",
        body=NewSchema,
        example={"job_type": "invoice.generate", "version": "2.0.0", "schema": SENT},
        refusals=UNSUITABLE + refuses(SchemaExists, "The version or the URI has a schema."),
    ),
    ("GET", f"{PLAIN}/{{name}}"): Operation(
        "Schemas",
        "Show the latest schema of a job type, or the one with a URI",
        {200: WHOLE},
        "OJS schema registry §4.2; OJS HTTP §15.3.",
        refusals=refuses(NotFound, "There is no such schema."),
    ),
    ("DELETE", f"{PLAIN}/{{name}}"): Operation(
        "Schemas",
        "Delete the schema with a URI",
        {200: GONE},
        "OJS HTTP §15.4. Jobs that were enqueued with it are not affected.",
        refusals=NONE + IN_USE,
        **WHY,
    ),
    ("GET", f"{PLAIN}/{{type}}/versions"): Operation(
        "Schemas",
        "List the versions of a job type",
        {
            200: Reply(
                "Newest first.",
                obj(
                    "versions",
                    versions=array(
                        obj(
                            f"{' '.join(ABOUT_ENTRY)} is_latest", **ABOUT_ENTRY, is_latest=boolean()
                        )
                    ),
                ),
                {"versions": [REGISTERED | {"is_latest": True}]},
            )
        },
        "OJS schema registry §4.3.",
        refusals=refuses(NotFound, "No version of this type has a schema."),
    ),
    ("GET", f"{PLAIN}/{{type}}/{{version}}"): Operation(
        "Schemas", "Show the schema of one version", {200: WHOLE}, refusals=NONE
    ),
    ("DELETE", f"{PLAIN}/{{type}}/{{version}}"): Operation(
        "Schemas",
        "Delete the schema of one version",
        {200: GONE},
        "OJS schema registry §4.4.",
        refusals=NONE + IN_USE,
        **WHY,
    ),
}
ALIASES = {("GET", f"{BASE}/versions"): ("GET", BASE)}

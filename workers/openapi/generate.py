"""The document, generated: drf-spectacular walks the URL patterns, the tables say the rest.

The views carry no serializers and no annotations, and nothing here runs while they answer. What
the code knows is asked from it: paths, methods, path parameters, and the scope of each action.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from drf_spectacular.generators import EndpointEnumerator, SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.settings import patched_settings
from drf_spectacular.validation import validate_schema

from jobs import __version__
from jobs.conf import protocols
from jobs.errors import (
    BodyTooLarge,
    Conflict,
    InvalidRequest,
    JobNotFound,
    NotAuthenticated,
    NotInstalled,
    OJSError,
    PermissionDenied,
    QueueFull,
    ResultPruned,
    Unsupported,
    UnsupportedCompression,
    UpgradeRequired,
    WaitTimeout,
)
from jobs.http.base import OJSViewSet
from jobs.http.dialects import MEDIA_TYPE
from jobs.http.errors import error_document
from workers.bindings.shared.switched import Switched

from .components import COMPONENTS
from .operation import Operation, Reply
from .operations import ALIASES, OF_PROTOCOLS, OPERATIONS, TAGS, queue_operations
from .schema import Schema, ref

URLS = "workers.urls"
MEDIA_TYPES = (MEDIA_TYPE, "application/json")

SETTINGS: dict[str, Any] = {
    # A site's own settings, and hooks, are about its own document.
    "OAS_VERSION": "3.1.0",
    "TITLE": "Open Job Spec",
    "DESCRIPTION": (
        "An Open Job Spec job server. Bodies are JSON objects of the media type "
        f"`{MEDIA_TYPE}`; `application/json` is taken, too. A member that is `null` counts as "
        "absent. Every answer carries `OJS-Version` and `X-Request-Id`."
    ),
    "VERSION": __version__,
    "LICENSE": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    "CONTACT": {},
    "TOS": None,
    "SERVERS": [{"url": "/", "description": "This server"}],
    "TAGS": [{"name": name, "description": text} for name, text in TAGS.items()],
    "SCHEMA_PATH_PREFIX": "/",
    "SCHEMA_PATH_PREFIX_TRIM": False,
    "SCHEMA_PATH_PREFIX_INSERT": "",
    "SCHEMA_COERCE_PATH_PK_SUFFIX": False,
    "CAMELIZE_NAMES": False,
    "SORT_OPERATIONS": True,
    "PREPROCESSING_HOOKS": [],
    "POSTPROCESSING_HOOKS": [],
    "WEBHOOKS": [],
    "EXTERNAL_DOCS": {},
    "EXTENSIONS_INFO": {},
    "EXTENSIONS_ROOT": {},
    "DISABLE_ERRORS_AND_WARNINGS": False,
}

ANY_TIME = {
    400: "The request breaks a rule; `details.field` says where.",
    401: "No API key, or one that is unknown or revoked.",
    403: "The API key may not do that.",
    422: "The spec version of `OJS-Version` is not one this server speaks.",
    503: "The database is away: try again.",
}
"""What every endpoint may answer."""
JOB_ID = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"
EXAMPLES: dict[int, OJSError] = {
    400: InvalidRequest("The 'type' field is required.", field="type"),
    401: NotAuthenticated("An API key is required."),
    403: PermissionDenied("This API key lacks the scope 'produce'.", scope="produce"),
    404: JobNotFound(JOB_ID),
    408: WaitTimeout(f"Job '{JOB_ID}' has not finished yet.", job_id=JOB_ID, state="active"),
    409: Conflict("Cannot cancel job in terminal state 'completed'.", job_id=JOB_ID),
    410: ResultPruned("Result expired at 2026-02-19T10:30:00.000Z", job_id=JOB_ID),
    413: BodyTooLarge("The request body may have at most 16777216 bytes."),
    415: UnsupportedCompression("The Content-Encoding 'br' is not supported."),
    422: Unsupported("OJS version '2.0' is not supported.", supported=["1.0"]),
    426: UpgradeRequired("This address takes WebSocket connections."),
    429: QueueFull("email", 1000, 1000, "reject", "email.send"),
    501: NotInstalled("prometheus-client is not installed.", extra="metrics"),
    503: OJSError("The database is unreachable."),
}
"""Raised as the code raises them, so that no example has a code that is never sent."""
HEADERS = {
    "OJS-Version": {"$ref": "#/components/headers/OJS-Version"},
    "X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"},
}
SECURITY = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key: `manage.py createapikey`, or the admin.",
    }
}


LINKS: dict[tuple[str, str], tuple[str, str, tuple[str, ...]]] = {
    ("/ojs/v1/jobs", "201"): ("job_id", "/job/id", ("/ojs/v1/jobs/", "/ojs/v1/admin/jobs/")),
    ("/ojs/v1/workflows", "201"): ("workflow_id", "/workflow/id", ("/ojs/v1/workflows/",)),
    ("/ojs/v1/cron", "201"): ("name", "/name", ("/ojs/v1/cron/",)),
    ("/ojs/v1/queues", "201"): ("name", "/name", ("/ojs/v1/queues/", "/ojs/v1/admin/queues/")),
    ("/ojs/v1/workers/register", "200"): (
        "worker_id",
        "/worker_id",
        ("/ojs/v1/workers/{", "/ojs/v1/admin/workers/"),
    ),
}
"""What is made by POST, and its status → the parameter, where its value stands in the answer, and
the beginnings of the paths that take it."""
DIALECTS = {table.MEDIA_TYPE: table for table in OF_PROTOCOLS if hasattr(table, "MEDIA_TYPE")}
"""Media type → the table of the protocol whose answers have it; all others are those of OJS."""


UNDESCRIBED = tuple(
    protocol.http.prefix
    for protocol in protocols()
    if protocol.http and not protocol.http.operations
)
"""Paths of worker protocols whose packages name no table: they are left out."""


class NotDescribed(LookupError):
    """An endpoint of ours is in none of the tables."""


class Endpoints(EndpointEnumerator):
    """Ours alone. The views have `schema = None`, to be no part of a host site's document."""

    def should_include_endpoint(self, path: str, callback: Any) -> bool:
        is_ours = issubclass(getattr(callback, "cls", object), OJSViewSet)
        return is_ours and not path.startswith(UNDESCRIBED)


class Described(AutoSchema):
    """An operation as the tables describe it."""

    def get_operation(
        self, path: str, path_regex: str, path_prefix: str, method: str, registry: Any
    ) -> dict[str, Any]:
        self.path, self.path_regex, self.method = path, path_regex, method.upper()
        key = (self.method, path)
        alias = ALIASES.get(key)
        operation = OPERATIONS.get(alias or key)
        if operation is None:
            raise NotDescribed(f"{method} {path}")
        view: Any = self.view
        command = view.command
        scopes = " or ".join(f"`{scope}`" for scope in command.scopes)
        document: dict[str, Any] = {
            "operationId": self.get_operation_id(),
            "summary": operation.summary,
            "tags": [operation.tag],
        }
        description = [operation.description] if operation.description else []
        if alias:
            description.append(f"The same as `{' '.join(alias)}`.")
        if scopes:
            description.append(f"Needs the scope {scopes}.")
        document["description"] = " ".join(description)
        document["parameters"] = self._path_parameters() + _parameters(operation)
        if operation.body is not None:
            name = _camel(document["operationId"]) + "Body"
            document["requestBody"] = _body(operation, view.bodies, name)
        document["security"] = [{}] if command.is_open else [{"key": []}, {}]
        document["responses"] = _responses(operation, open_to_all=command.is_open)
        return {name: value for name, value in document.items() if value != ""}

    def get_operation_id(self) -> str:
        words = self.path.removeprefix("/ojs/").removeprefix("v1/").strip("/").replace("/", "_")
        return f"{self.method.lower()}_{words.replace('{', '').replace('}', '').replace('-', '_')}"

    def _path_parameters(self) -> list[dict[str, Any]]:
        names = [part[1:-1] for part in self.path.split("/") if part.startswith("{")]
        return [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]


class Generator(SchemaGenerator):
    endpoint_inspector_cls = Endpoints

    def __init__(self, bodies: dict[str, Schema], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bodies = bodies
        """Where forms of bodies go that have no name of their own."""

    def create_view(self, callback: Any, method: str, request: Any = None) -> Any:
        view = super().create_view(callback, method, request)
        view.bodies = self.bodies
        view.versioning_class = None  # it is a header, and no part of a path
        self._set_schema_to_view(view, Described())
        view.schema.view = view
        return view


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    found = []
    for place, parameters in (("query", operation.query), ("header", operation.headers)):
        for parameter in parameters:
            entry: dict[str, Any] = {
                "name": parameter.name,
                "in": place,
                "schema": parameter.schema,
            }
            if parameter.description:
                entry["description"] = parameter.description
            if parameter.required:
                entry["required"] = True
            found.append(entry)
    return found


def _camel(words: str) -> str:
    return "".join(word.capitalize() for word in words.split("_"))


def _body(operation: Operation, bodies: dict[str, Schema], name: str) -> dict[str, Any]:
    schema: Schema = operation.body or {}
    if "$ref" not in schema:
        bodies[name], schema = schema, ref(name)
    media: dict[str, Any] = {"schema": schema}
    if operation.example is not None:
        media["example"] = operation.example
    return {
        "required": not operation.optional,
        "content": dict.fromkeys(MEDIA_TYPES, media),
    }


def _responses(operation: Operation, *, open_to_all: bool) -> dict[str, Any]:
    media_type = operation.media_type
    refusals = dict(ANY_TIME)
    if open_to_all:
        del refusals[401], refusals[403]
    if media_type != MEDIA_TYPE:
        del refusals[422]  # the version of OJS is no matter there
    if operation.body is not None:
        refusals[415] = "The body's `Content-Encoding` is neither `identity` nor `gzip`."
    refusals |= operation.refusals
    found = {
        status: _refusal(status, description, media_type)
        for status, description in refusals.items()
    }
    for status, reply in operation.replies.items():
        found[status] = _success(reply, media_type)
    return {str(status): found[status] for status in sorted(found)}


def _headers(media_type: str) -> dict[str, Any]:
    return {
        name: header
        for name, header in HEADERS.items()
        if name != "OJS-Version" or media_type == MEDIA_TYPE
    }


def _success(reply: Reply, media_type: str) -> dict[str, Any]:
    headers = _headers(media_type)
    for name in reply.headers:
        headers[name] = {"schema": {"type": "string"}}
    response: dict[str, Any] = {"description": reply.description, "headers": headers}
    if reply.schema is not None:
        media: dict[str, Any] = {"schema": reply.schema}
        if reply.example is not None:
            media["example"] = reply.example
        response["content"] = dict.fromkeys(reply.media_types or [media_type], media)
    return response


def _refusal(status: int, description: str, media_type: str) -> dict[str, Any]:
    name = f"{_refused_name(media_type)}{status}"
    return {"$ref": f"#/components/responses/{name}", "description": description}


def _refused_name(media_type: str) -> str:
    return DIALECTS[media_type].REFUSED if media_type in DIALECTS else "Refused"


def _refused(status: int, media_type: str) -> dict[str, Any]:
    problem = EXAMPLES[status]
    identifier = f"req_{JOB_ID}"
    retryable = problem.retryable or status == 503
    if media_type in DIALECTS:
        _, error = DIALECTS[media_type].refusal(problem, identifier, retryable=retryable)
    else:
        error = error_document(problem, identifier, retryable=retryable)
    return {
        "description": ANY_TIME.get(status, "Refused."),
        "headers": _headers(media_type),
        "content": {media_type: {"schema": ref("Error"), "example": {"error": error}}},
    }


def _components() -> dict[str, Any]:
    word: Schema = {"type": "string"}
    schemas = COMPONENTS | queue_operations.COMPONENTS
    for table in OF_PROTOCOLS:
        schemas |= getattr(table, "COMPONENTS", {})
    return {
        "schemas": schemas,
        "responses": {
            f"{_refused_name(media_type)}{status}": _refused(status, media_type)
            for media_type in (MEDIA_TYPE, *DIALECTS)
            for status in EXAMPLES
        },
        "securitySchemes": SECURITY,
        "headers": {
            "OJS-Version": {"description": "The spec version of the answer.", "schema": word},
            "X-Request-Id": {"description": "The client's, or one of ours.", "schema": word},
        },
    }


def _link(paths: dict[str, Any]) -> None:
    """Say with which requests one may go on: tools that play through a session ask for it."""
    links = dict(LINKS)
    for table in OF_PROTOCOLS:
        links |= getattr(table, "LINKS", {})
    for (made, status), (parameter, pointer, beginnings) in links.items():
        paths[made]["post"]["responses"][status]["links"] = {
            operation["operationId"]: {
                "operationId": operation["operationId"],
                "parameters": {parameter: f"$response.body#{pointer}"},
            }
            for path, methods in paths.items()
            if path.startswith(beginnings) and f"{{{parameter}}}" in path
            for operation in methods.values()
        }


def _drop_unused(document: dict[str, Any], kind: str) -> None:
    paths = json.dumps(document["paths"])
    components = document["components"]
    components[kind] = {
        name: component
        for name, component in components[kind].items()
        if f'"#/components/{kind}/{name}"' in paths
    }


def _patterns() -> list[Any]:
    """The URL patterns of all bindings, those that are switched off too."""
    return [
        pattern.switched_on() if isinstance(pattern, Switched) else pattern
        for pattern in import_module(URLS).urlpatterns
    ]


def document() -> dict[str, Any]:
    """Return the OpenAPI document, valid against the OpenAPI schema.

    Raises:
        NotDescribed: an endpoint is in none of the tables.
    """
    components = _components()
    generator = Generator(components["schemas"], patterns=_patterns())
    with patched_settings(SETTINGS | {"APPEND_COMPONENTS": components}):
        found: dict[str, Any] = generator.get_schema(public=True)
    _drop_unused(found, "responses")
    _link(found["paths"])
    validate_schema(found)
    return found

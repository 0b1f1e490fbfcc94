"""Generates the document from the tables of `operations` and from the code.

The views carry no annotations, and nothing here runs while they answer. Paths, methods and path
parameters come from the URL patterns, scopes from the table of commands, request members from
the declarations that read them, and codes and statuses from the errors.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.urls import URLPattern, get_resolver

from jobs import __version__, access
from jobs.access import Command
from jobs.conf import protocols
from jobs.http.base import OJSViewSet
from jobs.http.dialects import MEDIA_TYPE
from jobs.http.errors import error_document, status_of
from jobs.spec.members import Declared, Members, Schema

from . import refusals
from .components import COMPONENTS
from .operation import Operation, Reply
from .operations import ALIASES, OF_PROTOCOLS, OPERATIONS, TAGS
from .refusals import EXAMPLES, JOB_ID, Refusal
from .schema import ref

URLS = "workers.urls"
SENT_AS = "application/json"
"""What bodies are described as, for tools make a client of one type alone. Those of the binding
are taken, too."""
PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")
METHODS = ("get", "put", "post", "delete", "patch")
"""Methods in the order in which those of a path are shown."""

DESCRIPTION = (
    "An Open Job Spec job server. Bodies are JSON objects, sent as `application/json` or "
    f"`{MEDIA_TYPE}`. A member that is `null` counts as "
    "absent. Every answer carries `OJS-Version` and `X-Request-Id`. A request may name the "
    "extensions that it needs in `OJS-Requires-Extension`."
)
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
    ("/ojs/v1/webhooks/subscriptions", "201"): (
        "subscription_id",
        "/id",
        ("/ojs/v1/webhooks/subscriptions/",),
    ),
    ("/ojs/v1/queues", "201"): ("name", "/name", ("/ojs/v1/queues/", "/ojs/v1/admin/queues/")),
    ("/ojs/v1/workers/register", "200"): (
        "worker_id",
        "/worker_id",
        ("/ojs/v1/workers/{", "/ojs/v1/admin/workers/"),
    ),
}
"""What POST creates, and its status → the path parameter, the JSON pointer to its value in the
response, and the prefixes of the paths that have it."""


DIALECTS = {table.MEDIA_TYPE: table for table in OF_PROTOCOLS if hasattr(table, "MEDIA_TYPE")}
"""Media type → the table of the protocol that uses it; all other responses are those of OJS."""
UNDESCRIBED = tuple(
    protocol.http.prefix
    for protocol in protocols()
    if protocol.http and not protocol.http.operations
)
"""Paths of worker protocols that name no table: they are omitted."""


class NotDescribed(LookupError):
    """An endpoint is in none of the tables."""


class Endpoint(NamedTuple):
    """A method of a path, and its view."""

    method: str
    path: str
    command: Command
    query: type[Members] | None = None

    @property
    def operation_id(self) -> str:
        return operation_id(self.method, self.path)


def operation_id(method: str, path: str) -> str:
    words = path.removeprefix("/ojs/").removeprefix("v1/").strip("/").replace("/", "_")
    words = words.replace("{", "").replace("}", "").replace("-", "_")
    return f"{method.lower()}_{words}"


def document() -> dict[str, Any]:
    """Return the OpenAPI document.

    Raises:
        NotDescribed: an endpoint is in none of the tables.
    """
    return Generation().whole()


def endpoints() -> Iterator[Endpoint]:
    """Every method of every path, with all options switched on."""
    for pattern in get_resolver(URLS).url_patterns:
        if hasattr(pattern, "switched_on"):
            pattern = pattern.switched_on()
        view: Any = pattern.callback
        viewset = getattr(view, "cls", None)
        if not isinstance(pattern, URLPattern) or viewset is None:
            continue
        if not issubclass(viewset, OJSViewSet):
            continue
        path = PARAMETER.sub(r"{\1}", f"/{pattern.pattern}")
        if path.startswith(UNDESCRIBED):
            continue
        for method, action in view.actions.items():
            command = access.find(viewset.binding, f"{viewset.resource}.{action}")
            if method in METHODS and command is not None:
                yield Endpoint(method.upper(), path, command, viewset.queries.get(action))


def refusals_of(operation: Operation, *, is_open: bool) -> list[Refusal]:
    """Everything that an endpoint may refuse."""
    found = [*refusals.ALWAYS]
    if not is_open:
        found += refusals.OF_ITS_KEY
    if operation.media_type == MEDIA_TYPE:
        found += refusals.OF_ITS_VERSION
    if operation.body is not None:
        found += refusals.OF_ITS_BODY
    found += operation.refusals
    if operation.asks_database:
        found += refusals.OF_THE_DATABASE
    return found


def answered(refusal: Refusal, media_type: str = MEDIA_TYPE) -> tuple[int, dict[str, Any]]:
    """The status of a refusal, and its example."""
    problem = EXAMPLES[refusal.kind]
    identifier = f"req_{JOB_ID}"
    dialect = DIALECTS.get(media_type)
    if dialect is not None:
        answer: tuple[int, dict[str, Any]] = dialect.refusal(
            problem, identifier, retryable=problem.retryable
        )
        return answer
    document = error_document(problem, identifier, retryable=problem.retryable)
    return status_of(problem), document


class Generation:
    """The state of generating one document."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = dict(COMPONENTS)
        for table in OF_PROTOCOLS:
            self.schemas |= getattr(table, "COMPONENTS", {})
        self.responses: dict[str, Any] = {}

    def whole(self) -> dict[str, Any]:
        paths: dict[str, dict[str, Any]] = defaultdict(dict)
        for endpoint in sorted(
            endpoints(), key=lambda one: (one.path, METHODS.index(one.method.lower()))
        ):
            paths[endpoint.path][endpoint.method.lower()] = self._operation(endpoint)
        _link(paths)
        word: Schema = {"type": "string"}
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "Open Job Spec",
                "version": __version__,
                "description": DESCRIPTION,
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": "/", "description": "This server"}],
            "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
            "paths": dict(paths),
            "components": {
                "schemas": dict(sorted(self.schemas.items())),
                "responses": dict(sorted(self.responses.items())),
                "securitySchemes": SECURITY,
                "headers": {
                    "OJS-Version": {
                        "description": "The spec version of the response.",
                        "schema": word,
                    },
                    "X-Request-Id": {
                        "description": "The client's, or one generated by the server.",
                        "schema": word,
                    },
                },
            },
        }

    def _operation(self, endpoint: Endpoint) -> dict[str, Any]:
        key = (endpoint.method, endpoint.path)
        alias = ALIASES.get(key)
        operation = OPERATIONS.get(alias or key)
        if operation is None:
            raise NotDescribed(" ".join(key))
        is_open = endpoint.command.is_open
        document: dict[str, Any] = {
            "operationId": endpoint.operation_id,
            "summary": operation.summary,
            "tags": [operation.tag],
        }
        description = [operation.description] if operation.description else []
        if alias:
            description.append(f"The same as `{' '.join(alias)}`.")
        scopes = " or ".join(f"`{scope}`" for scope in endpoint.command.scopes)
        if scopes:
            description.append(f"Needs the scope {scopes}.")
        if description:
            document["description"] = " ".join(description)
        document["parameters"] = _path_parameters(endpoint.path) + _parameters(
            endpoint.query, operation
        )
        # An endpoint with two addresses takes and returns the same: clients have one class for it.
        name = _camel(operation_id(*(alias or key)))
        if operation.body is not None:
            document["requestBody"] = self._body(operation, f"{name}Body")
        document["security"] = [{}] if is_open else [{"key": []}, {}]
        document["responses"] = self._responses(operation, f"{name}Reply", is_open=is_open)
        return document

    def _named(self, schema: Schema, name: str) -> Schema:
        """The schema with each object in it as a component, of this name if it is not taken."""
        if "anyOf" in schema:
            return schema | {"anyOf": [self._named(part, name) for part in schema["anyOf"]]}
        if not {"properties", "allOf"} & schema.keys():
            return schema
        number = 1
        while self.schemas.setdefault(name, schema) != schema:
            number += 1
            name = f"{name.rstrip('0123456789')}{number}"
        return ref(name)

    def _body(self, operation: Operation, name: str) -> dict[str, Any]:
        body = operation.body or {}
        schema = body if isinstance(body, dict) else body.reference()
        if "$ref" not in schema:
            self.schemas[name], schema = schema, ref(name)
        media: dict[str, Any] = {"schema": schema}
        if operation.example is not None:
            media["example"] = operation.example
        return {"required": not operation.optional, "content": {SENT_AS: media}}

    def _responses(self, operation: Operation, name: str, *, is_open: bool) -> dict[str, Any]:
        by_status: dict[int, list[Refusal]] = defaultdict(list)
        for refusal in refusals_of(operation, is_open=is_open):
            by_status[answered(refusal, operation.media_type)[0]].append(refusal)
        found = {
            status: self._refusal(status, together, operation.media_type)
            for status, together in by_status.items()
        }
        for status, reply in operation.replies.items():
            schema = reply.schema and self._named(reply.schema, name)
            found[status] = _success(reply, schema, operation.media_type)
        return {str(status): found[status] for status in sorted(found)}

    def _refusal(self, status: int, together: list[Refusal], media_type: str) -> dict[str, Any]:
        """A response that several endpoints share, with its meaning for one of them."""
        examples: dict[str, Any] = {}
        for refusal in together:
            _, error = answered(refusal, media_type)
            examples.setdefault(error["code"], {"value": {"error": error}})
        word = DIALECTS[media_type].REFUSED if media_type in DIALECTS else "Refused"
        name = "_".join([f"{word}{status}", *examples])
        self.responses.setdefault(name, _refused(examples, media_type))
        descriptions = dict.fromkeys(refusal.description for refusal in together)
        reference = f"#/components/responses/{name}"
        return {"$ref": reference, "description": " ".join(descriptions)}


def _refused(examples: dict[str, Any], media_type: str) -> dict[str, Any]:
    # The codes stand beside the reference: who validates sees them, and who makes a client of
    # this has one class for every refusal.
    codes = {"properties": {"code": {"enum": [*examples]}}}
    schema = {**ref("ErrorReply"), "properties": {"error": codes}}
    return {
        "description": "Refused.",
        "headers": _headers(media_type),
        "content": {media_type: {"schema": schema, "examples": examples}},
    }


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in names
    ]


def _parameters(query: type[Members] | None, operation: Operation) -> list[dict[str, Any]]:
    named = query.described() if query else ()
    return [
        _parameter(place, member)
        for place, members in (("query", named), ("header", operation.headers))
        for member in members
    ]


def _parameter(place: str, member: Declared) -> dict[str, Any]:
    schema = member.json_schema()
    entry: dict[str, Any] = {"name": member.name, "in": place, "schema": schema}
    if "description" in schema:
        entry["description"] = schema.pop("description")
    if member.is_required:
        entry["required"] = True
    return entry


def _camel(words: str) -> str:
    return "".join(word.capitalize() for word in words.split("_"))


def _headers(media_type: str) -> dict[str, Any]:
    return {
        name: header
        for name, header in HEADERS.items()
        if name != "OJS-Version" or media_type == MEDIA_TYPE
    }


def _success(reply: Reply, schema: Schema | None, media_type: str) -> dict[str, Any]:
    headers = _headers(media_type)
    for name in reply.headers:
        headers[name] = {"schema": {"type": "string"}}
    response: dict[str, Any] = {"description": reply.description, "headers": headers}
    if schema is not None:
        media: dict[str, Any] = {"schema": schema}
        if reply.example is not None:
            media["example"] = reply.example
        response["content"] = dict.fromkeys(reply.media_types or [media_type], media)
    return response


def _link(paths: dict[str, dict[str, Any]]) -> None:
    """Add links to the requests that may follow, for tools that play through a session."""
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


def written(document: dict[str, Any]) -> str:
    """The document, formatted to be read and compared."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"

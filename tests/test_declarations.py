"""Request members are declared once: their description matches what is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
from django.db import transaction

from jobs import access
from jobs.errors import OJSError
from jobs.http.parameters import OneOf, WholeNumber, Word
from jobs.spec.members import (
    Array,
    Choice,
    Declared,
    Duration,
    Integer,
    Listed,
    Member,
    Members,
    Moment,
    Number,
    Object,
    Text,
)
from jobs.spec.operator_requests import MomentText, StateWords
from jobs.spec.queue_config import Backpressure, RateLimit, Retention, Retry, TenantFairness
from jobs.spec.retry import Interval, InvalidRetryPolicy
from jobs.spec.unique_policy import Names, PolicyLength, Within
from jobs.spec.versions import Version
from jobs.spec.worker_ids import WorkerId
from tests.access.kinds import Kind
from tests.access.scenes import scene
from tests.database import alias
from tests.endpoints import OPTIONS, Stage, doors_by_path
from workers.api.requests import ShownStates
from workers.bindings.rota.messages import HeartbeatMembers
from workers.openapi import operations
from workers.openapi.components import COMPONENTS
from workers.openapi.document import current
from workers.openapi.generate import Endpoint, endpoints

for name in ("openapi.operations", "bindings.rota.messages", "bindings.agq.documents"):
    import_module(f"workers.{name}")

NOW = datetime(2026, 2, 12, 10, 30, tzinfo=UTC)
VALUES = [
    *(True, False, 0, 1, -1, 0.5, 1.5, 2**31, 2**53 - 1, 2**53, "", "a", "a.b", "A B", "email"),
    *("x" * 255, "x" * 256, "x" * 70_000, "PT5M", "P1D", "+PT5S", "2026-12-24T18:00:00Z", "2.0"),
    *("1.0", "019539a4-b68c-7def-8000-1a2b3c4d5e6f", [], ["a"], ["a", "a"], [1], [None], [""]),
    *(["x" * 256], ["available"], {}, {"a": 1}, [{}], [{"name": "email"}]),
]

NARROWER = (
    *(Duration, Interval, PolicyLength, Within, Moment, MomentText, Version),
    *(Names, ShownStates, StateWords, WorkerId),
)
"""Their description covers a part of what they read, such as the simplest ISO 8601 forms, or what
remains when all is read."""
OF_PARTS = (Backpressure, RateLimit, Retention, Retry, TenantFairness)
"""Their parts are read with them, or separately by the code that reads the whole."""


def forms(base: type[Members] = Members) -> Iterator[type[Members]]:
    for form in base.__subclasses__():
        yield form
        yield from forms(form)


def members() -> Iterator[Any]:
    for form in sorted(set(forms()), key=lambda form: (form.__module__, form.__name__)):
        for member in form.members.values():
            # In a query, everything is text.
            if isinstance(member, Word | OneOf | WholeNumber):
                continue
            yield pytest.param(member, id=f"{form.__module__}.{form.__name__}.{member.name}")


def reads_by_parts(member: Declared) -> bool:
    return (
        isinstance(member, OF_PARTS)
        or (isinstance(member, Object) and member.of is not None)
        or (isinstance(member, Array) and bool(member.of))
    )


def is_read(member: Declared, value: Any) -> bool:
    try:
        if isinstance(member, Moment):
            member.check(value, "place", NOW)
        elif isinstance(member, Member):
            member.check(value, "place")
        return True
    except (OJSError, InvalidRetryPolicy):
        return False


def edges(member: Declared) -> list[Any]:
    """Values at the bounds of a rule, and one step beyond."""
    if isinstance(member, Integer):
        return [member.least - 1, member.least, member.most, member.most + 1]
    if isinstance(member, Number):
        return [member.least - 0.5, member.least, member.most, member.most + 0.5]
    if isinstance(member, Text):
        return ["a" * member.longest, "a" * (member.longest + 1)]
    if isinstance(member, Choice):
        return [*member.choices, "nothing of these"]
    if isinstance(member, Listed) and isinstance(member.most, int):
        return [["a"] * member.most, ["a"] * (member.most + 1)]
    return []


FORMATS = jsonschema.FormatChecker(["uuid"])


@FORMATS.checks("date-time", raises=ValueError)
def is_moment(value: object) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


def is_described(member: Declared, value: Any) -> bool:
    whole = {"components": {"schemas": COMPONENTS}, "allOf": [member.json_schema()]}
    return jsonschema.Draft202012Validator(whole, format_checker=FORMATS).is_valid(value)


@pytest.mark.parametrize("member", list(members()))
def test_a_member_reads_what_it_describes_and_nothing_else(member):
    different = [
        value
        for value in [*VALUES, *edges(member)]
        if is_described(member, value) != is_read(member, value)
    ]
    if isinstance(member, NARROWER) or member.more or getattr(member, "unsaid", ()):
        different = [value for value in different if is_described(member, value)]
    if reads_by_parts(member):
        different = [value for value in different if not is_read(member, value)]
        different = [value for value in different if not is_described(member, value)]

    assert different == []


# Each member that is described is read by the endpoint

WITH: dict[tuple[str, str], dict[str, Any]] = {
    ("CronRequest", "expression"): {"cron": None},
    ("DeleteQueue", "target_queue"): {"strategy": "move"},
    ("Heartbeat", "job_id"): {"active_job_ids": None},
    **{
        (form, name): {"concurrency": None, "limit": 1, "period": "PT1M"}
        for form in ("LimitsOverride", "QueueLimits")
        for name in ("limit", "period", "window")
    },
    ("RegisterSchema", "args_schema"): {"schema": None},
    ("ReportOfJob", "percentage"): {"progress": None},
    ("ReportProgress", "percentage"): {"progress": None},
    ("SwitchMaintenance", "estimated_duration"): {"enabled": True},
    ("SwitchMaintenance", "refuse_jobs"): {"enabled": True},
    ("SwitchMaintenance", "until"): {"enabled": True},
    ("WorkflowRequest", "callbacks"): {"type": "batch", "jobs": [{"type": "a", "args": []}]},
    ("WorkflowRequest", "failure_policy"): {"type": "saga"},
    ("WorkflowRequest", "jobs"): {"type": "group", "steps": None},
}
"""The other members that a request needs for a member to be read."""


def described_bodies() -> Iterator[Any]:
    for (method, path), operation in operations.OPERATIONS.items():
        if isinstance(operation.body, type):
            for member in operation.body.described():
                yield method, path, operation.body.__name__, member


def wrong_value(member: Declared) -> Any:
    """A member that is neither described nor read; None if there is none."""
    found = (v for v in VALUES if not is_described(member, v) and not is_read(member, v))
    return next(found, None)


@pytest.mark.django_db
def test_every_member_that_is_described_is_read(settings):
    settings.OJS = OPTIONS
    everything = Kind("everything")
    keys = {"everything": everything.key()}
    s = scene(everything)
    doors = doors_by_path()
    unread = []
    for method, path, form, member in described_bodies():
        wrong = wrong_value(member)
        if wrong is None:
            continue
        stage = Stage(doors[method, path], s, keys)
        usual = stage.usual
        body = (usual.body or {}) | WITH.get((form, member.name), {}) | {member.name: wrong}
        with transaction.atomic(using=alias()):
            reply = stage.send(said=usual._replace(body=body))
            transaction.set_rollback(True, using=alias())
        details = orjson.loads(reply.content).get("error", {}).get("details", {})
        if member.name not in details.get("field", ""):
            unread.append((f"{method} {path}", member.name, wrong, reply.content[:200]))

    assert not unread, "\n".join(map(str, unread))


# Members that are not described are refused where a misspelt one would do harm

OPEN_TO_OPERATORS = {("POST", "/ojs/codec/encode"), ("POST", "/ojs/codec/decode")}
"""Clients of codec servers send what their own protocol has."""
CLOSED_TO_PRODUCERS = {
    "/ojs/v1/jobs/bulk/cancel",
    "/ojs/v1/jobs/{job_id}",
    "/ojs/v1/workflows",
}


def is_closed(schema: dict[str, Any]) -> bool:
    if "$ref" in schema:
        return is_closed(current()["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    return schema.get("additionalProperties") is False


def requests() -> Iterator[tuple[Endpoint, dict[str, Any]]]:
    """Every endpoint that takes a body, and the schema of that."""
    for endpoint in endpoints():
        operation = current()["paths"][endpoint.path][endpoint.method.lower()]
        if "requestBody" in operation:
            (media,) = operation["requestBody"]["content"].values()
            yield endpoint, media["schema"]


def test_requests_of_operators_are_closed_and_those_of_clients_are_open():
    """Clients may be newer than this server (OJS JSON format §14.3)."""
    clients = {access.Scope.PRODUCE, access.Scope.WORK}
    wrong = []
    for endpoint, schema in requests():
        where = (endpoint.method, endpoint.path)
        expected = not clients.intersection(endpoint.command.scopes)
        if where in OPEN_TO_OPERATORS or endpoint.path in CLOSED_TO_PRODUCERS:
            expected = not expected
        if is_closed(schema) != expected:
            wrong.append(where)

    assert wrong == []


@pytest.mark.django_db
def test_a_misspelt_member_of_a_closed_request_is_refused_by_its_name(settings):
    settings.OJS = OPTIONS
    everything = Kind("everything")
    keys = {"everything": everything.key()}
    s = scene(everything)
    doors = doors_by_path()
    accepted = []
    for endpoint, schema in requests():
        if not is_closed(schema):
            continue
        stage = Stage(doors[endpoint.method, endpoint.path], s, keys)
        said = stage.usual
        body = (said.body or {}) | {"older_then": "2020-01-01T00:00:00Z"}
        with transaction.atomic(using=alias()):
            reply = stage.send(said=said._replace(body=body))
            transaction.set_rollback(True, using=alias())
        error = orjson.loads(reply.content).get("error", {})
        field = error.get("details", {}).get("field", "")
        if reply.status_code != 400 or "older_then" not in field:
            accepted.append((f"{endpoint.method} {endpoint.path}", reply.content[:200]))

    assert not accepted, "\n".join(map(str, accepted))


# The guide to Rota, which is not part of the OpenAPI document

LIMITS = ("maxLength", "minLength", "minimum", "maximum", "maxItems", "minItems")
GUIDE = Path(__file__).parent.parent / "docs" / "protocols" / "rota.md"


def rules_of(schema: dict[str, Any], definitions: dict[str, Any]) -> Any:
    """The limits and choices of a schema and its parts, wherever they are defined."""
    if "$ref" in schema:
        return rules_of(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    rules: dict[str, Any] = {name: schema[name] for name in LIMITS if name in schema}
    if "enum" in schema or "const" in schema:
        rules["choices"] = sorted(schema.get("enum", [schema.get("const")]))
    if "properties" in schema:
        rules["required"] = sorted(schema.get("required", ()))
        rules["properties"] = {
            name: rules_of(part, definitions) for name, part in schema["properties"].items()
        }
    if "items" in schema:
        rules["items"] = rules_of(schema["items"], definitions)
    return rules


def without_moments(rules: Any) -> Any:
    """The guide describes them as texts, the declaration also their format."""
    if not isinstance(rules, dict):
        return rules
    return {
        name: without_moments(part)
        for name, part in rules.items()
        if name not in ("time", "started_at")
    }


def test_the_guide_to_rota_has_the_limits_that_are_declared():
    (text,) = [
        block.partition("\n```")[0]
        for block in GUIDE.read_text().split("```json\n")[1:]
        if '"$defs"' in block
    ]
    definitions = json.loads(text)["$defs"]
    declared = rules_of(HeartbeatMembers.json_schema(), {})
    written = rules_of(definitions["heartbeat"], definitions)
    # It may be about a job, and is then a line of its log.
    del written["properties"]["status"]["properties"]["alerts"]["items"]["properties"]["job_id"]

    assert without_moments(written) == without_moments(declared)

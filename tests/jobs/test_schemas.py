"""Schema registry: what a schema may be, what it finds wrong, what breaks, and what is enforced."""

from __future__ import annotations

import logging

import pytest

import jobs
from jobs import engine, schemas
from jobs.engine import schemas as registry
from jobs.errors import (
    BreakingChange,
    Conflict,
    InvalidArguments,
    InvalidRequest,
    InvalidSchema,
    NotFound,
    NotInstalled,
    SchemaExists,
)
from jobs.models import CronRun, Job, JobSchema, SchemaRegistry
from jobs.spec.cron_requests import new_cron_job
from jobs.spec.json_schema import MOST_MISTAKES, check_schema, compiled
from jobs.spec.schema_changes import breaking_changes
from jobs.store import clock
from tests.database import connection
from tests.factories import WorkerFactory
from tests.ojs_client import refusal

TEXT = {"type": "string"}
ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["customer_id", "amount", "currency"],
    "properties": {
        "customer_id": TEXT,
        "amount": {"type": "integer", "minimum": 0},
        "currency": {"type": "string", "pattern": "^[A-Z]{3}$"},
    },
    "additionalProperties": False,
}
GOOD = {"customer_id": "c", "amount": 1, "currency": "EUR"}
NUMBERS = {"type": "array", "items": {"type": "integer"}}


def refused(schema):
    with pytest.raises(InvalidSchema) as refusal:
        check_schema(schema)
    return refusal.value.details


# What a schema may be


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (["string"], ""),
        ({"type": "text"}, "/type"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "/$schema"),
        ({"items": [TEXT]}, "/items"),
        ({"title": "x" * 65_536}, ""),
        ({"properties": {"a": {"$ref": "https://example.com/a.json"}}}, "/properties/a/$ref"),
        ({"$ref": "file:///etc/passwd"}, "/$ref"),
        ({"$ref": "#/$defs/none"}, "/$ref"),
        ({"$ref": "#"}, "/$ref/$ref"),
        ({"properties": {"a": {"$ref": "#"}}}, "/properties/a/$ref/properties/a/$ref"),
        ({"$dynamicRef": "#a"}, "/$dynamicRef"),
        ({"$schema": 7}, "/$schema"),
        ({"$ref": "#/default", "default": {"patternProperties": 7}}, "/$ref"),
        ({"not": {"$id": "https://example.com/a"}}, "/not/$id"),
        ({"pattern": "(?=a)b"}, "/pattern"),
        ({"pattern": r"(a)\1"}, "/pattern"),
        ({"pattern": "["}, "/pattern"),
        ({"pattern": "(a{1000}){1000}"}, "/pattern"),
        ({"patternProperties": {f"{n}": TEXT for n in range(101)}}, ""),
    ],
)
def test_what_is_no_schema_or_costs_too_much_is_refused_with_its_place(schema, pointer):
    assert refused(schema)["pointer"] == pointer


def test_a_schema_that_is_nested_too_deeply_is_refused():
    deep: object = True
    for _ in range(100):
        deep = {"not": deep}

    assert "levels" in refused(deep)["schema_error"]


def test_references_that_lead_too_deep_are_refused():
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(1000)} | {"d1000": TEXT}

    assert "levels" in refused({"$defs": chain})["schema_error"]


def test_references_that_multiply_are_refused():
    doubling = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
        for n in range(30)
    }

    assert (
        "parts"
        in refused({"$ref": "#/$defs/d0", "$defs": doubling | {"d30": TEXT}})["schema_error"]
    )


def test_a_pattern_that_would_backtrack_is_evaluated_all_the_same():
    catastrophe = {"type": "array", "items": {"pattern": "^(a+)+$"}}
    check_schema(catastrophe)

    assert not compiled(catastrophe).accepts(["a" * 50_000 + "!"])


def test_local_references_and_json_pointers_are_followed():
    schema = {"type": "array", "items": {"$ref": "#/$defs/a~1b"}, "$defs": {"a/b": TEXT}}
    check_schema(schema)

    assert compiled(schema).accepts(["x"])
    assert not compiled(schema).accepts([1])


# What it finds wrong


def mistakes(schema, *args):
    return [str(mistake) for mistake in compiled(schema).mistakes(list(args))]


def test_each_mistake_has_its_place_and_no_value():
    found = mistakes(ORDER, {"amount": "secret", "currency": "secret", "more": "secret"})

    assert sorted(found) == [
        "/args/0/amount: property 'amount' must be integer, got string",
        "/args/0/currency: property 'currency' does not match the pattern ^[A-Z]{3}$",
        "/args/0: item 0 has members that are not allowed: 'more'",
        "/args/0: required property 'customer_id' is missing",
    ]


@pytest.mark.parametrize(
    ("schema", "args", "expected"),
    [
        (NUMBERS, [1, "two", 3], ["/args/1: item 1 must be integer, got string"]),
        (
            {"type": "array", "minItems": 2},
            [1],
            ["/args: the list of arguments must have at least 2 items"],
        ),
        (ORDER, [], ["/args: one argument, an object, is expected, got 0"]),
        (ORDER, [GOOD, GOOD], ["/args: one argument, an object, is expected, got 2"]),
        (
            {"items": {"properties": {"to": {"format": "email"}}}},
            [{"to": "nobody"}],
            ["/args/0/to: property 'to' does not match format 'email'"],
        ),
        ({"items": {"enum": [1, 2]}}, [3], ["/args/0: item 0 is not one of the allowed values"]),
        ({"items": {"maximum": 2}}, [3], ["/args/0: item 0 must be at most 2"]),
        ({"items": {"exclusiveMinimum": 3}}, [3], ["/args/0: item 0 must be more than 3"]),
        (
            {"items": {"properties": {"a/b": TEXT}}},
            [{"a/b": 1}],
            ["/args/0/a~1b: property 'a/b' must be string, got integer"],
        ),
        (
            {"items": {"anyOf": [TEXT, {"type": "null"}]}},
            [1],
            ["/args/0: item 0 matches none of the alternatives"],
        ),
        ({"items": {"not": TEXT}}, ["a"], ["/args/0: item 0 does not satisfy 'not'"]),
    ],
)
def test_a_mistake_is_described(schema, args, expected):
    assert mistakes(schema, *args) == expected


def test_the_number_of_mistakes_is_bounded():
    assert len(mistakes(NUMBERS, *["x"] * 1000)) == MOST_MISTAKES
    assert len(mistakes(NUMBERS, *["x"] * 50_000)) == 1
    alternatives = {"anyOf": [NUMBERS] * 50}
    assert mistakes(alternatives, *["x"] * 50_000) == ["/args: the arguments do not match"]


# What breaks

CHANGES = [
    ({"required": ["a"]}, {"required": ["a", "b"]}, "Required field 'b' was added"),
    ({"properties": {"a": TEXT}}, {"properties": {}}, "Field 'a' was removed"),
    (
        {"properties": {"a": {"type": "integer"}}},
        {"properties": {"a": TEXT}},
        "Type of field 'a' changed from integer to string",
    ),
    (
        {"properties": {"a": {"maxLength": 100}}},
        {"properties": {"a": {"maxLength": 50}}},
        "'maxLength' of field 'a' was narrowed from 100 to 50",
    ),
    (
        {"properties": {"a": {"minimum": 1}}},
        {"properties": {"a": {"minimum": 2}}},
        "'minimum' of field 'a' was narrowed from 1 to 2",
    ),
    ({}, {"additionalProperties": False}, "'additionalProperties' of arguments was set to false"),
    (
        {"properties": {"a": {"enum": [1, 2]}}},
        {"properties": {"a": {"enum": [1]}}},
        "Field 'a' does not accept [2] any more",
    ),
    (
        {"prefixItems": [TEXT, TEXT]},
        {"prefixItems": [TEXT]},
        "Element 1 was removed",
    ),
    (
        {"prefixItems": [{"properties": {"a": {"$ref": "#/$defs/t"}}}], "$defs": {"t": TEXT}},
        {"prefixItems": [{"properties": {"a": {"type": "null"}}}]},
        "Type of field 'a' changed from string to null",
    ),
    ({"anyOf": [TEXT, NUMBERS]}, {"anyOf": [TEXT]}, "Alternatives of arguments were removed"),
    ({}, {"not": TEXT}, "'not' of arguments was changed or added"),
]


@pytest.mark.parametrize(("old", "new", "message"), CHANGES)
def test_a_breaking_change_is_named(old, new, message):
    assert [str(change) for change in breaking_changes(old, new)] == [message]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"properties": {"a": TEXT}}, {"properties": {"a": TEXT, "b": TEXT}}),
        ({"maxLength": 50}, {"maxLength": 100}),
        ({"enum": ["USD", "EUR"]}, {"enum": ["USD", "EUR", "GBP"]}),
        ({"additionalProperties": False}, {"additionalProperties": True}),
        ({"type": "integer"}, {"type": "number"}),
        ({"required": ["a", "b"]}, {"required": ["a"]}),
        ({"prefixItems": [TEXT]}, {"prefixItems": [TEXT, TEXT]}),
        ({"anyOf": [TEXT]}, {"anyOf": [TEXT, NUMBERS]}),
        ({"title": "old"}, {"title": "new", "description": "more"}),
        ({"items": [TEXT]}, {"prefixItems": [TEXT]}),
        ({"pattern": "a", "format": "email", "uniqueItems": True}, {}),
        ({"$ref": "#/$defs/t", "$defs": {"t": TEXT}}, TEXT),
    ],
)
def test_a_compatible_change_is_none(old, new):
    assert breaking_changes(old, new) == []


# The registry

registered = pytest.mark.django_db


@registered
def test_the_latest_version_is_the_one_with_the_highest_precedence():
    for version in ("1.9.0", "1.10.0", "1.10.2", "0.9.0"):
        schemas.register("a.b", version, {"title": version})

    assert schemas.versions("a.b") == ["1.10.2", "1.10.0", "1.9.0", "0.9.0"]
    assert schemas.latest("a.b").uri == "urn:ojs:schema:a.b:v1.10.2"


@registered
def test_code_may_register_the_same_schema_again_and_no_other():
    schemas.register("a.b", "1.0.0", NUMBERS)

    assert schemas.register("a.b", "1.0", NUMBERS).version == "1.0.0"
    with pytest.raises(SchemaExists):
        schemas.register("a.b", "1.0.0", {"title": "another"})
    assert schemas.latest("a.b").schema == NUMBERS


@registered
def test_a_minor_version_may_not_break_the_one_before_and_a_major_one_may():
    schemas.register("a.b", "1.1.0", {"type": "object", "required": ["a"]})
    stricter = {"type": "object", "required": ["a", "currency"]}

    with pytest.raises(BreakingChange) as refusal:
        schemas.register("a.b", "1.2.0", stricter)

    assert refusal.value.message == (
        "Schema version 1.2.0 introduces breaking changes compared to 1.1.0. Use a major version "
        "bump (2.0.0)."
    )
    assert refusal.value.details["breaking_changes"] == ["Required field 'currency' was added"]
    schemas.register("a.b", "2.0.0", stricter)
    # Compared with the version before it, whatever came later.
    schemas.register("a.b", "1.3.0", {"type": "object", "properties": {"b": TEXT}})


@registered
def test_what_an_older_server_stored_unchecked_is_neither_compared_nor_enforced():
    JobSchema.objects.create(
        type="a.b", version="1.0", version_number=10**9, schema={"properties": 7}
    )
    schemas.set_mode("strict")

    jobs.enqueue("a.b", ["x"])
    schemas.register("a.b", "1.1.0", NUMBERS)

    with pytest.raises(InvalidArguments):
        jobs.enqueue("a.b", ["x"])


@registered
def test_a_version_that_live_workers_declare_is_not_deleted():
    schemas.register("a.b", "1.0.0", NUMBERS)
    schemas.register("a.b", "1.0.1", NUMBERS)
    WorkerFactory(worker_id="w1", job_versions={"a.b": [10**9, 2 * 10**9]})
    WorkerFactory(worker_id="gone", dead=True, job_versions={"a.b": [10**9, 2 * 10**9]})
    WorkerFactory(worker_id="any", job_versions={"a.b": [None, None]})

    # Another schema of the same version is left.
    schemas.delete("a.b", "1.0.1")
    with pytest.raises(Conflict) as refusal:
        schemas.delete("a.b", "1.0.0")

    assert refusal.value.details["workers"] == ["w1"]
    schemas.register("a.b", "3.0.0", NUMBERS)
    schemas.delete("a.b", "3.0.0")
    with pytest.raises(NotFound):
        schemas.delete("a.b", "3.0.0")


# Validation


@registered
def test_strict_refuses_and_nothing_is_stored():
    schemas.register("a.b", "1.0.0", NUMBERS)
    schemas.set_mode("strict", type="a.b")

    with pytest.raises(InvalidArguments) as refusal:
        jobs.enqueue("a.b", ["one"])

    assert refusal.value.code == "validation_error"
    assert refusal.value.message == (
        "Job arguments do not match schema for a.b@1.0.0. /args/0: item 0 must be integer, got "
        "string."
    )
    assert refusal.value.details["errors"] == [
        {
            "pointer": "/args/0",
            "keyword": "type",
            "message": "item 0 must be integer, got string",
        }
    ]
    jobs.enqueue("a.b", [1])
    jobs.enqueue("c.d", ["one"])
    assert Job.objects.count() == 2


@registered
def test_warn_accepts_with_a_warning_on_the_job_and_in_the_log(caplog):
    schemas.register("a.b", "1.0.0", NUMBERS)

    with caplog.at_level(logging.WARNING, "jobs.schemas"):
        jobs.enqueue_many([{"type": "a.b", "args": args} for args in ([1], ["secret"], [2])])

    warnings = [job.attributes.get("warnings") for job in Job.objects.order_by("pk")]
    text = "Schema validation warning: /args/0: item 0 must be integer, got string"
    assert warnings == [None, [text], None]
    assert caplog.messages == [
        "Arguments of 1 jobs do not match the schema of a.b@1.0.0. "
        "/args/0: item 0 must be integer, got string."
    ]


@registered
@pytest.mark.parametrize("count", [3, 2500])
def test_a_batch_is_refused_as_a_whole_and_names_the_job(count):
    schemas.register("a.b", "1.0.0", NUMBERS)
    schemas.set_mode("strict")
    batch = [{"type": "a.b", "args": [index]} for index in range(count)]
    batch[-2] = {"type": "a.b", "args": ["x"]}

    with pytest.raises(InvalidArguments, match=f"Job {count - 2} of the batch: ") as refusal:
        jobs.enqueue_many(batch)

    assert refusal.value.details["index"] == count - 2
    assert not Job.objects.exists()


@registered
@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ({}, "warn"),
        ({("", ""): "off"}, "off"),
        ({("", "mail"): "strict"}, "strict"),
        ({("", "other"): "strict"}, "warn"),
        ({("", "mail"): "strict", ("a.b", ""): "off"}, "off"),
        ({("a.b", "mail"): "strict", ("a.b", ""): "off", ("", "mail"): "warn"}, "strict"),
    ],
)
def test_the_most_specific_mode_is_in_force(modes, expected):
    schemas.register("a.b", "1.0.0", NUMBERS)
    for (kind, queue), mode in modes.items():
        schemas.set_mode(mode, type=kind, queue=queue)

    try:
        job = jobs.enqueue("a.b", ["x"], queue="mail")
    except InvalidArguments:
        found = "strict"
    else:
        attributes = Job.objects.get(pk=job.id).attributes
        found = "warn" if "warnings" in attributes else "off"

    assert found == expected


@registered
def test_a_mode_that_is_removed_no_longer_applies_and_an_unknown_one_is_refused(settings):
    settings.OJS = {"SCHEMA_VALIDATION": "strict"}
    schemas.register("a.b", "1.0.0", NUMBERS)
    schemas.set_mode("off", type="a.b")
    jobs.enqueue("a.b", ["x"])

    schemas.set_mode(None, type="a.b")

    with pytest.raises(InvalidArguments):
        jobs.enqueue("a.b", ["x"])
    with pytest.raises(InvalidRequest):
        schemas.set_mode("lenient")


@pytest.mark.parametrize("target", [{"queue": "A B"}, {"queue": "Mail"}, {"type": "a b"}], ids=str)
def test_a_mode_of_what_no_job_can_have_is_refused(db, api, target):
    path = "/ojs/v1/admin/schema-validation"
    reply = api.put(path, target | {"mode": "strict"}, content_type="application/json")

    assert refusal(reply)["details"]["field"] in target
    with pytest.raises(InvalidRequest):
        schemas.set_mode("strict", **target)
    assert registry.modes() == {}


@registered
def test_a_job_is_checked_by_its_version_by_the_schema_it_names_or_by_the_latest():
    schemas.register("a.b", "1.0.0", NUMBERS)
    schemas.register("a.b", "2.0.0", {"type": "array", "items": TEXT}, uri="urn:texts")
    schemas.set_mode("strict")

    jobs.enqueue("a.b", ["text"])
    jobs.enqueue("a.b", ["text"], version="2.0")
    jobs.enqueue("a.b", ["text"], version="1.0", schema="urn:texts")
    jobs.enqueue("a.b", [1], version="1.0.5")
    jobs.enqueue("a.b@1.0", [1])
    # Not registered: there is nothing to check it by.
    jobs.enqueue("a.b", [None], version="7.0")
    jobs.enqueue("a.b", [1], version="1.0", schema="urn:unknown")
    for options in ({}, {"version": "2.0"}, {"schema": "urn:texts", "version": "1.0"}):
        with pytest.raises(InvalidArguments):
            jobs.enqueue("a.b", [1], **options)


@registered
def test_a_change_is_in_force_at_the_next_enqueue_of_another_process():
    """Here: without going through this process's functions."""
    schemas.register("a.b", "1.0.0", NUMBERS)
    schemas.set_mode("strict")
    jobs.enqueue("a.b", [1])

    JobSchema.objects.update(schema={"type": "array", "items": TEXT})
    SchemaRegistry.objects.update(token="of another process")

    with pytest.raises(InvalidArguments):
        jobs.enqueue_many([{"type": "a.b", "args": [number]} for number in range(2)])
    jobs.enqueue("a.b", ["text"])

    JobSchema.objects.all().delete()
    SchemaRegistry.objects.update(token="again")

    # What this process knows would refuse it.
    jobs.enqueue("a.b", [1])


@registered
def test_a_job_that_is_checked_costs_no_further_query(
    django_assert_num_queries, django_capture_on_commit_callbacks
):
    schemas.register("a.b", "1.0.0", NUMBERS)
    schemas.set_mode("strict")
    with django_capture_on_commit_callbacks(execute=True):
        jobs.enqueue("a.b", [1])

    with django_assert_num_queries(1 if connection.vendor == "postgresql" else 5):
        jobs.enqueue("a.b", [2])


@registered
def test_jobs_of_workflows_are_checked_when_the_workflow_is_made_even_later_ones():
    schemas.register("a.b", "1.0.0", NUMBERS)
    schemas.set_mode("strict")
    later = jobs.chain(jobs.job("c.d", ["x"]), jobs.job("a.b", ["x"]))
    callback = jobs.batch(jobs.job("c.d", ["x"]), on_complete=jobs.job("a.b", ["x"]))
    jobs.enqueue("c.d", [1])

    for workflow in (later, callback):
        with pytest.raises(InvalidArguments):
            workflow.enqueue()

    assert Job.objects.count() == 1


@registered
def test_a_step_of_a_running_workflow_is_not_refused_by_a_newer_schema():
    handle = jobs.chain(jobs.job("c.d", ["x"]), jobs.job("a.b", ["x"])).enqueue()
    schemas.register("a.b", "1.0.0", NUMBERS)
    schemas.set_mode("strict")
    (first,) = engine.claim(["default"])

    engine.complete([engine.Completion(first.id)])

    step = Job.objects.get(type="a.b", workflow=handle.id)
    assert len(step.attributes["warnings"]) == 1


@registered
def test_a_schedule_records_why_its_job_was_refused():
    nightly = {"name": "nightly", "cron": "0 3 * * *", "type": "a.b", "args": ["x"]}
    engine.upsert_cron(new_cron_job(nightly, clock.now()))
    schemas.register("a.b", "1.0.0", NUMBERS)
    schemas.set_mode("strict")

    engine.run_cron_now("nightly")

    run = CronRun.objects.get()
    assert run.outcome == "refused"
    assert "/args/0: item 0 must be integer" in run.reason


@registered
def test_jobs_that_depend_on_others_and_those_of_guarded_queues_are_checked():
    schemas.register("a.b", "1.0.0", NUMBERS)
    schemas.set_mode("strict")
    engine.queues.configure("narrow", {"max_depth": 5})

    with pytest.raises(InvalidArguments):
        jobs.enqueue("a.b", ["x"], queue="narrow")
    with pytest.raises(InvalidArguments):
        jobs.enqueue("a.b", ["x"], unique={"keys": ["type"]})

    jobs.enqueue("a.b", [1], queue="narrow")
    assert Job.objects.count() == 1


@registered
def test_without_the_extra_strict_jobs_are_refused_and_others_are_not_checked(monkeypatch):
    schemas.register("a.b", "1.0.0", NUMBERS)
    monkeypatch.setitem(__import__("sys").modules, "jsonschema_rs", None)

    jobs.enqueue("a.b", ["x"])
    schemas.set_mode("strict")

    with pytest.raises(NotInstalled):
        jobs.enqueue("a.b", [1])
    with pytest.raises(NotInstalled):
        schemas.register("a.b", "2.0.0", NUMBERS)


@registered
def test_arguments_can_be_checked_without_enqueueing():
    schemas.register("a.b", "1.0.0", NUMBERS)

    assert schemas.mistakes("a.b", [1]) == []
    assert schemas.mistakes("a.b", ["x"], version="1.0.0") == [
        "/args/0: item 0 must be integer, got string"
    ]

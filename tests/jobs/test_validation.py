"""Validation of enqueue requests, field by field (core §5, JSON format §3 to §6, HTTP §9.1).

Nothing here uses a database: a document becomes a `NewJob` or a refusal that names the place.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.errors import InvalidRequest, InvalidRetryPolicyRequest, OJSError, Unsupported
from jobs.spec.batches import new_jobs
from jobs.spec.identifiers import UUID7_PATTERN
from jobs.spec.validation import TYPE_PATTERN, new_job

NOW = datetime(2026, 2, 12, 10, 30, tzinfo=UTC)


def job(**document):
    return new_job({"type": "email.send", "args": []} | document, NOW)


def refusal(**document) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        job(**document)
    return refused.value


# A minimal job, and its defaults


def test_a_type_and_arguments_are_enough():
    least = job()

    assert (least.type, least.args, least.queue) == ("email.send", [], "default")
    assert (least.meta, least.tags, least.attributes) == ({}, [], {})
    assert (least.priority, least.max_attempts, least.pending) == (0, 3, False)
    assert (least.retry, least.timeout, least.visibility_timeout) == (None, None, None)
    assert (least.scheduled_at, least.expires_at) == (None, None)
    assert UUID7_PATTERN.fullmatch(str(least.id))
    assert least.client_id is False


@pytest.mark.parametrize("document", [None, [], "x", 1, True])
def test_a_job_is_an_object(document):
    with pytest.raises(InvalidRequest) as refused:
        new_job(document, NOW)

    assert refused.value.details["validation_errors"][0]["path"] == "$"


@pytest.mark.parametrize("field", ["type", "args"])
def test_required_fields_are_required(field):
    document = {"type": "a", "args": []}
    del document[field]

    with pytest.raises(InvalidRequest) as refused:
        new_job(document, NOW)

    assert refused.value.details["field"] == field
    assert refused.value.details["validation"] == "required"


OPTIONAL = [
    "specversion",
    "id",
    "queue",
    "meta",
    "priority",
    "timeout",
    "timeout_ms",
    "visibility_timeout",
    "visibility_timeout_ms",
    "scheduled_at",
    "delay_until",
    "expires_at",
    "retry",
    "max_attempts",
    "unique",
    "schema",
    "tags",
    "pending",
    "options",
]


@pytest.mark.parametrize("field", OPTIONAL)
def test_null_counts_as_absent(field):
    """JSON format §14.2."""
    plain, with_null = job(), job(**{field: None})

    for slot in vars(plain):
        if slot != "id":
            assert getattr(with_null, slot) == getattr(plain, slot)


@pytest.mark.parametrize("field", [name for name in OPTIONAL if name not in ("schema", "options")])
def test_options_may_be_null_too(field):
    job(options={field: None})


# Types: nothing is converted (JSON format §12.4)

WRONG = {
    "string": [1, 1.5, True, [], {}],
    "integer": ["1", 1.5, 1.0, True, [], {}],
    "boolean": ["true", 1, 0, [], {}],
    "array": ["a", 1, {}, True],
    "object": ["a", 1, [], True],
}
TYPES = {
    "type": "string",
    "args": "array",
    "id": "string",
    "specversion": "string",
    "meta": "object",
    "schema": "string",
    "options": "object",
    "queue": "string",
    "priority": "integer",
    "timeout_ms": "integer",
    "visibility_timeout_ms": "integer",
    "delay_until": "string",
    "scheduled_at": "string",
    "expires_at": "string",
    "retry": "object",
    "unique": "object",
    "tags": "array",
    "pending": "boolean",
}


@pytest.mark.parametrize(
    ("field", "expected", "value"),
    [(field, expected, value) for field, expected in TYPES.items() for value in WRONG[expected]],
)
def test_a_value_of_the_wrong_type_is_refused_and_not_converted(field, expected, value):
    details = refusal(**{field: value}).details

    assert details["field"] == field
    assert details["expected"] == expected
    assert details["validation_errors"][0]["path"] == f"$.{field}"


@pytest.mark.parametrize("value", [True, 1.5, [], {}])
@pytest.mark.parametrize("field", ["timeout", "visibility_timeout"])
def test_a_duration_is_a_number_of_seconds_or_iso_8601(field, value):
    assert refusal(**{field: value}).details["field"] == field


@pytest.mark.parametrize("item", [None, 1, True, [], {}])
def test_every_tag_is_a_string(item):
    assert refusal(tags=["a", item]).details["field"] == "tags[1]"


def test_options_are_checked_in_their_object_too():
    assert refusal(options={"priority": "high"}).details["field"] == "priority"


# Names


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "email.send",
        "email.send_welcome",
        "a.b9",
        "with-hyphens.x-y",
        "a" * 255,
    ],
)
def test_good_types(name):
    assert job(type=name).type == name


@pytest.mark.parametrize(
    "name",
    [
        *["", ".", "a.", ".a", "a..b", "9a", "a.9b", "a b", "a/b", "_a", "é", "a\n", "a.b\n"],
        *["A", "a.B", "email.Send", "CamelCase.Too", "a" * 256],
    ],
)
def test_bad_types(name):
    assert refusal(type=name).details["field"] == "type"


def test_a_sites_own_code_may_name_types_after_its_classes():
    document = {"type": "Shop.SendMail", "args": []}

    assert new_job(document, NOW, type_pattern=TYPE_PATTERN).type == "Shop.SendMail"


@pytest.mark.parametrize("name", ["default", "9", "a-b.c", "a" * 128, "0.1-x"])
def test_good_queues(name):
    assert job(options={"queue": name}).queue == name


@pytest.mark.parametrize(
    "name", ["", "Default", "a_b", "-a", ".a", "a b", "ü", "a\n", "a/b", "a" * 129]
)
def test_bad_queues(name):
    assert refusal(options={"queue": name}).details["field"] == "queue"


def test_a_refused_text_says_how_long_it_may_be():
    details = refusal(type="a" * 300).details

    assert (details["validation"], details["limit"]) == ("max_length", 255)


# Identifiers (JSON format §6)


def test_the_clients_id_is_kept():
    given_id = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"

    kept = job(id=given_id)

    assert (str(kept.id), kept.client_id) == (given_id, True)


@pytest.mark.parametrize(
    "identifier",
    [
        "",
        "x",
        "550e8400-e29b-41d4-a716-446655440000",
        "019461a8-1a2b-7c3d-ce4f-5a6b7c8d9e0f",
        "019461A8-1A2B-7C3D-8E4F-5A6B7C8D9E0F",
        "019461a81a2b7c3d8e4f5a6b7c8d9e0f",
        "{019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f}",
        "urn:uuid:019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
        "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f\n",
        "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0g",
        "١19461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
        "0" * 1000,
    ],
)
def test_an_id_that_is_no_uuid7_is_refused(identifier):
    assert refusal(id=identifier).details["field"] == "id"


# Versions


@pytest.mark.parametrize("version", ["1.0", "1", "1.0.0", "1.0.7", "1.0.0-rc.1"])
def test_versions_of_the_specification_we_speak(version):
    job(specversion=version)


@pytest.mark.parametrize("version", ["", "0.9", "1.1", "2.0", "2", "1.0.0-beta", "one", "1.0\n"])
def test_versions_we_do_not_speak(version):
    with pytest.raises(Unsupported) as refused:
        job(specversion=version)

    assert refused.value.details == {"field": "specversion", "supported": ["1.0"]}


# Numbers


@pytest.mark.parametrize("priority", [-100, -1, 0, 1, 100])
def test_good_priorities(priority):
    assert job(options={"priority": priority}).priority == priority


@pytest.mark.parametrize(("name", "priority"), [("HIGH", 10), ("NORMAL", 0), ("LOW", -10)])
def test_named_priorities(name, priority):
    """Core §5.2."""
    assert job(priority=name).priority == job(options={"priority": name}).priority == priority


@pytest.mark.parametrize("name", ["", "high", "HIGHEST", "10"])
def test_names_of_no_priority(name):
    refused = refusal(priority=name)

    assert refused.details["field"] == "priority"
    assert "HIGH, NORMAL, LOW" in refused.message


@pytest.mark.parametrize(
    "schema",
    ["urn:ojs:schema:email.send:v1", "https://example.com/schemas/a.json?v=1#/a", "tag:a%20b"],
)
def test_a_schema_is_a_uri(schema):
    assert job(schema=schema).attributes["schema"] == schema


@pytest.mark.parametrize(
    "schema", ["", "email.send.v1", "not a uri", "urn:", "1a:b", "urn:a b", "a:%2", "http://é/"]
)
def test_a_schema_that_is_no_uri_is_refused(schema):
    """Core §5.2."""
    assert refusal(schema=schema).details["field"] == "schema"


@pytest.mark.parametrize("priority", [-101, 101, 2**31, -(2**53)])
def test_bad_priorities(priority):
    details = refusal(options={"priority": priority}).details

    assert (details["field"], details["validation"]) == ("priority", "range")
    assert (details["minimum"], details["maximum"]) == (-100, 100)


# Durations


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"timeout": 30}, timedelta(seconds=30)),
        ({"timeout_ms": 1}, timedelta(milliseconds=1)),
        ({"timeout": "PT1M30S"}, timedelta(seconds=90)),
        ({"timeout": 30, "timeout_ms": 500}, timedelta(milliseconds=500)),
        ({"timeout": 0}, None),
        ({"timeout_ms": 0}, None),
        ({"timeout": "PT0S"}, None),
    ],
)
def test_timeouts(options, expected):
    """Core §5.2: 0 means no timeout."""
    assert job(options=options).timeout == expected
    assert job(**options).timeout == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"visibility_timeout": 30}, timedelta(seconds=30)),
        ({"visibility_timeout_ms": 1}, timedelta(milliseconds=1)),
        ({"visibility_timeout": "PT5M"}, timedelta(minutes=5)),
    ],
)
def test_visibility_timeouts(options, expected):
    assert job(options=options).visibility_timeout == expected


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": -1},
        {"timeout_ms": -1},
        {"timeout_ms": 2**53},
        {"timeout": "30"},
        {"timeout": "-PT1S"},
        {"timeout": "P200Y"},
        {"visibility_timeout": 0},
        {"visibility_timeout_ms": 0},
        {"visibility_timeout": "PT0S"},
        {"visibility_timeout": "soon"},
    ],
)
def test_bad_durations(options):
    assert refusal(options=options).details["field"] in options


# Dates (JSON format §5)


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-15T09:30:00Z",
        "2026-03-15T09:30:00.123456789Z",
        "2026-03-15T11:30:00+02:00",
        "2026-03-14T23:30:00.5-10:00",
    ],
)
@pytest.mark.parametrize("field", ["scheduled_at", "delay_until", "expires_at"])
def test_timestamps_keep_the_zone_they_were_written_in(field, text):
    stored = "expires_at" if field == "expires_at" else "scheduled_at"

    scheduled = job(options={field: text})

    moment = getattr(scheduled, stored)
    assert moment.replace(microsecond=0) == datetime(2026, 3, 15, 9, 30, tzinfo=UTC)
    assert scheduled.attributes == {stored: text}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "2026-03-15",
        "2026-03-15T09:30:00",
        "2026-03-15 09:30:00Z",
        "2026-13-01T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-03-15T25:00:00Z",
        "2026-03-15T09:30:00+0200",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "1771234567",
        "+PT",
        "-PT5S",
        "+5s",
        "2026-03-15T09:30:00Z" + " " * 60,
    ],
)
@pytest.mark.parametrize("field", ["scheduled_at", "delay_until", "expires_at"])
def test_what_is_no_moment_is_refused(field, text):
    details = refusal(**{field: text}).details

    assert details["field"] == field


def test_a_relative_time_counts_from_the_request():
    """The public cases schedule with it (conformance README, row 24)."""
    scheduled = job(options={"delay_until": "+PT5S", "expires_at": "+PT1H"})

    assert scheduled.scheduled_at == NOW + timedelta(seconds=5)
    assert scheduled.expires_at == NOW + timedelta(hours=1)
    assert scheduled.attributes == {}


def test_delay_until_is_the_bindings_name_and_wins():
    both = job(options={"delay_until": "+PT1S", "scheduled_at": "+PT9S"})

    assert both.scheduled_at == NOW + timedelta(seconds=1)
    nested = job(delay_until="+PT1S", options={"scheduled_at": "+PT9S"})
    assert nested.scheduled_at == NOW + timedelta(seconds=9)


# Retry policies (retry §11)


def test_a_partial_policy_is_kept_as_sent():
    with_policy = job(options={"retry": {"max_attempts": 7, "x_mine": 1}})

    assert with_policy.max_attempts == 7
    assert with_policy.retry == {"max_attempts": 7, "x_mine": 1}


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({"initial_interval": "PT1S", "initial_interval_ms": 9}, {"initial_interval": "PT1S"}),
        ({"maxInterval": "PT9M", "max_interval": "PT8M", "x": 1}, {"max_interval": "PT8M", "x": 1}),
        ({"initial_interval": None, "initial_interval_ms": 9}, {"initial_interval_ms": 9}),
    ],
)
def test_of_a_policy_that_says_something_twice_what_counts_is_kept(sent, kept):
    found = job(options={"retry": sent}).retry

    assert {name: value for name, value in found.items() if value is not None} == kept


@pytest.mark.parametrize("name", ["timeout", "visibility_timeout"])
@pytest.mark.parametrize(
    ("flat", "nested", "seconds", "kept"),
    [
        ({"": 5, "_ms": 7000}, {}, 7, {}),
        ({}, {"": 5, "_ms": 7000}, 7, {}),
        ({"": 5}, {"_ms": 7000}, 7, {}),
        ({"_ms": 7000}, {"": 5}, 5, {"": 5}),
        ({"": 7}, {"": 5}, 5, {"": 5}),
    ],
)
def test_a_timeout_that_is_given_twice_is_returned_as_it_counts(name, flat, nested, seconds, kept):
    """Core §5.2, HTTP §9.1: `options` wins, and milliseconds do."""

    def named(members):
        return {f"{name}{end}": value for end, value in members.items()}

    found = job(**named(flat), options=named(nested))

    assert getattr(found, name) == timedelta(seconds=seconds)
    assert found.attributes == named(kept)


def test_max_attempts_may_stand_alone():
    assert job(options={"max_attempts": 5}).max_attempts == 5
    assert job(max_attempts=5).retry == {"max_attempts": 5}
    assert job(options={"max_attempts": 5, "retry": {"max_attempts": 2}}).max_attempts == 2
    assert job(options={"max_attempts": 5, "retry": {"max_attempts": None}}).max_attempts == 5


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"max_attempts": -1}, "max_attempts"),
        ({"max_attempts": "3"}, "max_attempts"),
        ({"initial_interval": "1 second"}, "initial_interval"),
        ({"initial_interval": "PT0S"}, "initial_interval"),
        ({"backoff_coefficient": 0.5}, "backoff_coefficient"),
        ({"max_interval": "PT1S", "initial_interval": "PT2S"}, "max_interval"),
        ({"jitter": "yes"}, "jitter"),
        ({"non_retryable_errors": "auth.*"}, "non_retryable_errors"),
        ({"on_exhaustion": "explode"}, "on_exhaustion"),
    ],
)
def test_a_bad_policy_is_refused_by_the_rule_it_breaks(policy, field):
    with pytest.raises(InvalidRetryPolicyRequest) as refused:
        job(options={"retry": policy})

    assert refused.value.details["field"] == f"retry.{field}"
    assert refused.value.details["rule"] == "validation.retry_policy_invalid"


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"options": {"max_attempts": -1}}, "$.options.max_attempts"),
        ({"max_attempts": -1, "retry": {"jitter": False}}, "$.max_attempts"),
        ({"options": {"max_attempts": 1, "retry": {"max_attempts": -1}}}, "$.options.retry.max_a"),
    ],
)
def test_a_bad_number_of_attempts_is_refused_where_it_stands(document, path):
    with pytest.raises(InvalidRetryPolicyRequest) as refused:
        job(**document)

    (error,) = refused.value.details["validation_errors"]
    assert error["path"].startswith(path)
    assert error["path"].endswith(refused.value.details["field"])


# Nested and flat options


def test_options_may_be_nested_or_flat_and_the_nested_ones_win():
    """The Ruby SDK sends the flat envelope (CLIENTS: superset)."""
    both = job(queue="flat", priority=1, options={"queue": "nested"})

    assert (both.queue, both.priority) == ("nested", 1)


def test_metadata_in_options_is_merged_into_meta():
    merged = job(meta={"a": 1, "b": 1}, options={"metadata": {"b": 2}, "meta": {"c": 3}})

    assert merged.meta == {"a": 1, "b": 2, "c": 3}


# Preserved and ignored members (core §5.3, §5.5.4)


def test_unknown_fields_are_preserved_wherever_they_stand():
    kept = job(
        x_team="billing",
        version=3,
        nested={"deep": [1, {"a": None}]},
        options={"x_color": "red", "rate_limit": {"key": "k"}},
    )

    assert kept.attributes == {
        "x_team": "billing",
        "version": 3,
        "nested": {"deep": [1, {"a": None}]},
        "x_color": "red",
        "rate_limit": {"key": "k"},
    }


def test_what_must_be_echoed_as_sent_is():
    sent = {
        "schema": "urn:ojs:schema:email.send:v1",
        "timeout": 30,
        "visibility_timeout": "PT5M",
        "unique": {"key": ["to"], "period": "PT1H"},
    }

    assert job(args=[{"to": "a@example.com"}], **sent).attributes == sent


@pytest.mark.parametrize(
    "field",
    [
        "state",
        "attempt",
        "created_at",
        "enqueued_at",
        "started_at",
        "completed_at",
        "cancelled_at",
        "discarded_at",
        "error",
        "errors",
        "result",
        "retry_delay_ms",
        "next_attempt_at",
        "next_retry_at",
    ],
)
def test_what_only_the_server_says_is_ignored(field):
    """Core §5.3: MUST ignore the client's value, whatever it is."""
    for value in ("completed", 7, ["x"], {"a": 1}):
        assert job(**{field: value}).attributes == {}
        assert job(options={field: value}).attributes == {}


# Batches


def test_a_refusal_names_the_job_by_its_index():
    with pytest.raises(InvalidRequest) as refused:
        new_jobs([{"type": "a", "args": []}, {"args": []}], NOW)

    assert refused.value.details["index"] == 1
    assert refused.value.details["field"] == "type"
    assert refused.value.message.startswith("Batch validation failed: job at index 1: ")


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"type": "a", "args": [], "specversion": "2.0"}, Unsupported),
        ({"type": "a", "args": [], "retry": {"max_attempts": -1}}, InvalidRetryPolicyRequest),
        ("not an object", InvalidRequest),
        (None, InvalidRequest),
    ],
)
def test_every_kind_of_refusal_carries_the_index(document, kind):
    with pytest.raises(kind) as refused:
        new_jobs([{"type": "a", "args": []}] * 3 + [document], NOW)

    assert refused.value.details["index"] == 3


# Arbitrary documents

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = sorted({*TYPES, *OPTIONAL, "metadata", "x_unknown", "state"})


@given(
    document=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=6),
    options=st.none() | st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4),
)
def test_any_document_is_a_job_or_a_refusal(document, options):
    sent = {"type": "a", "args": []} | document
    if options is not None:
        sent["options"] = options
    try:
        made = new_job(sent, NOW)
    except OJSError as refused:
        assert refused.message
        assert refused.details
    else:
        assert -100 <= made.priority <= 100
        assert made.max_attempts >= 0

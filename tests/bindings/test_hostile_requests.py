"""Junk in headers and URLs, and thousands of random requests: never a 5xx (HTTP §16).

The response is always a 4xx in the OJS form.
"""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jobs.models import Job
from jobs.spec.identifiers import uuid7
from tests.factories import JobFactory
from tests.ojs_client import MEDIA_TYPE, POSTS, OJSClient, refusal
from tests.once import once_is_enough_on_postgresql

pytestmark = once_is_enough_on_postgresql


# Headers


@pytest.mark.parametrize(
    "headers",
    [
        {"OJS-Version": "\xff\xfe"},
        {"OJS-Version": "1" * 10_000},
        {"Accept": "x" * 10_000},
        {"Accept": "\xff"},
        {"X-Request-Id": "'; DROP TABLE ojs_jobs_job; --"},
        {"User-Agent": "\xff" * 5000},
        {"Content-Type": "\xff"},
        {"Content-Type": "x" * 10_000},
        {"Content-Encoding": "gzip"},
        {"X-HTTP-Method-Override": "DELETE"},
        {"Cookie": "sessionid=\xff; csrftoken=" + "x" * 5000},
        {"Range": "bytes=0-"},
        {"If-None-Match": "*"},
        {"X-Forwarded-For": "\xff, " * 1000},
    ],
)
@pytest.mark.parametrize("path", ["jobs", "workers/heartbeat"])
def test_junk_in_headers_breaks_nothing(api, path, headers):
    body = {"type": "a", "args": [], "worker_id": "worker-1"}

    reply = api.send(path, body, headers=headers)

    assert reply.status_code in (200, 201, 400, 422)
    assert reply.headers["Content-Type"].startswith("application/")
    assert reply.json()


# Paths and parameters

JUNK = [
    "x",
    "..%2F..%2Fetc",
    "%00",
    "a%00b",
    "%FF%FE",
    "%ED%A0%80",
    "%25",
    "%2e%2e",
    "%0d%0aX-Evil:1",
    "x" * 8000,
    "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f%00",
    "%7B019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f%7D",
    "019461a81a2b7c3d8e4f5a6b7c8d9e0f",
    "%F0%9F%98%80",
    "-1",
    "0",
    "null",
    "%27%20OR%201=1",
]
PLACES = [
    ("GET", "jobs/{}"),
    ("DELETE", "jobs/{}"),
    ("POST", "jobs/{}/cancel"),
    ("POST", "jobs/{}/activate"),
    ("POST", "jobs/{}/ack"),
    ("POST", "jobs/{}/nack"),
    ("GET", "dead-letter/{}"),
    ("POST", "dead-letter/{}/retry"),
    ("DELETE", "dead-letter/{}"),
    ("GET", "{}"),
    ("POST", "{}"),
    ("GET", "queues?cursor={}"),
    ("GET", "queues?limit={}"),
    ("GET", "queues?offset={}"),
    ("GET", "dead-letter?cursor={}"),
    ("GET", "dead-letter?queue={}"),
    ("GET", "dead-letter?type={}"),
    ("GET", "events?after={}"),
    ("GET", "events?types={}"),
    ("GET", "events?queues={}*"),
    ("GET", "events?job_id={}"),
    ("GET", "events?worker_id={},{}"),
    ("DELETE", "workers/{}"),
]


@pytest.mark.parametrize(("method", "place"), PLACES)
def test_junk_in_the_url_is_answered_in_the_ojs_form(api, method, place):
    JobFactory()

    for junk in JUNK:
        path, _, query = place.format(junk, junk).partition("?")
        reply = api.generic(method, f"/ojs/v1/{path}", content_type="", QUERY_STRING=query)

        assert reply.status_code < 500, junk
        assert reply.headers["Content-Type"] == MEDIA_TYPE, junk
        assert "X-Evil" not in reply.headers
        if reply.status_code >= 400:
            refusal(reply)
    assert Job.objects.count() == 1


def cursor(*keys: str) -> str:
    return base64.urlsafe_b64encode("\x1f".join(keys).encode()).decode().rstrip("=")


ID = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"


@pytest.mark.parametrize(
    "keys",
    [
        ("2026-01-01T00:00:00+00:00", "no id"),
        ("2026-01-01", ID),
        ("2026-01-01T00:00:00", ID),
        ("0001-01-01T00:00:00+23:59", ID),
        ("9999-12-31T23:59:59-23:59", ID),
        ("yesterday", ID),
        ("\x00", "\x00"),
        ("", ""),
        ("2026-01-01T00:00:00+00:00",),
        ("2026-01-01T00:00:00+00:00", ID, ID),
    ],
)
def test_a_forged_cursor_is_refused(api, keys):
    reply = api.see("dead-letter", cursor=cursor(*keys))

    assert reply.status_code == 400
    error = refusal(reply)
    assert error["details"]["field"] == "cursor"
    assert repr(cursor(*keys)) in error["message"]


@pytest.mark.parametrize("path", ["jobs", "workflows", "schemas"])
def test_a_cursor_of_something_else_is_refused_as_it_was_sent(api, path):
    sent = cursor("something else") + "="

    reply = api.see(path, cursor=sent)

    assert reply.status_code == 400
    assert repr(sent) in refusal(reply)["message"]


def test_a_nul_hidden_in_a_cursor_is_refused(api):
    reply = api.see("queues", cursor=cursor("\x00"))

    assert reply.status_code == 400
    refusal(reply)


# Random

text = st.text(max_size=12) | st.sampled_from(
    [
        "running",
        "default",
        "worker-1",
        str(uuid7()),
        "2026-01-01T00:00:00Z",
        "PT1S",
        "\x00",
        "DISCARD",
    ]
)
numbers = (
    st.integers()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([2**31, 2**53 - 1, 2**63, -(2**31) - 1, 1e20, 1e300])
)
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)
NAMES = [
    "type",
    "args",
    "id",
    "queue",
    "meta",
    "options",
    "priority",
    "retry",
    "unique",
    "tags",
    "schema",
    "timeout",
    "timeout_ms",
    "visibility_timeout",
    "visibility_timeout_ms",
    "scheduled_at",
    "delay_until",
    "expires_at",
    "pending",
    "specversion",
    "max_attempts",
    "initial_interval",
    "backoff_coefficient",
    "on_exhaustion",
    "non_retryable_errors",
    "jitter",
    "jobs",
    "queues",
    "count",
    "batch_size",
    "worker_id",
    "types",
    "acks",
    "nacks",
    "job_id",
    "attempt",
    "result",
    "error",
    "code",
    "message",
    "retryable",
    "details",
    "backtrace",
    "requeue",
    "state",
    "active_jobs",
    "active_job_ids",
    "hostname",
    "pid",
    "concurrency",
    "labels",
    "started_at",
    "sequence",
    "metadata",
]
names = st.sampled_from(NAMES)
objects = st.dictionaries(names | text, values, max_size=8)
documents = st.recursive(
    objects,
    lambda inner: st.dictionaries(names, values | inner | st.lists(inner, max_size=3), max_size=6),
    max_leaves=6,
)


@pytest.fixture
def a_worker_with_a_job(db):
    """A worker with a job, which random requests may affect."""
    return JobFactory(active=True, id=ID)


@pytest.mark.parametrize("path", [*POSTS, f"jobs/{ID}/ack", f"jobs/{ID}/nack"])
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(body=documents)
@example(body={"type": "a", "args": [1e20], "meta": {"a": 1e300}})
@example(body={"jobs": [{"type": "a", "args": [{"b": 1e20}]}]})
@example(
    body={
        "job_id": ID,
        "result": {"a": 1e20},
        "error": {"code": "c", "message": "", "details": {"a": 1e20}},
    }
)
@example(
    body={"queues": ["default"], "acks": [{"job_id": ID}], "nacks": [{"job_id": ID, "error": "x"}]}
)
@pytest.mark.slow
def test_random_objects_are_never_our_fault(api, a_worker_with_a_job, path, body):
    reply = api.send(path, json.dumps(body).encode())

    assert reply.status_code < 500, reply.content
    if reply.status_code >= 400:
        refusal(reply)
    for job in Job.objects.all():
        assert api.see(f"jobs/{job.pk}").status_code == 200
    Job.objects.exclude(pk=ID).delete()


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(body=st.binary(max_size=200), path=st.sampled_from(POSTS))
def test_random_bytes_are_never_our_fault(api, body, path):
    reply = api.send(path, body)

    assert 400 <= reply.status_code < 500
    refusal(reply)


def test_an_error_reply_is_no_bigger_than_it_must_be(api):
    """The request is not returned in full."""
    reply = OJSClient().get("/ojs/v1/jobs/" + "x" * 8000)

    assert len(reply.content) < 100_000

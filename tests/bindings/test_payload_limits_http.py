"""Sizes and compression of requests (OJS payload limits)."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from jobs import engine
from jobs.engine import Failure
from jobs.models import Job
from tests.factories import JobFactory
from tests.ojs_client import refusal

pytestmark = pytest.mark.django_db

JOB = {"type": "report.make", "args": ["x" * 1000]}


def put(api, path, body):
    return api.put(f"/ojs/v1/{path}", json.dumps(body), content_type="application/json")


def send(api, body: bytes, encoding: str):
    headers = {"Content-Encoding": encoding}
    return api.post("/ojs/v1/jobs", body, content_type="application/json", headers=headers)


def test_a_gzipped_request_is_read_like_any_other(api):
    reply = send(api, gzip.compress(json.dumps(JOB).encode()), "gzip")

    assert reply.status_code == 201
    assert Job.objects.get().args == JOB["args"]


def test_the_limit_is_that_of_what_is_unpacked(api, settings):
    settings.OJS = {**settings.OJS, "MAX_BODY_SIZE": 1000}

    reply = send(api, gzip.compress(b" " * 10_000_000), "gzip")

    assert reply.status_code == 413
    assert refusal(reply)["code"] == "envelope_too_large"


PACKED = gzip.compress(json.dumps(JOB).encode())


@pytest.mark.parametrize(
    "body",
    [b"{}", PACKED[:-10], zlib.compress(b"{}"), PACKED + b"x", PACKED + PACKED],
    ids=["plain", "cut short", "zlib", "something after it", "two"],
)
def test_what_is_not_gzip_is_refused(api, body):
    reply = send(api, body, "gzip")

    assert (reply.status_code, refusal(reply)["code"]) == (400, "invalid_payload")


def test_another_compression_is_refused_and_ours_is_named(api):
    reply = send(api, b"x", "zstd")

    assert (reply.status_code, refusal(reply)["code"]) == (415, "unsupported_compression")
    assert refusal(reply)["details"]["supported"] == ["gzip"]


def test_meta_has_a_limit_of_its_own(api):
    assert api.push(meta={"a": "x" * 65_000}).status_code == 201

    reply = api.push(meta={"a": "x" * 65_536})

    assert (reply.status_code, refusal(reply)["code"]) == (413, "metadata_too_large")
    assert refusal(reply)["details"]["max_bytes"] == 65_536
    assert Job.objects.count() == 1


def test_the_manifest_tells_the_limits(api, settings):
    limits = api.get("/ojs/manifest").json()["payload_limits"]

    assert limits["max_envelope_bytes"] == 16 * 1024 * 1024
    assert limits["max_meta_bytes"] == 65_536 and limits["supported_compression"] == ["gzip"]


def test_a_reference_to_a_payload_elsewhere_comes_out_as_it_went_in(api):
    reference = {"__ojs_ref": "s3://bucket/raw.mp4", "size": 5, "checksum": "sha256:e3b0"}
    api.pushed(args=[reference])

    (job,) = api.fetch()

    assert job["args"] == [reference]


@pytest.mark.parametrize(("member", "longest"), [("queue", 128), ("type", 255)])
def test_names_have_a_longest_length(api, member, longest):
    assert api.push(**{member: "a" * longest}).status_code == 201

    reply = api.push(**{member: "a" * (longest + 1)})

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"] == member


# How many


@pytest.mark.parametrize(
    ("member", "allowed", "refused"),
    [
        ("tags", ["t"] * 1000, ["t"] * 1001),
        ("tags", ["t" * 255], ["t" * 256]),
        ("retry", {"non_retryable_errors": ["E"] * 1000}, {"non_retryable_errors": ["E"] * 1001}),
        ("retry", {"nonRetryableErrors": ["E" * 256]}, {"nonRetryableErrors": ["E" * 257]}),
    ],
)
def test_lists_of_a_job_have_a_limit(api, member, allowed, refused):
    assert api.push(**{member: allowed}).status_code == 201
    error = api.push(**{member: refused}).json()["error"]
    assert error["code"] in ("invalid_request", "validation_error")
    assert member in error["details"]["field"]

    if member == "retry":
        body = {"default_retry": refused}
        assert put(api, "queues/mail/config", body).status_code in (400, 422)


def test_a_stored_policy_that_is_longer_than_new_ones_may_be_still_holds(api):
    job = JobFactory(active=True, reserved_by="w", retry={"non_retryable_errors": ["E"] * 1001})

    engine.fail([Failure(job.id, "w", type="E", message="no")])

    assert api.job(job.pk)["state"] == "discarded"


def test_the_edges_of_a_graph_have_a_limit(api, settings):
    settings.OJS = settings.OJS | {"MAX_BATCH": 20}
    names = [f"s{place}" for place in range(20)]

    def graph(edges):
        """Steps that wait for those before them, once or, which does not count, twice."""
        steps = []
        for place, name in enumerate(names):
            others = names[: min(place, edges)]
            edges -= len(others)
            steps.append({"id": name, "type": "t", "args": [], "depends_on": others + others[:1]})
        return api.send("workflows", {"type": "dag", "name": "d", "steps": steps})

    assert graph(100).status_code == 201
    refused = refusal(graph(101))
    assert (refused["code"], refused["details"]["limit"]) == ("invalid_workflow", 100)
    assert Job.objects.count() == 20

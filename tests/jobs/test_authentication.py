"""API keys: who asks, and what they may do (HTTP §5)."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.api.authentication import make_key
from jobs.models import ApiKey, Job, Scope
from tests.factories import JobFactory, ago
from tests.ojs_client import OJSClient, refusal

pytestmark = pytest.mark.django_db

JOB = {"type": "email.send", "args": []}


def client_with(*scopes: str, **fields) -> OJSClient:
    _, key = make_key("billing", scopes=list(scopes), **fields)
    return OJSClient(key)


# The key itself


def test_a_key_is_shown_once_and_only_its_hash_is_kept():
    record, key = make_key("billing")

    record.refresh_from_db()
    assert key.startswith("ojs_")
    assert len(key) > 40
    assert record.digest == hashlib.sha256(key.encode()).hexdigest()
    stored = " ".join(str(value) for value in ApiKey.objects.values().get().values())
    assert key not in stored
    assert key.removeprefix(record.prefix) not in stored


def test_a_key_is_recognised_by_its_first_characters():
    record, key = make_key("billing")

    assert key.startswith(record.prefix)
    assert str(record) == f"billing ({record.prefix}…)"


def test_no_two_keys_are_the_same():
    assert len({make_key("billing")[1] for _ in range(50)}) == 50


def test_a_key_may_do_everything_unless_somebody_says_less():
    record, _ = make_key("billing")

    assert set(record.scopes) == set(Scope)


# Who is let in


def test_a_good_key_opens_the_door():
    assert client_with("produce").push().status_code == 201


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_read_whatever_its_case(scheme):
    _, key = make_key("billing")

    assert OJSClient(Authorization=f"{scheme} {key}").push().status_code == 201


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer ojs_" + "x" * 5000},
        {"Authorization": "Bearer \xfcml\xe4ut"},
        {"Authorization": "Basic dXNlcjpwYXNz"},
        {"Authorization": "ojs_without_a_scheme"},
        {"X-Api-Key": "anything"},
    ],
)
def test_everybody_else_is_asked_for_one(headers):
    reply = OJSClient(**headers).push()

    assert reply.status_code == 401
    assert refusal(reply)["code"] == "unauthenticated"
    assert reply.headers["WWW-Authenticate"] == 'Bearer realm="ojs"'
    assert not Job.objects.exists()


def test_a_revoked_key_opens_nothing():
    record, key = make_key("billing")
    ApiKey.objects.filter(pk=record.pk).update(revoked_at=timezone.now())

    assert OJSClient(key).push().status_code == 401


def test_the_key_is_never_repeated_in_the_answer():
    secret = "ojs_this-is-a-secret-that-somebody-mistyped"

    assert secret.encode() not in OJSClient(secret).push().content


@pytest.mark.parametrize("path", ["/ojs/manifest", "/ojs/v1/health"])
def test_manifest_and_health_are_open_to_everybody(path):
    assert OJSClient().get(path).status_code == 200
    assert OJSClient("wrong").get(path).status_code == 200


def test_an_unknown_path_tells_nobody_more_than_that():
    assert OJSClient().get("/ojs/v1/nothing").status_code == 404


ENDPOINTS = [
    ("POST", "jobs", "produce"),
    ("POST", "jobs/batch", "produce"),
    ("GET", "jobs/{id}", "produce"),
    ("DELETE", "jobs/{id}", "produce"),
    ("POST", "jobs/{id}/cancel", "produce"),
    ("POST", "jobs/{id}/activate", "produce"),
    ("GET", "queues", "produce"),
    ("GET", "events", "produce"),
    ("GET", "dead-letter", "operate"),
    ("DELETE", "dead-letter", "ojs:admin:purge"),
    ("GET", "dead-letter/stats", "ojs:admin:read"),
    ("POST", "dead-letter/retry", "ojs:admin:write"),
    ("GET", "dead-letter/{id}", "operate"),
    ("POST", "dead-letter/{id}/retry", "operate"),
    ("DELETE", "dead-letter/{id}", "operate"),
    ("GET", "metrics", "observe"),
    ("GET", "autoscaling", "observe"),
    ("POST", "workers/register", "work"),
    ("POST", "workers/deregister", "work"),
    ("POST", "workers/heartbeat", "work"),
    ("POST", "workers/beat", "work"),
    ("POST", "workers/fetch", "work"),
    ("POST", "workers/ack", "work"),
    ("POST", "workers/nack", "work"),
    ("POST", "workers/fail", "work"),
    ("POST", "jobs/fetch", "work"),
    ("POST", "jobs/{id}/ack", "work"),
    ("POST", "jobs/{id}/nack", "work"),
    ("POST", "jobs/{id}/fail", "work"),
    ("DELETE", "workers/worker-1", "work"),
    ("GET", "jobs/{id}/progress", "produce"),
    ("GET", "jobs/{id}/progress/stream", "produce"),
    ("PUT", "jobs/{id}/progress", "work"),
    ("POST", "workers/progress", "work"),
    ("POST", "jobs/{id}/checkpoint", "work"),
    ("PUT", "jobs/{id}/checkpoint", "work"),
    ("GET", "jobs/{id}/checkpoint", "work"),
    ("DELETE", "jobs/{id}/checkpoint", "work"),
    ("POST", "jobs/results", "produce"),
    ("GET", "jobs/{id}/result", "produce"),
    ("GET", "workflows", "produce"),
    ("POST", "workflows", "produce"),
    ("GET", "workflows/workflow-1", "produce"),
    ("DELETE", "workflows/workflow-1", "produce"),
    ("POST", "workflows/workflow-1/cancel", "produce"),
    ("GET", "workflows/workflow-1/progress", "produce"),
    ("GET", "cron", "produce"),
    ("POST", "cron", "produce"),
    ("GET", "cron/cron-1", "produce"),
    ("PATCH", "cron/cron-1", "produce"),
    ("DELETE", "cron/cron-1", "produce"),
    ("POST", "cron/cron-1/pause", "produce"),
    ("POST", "cron/cron-1/resume", "produce"),
    ("POST", "cron/cron-1/trigger", "produce"),
    ("GET", "cron/cron-1/history", "produce"),
    ("PATCH", "jobs/{id}", "produce"),
    ("POST", "jobs/bulk", "produce"),
    ("POST", "jobs/bulk/cancel", "produce"),
    ("POST", "jobs/bulk/retry", "operate"),
    ("POST", "jobs/bulk/delete", "operate"),
    ("GET", "rate-limits", "produce"),
    ("GET", "rate-limits/limit-1", "produce"),
    ("PUT", "rate-limits/limit-1", "operate"),
    ("POST", "queues", "operate"),
    *(
        (method, f"{prefix}queues/queue-1{suffix}", admin if prefix else scope)
        for prefix in ("", "admin/")
        for method, suffix, scope, admin in (
            ("GET", "", "produce", "ojs:admin:read"),
            ("DELETE", "", "operate", "ojs:admin:purge"),
            ("GET", "/stats", "produce", "ojs:admin:read"),
            ("GET", "/priority-stats", "produce", "ojs:admin:read"),
            ("POST", "/pause", "operate", "ojs:admin:write"),
            ("POST", "/resume", "operate", "ojs:admin:write"),
            ("GET", "/config", "produce", "ojs:admin:read"),
            ("PUT", "/config", "operate", "ojs:admin:write"),
            ("DELETE", "/jobs", "operate", "ojs:admin:purge"),
        )
    ),
    ("GET", "admin/queues", "ojs:admin:read"),
    ("PUT", "admin/queues/queue-1/rate-limit", "ojs:admin:write"),
    ("POST", "admin/jobs/bulk/retry", "ojs:admin:write"),
    ("POST", "admin/jobs/bulk/cancel", "ojs:admin:write"),
    ("POST", "admin/jobs/bulk/delete", "ojs:admin:purge"),
    ("GET", "job-specs", "work"),
    ("POST", "job-specs", "operate"),
    ("DELETE", "job-specs/cron-1", "operate"),
    ("POST", "/flare/v1/workers/register", "work"),
    ("POST", "/flare/v1/workers/poll", "work"),
    ("POST", "/flare/v1/workers/ack", "work"),
    ("POST", "/flare/v1/workers/heartbeat", "work"),
    ("POST", "/flare/v1/jobs", "produce"),
    ("GET", "/flare/v1/jobs/{id}", "produce"),
    ("POST", "/flare/v1/jobs/{id}/cancel", "produce"),
    ("GET", "admin/jobs", "ojs:admin:read"),
    ("GET", "admin/jobs/{id}", "ojs:admin:read"),
    ("POST", "admin/jobs/{id}/cancel", "ojs:admin:write"),
    ("POST", "admin/jobs/{id}/retry", "ojs:admin:write"),
    ("GET", "admin/dead-letter", "ojs:admin:read"),
    ("DELETE", "admin/dead-letter", "ojs:admin:purge"),
    ("GET", "admin/dead-letter/stats", "ojs:admin:read"),
    ("POST", "admin/dead-letter/retry", "ojs:admin:write"),
    ("GET", "admin/dead-letter/{id}", "ojs:admin:read"),
    ("DELETE", "admin/dead-letter/{id}", "ojs:admin:purge"),
    ("POST", "admin/dead-letter/{id}/retry", "ojs:admin:write"),
    ("GET", "admin/schemas/a.type", "ojs:admin:read"),
    ("GET", "admin/schemas/a.type/versions", "ojs:admin:read"),
    ("GET", "admin/schemas/a.type/1.0", "ojs:admin:read"),
    ("PUT", "admin/schemas/a.type/1.0", "ojs:admin:write"),
    ("DELETE", "admin/schemas/a.type/1.0", "ojs:admin:write"),
    ("GET", "admin/system/maintenance", "ojs:admin:read"),
    ("POST", "admin/system/maintenance", "ojs:admin:write"),
    ("GET", "admin/system/config", "ojs:admin:read"),
    ("GET", "admin/stats", "ojs:admin:read"),
    ("GET", "admin/stats/history", "ojs:admin:read"),
    ("GET", "admin/workers", "ojs:admin:read"),
    ("GET", "admin/workers/worker-1", "ojs:admin:read"),
    ("DELETE", "admin/workers/worker-1", "ojs:admin:write"),
    ("POST", "admin/workers/bulk/quiet", "ojs:admin:write"),
    ("POST", "admin/workers/bulk/resume", "ojs:admin:write"),
    ("POST", "admin/workers/bulk/terminate", "ojs:admin:write"),
    ("POST", "admin/workers/worker-1/quiet", "ojs:admin:write"),
    ("POST", "admin/workers/worker-1/resume", "ojs:admin:write"),
    ("POST", "admin/workers/worker-1/terminate", "ojs:admin:write"),
    ("POST", "admin/workers/worker-1/directive", "ojs:admin:write"),
]
READS = {"GET", "HEAD"}
WIDER = {
    "produce": ("ojs:data:read", "ojs:data:write"),
    "work": ("ojs:data:read", "ojs:data:write"),
    "ojs:admin:read": ("operate",) * 2,
    "ojs:admin:write": ("operate",) * 2,
    "ojs:admin:purge": ("operate",) * 2,
}
"""Scope → the wider ones that open the same, for a request that reads and for one that writes."""
NAMED = {
    "a.type": "<str:type>",
    "1.0": "<str:version>",
    "worker-1": "<path:worker_id>",
    "workflow-1": "<str:workflow_id>",
    "cron-1": "<str:name>",
    "queue-1": "<str:name>",
    "limit-1": "<str:key>",
    "{id}": "<str:job_id>",
}
"""Parts of the paths above, and of the patterns they match."""


def absolute(path: str) -> str:
    return path if path.startswith("/") else f"/ojs/v1/{path}"


def ask(client: OJSClient, method: str, path: str):
    job = JobFactory()
    path = absolute(path).format(id=job.pk)
    return client.generic(method, path, content_type="application/json")


@pytest.mark.parametrize(("method", "path", "scope"), ENDPOINTS)
def test_every_endpoint_asks_for_a_key_and_for_its_scope(method, path, scope, settings):
    settings.OJS = settings.OJS | {"FLARE": {"ENABLED": True}}
    opening = {scope, WIDER.get(scope, (scope, scope))[method not in READS]}
    others = [str(other) for other in Scope if other not in opening]

    assert ask(OJSClient(), method, path).status_code == 401
    refused = ask(client_with(*others), method, path)
    allowed = [ask(client_with(each), method, path) for each in sorted(opening)]

    assert refused.status_code == 403
    problem = refused.json()["error"]
    assert (problem["code"], problem["details"]) == ("permission_denied", {"scope": scope})
    assert all(reply.status_code not in (401, 403) for reply in allowed)


def test_the_list_above_holds_every_endpoint():
    from django.urls import get_resolver

    patterns = {str(pattern.pattern) for pattern in flat(get_resolver("workers.urls"))}
    listed = {
        "/".join(NAMED.get(part, part) for part in absolute(path)[1:].split("/"))
        for _, path, _ in ENDPOINTS
    }
    open_to_all = {"ojs/manifest", "ojs/v1/health", "ojs/v1/ready", "ojs/v1/admin/reset"}
    open_to_all |= {"ojs/v1/openapi.json", "ojs/v1/docs"}
    open_to_all |= {r"^ojs(?:/|\Z)", r"^flare(?:/|\Z)"}

    assert patterns == listed | open_to_all


def flat(resolver):
    for pattern in resolver.url_patterns:
        if hasattr(pattern, "url_patterns"):
            yield from flat(pattern)
        else:
            yield pattern


# Anonymous


def test_an_open_server_serves_everybody_everything(settings):
    settings.OJS = {"ALLOW_ANONYMOUS": True, "FLARE": {"ENABLED": True}}

    for method, path, _ in ENDPOINTS:
        assert ask(OJSClient(), method, path).status_code not in (401, 403), path


def test_even_an_open_server_refuses_a_wrong_key(settings):
    """Whoever sends one means it: a typo must not look like success."""
    settings.OJS = {"ALLOW_ANONYMOUS": True}

    assert OJSClient("wrong").push().status_code == 401


# What is remembered


def test_a_checked_key_costs_no_query_for_a_while(django_assert_num_queries):
    client = client_with("produce")
    client.see("queues")

    with django_assert_num_queries(2):  # the page and its total
        client.see("queues")


def test_a_revocation_is_heeded_once_the_memory_has_faded(settings):
    settings.OJS = {"API_KEY_CACHE": 0}
    record, key = make_key("billing")
    client = OJSClient(key)
    assert client.push().status_code == 201

    ApiKey.objects.filter(pk=record.pk).update(revoked_at=timezone.now())

    assert client.push().status_code == 401


@pytest.mark.parametrize(("last_used", "noted"), [(None, True), (120, True), (10, False)])
def test_the_last_use_is_noted_to_the_minute(last_used, noted):
    before = None if last_used is None else ago(last_used)
    record, key = make_key("billing")
    ApiKey.objects.filter(pk=record.pk).update(last_used_at=before)

    OJSClient(key).push()

    record.refresh_from_db()
    assert (record.last_used_at != before) is noted
    assert timezone.now() - record.last_used_at < timedelta(minutes=1)


# Keys bound to one worker or to a label (issue of the key decides, not the request)


def test_a_bound_key_speaks_for_its_worker_without_saying_so():
    client = client_with("work", worker_id="worker-7")
    job = JobFactory()

    (fetched,) = client.fetch()
    assert Job.objects.get(pk=job.pk).reserved_by == "worker-7"
    assert client.ack(fetched["id"]).status_code == 200
    job.refresh_from_db()
    assert (job.finished_by, job.unfenced) == ("worker-7", False)


def test_a_bound_key_speaks_for_nobody_else():
    client = client_with("work", worker_id="worker-7")

    reply = client.send("workers/fetch", {"queues": ["default"], "worker_id": "worker-8"})

    assert reply.status_code == 403
    assert refusal(reply)["details"] == {"worker_id": "worker-8"}


def test_a_bound_key_cannot_settle_what_another_worker_holds():
    client = client_with("work", worker_id="worker-7")
    job = JobFactory(active=True, reserved_by="worker-8")

    assert client.ack(job.pk).status_code == 409

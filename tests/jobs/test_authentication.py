"""API keys: callers and their rights (HTTP §5)."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.http.authentication import make_key
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


def test_a_key_may_do_everything_unless_restricted():
    record, _ = make_key("billing")

    assert set(record.scopes) == set(Scope)


# Valid and invalid keys


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


def test_an_unknown_path_reveals_nothing_more():
    assert OJSClient().get("/ojs/v1/nothing").status_code == 404


# Anonymous


def test_even_an_open_server_refuses_a_wrong_key(settings):
    """A client that sends a key intends to use it: a typo must not look like success."""
    settings.OJS = {"ALLOW_ANONYMOUS": True}

    assert OJSClient("wrong").push().status_code == 401


# The cache


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


# Keys bound to one worker or to a label (the key decides, not the request)


def test_a_bound_key_speaks_for_its_worker_without_saying_so():
    client = client_with("work", worker_id="worker-7")
    job = JobFactory()

    (fetched,) = client.fetch()
    assert Job.objects.get(pk=job.pk).reserved_by == "worker-7"
    assert client.ack(fetched["id"]).status_code == 200
    job.refresh_from_db()
    assert (job.finished_by, job.unfenced) == ("worker-7", False)


def test_a_bound_key_cannot_act_for_other_workers():
    client = client_with("work", worker_id="worker-7")

    reply = client.send("workers/fetch", {"queues": ["default"], "worker_id": "worker-8"})

    assert reply.status_code == 403
    assert refusal(reply)["details"] == {"worker_id": "worker-8"}


def test_a_bound_key_cannot_settle_what_another_worker_holds():
    client = client_with("work", worker_id="worker-7")
    job = JobFactory(active=True, reserved_by="worker-8")

    assert client.ack(job.pk).status_code == 409

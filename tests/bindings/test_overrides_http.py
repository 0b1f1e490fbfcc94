"""Jobs that operators change keep the rules of an enqueue (OJS dead letter §6.3)."""

from __future__ import annotations

import pytest

from jobs import engine
from jobs.http.authentication import make_key
from jobs.models import Job, Queue
from tests.ojs_client import MEDIA_TYPE, V1, OJSClient, refusal

pytestmark = pytest.mark.django_db

BY_QUEUE = {"keys": ["type", "queue"]}
BY_ARGS = {"keys": ["type", "args"]}


@pytest.fixture
def api():
    return OJSClient(make_key("everything")[1])


@pytest.fixture(params=["dead-letter", "admin/dead-letter"])
def retry(request, api):
    def retry(job_id, client=api, **override):
        return client.send(f"{request.param}/{job_id}/retry", {"override": override})

    return retry


def died(api, **document):
    job_id = api.pushed(retry={"max_attempts": 1}, **document)
    api.fetch(document.get("queue", "default"))
    api.nack(job_id)
    return job_id


def stays_dead(job_id):
    return Job.objects.get(pk=job_id).state == "discarded"


def push(api, **document):
    return api.send("jobs", {"type": "email.send", "args": [1]} | document)


# The tenant


@pytest.mark.parametrize("named", ["globex", None])
def test_an_override_does_not_give_a_job_to_another_tenant(retry, named):
    acme = OJSClient(make_key("of acme")[1], **{"X-OJS-Tenant": "acme"})
    job_id = died(acme)

    reply = retry(job_id, acme, meta={"tenant_id": named})

    details = refusal(reply)["details"]
    assert (details["field"], details["validation"]) == ("override.meta.tenant_id", "tenant")
    assert stays_dead(job_id)
    assert retry(job_id, acme, meta={"tenant_id": "acme", "a": 1}).status_code == 200
    assert Job.objects.get().meta.items() >= {"tenant_id": "acme", "a": 1}.items()


def test_nor_a_job_of_nobody_to_a_tenant(api, retry, settings):
    job_id = died(api)

    assert "to no tenant" in refusal(retry(job_id, meta={"tenant_id": "acme"}))["message"]

    settings.OJS = {"MULTI_TENANCY": "off"}
    assert retry(job_id, meta={"tenant_id": "anything"}).status_code == 200


# Arguments and sizes


def test_new_arguments_must_match_their_schema(api, retry):
    job_id = died(api)
    schema = {"type": "array", "items": {"type": "integer"}}
    api.send("schemas", {"type": "email.send", "version": "1", "schema": schema})
    mode = {"type": "email.send", "mode": "strict"}
    api.put(f"{V1}/admin/schema-validation", mode, MEDIA_TYPE)

    reply = retry(job_id, args=["bad"])

    error = refusal(reply)
    assert (reply.status_code, error["code"]) == (422, "validation_error")
    assert error["details"]["field"] == "override.args"
    assert stays_dead(job_id)
    assert retry(job_id, args=[2]).status_code == 200


def test_new_arguments_are_warned_of_like_those_of_an_enqueue(api, retry):
    schema = {"type": "array", "items": {"type": "integer"}}
    api.send("schemas", {"type": "email.send", "version": "1", "schema": schema})
    first, second = died(api, args=["bad"]), died(api, args=[1])
    assert "warnings" in api.job(first)

    retry(first, args=[1])
    retry(second, args=["bad"])

    assert "warnings" not in api.job(first)
    assert "Schema validation warning" in api.job(second)["warnings"][0]


@pytest.mark.parametrize("override", [{"args": ["x" * 50]}, {"meta": {"note": "x" * 50}}])
def test_a_job_does_not_outgrow_the_limit_of_its_tenant(retry, override):
    acme = OJSClient(make_key("of acme")[1], **{"X-OJS-Tenant": "acme"})
    operator = OJSClient(make_key("operator")[1])
    job_id = died(acme)
    limits = {"max_job_size": 60}
    assert operator.put(f"{V1}/admin/tenants/acme/limits", limits, MEDIA_TYPE).status_code < 300

    reply = retry(job_id, acme, **override)

    assert reply.status_code == 413
    assert reply.json()["error"]["details"]["limit"] == "max_job_size"
    assert stays_dead(job_id)
    assert retry(job_id, acme, args=[2], priority=5).status_code == 200


def test_meta_has_one_limit_for_what_it_had_and_what_is_new(api, retry):
    job_id = died(api, meta={"a": "x" * 40_000})

    reply = retry(job_id, meta={"b": "x" * 40_000})

    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "metadata_too_large")
    assert stays_dead(job_id)


# The unique key


def test_a_changed_job_has_the_unique_key_of_its_new_arguments(api, retry):
    job_id = died(api, args=[1], unique=BY_ARGS)

    retry(job_id, args=[2])

    assert refusal(push(api, args=[2], unique=BY_ARGS))["details"]["existing_job_id"] == job_id
    assert push(api, args=[1], unique=BY_ARGS).status_code == 201


def test_it_stays_dead_if_another_job_has_that_key(api, retry):
    job_id = died(api, args=[1], unique=BY_ARGS | {"on_conflict": "replace"})
    other = api.pushed(args=[2], unique=BY_ARGS)

    reply = retry(job_id, args=[2])

    error = refusal(reply)
    assert (reply.status_code, error["code"]) == (409, "duplicate")
    assert error["details"]["existing_job_id"] == other
    assert stays_dead(job_id)
    assert api.job(other)["state"] == "available"
    assert retry(job_id, args=[3]).status_code == 200


def test_a_tenants_key_stays_its_own(retry):
    acme = OJSClient(make_key("of acme")[1], **{"X-OJS-Tenant": "acme"})
    globex = OJSClient(make_key("of globex")[1], **{"X-OJS-Tenant": "globex"})
    globex.pushed(args=[2], unique=BY_ARGS)
    job_id = died(acme, args=[1], unique=BY_ARGS)

    assert retry(job_id, acme, args=[2]).status_code == 200

    again = push(acme, args=[2], unique=BY_ARGS)
    assert refusal(again)["details"]["existing_job_id"] == job_id


def test_a_key_that_a_client_computed_was_that_of_its_arguments(api, retry):
    digest = "0" * 64
    job_id = died(api, args=[{"ojs_encoded": True}], unique=BY_ARGS | {"digest": digest})

    retry(job_id, args=[2])

    assert refusal(push(api, args=[2], unique=BY_ARGS))["details"]["existing_job_id"] == job_id
    assert "digest" not in api.job(job_id)["unique"]
    assert push(api, args=[3], unique=BY_ARGS | {"digest": digest}).status_code == 201


def test_a_key_that_is_not_made_of_what_changes_stays(api, retry):
    named = {"key": "the-nightly-one"}
    job_id = died(api, args=[1], unique=named)
    known = Job.objects.get().unique_key

    retry(job_id, args=[2], queue="slow", meta={"a": 1})

    assert Job.objects.get().unique_key == known


def test_arguments_without_a_field_of_the_key_are_refused(api, retry):
    policy = {"keys": ["args"], "args_keys": ["order"]}
    job_id = died(api, args=[{"order": 1}], unique=policy)

    details = refusal(retry(job_id, args=[{"invoice": 1}]))["details"]

    assert (details["field"], details["missing"]) == ("override.unique.args_keys", "order")
    assert stays_dead(job_id)


# Other queues


def delete_and_move(api, **document):
    api.pushed(queue="old", **document)
    api.pushed(queue="old")
    body = {"strategy": "move", "target_queue": "new"}
    assert api.delete(f"{V1}/queues/old", body, content_type=MEDIA_TYPE).status_code == 200


def retry_elsewhere(api, **document):
    job_id = died(api, queue="old", **document)
    api.send(f"dead-letter/{job_id}/retry", {"override": {"queue": "new"}})


def forward(api, **document):
    config = {"dead_letter_queue": "new"}
    api.put(f"{V1}/queues/old/config", config, content_type=MEDIA_TYPE)
    died(api, queue="old", **document)
    assert engine.forward_dead() == 1


@pytest.mark.parametrize("move", [delete_and_move, retry_elsewhere, forward])
def test_a_job_in_another_queue_has_the_key_it_has_there(api, move):
    move(api, unique=BY_QUEUE)

    assert push(api, queue="new", unique=BY_QUEUE).status_code == 409
    assert push(api, queue="old", unique=BY_QUEUE).status_code == 201
    assert Job.objects.filter(queue="new", unique_key__isnull=False).count() == 1


@pytest.mark.parametrize("move", [delete_and_move, retry_elsewhere, forward])
@pytest.mark.parametrize("meta, key", [({}, "queue:new"), ({"tenant_id": "a"}, "a@queue:new")])
def test_a_limit_of_the_jobs_of_its_queue_follows_a_job(api, move, meta, key):
    limited = {"rate_limit": {"max_per_second": 1}, "meta": meta}
    move(api, **limited)
    another = api.pushed(queue="new", **limited)

    given = {job["id"] for job in api.fetch("new", count=10)}

    assert another not in given
    jobs = Job.objects.filter(queue="new", rate_key__gt="")
    assert list(jobs.values_list("rate_key", flat=True)) == [key, key]
    assert jobs.filter(state="active").count() == 1


@pytest.mark.parametrize("move", [delete_and_move, retry_elsewhere, forward])
def test_a_limit_with_a_key_of_its_own_stays(api, move):
    move(api, rate_limit={"max_per_second": 1, "key": "queue:old"})

    kept = Job.objects.filter(queue="new", rate_key__gt="").values_list("rate_key", flat=True)
    assert list(kept) == ["queue:old"]


def configure(api, queue, **config):
    reply = api.put(f"{V1}/queues/{queue}/config", config, content_type=MEDIA_TYPE)
    assert reply.status_code == 200


def test_arguments_must_match_their_schema_where_the_new_queue_demands_it(api, retry):
    job_id = died(api, args=["bad"])
    schema = {"type": "array", "items": {"type": "integer"}}
    api.send("schemas", {"type": "email.send", "version": "1", "schema": schema})
    mode = {"queue": "careful", "mode": "strict"}
    api.put(f"{V1}/admin/schema-validation", mode, MEDIA_TYPE)

    reply = retry(job_id, queue="careful")

    assert (reply.status_code, refusal(reply)["code"]) == (422, "validation_error")
    assert stays_dead(job_id)
    assert retry(job_id, queue="slow").status_code == 200
    assert "Schema validation warning" in api.job(job_id)["warnings"][0]


def test_a_queue_takes_from_the_dead_letter_only_the_types_it_allows(api, retry):
    configure(api, "reports", allowed_job_types=["report.*"])
    job_id = died(api)

    reply = retry(job_id, queue="reports")

    assert (reply.status_code, refusal(reply)["code"]) == (422, "JOB_TYPE_NOT_ALLOWED")
    assert stays_dead(job_id)
    assert Job.objects.get().queue == "default"


def test_the_default_policy_applies_to_a_queue_that_the_retry_makes(api, retry):
    job_id = died(api)
    configure(api, "_default", allowed_job_types=["report.*"])

    reply = retry(job_id, queue="unheard-of")

    assert refusal(reply)["code"] == "JOB_TYPE_NOT_ALLOWED"
    assert stays_dead(job_id)


def test_a_draining_queue_takes_no_job_from_another_queue(api, retry):
    job_id, own = died(api), died(api, queue="closing")
    engine.queues.drain("closing")

    reply = retry(job_id, queue="closing")

    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "queue_draining")
    assert stays_dead(job_id)
    assert retry(own, queue="closing").status_code == 200


def test_a_full_queue_takes_no_job_from_another_queue(api, retry):
    configure(api, "small", max_size=1)
    own = died(api, queue="small")
    api.pushed(queue="small")
    job_id = died(api)

    reply = retry(job_id, queue="small")

    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "QUEUE_FULL")
    assert reply.headers["Retry-After"]
    assert stays_dead(job_id)
    assert retry(own, priority=5).status_code == 200


def test_it_takes_the_place_of_the_oldest_where_the_queue_says_so(api, retry):
    configure(api, "small", max_size=1, overflow_policy="drop_oldest")
    flow = {"type": "chain", "steps": [{"type": "a.b", "args": [], "options": {"queue": "small"}}]}
    workflow = api.send("workflows", flow).json()["workflow"]["id"]
    job_id = died(api)

    assert retry(job_id, queue="small").status_code == 200

    assert [job["id"] for job in api.fetch("small")] == [job_id]
    assert api.see(f"workflows/{workflow}").json()["workflow"]["state"] == "failed"


def test_a_queue_is_moved_even_where_its_jobs_have_duplicates(api):
    for queue in ("old", "new"):
        api.pushed(queue=queue, unique=BY_QUEUE)

    body = {"strategy": "move", "target_queue": "new"}
    api.delete(f"{V1}/queues/old", body, content_type=MEDIA_TYPE)

    assert not Queue.objects.filter(pk="old").exists()
    assert len(set(Job.objects.filter(queue="new").values_list("unique_key", flat=True))) == 1
    assert Job.objects.count() == 2

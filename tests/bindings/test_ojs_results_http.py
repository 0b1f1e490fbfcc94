"""Results over HTTP: kept, waited for, too large, pruned (OJS results)."""

from __future__ import annotations

import pytest

from jobs import engine
from jobs.models import Job
from jobs.spec.identifiers import uuid7
from tests.concurrency.threads import together
from tests.factories import JobFactory, ago
from tests.ojs_client import refusal

pytestmark = pytest.mark.django_db


def done(api, result, **options):
    job_id = api.pushed(options=options)
    api.fetch()
    assert api.ack(job_id, result=result).status_code == 200
    return job_id


@pytest.mark.parametrize("result", [True, 42, 1.5, "text", ["a", 1], {"x": {"y": None}}, None])
def test_a_result_comes_back_as_the_type_it_was(api, result):
    job_id = done(api, result)

    reply = api.see(f"jobs/{job_id}/result").json()

    assert reply["result"] == result and type(reply["result"]) is type(result)
    assert (reply["state"], reply["job_id"]) == ("completed", job_id)
    assert reply["result_stored_at"] < reply["result_expires_at"]
    assert reply["result_size_bytes"] > 0


def test_a_failed_job_has_an_error_instead(api):
    job_id = api.pushed()
    api.fetch()
    api.nack(job_id, retryable=False, message="No such bucket.")

    reply = api.see(f"jobs/{job_id}/result").json()
    assert (reply["state"], reply["result"]) == ("discarded", None)
    assert reply["error"]["message"] == "No such bucket."


def test_a_job_that_runs_has_no_result_yet(api):
    reply = api.see(f"jobs/{api.pushed()}/result")
    assert (reply.status_code, reply.json()["result"]) == (200, None)
    assert reply.headers["Retry-After"] == "1"


@pytest.mark.django_db(transaction=True)
@pytest.mark.slow
def test_a_waiter_is_answered_when_the_job_ends(api):
    job = JobFactory(active=True, reserved_by="w")

    reply, _ = together(
        lambda: api.see(f"jobs/{job.pk}/result", wait="true", timeout=20),
        lambda: engine.complete([engine.Completion(job.pk, "w", result="there")]),
    )

    assert (reply.status_code, reply.json()["result"]) == (200, "there")


def test_a_wait_has_an_end(api):
    reply = api.see(f"jobs/{api.pushed()}/result", wait="true", timeout=0)
    assert reply.status_code == 408
    assert reply.json()["error"]["retryable"] is True


def test_a_result_past_its_time_is_gone_at_once_and_deleted_by_the_sweep(api):
    job_id = done(api, "secret", result_ttl=60)
    assert api.see(f"jobs/{job_id}/result").status_code == 200
    Job.objects.update(finished_at=ago(61))

    reply = api.see(f"jobs/{job_id}/result")
    assert (reply.status_code, reply.json()["error"]["code"]) == (410, "RESULT_PRUNED")
    assert "result" not in api.job(job_id)

    assert engine.prune_results() == 1
    assert Job.objects.get().result is None
    assert engine.prune_results() == 0
    assert api.see(f"jobs/{job_id}/result").status_code == 410


def test_an_ephemeral_result_is_not_kept(api):
    job_id = done(api, "x", result_ttl=0)
    assert api.see(f"jobs/{job_id}/result").status_code == 410


def test_a_permanent_result_keeps_its_job(api, settings):
    settings.OJS = {**settings.OJS, "COMPLETED_RETENTION": 0}
    job_id = done(api, "x", result_ttl=-1)
    done(api, "y")

    assert engine.prune_jobs() == 1
    assert api.see(f"jobs/{job_id}/result").json()["result"] == "x"
    assert api.job(job_id)["result_ttl"] == -1


def test_a_workflow_keeps_the_results_it_may_still_pass_on(api):
    step = {"type": "a", "args": [], "options": {"result_ttl": 0}}
    api.send("workflows", {"type": "chain", "steps": [step, step]})
    (first,) = api.fetch()
    api.ack(first["id"], result="for the next")

    assert engine.prune_results() == 0
    (second,) = api.fetch()
    assert second["parent_results"] == ["for the next"]
    api.ack(second["id"], result=1)
    assert engine.prune_results() == 2


def test_too_large_a_result_is_refused_and_the_job_stays_active(api, settings):
    settings.OJS = {**settings.OJS, "MAX_RESULT_SIZE": 100}
    large, small = (JobFactory(active=True, reserved_by="w") for _ in range(2))

    reply = api.ack(large.pk, worker_id="w", result="x" * 200)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "RESULT_TOO_LARGE")
    assert Job.objects.get(pk=large.pk).state == "active"

    acks = [
        {"job_id": str(job.pk), "result": "x" * size} for job, size in ((large, 200), (small, 9))
    ]
    answers = api.send("workers/ack", {"worker_id": "w", "acks": acks}).json()["acks"]
    assert [answer["status"] for answer in answers] == [413, 200]
    assert api.ack(large.pk, worker_id="w", result={"$ref": "x"}).status_code == 200


def test_many_results_at_once(api):
    one, gone, open_job = done(api, 1), done(api, 2, result_ttl=0), api.pushed()

    ids = [one, open_job, gone, str(uuid7()), "nonsense"]
    results = api.send("jobs/results", {"ids": ids}).json()["results"]

    assert list(results) == ids
    assert results[one] == {"state": "completed", "result": 1}
    assert results[open_job] == {"state": "available", "result": None}
    assert results[gone]["result"] is None
    assert results["nonsense"] is None


@pytest.mark.parametrize("body", [{}, {"ids": []}, {"ids": [1]}, {"ids": ["x"] * 1001}])
def test_a_bad_list_of_ids_is_refused(api, body):
    refusal(api.send("jobs/results", body))


@pytest.mark.parametrize("ttl", [-2, "7", 1.5, True, 10**12])
def test_a_bad_result_ttl_is_refused(api, ttl):
    assert "result_ttl" in refusal(api.push(options={"result_ttl": ttl}))["message"]


def test_a_limit_of_its_own_that_would_not_be_kept_is_refused(api, settings):
    """OJS results §6.1."""
    settings.OJS = {**settings.OJS, "MAX_RESULT_SIZE": 1000}

    reply = api.push(options={"result_size_limit": 999})

    assert (reply.status_code, refusal(reply)["code"]) == (422, "unsupported")
    assert refusal(reply)["details"]["field"] == "result_size_limit"
    job_id = api.pushed(options={"result_size_limit": 1000})
    assert api.job(job_id)["result_size_limit"] == 1000
    assert refusal(api.push(result_size_limit="1000"))["code"] == "invalid_request"


def test_a_running_workflow_goes_on_when_the_limit_of_results_has_grown(api, settings):
    settings.OJS = {**settings.OJS, "MAX_RESULT_SIZE": 1000}
    job = {"type": "a", "args": [], "options": {"result_size_limit": 1000}}
    batch = {"type": "batch", "jobs": [job], "callbacks": {"on_complete": job | {"type": "b"}}}
    assert api.send("workflows", batch).status_code == 201
    settings.OJS = {**settings.OJS, "MAX_RESULT_SIZE": 2000}

    api.ack(api.fetch()[0]["id"])

    assert [job["type"] for job in api.fetch()] == ["b"]
    assert api.send("workflows", batch).status_code == 422


def test_the_result_of_no_job_is_not_found(api):
    assert api.see(f"jobs/{uuid7()}/result").status_code == 404
    assert api.see("jobs/nonsense/result").status_code == 404
    refusal(api.see(f"jobs/{uuid7()}/result", wait="maybe", timeout="x"))


def test_info_says_how_long_a_result_stays_and_when_to_ask_again(db, api):
    """OJS results §6.2, §8.1."""
    job_id = api.pushed(result_ttl=60)
    assert api.see(f"jobs/{job_id}")["Retry-After"] == "1"
    assert "result_stored_at" not in api.job(job_id)
    api.fetch(worker_id="w")

    api.ack(job_id, worker_id="w", result={"a": 1})

    job = api.job(job_id)
    assert job["result_stored_at"] == job["completed_at"] < job["result_expires_at"]
    assert job["result_size_bytes"] == 7
    assert "Retry-After" not in api.see(f"jobs/{job_id}").headers


@pytest.mark.parametrize("ends", [{"discarded": True}, {"cancelled": True}, {"dead": True}])
def test_a_job_that_ended_without_a_result_has_nothing_stored(db, api, ends):
    job = api.job(str(JobFactory(**ends).pk))

    assert not [name for name in job if name.startswith("result_")]

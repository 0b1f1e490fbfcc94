"""Many jobs in one request (OJS bulk operations)."""

from __future__ import annotations

import pytest

from jobs.engine import bulk_operations
from jobs.http.authentication import make_key
from jobs.models import Dependency, Event, Job
from jobs.spec.lifecycle import State
from tests.factories import JobFactory, many_jobs
from tests.ojs_client import OJSClient, refusal

JOB = {"type": "user.import", "args": []}


def states() -> dict[str, str]:
    return {str(pk): state for pk, state in Job.objects.values_list("pk", "state")}


def test_a_partial_batch_stores_what_is_valid_and_says_what_is_not(api):
    reply = api.send("jobs/bulk", {"jobs": [JOB, {"type": "", "args": []}, JOB]})

    body = reply.json()
    assert reply.status_code == 207
    assert (body["total"], body["succeeded"], body["failed"]) == (3, 2, 1)
    assert [item["status"] for item in body["items"]] == ["created", "failed", "created"]
    assert body["items"][1]["error"]["details"]["field"] == "type"
    assert Job.objects.count() == 2
    event = Event.objects.get(type="bulk.enqueue.completed")
    assert event.data == {"total": 3, "succeeded": 2, "failed": 1, "atomicity": "partial"}


def test_an_atomic_batch_with_one_bad_job_stores_none(api):
    reply = api.send("jobs/bulk", {"atomicity": "atomic", "jobs": [JOB, {"args": []}]})

    assert reply.status_code == 422
    assert [item["status"] for item in reply.json()["items"]] == ["failed", "failed"]
    assert not Job.objects.exists()


def test_ids_that_exist_fail_alone_in_a_partial_batch(api):
    ids = [str(pk) for pk in many_jobs(2)]
    new = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
    jobs = [JOB | {"id": ids[0]}, JOB | {"id": new}, JOB | {"id": new}, JOB | {"id": ids[1]}, JOB]

    reply = api.send("jobs/bulk", {"jobs": jobs})

    outcome = [item["status"] for item in reply.json()["items"]]
    assert outcome == ["failed", "created", "failed", "failed", "created"]
    assert Job.objects.count() == 4


def test_an_ignored_duplicate_is_answered_with_the_existing_job(api):
    unique = JOB | {"unique": {"keys": ["type", "args"], "on_conflict": "ignore"}}
    known = api.pushed(**unique)

    items = api.send("jobs/bulk", {"jobs": [JOB, unique]}).json()["items"]

    assert [item["status"] for item in items] == ["created", "duplicate"]
    assert items[1]["job"]["id"] == known


def test_a_duplicate_that_is_rejected_fails_alone_in_a_partial_batch(api):
    unique = JOB | {"type": "a", "unique": {"keys": ["type"]}}
    ignored = JOB | {"type": "b", "unique": {"keys": ["type"], "on_conflict": "ignore"}}
    api.pushed(**unique)

    reply = api.send("jobs/bulk", {"jobs": [ignored, JOB, unique, ignored]})

    assert reply.status_code == 207
    items = reply.json()["items"]
    assert [item["status"] for item in items] == ["created", "created", "failed", "duplicate"]
    assert items[3]["job"]["id"] == items[0]["job"]["id"]
    assert len({item["job"]["id"] for item in items if "job" in item}) == Job.objects.count() - 1


def test_an_atomic_batch_says_which_job_was_in_the_way(api):
    unique = JOB | {"type": "a", "unique": {"keys": ["type"]}}
    api.pushed(**unique)

    reply = api.send("jobs/bulk", {"atomicity": "atomic", "jobs": [JOB, unique, JOB]})

    assert reply.status_code == 422
    codes = [item["error"]["code"] for item in reply.json()["items"]]
    assert codes[1] == "duplicate" and codes[0] == codes[2] == "conflict"
    assert Job.objects.count() == 1


def test_of_a_partial_batch_a_full_queue_takes_what_it_can_and_tells_of_the_rest(api):
    api.put("/ojs/v1/queues/default/config", {"max_size": 2}, content_type="application/json")

    reply = api.send("jobs/bulk", {"jobs": [JOB] * 5})

    assert [item["status"] for item in reply.json()["items"]] == ["created"] * 2 + ["failed"] * 3
    assert reply.json()["items"][4]["error"]["code"] == "QUEUE_FULL"
    assert Event.objects.filter(type="backpressure.rejected").count() == 1


def test_a_batch_beyond_the_limit_is_413(api, settings):
    settings.OJS = {**settings.OJS, "MAX_BULK": 100}

    reply = api.send("jobs/bulk", {"jobs": [JOB] * 101})

    assert reply.status_code == 413
    assert reply.headers["X-OJS-Max-Batch-Size"] == "100"
    assert refusal(reply)["code"] == "BATCH_SIZE_EXCEEDED"
    assert refusal(reply)["max_batch_size"] == refusal(reply)["details"]["max_batch_size"] == 100


@pytest.mark.parametrize("place", ["header", "body"])
def test_a_repeated_request_is_answered_but_not_executed_again(api, place):
    headers = {"Idempotency-Key": "import-42"} if place == "header" else {}
    extra = {"idempotency_key": "import-42"} if place == "body" else {}
    request = {"jobs": [JOB, JOB]} | extra

    first, second = (api.send("jobs/bulk", request, headers=headers) for _ in range(2))

    assert first.status_code == second.status_code == 201
    assert first.json() == second.json()
    assert Job.objects.count() == 2


def test_the_same_key_with_another_request_is_a_conflict(api):
    api.send("jobs/bulk", {"jobs": [JOB], "idempotency_key": "k"})

    assert refusal(api.send("jobs/bulk", {"jobs": [JOB, JOB], "idempotency_key": "k"}))
    assert Job.objects.count() == 1


def test_bulk_cancel_by_ids_skips_active_and_finished_jobs_and_says_why(api):
    waiting, active, done = JobFactory(), JobFactory(active=True), JobFactory(completed=True)
    ids = [str(job.pk) for job in (waiting, active, done)]

    reply = api.send("jobs/bulk/cancel", {"job_ids": [*ids, "nothing"]})

    body = reply.json()
    assert reply.status_code == 207
    assert (body["cancelled"], body["skipped"]) == (1, 3)
    assert [item["status"] for item in body["items"]] == ["cancelled", *["skipped"] * 3]
    assert body["items"][1]["reason"] == "Job is in active state"
    assert states() == dict(zip(ids, ["cancelled", "active", "completed"], strict=True))


def test_an_atomic_cancel_that_cannot_do_all_does_none(api):
    waiting, done = JobFactory(), JobFactory(completed=True)
    ids = [str(waiting.pk), str(done.pk)]

    reply = api.send("jobs/bulk/cancel", {"job_ids": ids, "atomicity": "atomic"})

    assert reply.status_code == 422
    assert reply.json()["cancelled"] == 0
    assert states()[ids[0]] == "available"
    assert not Event.objects.filter(type="job.cancelled").exists()


def test_a_filter_is_previewed_and_then_carried_out_in_batches(api):
    many_jobs(1200, queue="reports")
    many_jobs(3, queue="other")
    request = {"filter": {"queue": "reports"}}

    preview = api.send("jobs/bulk/cancel", request | {"dry_run": True}).json()
    assert (preview["total_matched"], preview["has_more"]) == (1200, False)
    assert set(Job.objects.values_list("state", flat=True)) == {"available"}

    done = api.send("jobs/bulk/cancel", request).json()
    assert done["cancelled"] == 1200
    assert Job.objects.filter(state=State.AVAILABLE).count() == 3
    assert Event.objects.filter(type="job.cancelled").count() == 1200


def test_a_filter_that_names_active_jobs_cancels_none_of_them(api):
    """OJS bulk operations §6.1."""
    waiting, active = JobFactory(), JobFactory(active=True)
    request = {"filter": {"queue": "default", "state": ["active", "available"]}}

    would = api.send("jobs/bulk/cancel", request | {"dry_run": True}).json()
    done = api.send("jobs/bulk/cancel", request).json()

    assert (would["total_matched"], done["total_matched"], done["cancelled"]) == (1, 1, 1)
    assert states() == {str(waiting.pk): "cancelled", str(active.pk): "active"}


def finished_workflow(api) -> str:
    """Return the id of its only job."""
    api.send("workflows", {"type": "chain", "steps": [JOB | {"options": {"queue": "flow"}}]})
    (job,) = api.fetch("flow")
    api.ack(job["id"])
    return job["id"]


def test_a_finished_job_that_stays_with_its_workflow_is_not_promised_and_no_more_is(api):
    job_id = finished_workflow(api)
    purge = {"states": ["completed"], "confirm": True}
    chosen = {"filter": {"queue": "flow"}}

    purged = api.delete("/ojs/v1/admin/queues/flow/jobs", purge, "application/json").json()
    would = api.send("jobs/bulk/delete", chosen | {"dry_run": True}).json()
    deleted = api.send("jobs/bulk/delete", chosen).json()

    assert (purged["purged_count"], purged["has_more"]) == (0, False)
    assert (would["total_matched"], would["has_more"]) == (0, False)
    assert (deleted["deleted"], deleted["has_more"]) == (0, False)
    assert bulk_operations.preview("delete", chosen["filter"]) == (0, False)
    assert list(states()) == [job_id]


def test_a_deletion_by_ids_says_that_a_job_stays_with_its_workflow(api):
    job_id = finished_workflow(api)

    (item,) = api.send("jobs/bulk/delete", {"job_ids": [job_id]}).json()["items"]

    assert item["reason"] == "Job belongs to a workflow and cannot be deleted without it"


def test_a_result_that_another_job_waits_for_is_not_deleted_and_no_more_is_promised(api):
    awaited = JobFactory(completed=True, followed=True)
    Dependency.objects.create(predecessor=awaited, waiter=JobFactory(pending=True))
    everything = {"filter": {"queue": "default"}, "confirm": True}

    report = api.send("admin/jobs/bulk/delete", everything).json()
    (item,) = api.send("jobs/bulk/delete", {"job_ids": [str(awaited.pk)]}).json()["items"]

    assert (report["succeeded"], report["failed"], report["has_more"]) == (0, 1, False)
    assert "another job waits" in report["errors"][0]["error"]
    assert "another job waits" in item["reason"]


def test_bulk_retry_takes_discarded_and_retryable_jobs(api):
    dead, backing_off = JobFactory(dead=True), JobFactory(retryable=True)
    done = JobFactory(completed=True)
    ids = [str(job.pk) for job in (dead, backing_off, done)]

    reply = api.send("jobs/bulk/retry", {"job_ids": ids})

    assert reply.json()["retried"] == 2
    assert list(states().values()).count("available") == 2
    assert len(api.fetch(count=3)) == 2


def test_bulk_delete_takes_finished_jobs_only(api):
    finished, waiting = JobFactory(dead=True), JobFactory()

    reply = api.send("jobs/bulk/delete", {"job_ids": [str(finished.pk), str(waiting.pk)]})

    assert reply.json()["deleted"] == 1
    assert list(states()) == [str(waiting.pk)]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "job_ids"),
        ({"job_ids": []}, "job_ids"),
        ({"job_ids": ["x"], "filter": {"queue": "q"}}, "job_ids"),
        ({"filter": {}}, "filter"),
        ({"filter": {"colour": "red"}}, "filter.colour"),
        ({"filter": {"state": "lost"}}, "filter.state"),
        ({"filter": {"enqueued_before": "noon"}}, "enqueued_before"),
        ({"filter": {"meta": {"a": [1]}}}, "filter.meta.a"),
    ],
)
def test_a_selection_that_says_nothing_clear_is_refused(api, body, field):
    job = JobFactory()

    assert refusal(api.send("jobs/bulk/cancel", body))["details"]["field"] == field
    assert states()[str(job.pk)] == "available"


@pytest.mark.parametrize(
    "name",
    ["tenant", "contains", "in", "isnull", "regex", "a__b", "0", "-1", 'a"b', "a.b", "", "ü"],
)
@pytest.mark.parametrize(
    ("value", "other"), [("1", 1), (1, True), (True, 1), (1.5, 1), ("x", "xx")]
)
def test_meta_is_compared_member_by_member_whatever_its_name(api, name, value, other):
    wanted, spared = api.pushed(meta={name: value}), api.pushed(meta={name: other, "z": [name]})

    reply = api.send("jobs/bulk/cancel", {"filter": {"meta": {name: value}}})

    assert reply.json()["total_matched"] == 1, reply.content
    assert states() == {wanted: "cancelled", spared: "available"}


def test_the_priority_of_a_waiting_job_can_be_changed(api):
    low, high = api.pushed(priority=1), api.pushed(priority=5)
    reply = api.patch(
        f"/ojs/v1/jobs/{low}", data=b'{"priority": 9}', content_type="application/json"
    )

    assert (reply.json()["priority"], reply.json()["previous_priority"]) == (9, 1)
    assert api.see("queues/default/priority-stats").json()["counts_by_priority"] == {
        "5": 1,
        "9": 1,
    }
    assert [job["id"] for job in api.fetch(count=2)] == [low, high]
    again = api.patch(
        f"/ojs/v1/jobs/{low}", data=b'{"priority": 0}', content_type="application/json"
    )
    assert refusal(again)["details"]["current_state"] == "active"
    assert Event.objects.get(type="priority.changed").data["new_priority"] == 9


@pytest.mark.django_db
def test_a_filter_names_a_project_and_no_project_reaches_another():
    ours, theirs = (JobFactory(project=name).pk for name in ("acme", "other"))
    of_acme = OJSClient(make_key("a", project="acme")[1])
    of_all = OJSClient(make_key("b")[1])

    def cancelled(client: OJSClient, project: str) -> int:
        wanted = {"filter": {"project": project}}
        return client.send("jobs/bulk/cancel", wanted).json()["cancelled"]

    assert cancelled(of_acme, "other") == 0
    assert cancelled(of_all, "acme") == 1
    assert (states()[str(ours)], states()[str(theirs)]) == ("cancelled", "available")


@pytest.mark.parametrize(
    "change", [{"priority": 1, "queue": "other"}, {"args": [2]}, {"scheduled_at": "+PT1H"}]
)
def test_nothing_else_about_a_waiting_job_can_be_changed(api, change):
    job_id = api.pushed()

    reply = api.patch(f"/ojs/v1/jobs/{job_id}", change, "application/json")

    error, name = refusal(reply), next(name for name in change if name != "priority")
    assert (reply.status_code, error["details"]["field"]) == (400, name)
    assert error["message"] == f"There is no member '{name}'; there is only priority."
    assert (api.job(job_id)["priority"], api.job(job_id)["queue"]) == (0, "default")

"""Execution history over HTTP (OJS execution history): history, lineage, search, figures, purge."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs import engine
from jobs.http.authentication import make_key
from jobs.models import Event, JobCounter, OperatorAction
from jobs.record import rollup
from jobs.spec.timestamps import format_timestamp
from tests.factories import JobFactory, ago
from tests.ojs_client import V1, OJSClient, refusal

pytestmark = pytest.mark.django_db

UNKNOWN = "019414d4-0000-7000-8000-000000000000"


def client(*scopes, **bound):
    return OJSClient(make_key("history", scopes=list(scopes), **bound)[1])


@pytest.fixture
def api():
    return client("produce", "work")


@pytest.fixture
def operator():
    return client("produce", "work", "operate", "ojs:admin:args")


def history(api, job_id, **query):
    reply = api.see(f"jobs/{job_id}/history", **query)
    assert reply.status_code == 200, reply.content
    return reply.json()


def said(found):
    return [entry["event_type"] for entry in found["events"]]


def failed_for_good(api, **job):
    """A job with two failed attempts; return its id."""
    job_id = api.pushed(options={"retry": {"max_attempts": 2, "initial_interval": "PT1H"}} | job)
    for _ in range(2):
        engine.run_now([job_id])
        assert [job["id"] for job in api.fetch(worker_id="w1")] == [job_id]
        assert api.nack(job_id, message="SMTP timeout", worker_id="w1").status_code == 200
    return job_id


def test_the_history_of_a_job_tells_how_it_failed(api):
    job_id = failed_for_good(api)

    found = history(api, job_id)

    assert said(found) == [
        "job.created",
        "job.state_changed",
        "job.attempt_started",
        "job.attempt_failed",
        "job.state_changed",
        "job.state_changed",
        "job.state_changed",
        "job.attempt_started",
        "job.attempt_failed",
        "job.state_changed",
        "job.discarded",
    ]
    assert (found["total"], found["next_cursor"]) == (11, None)
    by_type = {entry["event_type"]: entry for entry in found["events"]}
    created = by_type["job.created"]["data"]
    assert created["args_size_bytes"] == 2
    assert (created["queue"], created["type"]) == ("default", "email.send")
    begun = by_type["job.attempt_started"]
    assert begun["data"] == {"worker_id": "w1", "attempt": 2}
    assert begun["actor"] == {"type": "worker", "id": "w1"}
    error = by_type["job.attempt_failed"]["data"]
    assert (error["error"], error["will_retry"], error["attempt"]) == ("SMTP timeout", False, 2)
    over = by_type["job.discarded"]["data"]
    assert (over["total_attempts"], over["last_error"]) == (2, "SMTP timeout")
    changes = [e["data"] for e in found["events"] if e["event_type"] == "job.state_changed"]
    assert changes[:3] == [
        {"from": "available", "to": "active"},
        {"from": "active", "to": "retryable"},
        {"from": "retryable", "to": "available"},
    ]
    assert {entry["job_id"] for entry in found["events"]} == {job_id}
    assert len({entry["id"] for entry in found["events"]}) == 11


def test_pages_of_a_history_have_each_entry_once(api):
    job_id = failed_for_good(api)
    whole = history(api, job_id)["events"]

    found, cursor = [], ""
    while cursor is not None:
        page = history(api, job_id, limit=2, **({"cursor": cursor} if cursor else {}))
        assert len(page["events"]) <= 2
        found, cursor = found + page["events"], page["next_cursor"]

    assert found == whole


def test_completion_cancellation_and_progress_are_told(api):
    done, stopped = api.pushed(), api.pushed(queue="other")
    api.fetch(worker_id="w1")
    body = {"job_id": done, "progress": 0.25, "message": "a quarter", "worker_id": "w1"}
    assert api.send("workers/progress", body).status_code == 200
    api.ack(done, worker_id="w1")
    api.delete(f"{V1}/jobs/{stopped}")

    completed, cancelled = history(api, done)["events"], history(api, stopped)["events"]

    told = {entry["event_type"]: entry["data"] for entry in completed}
    assert told["job.progress"] == {"percent": 25.0, "message": "a quarter"}
    assert told["job.attempt_completed"]["attempt"] == 1
    assert told["job.attempt_completed"]["duration_ms"] >= 0
    assert [entry["event_type"] for entry in cancelled][1:] == [
        "job.cancelled",
        "job.state_changed",
    ]
    assert cancelled[1]["actor"] == {"type": "client", "id": "history"}
    assert cancelled[2]["data"] == {"from": "available", "to": "cancelled"}


def test_a_pending_job_has_been_created(api):
    job_id = api.pushed(options={"pending": True})
    alone = history(api, job_id)
    api.send(f"jobs/{job_id}/activate")

    both = history(api, job_id)

    assert said(alone) == ["job.created"]
    assert alone["events"][0]["data"]["state"] == "pending"
    assert said(both) == ["job.created", "job.state_changed"]
    assert both["events"][1]["data"] == {"from": "pending", "to": "available"}
    assert both["events"][1]["actor"] == {"type": "client", "id": "history"}
    assert both["total"] == 2
    first = history(api, job_id, limit=1)
    rest = history(api, job_id, limit=1, cursor=first["next_cursor"])
    assert [*first["events"], *rest["events"]] == both["events"]
    assert rest["next_cursor"] is None


def test_the_steps_of_a_workflow_are_in_the_search(api, operator):
    step = {"type": "a.b", "args": []}
    api.send("workflows", {"type": "chain", "steps": [step, step]})
    ids = []
    for _ in range(2):
        (job,) = api.fetch(worker_id="w1")
        ids.append(job["id"])
        api.ack(job["id"], worker_id="w1")

    wanted = "workflow.created,workflow.step_completed,workflow.completed"
    found = operator.see("history", event_types=wanted).json()["events"]

    assert sorted(entry["event_type"] for entry in found) == [
        "workflow.completed",
        "workflow.created",
        "workflow.step_completed",
        "workflow.step_completed",
    ]
    by_type = {entry["event_type"]: entry["data"] for entry in found}
    assert by_type["workflow.created"]["workflow_type"] == "chain"
    assert by_type["workflow.created"]["total_jobs"] == 2
    assert by_type["workflow.completed"]["status"] == "completed"
    steps = [entry for entry in found if entry["event_type"] == "workflow.step_completed"]
    assert sorted(entry["job_id"] for entry in steps) == sorted(ids)


def test_lineage_names_parent_root_and_descendants(api):
    root = api.pushed()
    child = api.pushed(parent_id=root)
    grandchild, sibling = api.pushed(parent_id=child), api.pushed(parent_id=root)

    below = api.see(f"jobs/{root}/lineage").json()
    above = api.see(f"jobs/{grandchild}/lineage").json()

    assert (below["parent_id"], below["root_id"], below["workflow_id"]) == (None, root, None)
    tree = {node["job_id"]: [n["job_id"] for n in node["children"]] for node in below["children"]}
    assert tree == {child: [grandchild], sibling: []}
    assert (above["parent_id"], above["root_id"], above["children"]) == (child, root, [])
    document = api.job(grandchild)
    assert (document["parent_id"], document["root_id"]) == (child, root)
    assert api.fetch(count=4)[2]["root_id"] == root


def test_a_batch_may_hold_a_parent_and_its_children(api):
    first = "019539a4-0000-7000-8000-000000000001"
    second = "019539a4-0000-7000-8000-000000000002"
    job = {"type": "a.b", "args": []}
    batch = [job | {"id": first}, job | {"id": second, "parent_id": first}]
    batch.append(job | {"parent_id": second})

    reply = api.send("jobs/batch", {"jobs": batch})

    assert reply.status_code == 201, reply.content
    assert [made.get("root_id") for made in reply.json()["jobs"]] == [None, first, first]


def test_like_jobs_of_a_batch_have_the_same_parent(api):
    parent = api.pushed()

    api.send(
        "jobs/batch",
        {"jobs": [{"type": "a.b", "args": [n], "parent_id": parent} for n in range(3)]},
    )

    children = api.see(f"jobs/{parent}/lineage").json()["children"]
    assert [child["type"] for child in children] == ["a.b"] * 3
    assert {api.job(child["job_id"])["root_id"] for child in children} == {parent}


def test_a_project_may_only_name_a_parent_of_its_own():
    acme, twin = client("produce", project="acme"), client("produce", project="twin")
    foreign = twin.pushed()

    refused = acme.push(parent_id=foreign)
    unknown = acme.push(parent_id=UNKNOWN)
    own = acme.pushed(parent_id=acme.pushed())

    assert refusal(refused)["details"]["field"] == "parent_id"
    assert refusal(refused)["message"].replace(foreign, "") == refusal(unknown)["message"].replace(
        UNKNOWN, ""
    )
    assert acme.job(own)["root_id"] == acme.job(own)["parent_id"]
    for path in ("history", "lineage"):
        assert acme.see(f"jobs/{foreign}/{path}").status_code == 404
    assert twin.see(f"jobs/{foreign}/lineage").json()["children"] == []


def test_a_parent_that_is_gone_is_kept_as_it_was_sent(api):
    job_id = api.pushed(parent_id=UNKNOWN)

    assert api.job(job_id)["root_id"] == UNKNOWN
    assert refusal(api.push(parent_id="nobody"))["details"]["field"] == "parent_id"


def test_the_search_finds_failures_by_words_time_queue_type_and_actor(api, operator):
    job_id = failed_for_good(api)
    api.pushed(type="other.job", queue="other")
    Event.objects.filter(subject=job_id).update(time=ago(60))

    def found(**query):
        reply = operator.see("history", **query)
        assert reply.status_code == 200, reply.content
        return reply.json()

    failures = found(query="smtp TIMEOUT", event_types="job.attempt_failed,job.discarded")
    assert said(failures) == ["job.discarded", "job.attempt_failed", "job.attempt_failed"]
    assert failures["total_estimate"] == 3
    assert failures["next_cursor"] is None
    assert said(found(queues="other")) == ["job.created"]
    assert said(found(job_types="other.job")) == ["job.created"]
    assert said(found(start=format_timestamp(ago(30)))) == ["job.created"]
    assert len(found(end=format_timestamp(ago(30)))["events"]) == 11
    assert said(found(actor_type="client", queues="default")) == ["job.created"]
    assert found(query="no such words")["events"] == []


def test_pages_of_the_search_have_each_entry_once_newest_first(api, operator):
    for _ in range(3):
        failed_for_good(api)
    whole = operator.see("history", limit=1000).json()["events"]

    found, cursor = [], ""
    while cursor is not None:
        query = {"limit": 4} | ({"cursor": cursor} if cursor else {})
        page = operator.see("history", **query).json()
        found, cursor = found + page["events"], page["next_cursor"]

    assert sorted(entry["id"] for entry in found) == sorted(entry["id"] for entry in whole)
    assert len(found) == 33
    times = [entry["timestamp"] for entry in whole]
    assert times == sorted(times, reverse=True)


def test_a_larger_page_than_there_is_is_clamped(operator):
    reply = operator.see("history", limit=5000)

    assert reply.status_code == 200
    assert reply["X-OJS-Limit-Clamped"] == "true"
    assert "X-OJS-Limit-Clamped" not in operator.see("history", limit=1000)


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        ("history", {"event_types": "job.exploded"}, "event_types"),
        ("history", {"start": "yesterday"}, "start"),
        ("history", {"cursor": "x"}, "cursor"),
        ("history", {"types": "job.created"}, "types"),
        ("history", {"actor_type": "robot"}, "actor_type"),
        ("history/stats", {"group_by": "week"}, "group_by"),
        ("history/stats", {"end": "0001-01-01T12:00:00Z"}, "end"),
        ("history/stats", {"queues": "a", "job_types": "b"}, "job_types"),
        ("history/stats", {"group_by": "minute", "start": "2020-01-01T00:00:00Z"}, "start"),
        (f"jobs/{UNKNOWN}/history", {"limit": "0"}, "limit"),
    ],
)
def test_what_cannot_be_meant_is_refused(operator, path, query, field):
    assert refusal(operator.see(path, **query))["details"]["field"] == field


def test_a_project_finds_what_happened_to_its_own_jobs():
    acme, twin = client("produce", project="acme"), client("produce", project="twin")
    own = acme.pushed()
    twin.pushed()

    found = acme.see("history").json()

    assert [entry["job_id"] for entry in found["events"]] == [own]


def test_operators_without_the_scope_see_no_secret_and_cannot_search_for_it(api):
    (job,) = [api.pushed()]
    api.fetch(worker_id="w1")
    api.nack(job, message="login(password='hush-hush') failed", worker_id="w1")
    blind, sighted = client("ojs:admin:read"), client("ojs:admin:read", "ojs:admin:args")

    hidden = blind.see(f"admin/jobs/{job}/history")
    shown = sighted.see(f"admin/jobs/{job}/history")

    assert "hush-hush" in shown.content.decode()
    assert "hush-hush" not in hidden.content.decode()
    assert blind.see("admin/history", query="hush").json()["events"] == []
    assert len(sighted.see("admin/history", query="hush").json()["events"]) > 0


def test_a_purge_deletes_the_history_and_leaves_the_job_and_the_figures(api, operator):
    job_id = failed_for_good(api)
    kept = api.pushed()

    reply = operator.delete(f"{V1}/jobs/{job_id}/history")

    assert reply.json() == {"deleted": True, "events_deleted": 11}
    assert history(api, job_id) == {"events": [], "next_cursor": None, "total": 0}
    assert not Event.objects.filter(subject=job_id).exists()
    assert history(api, kept)["total"] == 1
    assert api.job(job_id)["state"] == "discarded"
    assert JobCounter.objects.get(job_type="email.send").failed == 1
    action = OperatorAction.objects.get(verb="purge_history")
    assert (action.actor, action.count, action.selection) == ("history", 11, {"ids": [job_id]})


def test_the_history_outlives_its_job_and_can_be_purged_then(operator):
    job_id = operator.pushed()
    operator.delete(f"{V1}/jobs/{job_id}")
    operator.send("jobs/bulk/delete", {"job_ids": [job_id]})

    assert said(history(operator, job_id))[0] == "job.created"
    assert operator.delete(f"{V1}/jobs/{job_id}/history").status_code == 200
    assert operator.see(f"jobs/{job_id}/history").status_code == 404
    assert operator.delete(f"{V1}/jobs/{job_id}/history").status_code == 404


def test_a_purge_by_time_deletes_what_is_older_in_the_queues_it_names(operator):
    old, other, new = operator.pushed(), operator.pushed(queue="other"), operator.pushed()
    Event.objects.filter(subject__in=[old, other]).update(time=ago(3600))
    before = format_timestamp(timezone.now() - timedelta(minutes=30))

    reply = operator.delete(f"{V1}/history?before={before}&queues=default")

    assert reply.json() == {
        "purged": True,
        "events_purged": 1,
        "async": False,
        "has_more": False,
    }
    left = [entry["job_id"] for entry in operator.see("history").json()["events"]]
    assert sorted(left) == sorted([other, new])
    assert refusal(operator.delete(f"{V1}/history"))["details"]["field"] == "before"
    kinds = f"before={before}&event_types=job.attempt_failed"
    assert operator.delete(f"{V1}/history?{kinds}").json()["events_purged"] == 0


def test_a_large_purge_says_that_there_is_more(operator, monkeypatch):
    for name, most in (("BATCH", 2), ("MOST", 4)):
        monkeypatch.setattr(engine.history, name, most)
    for _ in range(5):
        operator.pushed()
    address = f"{V1}/history?before={format_timestamp(timezone.now() + timedelta(hours=1))}"

    first, second = operator.delete(address).json(), operator.delete(address).json()

    assert (first["events_purged"], first["purged"], first["has_more"]) == (4, False, True)
    assert (second["events_purged"], second["purged"], second["has_more"]) == (1, True, False)


def test_figures_are_given_by_minute_hour_and_day(operator):
    moment = ago(300)
    started = moment - timedelta(seconds=2)
    JobFactory(
        completed=True,
        queue="mail",
        created_at=started,
        enqueued_at=started,
        started_at=started,
        finished_at=moment,
    )
    while rollup.step():
        pass

    for width in ("minute", "hour", "day"):
        reply = operator.see("history/stats", group_by=width)
        assert reply.status_code == 200, reply.content
        (bucket,) = [b for b in reply.json()["buckets"] if b["events"]["job.attempt_completed"]]
        assert 1600 < bucket["avg_duration_ms"] < 2400
        assert 1600 < bucket["p95_duration_ms"] < 2400
    assert operator.see("history/stats", queues="none").json() == {"buckets": []}
    mail = operator.see("history/stats", queues="mail,none").json()["buckets"]
    assert sum(bucket["events"]["job.attempt_completed"] for bucket in mail) == 1

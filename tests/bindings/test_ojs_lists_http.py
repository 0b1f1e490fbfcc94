"""Queues and dead letter over HTTP, and walking through their pages (HTTP §11, §12, §17)."""

from __future__ import annotations

import pytest

from jobs import engine
from jobs.models import Job
from jobs.spec.timestamps import parse_timestamp
from tests.factories import JobErrorFactory, JobFactory, QueueFactory, ago, ahead
from tests.ojs_client import refusal

# Queues (§11.1)


def test_queues_are_listed_by_name(api):
    QueueFactory(name="email")
    QueueFactory(name="billing", paused=True)
    QueueFactory(name="archive", paused=True, paused_until=ago(1))

    body = api.see("queues").json()

    assert [(queue["name"], queue["status"]) for queue in body["queues"]] == [
        ("archive", "active"),
        ("billing", "paused"),
        ("email", "active"),
    ]
    assert all(queue["created_at"] for queue in body["queues"])
    assert body["pagination"] == {"total": 3, "limit": 50, "offset": 0, "has_more": False}


def test_a_queue_is_listed_once_it_was_used(api):
    api.pushed(queue="billing")

    assert [queue["name"] for queue in api.see("queues").json()["queues"]] == ["billing"]


# Dead letter (§12)


def test_the_dead_letter_lists_the_newest_first_with_their_errors(api):
    old, new = (JobFactory(dead=True, finished_at=ago(age)) for age in (60, 1))
    JobErrorFactory(job=new, attempt=1, type="First")
    JobErrorFactory(job=new, attempt=2, type="Second")
    JobFactory(discarded=True)
    JobFactory(retryable=True)

    body = api.see("dead-letter").json()

    assert [job["id"] for job in body["jobs"]] == [str(new.pk), str(old.pk)]
    assert body["jobs"][0]["error"]["type"] == "Second"
    assert [error["type"] for error in body["jobs"][0]["errors"]] == ["First", "Second"]
    assert body["jobs"][0]["discarded_at"]
    assert (body["total"], body["pagination"]["total"]) == (2, 2)


def test_the_dead_letter_shows_the_newest_of_a_long_history(api):
    job = JobFactory(dead=True, attempt=60)
    for attempt in range(1, 61):
        JobErrorFactory(job=job, attempt=attempt)

    (listed,) = api.see("dead-letter").json()["jobs"]

    assert [error["attempt"] for error in listed["errors"]] == list(range(11, 61))


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"queue": "email"}, {"a", "b"}),
        ({"type": "b"}, {"b"}),
        ({"queue": "email", "type": "c"}, set()),
        ({"queue": ""}, {"a", "b", "c"}),
    ],
)
def test_the_dead_letter_can_be_searched(api, filters, expected):
    """DLQ-006."""
    JobFactory(dead=True, queue="email", type="a")
    JobFactory(dead=True, queue="email", type="b")
    JobFactory(dead=True, queue="billing", type="c")

    body = api.see("dead-letter", **filters).json()

    assert {job["type"] for job in body["jobs"]} == expected
    assert body["pagination"]["total"] == len(expected)


def test_the_dead_letter_can_be_searched_by_the_last_error_and_by_time(api):
    """Dead letter §9.1."""
    early, late = JobFactory(dead=True, finished_at=ago(60)), JobFactory(dead=True)
    for job, last in ((early, "Boom"), (late, "Bang")):
        for kind in ("Boom", last):
            JobErrorFactory(job=job, type=kind)

    def found(**filters) -> list[str]:
        return [job["id"] for job in api.see("dead-letter", **filters).json()["jobs"]]

    assert found(error_type="Boom") == [str(early.pk)]
    assert found(since=ago(30).isoformat()) == found(error_type="Bang") == [str(late.pk)]
    assert found(until=ago(30).isoformat()) == [str(early.pk)]
    assert api.see("dead-letter", since="yesterday").status_code == 400


def test_a_page_of_the_dead_letter_has_a_hundred_jobs_though_two_hundred_may_be_asked_for(api):
    """HTTP §12.1 and §17.1."""
    JobFactory.create_batch(101, dead=True)

    body = api.see("dead-letter", limit=200).json()

    assert len(body["jobs"]) == body["pagination"]["limit"] == 100
    rest = api.see("dead-letter", limit=200, cursor=body["pagination"]["next_cursor"]).json()
    assert (len(rest["jobs"]), rest["pagination"]["has_more"]) == (1, False)


def test_a_dead_letter_job_can_be_looked_at(api):
    dead, discarded = JobFactory(dead=True), JobFactory(discarded=True)

    assert api.see(f"dead-letter/{dead.pk}").json()["job"]["id"] == str(dead.pk)
    assert api.see(f"dead-letter/{discarded.pk}").status_code == 404


def test_a_dead_letter_job_is_retried_with_its_history(api):
    job = JobFactory(dead=True, attempt=3, expires_at=ahead(60), attributes={"expires_at": "soon"})
    JobErrorFactory(job=job, attempt=3, type="Boom")

    reply = api.send(f"dead-letter/{job.pk}/retry")

    assert reply.status_code == 200
    document = reply.json()["job"]
    assert (document["id"], document["state"], document["attempt"]) == (
        str(job.pk),
        "available",
        0,
    )
    assert document["re_enqueued_at"] == document["enqueued_at"]
    assert [error["type"] for error in document["errors"]] == ["Boom"]
    assert "error" not in document
    assert "expires_at" not in document
    assert api.see("dead-letter").json()["jobs"] == []
    assert [fetched["attempt"] for fetched in api.fetch()] == [1]


@pytest.mark.parametrize("path", ["dead-letter", "admin/dead-letter"])
def test_a_dead_letter_job_may_be_changed_before_it_is_retried(api, path):
    """Dead letter §6.3."""
    job = JobFactory(dead=True, args=[1], meta={"a": 1, "b": 2}, retry={"max_attempts": 9})
    override = {
        "queue": "slow",
        "args": [2],
        "priority": "HIGH",
        "meta": {"b": 3, "capabilities": ["gpu"]},
        "retry": {"max_attempts": 1},
    }

    reply = api.send(f"{path}/{job.pk}/retry", {"override": override})

    assert reply.status_code == 200
    assert api.fetch("slow") == [], "it needs a worker with a capability now"
    found = api.job(job.pk)
    assert (found["queue"], found["args"], found["priority"]) == ("slow", [2], 10)
    assert (found["retry"], found["max_attempts"]) == ({"max_attempts": 1}, 1)
    assert found["meta"].items() >= {"a": 1, "b": 3, "capabilities": ["gpu"]}.items()


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ({"queue": "No"}, "override.queue"),
        ({"retry": {"max_attempts": -1}}, "override.retry.max_attempts"),
        ({"args": {}}, "override.args"),
        ({"type": "other.type"}, "override.type"),
        ([], "override"),
    ],
)
def test_a_job_that_cannot_be_changed_so_stays_in_the_dead_letter(api, override, field):
    job = JobFactory(dead=True)

    reply = api.send(f"dead-letter/{job.pk}/retry", {"override": override})

    assert refusal(reply)["details"]["field"] == field
    assert api.see(f"dead-letter/{job.pk}").status_code == 200


def test_a_job_says_how_often_it_was_taken_out_of_the_dead_letter(api):
    """Dead letter §7.2."""
    job_id = api.pushed(meta={"a": 1}, retry={"max_attempts": 1})
    for count in (1, 2):
        api.fetch()
        api.nack(job_id)
        api.send(f"dead-letter/{job_id}/retry", {})
        meta = api.job(job_id)["meta"]
        assert (meta["a"], meta["ojs.replay_count"]) == (1, count)
    assert parse_timestamp(meta["ojs.last_replayed_at"])


def test_a_dead_letter_job_is_deleted_for_good(api):
    job = JobFactory(dead=True)

    reply = api.delete(f"/ojs/v1/dead-letter/{job.pk}")

    assert (reply.status_code, reply.json()) == (200, {"deleted": True, "job_id": str(job.pk)})
    assert api.see(f"jobs/{job.pk}").status_code == 404
    assert api.delete(f"/ojs/v1/dead-letter/{job.pk}").status_code == 404


@pytest.mark.parametrize("state", ["available", "active", "completed"])
@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/retry"), ("DELETE", "")])
def test_living_jobs_are_not_found_in_the_dead_letter(api, state, method, path):
    job = JobFactory(**({} if state == "available" else {state: True}))

    reply = api.generic(method, f"/ojs/v1/dead-letter/{job.pk}{path}")

    assert reply.status_code == 404
    assert refusal(reply)["details"] == {
        "resource_type": "dead_letter_job",
        "resource_id": str(job.pk),
    }
    assert Job.objects.get().state == state


# Pages (§17)


def walk(api, path: str, key: str, between=lambda: None, **parameters) -> list[str]:
    """Read page after page to the end; return the names or ids in the order they came."""
    found: list[str] = []
    cursor = {}
    for _ in range(50):
        body = api.see(path, **parameters, **cursor).json()
        assert len(body[key]) <= parameters["limit"]
        found += [item.get("name") or item["id"] for item in body[key]]
        page = body["pagination"]
        assert page["has_more"] is ("next_cursor" in page)
        if not page["has_more"]:
            return found
        cursor = {"cursor": page["next_cursor"]}
        between()
    raise AssertionError("There is no end.")


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_walking_the_pages_visits_every_row_once(api, limit):
    for number in range(7):
        QueueFactory(name=f"q{number}")
        JobFactory(dead=True, finished_at=ago(number))

    assert walk(api, "queues", "queues", limit=limit) == [f"q{number}" for number in range(7)]
    dead = walk(api, "dead-letter", "jobs", limit=limit)
    newest_first = Job.objects.order_by("-finished_at").values_list("pk", flat=True)
    assert dead == [str(job_id) for job_id in newest_first]


def test_rows_that_died_in_the_same_moment_are_not_lost_between_pages(api):
    moment = ago(5)
    ids = {str(JobFactory(dead=True, finished_at=moment).pk) for _ in range(9)}

    found = walk(api, "dead-letter", "jobs", limit=2)

    assert len(found) == 9
    assert set(found) == ids


def test_pages_are_stable_while_rows_come_in(api):
    """§17: no skipped and no repeated rows under concurrent writes."""
    for number in range(6):
        JobFactory(dead=True, type=f"old {number}", finished_at=ago(100 - number))
    before = walk(api, "dead-letter", "jobs", limit=10)

    during = walk(api, "dead-letter", "jobs", lambda: JobFactory(dead=True), limit=2)

    assert during == before


def test_pages_are_stable_while_rows_go(api):
    jobs = [JobFactory(dead=True, finished_at=ago(number)) for number in range(6)]
    gone = iter(jobs)

    found = walk(api, "dead-letter", "jobs", lambda: engine.delete_dead([next(gone).pk]), limit=2)

    assert found == [str(job.pk) for job in jobs]


def test_older_clients_may_use_an_offset(api):
    for number in range(5):
        QueueFactory(name=f"q{number}")

    body = api.see("queues", limit=2, offset=3).json()

    assert [queue["name"] for queue in body["queues"]] == ["q3", "q4"]
    assert body["pagination"] == {"total": 5, "limit": 2, "offset": 3, "has_more": False}


@pytest.mark.parametrize(
    ("path", "most"), [("queues", 200), ("dead-letter", 200), ("events", 1000)]
)
def test_a_limit_is_a_whole_number_within_bounds(api, path, most):
    for good in ("1", str(most)):
        assert api.see(path, limit=good).status_code == 200
    for bad in ("0", "-1", str(most + 1), "1.5", "abc", "", " 1", "1e2", "9" * 40, "١", "%00"):
        reply = api.see(path, limit=bad)
        assert reply.status_code == 400, bad
        error = refusal(reply)
        assert error["details"]["field"] == "limit"
        assert f"a whole number between 1 and {most}, not " in error["message"]


@pytest.mark.parametrize("path", ["queues", "dead-letter"])
@pytest.mark.parametrize("offset", ["-1", "x", "1.5", "99999999", ""])
def test_a_bad_offset_is_refused(api, path, offset):
    reply = api.see(path, offset=offset)

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"] == "offset"


@pytest.mark.parametrize(
    "cursor", ["x", "!!!", "eyJvZmYiOjUwfQ", "AAAA", "Zm9v", "%", "é", "a" * 4000]
)
def test_a_cursor_this_server_did_not_give_out_is_refused(api, cursor):
    reply = api.see("dead-letter", cursor=cursor)

    assert reply.status_code == 400
    assert refusal(reply)["details"]["field"] == "cursor"

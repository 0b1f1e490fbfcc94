"""Queues and bulk operations through the Admin API (admin API §6, §8)."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from jobs import engine
from jobs.http.authentication import make_key
from jobs.models import Job, OperatorAction, Queue
from jobs.spec.lifecycle import State
from tests.factories import JobErrorFactory, JobFactory, QueueFactory, ago, many_jobs
from tests.ojs_client import OJSClient, refusal

pytestmark = pytest.mark.django_db


def holder(*scopes, **fields):
    return OJSClient(make_key("on-call", scopes=list(scopes), **fields)[1])


@pytest.fixture
def operator():
    return holder("ojs:admin:read", "ojs:admin:write")


@pytest.fixture
def purger():
    return holder("ojs:admin:purge")


@pytest.fixture
def clients():
    return holder("produce", "work")


def send(client, method, path, body):
    return client.generic(
        method, f"/ojs/v1/admin/{path}", json.dumps(body), content_type="application/json"
    )


def actions():
    rows = OperatorAction.objects.order_by("id")
    return list(rows.values_list("actor", "source", "verb", "count", "reason"))


# Queues (§6.1, §6.2)


def test_queues_are_listed_with_their_jobs_by_state(operator, clients):
    clients.pushed(queue="mail")
    clients.pushed(queue="mail")
    QueueFactory(name="billing", paused=True)
    for trait in ("active", "scheduled", "retryable", "completed", "dead", "cancelled", "pending"):
        JobFactory(queue="mail", **{trait: True})
    JobErrorFactory(job=Job.objects.filter(state="completed").get())

    body = operator.see("admin/queues").json()

    billing, mail = body["items"]
    assert (billing["name"], billing["state"], billing["paused"]) == ("billing", "paused", True)
    assert set(billing["counts"].values()) == {0} and billing["latency_ms"]["p50"] is None
    assert (mail["name"], mail["state"], mail["paused"]) == ("mail", "active", False)
    assert mail["counts"] == {
        "available": 2,
        "active": 1,
        "scheduled": 1,
        "retryable": 1,
        "completed": 1,
        "discarded": 1,
        "cancelled": 1,
        "pending": 1,
    }
    assert mail["throughput"] == {"processed_per_minute": 0.4, "failed_per_minute": 0.2}
    assert mail["created_at"]
    assert body["pagination"] == {"total": 2, "page": 1, "per_page": 20, "has_more": False}


def test_latency_is_the_time_from_available_to_fetched(operator):
    QueueFactory(name="mail")
    for seconds in range(1, 101):
        started = ago(10)
        waited = {"started_at": started, "enqueued_at": started - timedelta(seconds=seconds)}
        JobFactory(queue="mail", completed=True, **waited)

    (mail,) = operator.see("admin/queues").json()["items"]

    assert mail["latency_ms"] == {"p50": 51_000, "p95": 96_000, "p99": 100_000}


def test_queues_come_in_pages_and_a_page_has_a_fixed_price(operator, django_assert_num_queries):
    for number in range(25):
        JobFactory(queue=QueueFactory(name=f"q{number:02}").pk)
    names = [queue["name"] for queue in operator.see("admin/queues").json()["items"]]

    with django_assert_num_queries(9):
        second = operator.see("admin/queues", page=2).json()

    assert names == [f"q{number:02}" for number in range(20)]
    assert [queue["name"] for queue in second["items"]] == [f"q{n:02}" for n in range(20, 25)]
    assert second["items"][0]["counts"]["available"] == 1


@pytest.mark.parametrize(
    ("state", "expected"), [("active", ["a"]), ("paused", ["b"]), ("draining", ["c"])]
)
def test_queues_can_be_chosen_by_their_state(operator, state, expected):
    QueueFactory(name="a", paused=True, paused_until=ago(5))
    QueueFactory(name="b", paused=True)
    QueueFactory(name="c", is_draining=True)

    body = operator.see("admin/queues", state=state).json()

    assert [queue["name"] for queue in body["items"]] == expected
    assert refusal(operator.see("admin/queues", state="gone"))["details"]["field"] == "state"


def test_a_queue_shows_its_configuration_in_the_words_of_the_document(operator):
    asked = {
        "concurrency": 30,
        "rate_limit": {"limit": 2000, "period": "PT1H"},
        "retention": {"completed": "P14D", "discarded": "P90D"},
    }
    since = ago(90)
    JobFactory(queue="email", created_at=since)
    changed = send(operator, "PUT", "queues/email/config", asked | {})

    body = operator.see("admin/queues/email").json()

    assert changed.status_code == 200, changed.content
    assert (body["name"], body["state"], body["counts"]["available"]) == ("email", "active", 1)
    configuration = body["configuration"]
    assert configuration["concurrency"] == 30
    assert configuration["retention"] == asked["retention"]
    limit = configuration["rate_limit"]
    assert (limit["limit"], limit["period"]) == (2000, "PT1H")
    assert body["oldest_available_at"].startswith(f"{since:%Y-%m-%dT%H:%M:%S}")
    assert body["paused"] is False and body["created_at"]
    assert [action[2] for action in actions()] == ["change_queue"]


def test_a_configuration_holds_at_once(operator, clients):
    many_jobs(3, queue="email")
    send(operator, "PUT", "queues/email/config", {"concurrency": 2})

    assert len(clients.fetch("email", count=3, worker_id="w")) == 2


@pytest.mark.parametrize("verb", ["", "/resume"])
def test_a_queue_there_is_not_is_not_found(operator, verb):
    path = f"admin/queues/nothing{verb}"

    reply = operator.send(path) if verb else operator.see(path)

    assert (reply.status_code, refusal(reply)["code"]) == (404, "not_found")
    assert not Queue.objects.exists() and actions() == []


# Pause and resume (§6.3, §6.4)


def test_a_paused_queue_takes_jobs_and_hands_out_none(operator, clients):
    clients.pushed(queue="email")

    body = operator.send("admin/queues/email/pause", {"reason": "Mail server down"}).json()

    assert (body["name"], body["paused"], body["paused_by"]) == ("email", True, "on-call")
    assert body["paused_at"] and body["paused_until"] is None
    clients.pushed(queue="email")
    assert clients.fetch("email", count=5) == []
    assert operator.see("admin/queues/email").json()["counts"]["available"] == 2

    resumed = operator.send("admin/queues/email/resume", {"reason": "Up again"}).json()

    assert (resumed["name"], resumed["paused"]) == ("email", False)
    assert len(clients.fetch("email", count=5)) == 2
    assert actions() == [
        ("on-call", "api", "pause_queue", 1, "Mail server down"),
        ("on-call", "api", "resume_queue", 1, "Up again"),
    ]


EVERYWHERE = pytest.mark.parametrize("base", ["admin/queues", "queues"])


@EVERYWHERE
def test_a_pause_may_have_an_end(operator, clients, base):
    clients.pushed(queue="email")
    asking = operator if base.startswith("admin") else holder("operate")
    body = asking.send(f"{base}/email/pause", {"until": "+PT10M"}).json()
    assert body["paused_until"] and clients.fetch("email") == []

    Queue.objects.update(paused_until=ago(1))

    assert len(clients.fetch("email")) == 1
    assert operator.see("admin/queues/email").json()["state"] == "active"


@pytest.mark.parametrize("until", ["yesterday", "2020-01-01T00:00:00Z", 5])
@EVERYWHERE
def test_an_end_that_is_none_is_refused(operator, until, base):
    asking = operator if base.startswith("admin") else holder("operate")
    reply = asking.send(f"{base}/email/pause", {"until": until})

    assert (reply.status_code, refusal(reply)["details"]["field"]) == (400, "until")
    assert not Queue.objects.exists()


# Purge (§6.5)


@pytest.mark.parametrize("confirm", [{}, {"confirm": False}, {"confirm": None}], ids=str)
def test_a_queue_is_not_purged_without_saying_so(purger, confirm):
    JobFactory(queue=QueueFactory(name="mail").pk, completed=True)

    reply = send(purger, "DELETE", "queues/mail/jobs", {"states": ["completed"]} | confirm)

    assert (reply.status_code, refusal(reply)["details"]["field"]) == (400, "confirm")
    assert Job.objects.count() == 1


def test_a_purge_takes_the_states_it_names_before_the_time_it_names(purger):
    mail = QueueFactory(name="mail").pk
    JobFactory(queue=mail, completed=True, finished_at=ago(7200))
    kept = [
        JobFactory(queue=mail, completed=True),
        JobFactory(queue=mail, discarded=True, finished_at=ago(7200)),
        JobFactory(queue="other", completed=True, finished_at=ago(7200)),
        JobFactory(queue=mail, active=True),
    ]
    body = {"states": ["completed"], "older_than": ago(3600).isoformat(), "confirm": True}
    body["reason"] = "Space"

    reply = send(purger, "DELETE", "queues/mail/jobs", body)

    assert (reply.status_code, reply.json()["purged_count"]) == (200, 1)
    assert reply.json()["states"] == ["completed"]
    assert set(Job.objects.values_list("pk", flat=True)) == {job.pk for job in kept}
    assert actions() == [("on-call", "api", "purge_queue", 1, "Space")]


def test_who_may_only_write_purges_nothing(operator):
    JobFactory(queue=QueueFactory(name="mail").pk, completed=True)
    sure = {"states": ["completed"], "confirm": True}

    assert send(operator, "DELETE", "queues/mail/jobs", sure).status_code == 403
    assert send(operator, "DELETE", "queues/mail", {"strategy": "discard"}).status_code == 403
    bulk = send(operator, "POST", "jobs/bulk/delete", {"filter": {"queue": "mail"}} | sure)
    assert bulk.status_code == 403
    assert Job.objects.count() == 1


# Bulk (§8)

BULK = ("retry", "cancel", "delete")


@pytest.fixture
def everything():
    return holder("ojs:admin:write", "ojs:admin:purge")


def bulk(client, verb, wanted, **body):
    return client.send(f"admin/jobs/bulk/{verb}", {"filter": wanted, "confirm": True} | body)


def states():
    return dict(Job.objects.values_list("type", "state"))


def one_of_each():
    JobFactory(type="available")
    for trait in sorted(set(State.values) - {"available"}):
        JobFactory(type=trait, **{trait: True})


def test_after_a_fix_what_failed_is_retried(everything, clients):
    wanted = [JobFactory(queue="billing", type="invoice.make", dead=True) for _ in range(3)]
    old = JobFactory(queue="billing", type="invoice.make", dead=True, created_at=ago(7200))
    JobFactory(queue="billing", type="invoice.send", dead=True)
    JobFactory(queue="mail", type="invoice.make", dead=True)
    chosen = {"queue": "billing", "state": "discarded", "type": "invoice.make"}

    reply = bulk(everything, "retry", chosen | {"since": ago(3600).isoformat()}, reason="Fixed")

    assert (reply.status_code, reply.json()) == (
        200,
        {
            "action": "retry",
            "matched": 3,
            "succeeded": 3,
            "failed": 0,
            "errors": [],
            "has_more": False,
        },
    )
    fetched = clients.fetch("billing", count=10)
    assert {job["id"] for job in fetched} == {str(job.pk) for job in wanted}
    assert {job["attempt"] for job in fetched} == {1}
    old.refresh_from_db()
    assert old.state == State.DISCARDED
    assert actions() == [("on-call", "api", "retry_job", 3, "Fixed")]
    assert OperatorAction.objects.get().selection["filter"]["queue"] == "billing"


@pytest.mark.parametrize(
    ("verb", "changed", "to"),
    [
        ("retry", {"discarded"}, "available"),
        ("cancel", {"available", "active", "scheduled", "pending", "retryable"}, "cancelled"),
        ("delete", {"completed", "cancelled", "discarded"}, None),
    ],
)
def test_a_filter_without_a_state_means_those_the_verb_is_for(everything, verb, changed, to):
    one_of_each()

    report = bulk(everything, verb, {"type": "*"}).json()

    assert (report["matched"], report["succeeded"], report["failed"]) == (len(changed),) * 2 + (0,)
    after = states()
    assert {name for name in State.values if after.get(name) != name} == changed
    assert {after.get(name) for name in changed} == {to}


@pytest.mark.parametrize(
    ("verb", "did"), [("retry", "retried"), ("cancel", "cancelled"), ("delete", "deleted")]
)
def test_jobs_that_a_verb_cannot_change_are_listed_and_left_alone(everything, verb, did):
    one_of_each()
    able = {
        "retry": {"discarded", "cancelled", "retryable"},
        "cancel": {"available", "active", "scheduled", "pending", "retryable"},
        "delete": {"completed", "cancelled", "discarded"},
    }[verb]

    report = bulk(everything, verb, {"state": State.values}).json()

    assert (report["matched"], report["succeeded"]) == (8, len(able))
    assert report["failed"] == len(report["errors"]) == 8 - len(able)
    unchanged = {name: state for name, state in states().items() if name == state}
    problems = {error["job_id"]: error["error"] for error in report["errors"]}
    for job in Job.objects.filter(type__in=set(State.values) - able):
        assert problems[str(job.pk)] == f"Job is currently {job.type} and cannot be {did}"
        assert job.type in unchanged


@pytest.mark.parametrize("verb", BULK)
@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"filter": {"state": "discarded"}},
        {"filter": {"state": "discarded"}, "confirm": False},
        {"filter": {"state": "discarded"}, "confirm": "true"},
    ],
    ids=str,
)
def test_nothing_is_done_in_bulk_without_saying_so(everything, verb, body):
    JobFactory(dead=True)
    before = Job.objects.values().get()

    reply = everything.send(f"admin/jobs/bulk/{verb}", body)

    assert reply.status_code == 400 and refusal(reply)
    assert Job.objects.values().get() == before and actions() == []


@pytest.mark.parametrize("verb", BULK)
@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (None, "filter"),
        ({}, "filter"),
        ([], "filter"),
        ({"queue": None}, "filter"),
        ({"queue": ""}, "filter.queue"),
        ({"queue": 5}, "filter.queue"),
        ({"stat": "discarded"}, "filter.stat"),
        ({"state": "lost"}, "state"),
        ({"state": [5]}, "filter.state[0]"),
        ({"state": []}, "filter.state"),
        ({"since": "yesterday"}, "since"),
    ],
    ids=str,
)
def test_a_filter_that_means_everything_or_nothing_is_refused(everything, verb, wanted, field):
    one_of_each()

    reply = bulk(everything, verb, wanted)

    assert (reply.status_code, refusal(reply)["details"]["field"]) == (400, field)
    assert all(name == state for name, state in states().items()) and actions() == []


def test_what_failed_with_an_error_is_retried_from_the_dead_letter_alone(everything):
    fixed, other = JobFactory(dead=True, queue="billing"), JobFactory(dead=True, queue="billing")
    given_up = JobFactory(discarded=True, queue="billing")
    for job, last in ((fixed, "Refused"), (other, "Timeout"), (given_up, "Refused")):
        JobErrorFactory(job=job, attempt=1, type="Refused")
        JobErrorFactory(job=job, attempt=2, type=last)
    wanted = {"queue": "billing", "error_type": "Refused"}

    unsure = everything.send("admin/dead-letter/retry", {"filter": wanted})
    report = everything.send("admin/dead-letter/retry", {"filter": wanted, "confirm": True})

    assert unsure.status_code == 400
    assert (report.json()["matched"], report.json()["succeeded"]) == (1, 1)
    available = Job.objects.filter(state=State.AVAILABLE).values_list("pk", flat=True)
    assert list(available) == [fixed.pk]
    assert Job.objects.filter(state=State.DISCARDED).count() == 2


def test_the_times_of_a_retry_from_the_dead_letter_are_those_of_the_list(api, everything):
    early = JobFactory(dead=True, created_at=ago(7200), finished_at=ago(3600))
    JobFactory(dead=True, created_at=ago(7200))
    wanted = {"until": ago(1800).isoformat()}

    listed = api.see("dead-letter", **wanted).json()["jobs"]
    report = everything.send("dead-letter/retry", {"filter": wanted, "confirm": True})

    assert [job["id"] for job in listed] == [str(early.pk)]
    assert report.json()["succeeded"] == 1
    assert Job.objects.get(state=State.AVAILABLE) == early


def test_jobs_of_workflows_stay_with_them(everything, clients):
    steps = [{"type": "a", "args": []}, {"type": "b", "args": []}]
    made = clients.send("workflows", {"type": "chain", "steps": steps}).json()["workflow"]
    clients.send(f"workflows/{made['id']}/cancel")
    count = Job.objects.filter(state="cancelled").count()

    assert engine.bulk.retry(Job.objects.all(), cancelled=True) == []
    for verb in ("retry", "delete"):
        would = bulk(everything, verb, {"state": "cancelled"}, dry_run=True).json()
        assert (would["matched"], would["failed"]) == (count, count)
        report = bulk(everything, verb, {"state": "cancelled"}).json()
        assert (report["succeeded"], report["failed"]) == (0, count)
        assert "workflow" in report["errors"][0]["error"]
    assert Job.objects.filter(state="cancelled").count() == count > 0


@pytest.mark.parametrize("verb", BULK)
def test_a_dry_run_says_how_many_and_touches_none(everything, verb):
    one_of_each()

    report = everything.send(
        f"admin/jobs/bulk/{verb}", {"filter": {"state": State.values}, "dry_run": True}
    ).json()

    done = bulk(everything, verb, {"state": State.values}).json()
    assert report["dry_run"] is True and report["succeeded"] == 0
    assert (report["matched"], report["failed"]) == (done["matched"], done["failed"])
    assert OperatorAction.objects.count() == 1


def test_one_request_does_a_bounded_number_and_names_a_bounded_number(everything, monkeypatch):
    monkeypatch.setattr("jobs.engine.bulk.delete.__kwdefaults__", {"most": 4})
    monkeypatch.setattr("jobs.api.admin.bulk.LISTED", 3)
    many_jobs(6, completed=True)
    many_jobs(5)

    report = bulk(everything, "delete", {"state": ["completed", "available"]}).json()

    assert (report["succeeded"], report["has_more"]) == (4, True)
    assert (report["failed"], len(report["errors"])) == (5, 3)


def test_a_project_changes_its_own_jobs_only():
    for project in ("acme", "other", ""):
        JobFactory(project=project, dead=True)
    acme = holder("operate", project="acme")

    report = bulk(acme, "retry", {"state": "discarded"}).json()

    assert report["matched"] == 1
    assert Job.objects.get(project="acme").state == State.AVAILABLE
    assert acme.see("admin/queues").status_code == 403
    assert acme.send("admin/queues/mail/pause").status_code == 403

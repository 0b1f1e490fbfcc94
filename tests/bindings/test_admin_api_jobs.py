"""Jobs and dead letter through the Admin API: find, inspect, cancel, retry, purge (admin API §7,
§11).

An operator at a shell, with only the document and an API key.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from jobs.http.authentication import make_key
from jobs.models import Job, OperatorAction
from jobs.spec.identifiers import uuid7
from jobs.spec.lifecycle import State
from tests.factories import JobErrorFactory, JobFactory, ago, ahead, many_jobs
from tests.ojs_client import MEDIA_TYPE, OJSClient, refusal

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator():
    return OJSClient(make_key("on-call", scopes=["ojs:admin:read", "ojs:admin:write"])[1])


@pytest.fixture
def purger():
    return OJSClient(make_key("cleaner", scopes=["ojs:admin:purge"])[1])


def listed(client, path="admin/jobs", **parameters) -> list[str]:
    reply = client.see(path, **parameters)
    assert reply.status_code == 200, reply.content
    return [job["id"] for job in reply.json()["items"]]


def erase(client, path, body=None):
    data = b"" if body is None else json.dumps(body)
    return client.delete(f"/ojs/v1/{path}", data=data, content_type="application/json")


def actions():
    rows = OperatorAction.objects.order_by("id")
    return list(rows.values_list("actor", "source", "verb", "count", "reason"))


# Lists (§7.1)


def test_jobs_are_listed_newest_first_a_line_each(operator):
    old = JobFactory(completed=True, args=["secret"], result={"big": 1}, tags=["vip"])
    new = JobFactory(active=True, reserved_by="w-1", queue="mail", priority=3)

    body = operator.see("admin/jobs").json()

    assert [job["id"] for job in body["items"]] == [str(new.pk), str(old.pk)]
    running, done = body["items"]
    assert (running["queue"], running["state"], running["priority"]) == ("mail", "active", 3)
    assert (running["attempt"], running["worker_id"]) == (1, "w-1")
    assert done["completed_at"] and done["created_at"] and done["tags"] == ["vip"]
    assert "discarded_at" not in done
    assert not {"args", "result", "meta"} & set(done), "what may be large or secret"
    assert body["pagination"] == {"total": 2, "page": 1, "per_page": 20, "has_more": False}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, "abcd"),
        ({"queue": "mail"}, "ab"),
        ({"queue": "none"}, ""),
        ({"state": "available"}, "ac"),
        ({"state": "completed,discarded"}, "bd"),
        ({"type": "email.send"}, "ab"),
        ({"type": "email.*"}, "abc"),
        ({"type": "*"}, "abcd"),
        ({"type": "email"}, ""),
        ({"type": "email.send", "state": "completed", "queue": "mail"}, "b"),
        ({"error_type": "Timeout"}, "d"),
        ({"error_type": "First"}, ""),
    ],
    ids=str,
)
def test_a_list_shows_what_its_filters_leave(operator, filters, expected):
    JobFactory(id=(a := uuid7()), queue="mail", type="email.send")
    JobFactory(id=(b := uuid7()), queue="mail", type="email.send", completed=True)
    JobFactory(id=(c := uuid7()), queue="bulk", type="email.digest")
    JobFactory(id=(d := uuid7()), queue="bulk", type="report.make", dead=True)
    JobErrorFactory(job_id=d, job=None, attempt=1, type="First")
    JobErrorFactory(job_id=d, job=None, attempt=2, type="Timeout")
    names = {"a": a, "b": b, "c": c, "d": d}

    body = operator.see("admin/jobs", **filters).json()

    assert {job["id"] for job in body["items"]} == {str(names[name]) for name in expected}
    assert body["pagination"]["total"] == len(expected)


@pytest.mark.parametrize("zone", ["Z", "+00:00", " 00:00"], ids=["Z", "offset", "unencoded"])
def test_a_time_range_is_that_of_creation_and_reads_a_plus_that_became_a_space(operator, zone):
    noon = timezone.now().replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)
    at = {hour: JobFactory(created_at=noon + timedelta(hours=hour)) for hour in (-2, 0, 2)}

    def moment(hours):
        return f"{(noon + timedelta(hours=hours)):%Y-%m-%dT%H:%M:%S}{zone}"

    assert set(listed(operator, since=moment(-1))) == {str(at[0].pk), str(at[2].pk)}
    assert listed(operator, since=moment(-1), until=moment(1)) == [str(at[0].pk)]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ({}, "cba"),
        ({"order": "asc"}, "abc"),
        ({"sort": "created_at", "order": "desc"}, "cba"),
        ({"sort": "priority"}, "bca"),
        ({"sort": "priority", "order": "asc"}, "acb"),
        ({"sort": "scheduled_at", "order": "asc"}, "cab"),
        ({"sort": "scheduled_at", "order": "desc"}, "acb"),
    ],
    ids=str,
)
def test_the_order_can_be_chosen_and_what_has_no_value_comes_last(operator, sort, expected):
    first = JobFactory(scheduled=True, scheduled_at=ahead(600), priority=-5)
    second = JobFactory(priority=9)
    third = JobFactory(scheduled=True, scheduled_at=ahead(60), priority=0)
    names = {str(job.pk): name for job, name in ((first, "a"), (second, "b"), (third, "c"))}

    assert "".join(names[job_id] for job_id in listed(operator, **sort)) == expected


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"state": "lost"}, "state"),
        ({"state": "available,lost"}, "state"),
        ({"since": "yesterday"}, "since"),
        ({"until": "2026-01-01T00:00:00"}, "until"),
        ({"page": "0"}, "page"),
        ({"page": "-1"}, "page"),
        ({"page": "one"}, "page"),
        ({"page": "99999999"}, "page"),
        ({"per_page": "0"}, "per_page"),
        ({"per_page": "101"}, "per_page"),
        ({"limit": "101"}, "limit"),
        ({"sort": "args"}, "sort"),
        ({"order": "up"}, "order"),
        ({"cursor": "nonsense"}, "cursor"),
        ({"cursor": "MjAfLTE"}, "cursor"),
    ],
    ids=str,
)
def test_what_a_list_cannot_do_is_refused_by_name(operator, parameters, field):
    for path in ("admin/jobs", "admin/dead-letter"):
        error = refusal(operator.see(path, **parameters))

        assert (error["code"], error["details"]["field"]) == ("invalid_request", field)


def walk(client, **parameters) -> list[str]:
    """Read a list to its end by its cursors."""
    found, cursor = [], ""
    for _ in range(20):
        body = client.see("admin/jobs", cursor=cursor, **parameters).json()
        found += [job["id"] for job in body["items"]]
        assert body["pagination"]["has_more"] is ("next_cursor" in body["pagination"])
        if not body["pagination"]["has_more"]:
            return found
        cursor = body["pagination"]["next_cursor"]
    raise AssertionError("there is no end")


def test_pages_are_numbered_from_one(operator):
    jobs = [str(pk) for pk in many_jobs(7)][::-1]

    pages = [listed(operator, page=number, per_page=3) for number in (1, 2, 3, 4)]
    body = operator.see("admin/jobs", page=3, per_page=3).json()

    assert pages == [jobs[:3], jobs[3:6], jobs[6:], []]
    assert body["pagination"] == {"total": 7, "page": 3, "per_page": 3, "has_more": False}


@pytest.mark.parametrize(
    "sort", [{}, {"order": "asc"}, {"sort": "priority"}, {"sort": "scheduled_at", "order": "asc"}]
)
def test_a_cursor_reads_on_to_the_end(operator, sort):
    many_jobs(7)
    whole = listed(operator, per_page=100, **sort)

    assert walk(operator, limit=3, **sort) == whole
    assert len(set(whole)) == 7


def test_a_cursor_is_not_led_astray_by_jobs_that_come_meanwhile(operator):
    jobs = [str(pk) for pk in many_jobs(4)][::-1]
    first = operator.see("admin/jobs", per_page=2).json()
    many_jobs(3)

    assert listed(operator, cursor=first["pagination"]["next_cursor"], per_page=2) == jobs[2:]


def test_a_list_is_two_queries_however_long_it_is(operator, django_assert_num_queries):
    many_jobs(50)
    operator.see("admin/jobs")

    with django_assert_num_queries(2):
        assert len(listed(operator, per_page=50)) == 50


def test_a_count_beyond_the_limit_is_reported_as_at_least_the_limit(operator, monkeypatch):
    monkeypatch.setattr("jobs.api.admin.paging.COUNTED", 3)
    many_jobs(5)

    pagination = operator.see("admin/jobs").json()["pagination"]

    assert (pagination["total"], pagination["total_is_minimum"]) == (3, True)


# One job (§7.2)


def test_a_job_is_shown_whole(operator):
    job = JobFactory(
        retryable=True,
        attempt=2,
        args=[{"to": "user@example.com"}],
        meta={"trace_id": "abc"},
        retry={"max_attempts": 3, "initial_interval": "PT5S"},
    )
    for attempt in (1, 2):
        JobErrorFactory(job=job, attempt=attempt, type="ConnectionError")

    body = operator.see(f"admin/jobs/{job.pk}").json()

    assert (body["id"], body["specversion"], body["state"]) == (str(job.pk), "1.0", "retryable")
    assert (body["args"], body["meta"]) == ([{"to": "user@example.com"}], {"trace_id": "abc"})
    assert [error["attempt"] for error in body["errors"]] == [1, 2]
    assert body["errors"][0]["type"] == "ConnectionError" and body["errors"][0]["occurred_at"]
    assert body["result"] is None
    policy = body["retry_policy"]
    assert (policy["max_attempts"], policy["initial_interval"]) == (3, "PT5S")
    assert policy["backoff_coefficient"] == 2.0, "what the client left out is what it means"
    assert set(body["metadata"]) == {
        "created_at",
        "enqueued_at",
        "started_at",
        "scheduled_at",
        "completed_at",
        "cancelled_at",
        "discarded_at",
    }
    assert body["metadata"]["started_at"] and body["metadata"]["completed_at"] is None
    assert body["job"]["id"] == body["id"]


@pytest.mark.parametrize(
    ("trait", "ended"),
    [("completed", "completed_at"), ("cancelled", "cancelled_at"), ("discarded", "discarded_at")],
)
def test_a_finished_job_says_when_and_how_it_ended(operator, trait, ended):
    job = JobFactory(**{trait: True})

    times = operator.see(f"admin/jobs/{job.pk}").json()["metadata"]

    ends = {name for name in ("completed_at", "cancelled_at", "discarded_at") if times[name]}
    assert ends == {ended}


@pytest.mark.parametrize("verb", ["", "/cancel", "/retry"])
@pytest.mark.parametrize("job_id", [str(uuid7()), "no-id", "a%2Fb"], ids=["none", "text", "slash"])
def test_a_job_there_is_not_is_not_found(operator, job_id, verb):
    path = f"admin/jobs/{job_id}{verb}"

    reply = operator.send(path) if verb else operator.see(path)

    assert (reply.status_code, refusal(reply)["code"]) == (404, "not_found")
    assert actions() == []


@pytest.mark.parametrize(
    "path", ["admin/jobs", "admin/stats", "admin/workers", "admin/dead-letter"]
)
def test_a_method_there_is_not_is_refused_in_the_form_of_ojs(operator, path):
    reply = operator.send(path)

    assert reply.status_code == 405 and "GET" in reply.headers["Allow"]
    assert refusal(reply)["code"] == "invalid_request"


def test_what_may_be_secret_is_hidden_from_keys_that_were_not_made_for_it(operator):
    job = JobFactory(
        dead=True, args=[{"password": "hush", "to": "me"}], meta={"deep": [{"Api_Key": "hush"}]}
    )
    JobErrorFactory(job=job, details={"token": "hush"}, backtrace=["at mail.py:1"])
    trusted = OJSClient(make_key("t", scopes=["ojs:admin:read", "ojs:admin:args"])[1])

    for path in (f"admin/jobs/{job.pk}", f"admin/dead-letter/{job.pk}"):
        hidden, shown = operator.see(path).json(), trusted.see(path).json()
        assert hidden["args"] == [{"password": "[hidden]", "to": "me"}]
        assert "hush" not in json.dumps(hidden) and hidden["redacted"] is True
        assert shown["args"][0]["password"] == "hush" and "redacted" not in shown
        assert json.dumps(shown).count("hush") >= 3
    retried = operator.send(f"admin/jobs/{job.pk}/retry")
    assert "hush" not in retried.content.decode()
    job.refresh_from_db()
    assert job.args[0]["password"] == "hush", "hidden, and not lost"


def test_the_lists_show_no_details_of_errors_and_hide_what_messages_quote(operator):
    quoted = 'Refused: {"token": "hush"}'
    JobErrorFactory(job=JobFactory(dead=True), details={"token": "hush"}, message=quoted)
    trusted = OJSClient(make_key("t", scopes=["ojs:admin:read", "ojs:admin:args"])[1])

    assert "hush" not in operator.see("admin/dead-letter").content.decode()
    (item,) = trusted.see("admin/dead-letter").json()["items"]
    assert item["error"]["message"] == quoted and "details" not in item["error"]


# Cancel and retry (§7.3, §7.4)


def test_a_job_is_cancelled_and_the_audit_knows_by_whom_and_why(operator):
    job = JobFactory(active=True, reserved_by="w-1")

    reply = operator.send(f"admin/jobs/{job.pk}/cancel", {"reason": "Wrong customer"})

    body = reply.json()
    assert (reply.status_code, body["state"], body["previous_state"]) == (
        200,
        "cancelled",
        "active",
    )
    assert Job.objects.get().state == State.CANCELLED
    assert actions() == [("on-call", "api", "cancel_job", 1, "Wrong customer")]


def test_a_finished_job_is_not_cancelled_and_nothing_is_written_down(operator):
    job = JobFactory(completed=True)

    reply = operator.send(f"admin/jobs/{job.pk}/cancel")

    assert (reply.status_code, refusal(reply)["code"]) == (409, "conflict")
    assert actions() == []


@pytest.mark.parametrize("trait", ["discarded", "dead", "cancelled"])
def test_a_discarded_or_cancelled_job_is_retried_with_fresh_attempts(operator, trait):
    job = JobFactory(**{trait: True, "attempt": 3, "finished_at": ago(60)})

    reply = operator.send(f"admin/jobs/{job.pk}/retry", {"reason": "Fixed"})

    body = reply.json()
    assert reply.status_code == 200, body
    assert (body["state"], body["attempt"]) == ("available", 0)
    assert body["previous_state"] == ("cancelled" if trait == "cancelled" else "discarded")
    worker = OJSClient(make_key("w", scopes=["work"])[1])
    assert [fetched["attempt"] for fetched in worker.fetch()] == [1]
    assert actions() == [("on-call", "api", "retry_job", 1, "Fixed")]


@pytest.mark.parametrize("trait", ["active", "completed", "scheduled", "retryable"])
def test_any_other_job_is_not_retried(operator, trait):
    job = JobFactory(**{trait: True})
    before = Job.objects.values().get()

    reply = operator.send(f"admin/jobs/{job.pk}/retry")

    assert (reply.status_code, refusal(reply)["code"]) == (409, "conflict")
    assert Job.objects.values().get() == before
    assert actions() == []


def test_a_job_that_its_workflow_never_came_to_is_not_started_by_a_retry(api, operator):
    steps = [{"type": "a", "args": []}, {"type": "b", "args": []}]
    made = api.send("workflows", {"type": "chain", "steps": steps}).json()["workflow"]
    api.send(f"workflows/{made['id']}/cancel")
    cancelled = Job.objects.filter(state=State.CANCELLED).last()

    reply = operator.send(f"admin/jobs/{cancelled.pk}/retry")

    assert reply.status_code == 409 and "workflow" in refusal(reply)["message"]


@pytest.mark.parametrize("reason", [1, ["because"], "x" * 2001], ids=["number", "array", "long"])
def test_a_reason_is_a_text_of_sensible_length(operator, reason):
    job = JobFactory()

    reply = operator.send(f"admin/jobs/{job.pk}/cancel", {"reason": reason})

    assert (reply.status_code, refusal(reply)["details"]["field"]) == (400, "reason")
    assert Job.objects.get().state == State.AVAILABLE


# Dead letter (§11)


def test_the_dead_letter_is_the_jobs_that_are_kept_for_an_operator_with_their_last_error(operator):
    dead = JobFactory(dead=True)
    JobErrorFactory(job=dead, attempt=1, type="First")
    JobErrorFactory(job=dead, attempt=2, type="Timeout", message="Too late")
    JobFactory(discarded=True)

    body = operator.see("admin/dead-letter").json()

    (item,) = body["items"]
    assert (item["id"], item["state"]) == (str(dead.pk), "discarded")
    assert (item["error"]["type"], item["error"]["message"]) == ("Timeout", "Too late")
    assert item["discarded_at"]
    assert body["pagination"]["total"] == 1


def test_the_dead_letter_can_be_searched_like_all_jobs(operator):
    mail = JobFactory(dead=True, queue="mail", type="email.send", finished_at=ago(5))
    bill = JobFactory(dead=True, queue="billing", type="bill.make", finished_at=ago(50))
    JobErrorFactory(job=bill, type="Timeout")
    both = [str(bill.pk), str(mail.pk)]

    assert listed(operator, "admin/dead-letter") == both
    assert listed(operator, "admin/dead-letter", sort="discarded_at") == both[::-1]
    assert listed(operator, "admin/dead-letter", queue="mail") == both[1:]
    assert listed(operator, "admin/dead-letter", type="bill.*") == both[:1]
    assert listed(operator, "admin/dead-letter", error_type="Timeout") == both[:1]
    assert listed(operator, "admin/dead-letter", state="available") == []


def test_a_page_of_the_dead_letter_is_three_queries(operator, django_assert_num_queries):
    for job in [JobFactory(dead=True) for _ in range(10)]:
        JobErrorFactory(job=job)
    operator.see("admin/dead-letter")

    with django_assert_num_queries(3):
        assert len(listed(operator, "admin/dead-letter")) == 10


def test_a_dead_job_is_shown_retried_and_deleted_one_by_one(operator, purger):
    first, second = JobFactory(dead=True), JobFactory(dead=True)

    assert operator.see(f"admin/dead-letter/{first.pk}").json()["id"] == str(first.pk)
    retried = operator.send(f"admin/dead-letter/{first.pk}/retry", {"reason": "Fixed"})
    assert (retried.status_code, retried.json()["state"]) == (200, "available")
    deleted = erase(purger, f"admin/dead-letter/{second.pk}")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert deleted.headers["Content-Type"] == MEDIA_TYPE
    assert list(Job.objects.values_list("state", flat=True)) == ["available"]
    assert actions() == [
        ("on-call", "api", "retry_job", 1, "Fixed"),
        ("cleaner", "api", "discard_job", 1, ""),
    ]


@pytest.mark.parametrize("trait", ["completed", "active"])
def test_what_is_not_dead_is_not_in_the_dead_letter(operator, purger, trait):
    path = f"admin/dead-letter/{JobFactory(**{trait: True}).pk}"

    assert operator.see(path).status_code == 404
    assert operator.send(f"{path}/retry").status_code == 404
    assert erase(purger, path).status_code == 404
    assert Job.objects.count() == 1 and actions() == []


@pytest.mark.parametrize("body", [None, {}, {"confirm": False}, {"confirm": "true"}], ids=str)
def test_the_dead_letter_is_not_purged_without_saying_so(purger, body):
    JobFactory(dead=True)

    reply = erase(purger, "admin/dead-letter", body)

    assert (reply.status_code, refusal(reply)["details"]["field"]) == (400, "confirm")
    assert Job.objects.exists() and actions() == []


def test_a_purge_takes_what_its_filter_leaves_and_nothing_that_is_not_dead(purger):
    old, young = JobFactory(dead=True, finished_at=ago(7200)), JobFactory(dead=True)
    other = JobFactory(dead=True, finished_at=ago(7200), queue="billing")
    live = JobFactory(discarded=True, finished_at=ago(7200))
    filters = {"older_than": ago(3600).isoformat(), "queue": "default"}

    reply = erase(purger, "admin/dead-letter", filters | {"confirm": True, "reason": "Space"})

    assert reply.json() == {"purged_count": 1, "has_more": False}
    assert set(Job.objects.values_list("pk", flat=True)) == {young.pk, other.pk, live.pk}
    assert not Job.objects.filter(pk=old.pk).exists()
    (action,) = OperatorAction.objects.all()
    assert (action.verb, action.count, action.reason) == ("discard_job", 1, "Space")
    assert action.selection["filter"]["queue"] == "default"


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("", {"filter": {"queue": "billing"}}),
        ("", {"filter": {"type": "bill.*", "error_type": None}}),
        ("", {"filter": {"since": "2026-01-01T00:00:00Z"}}),
        ("", {"since": "2026-01-01T00:00:00Z"}),
        ("?queue=billing", {}),
        ("?type=bill.pay", {}),
        ("?since=2026-01-01T00:00:00Z", {}),
        ("?queue=billing", {"filter": {"type": "bill.*"}}),
    ],
    ids=str,
)
def test_a_filter_of_a_purge_is_never_overlooked(purger, query, body):
    """Neither a filter in the retry's form nor in the list's: too much would be deleted."""
    long_ago = datetime(2025, 6, 1, tzinfo=UTC)
    kept = JobFactory(dead=True, finished_at=long_ago)
    JobFactory(dead=True, queue="billing", type="bill.pay", created_at=long_ago)

    reply = erase(purger, f"admin/dead-letter{query}", body | {"confirm": True})

    assert reply.json()["purged_count"] == 1
    assert list(Job.objects.all()) == [kept]


@pytest.mark.parametrize(
    ("query", "body", "count"),
    [
        ("?queue=billing", {"queue": "default"}, 0),
        ("", {"filter": {"queues": ["default"]}}, None),
        ("", {"filter": {}}, None),
        ("", {"filter": "default"}, None),
        ("?since=yesterday", {}, None),
    ],
)
def test_a_purge_of_what_cannot_be_deletes_nothing(purger, query, body, count):
    JobFactory(dead=True)

    reply = erase(purger, f"admin/dead-letter{query}", body | {"confirm": True})

    assert reply.json().get("purged_count") == count
    assert Job.objects.count() == 1


def test_one_request_purges_a_bounded_number_and_says_that_there_is_more(purger, monkeypatch):
    monkeypatch.setattr("jobs.api.admin.dead_letter.MOST", 4)
    monkeypatch.setattr("jobs.api.admin.dead_letter.BATCH", 2)
    many_jobs(6, dead=True)

    sure = {"confirm": True}
    assert erase(purger, "admin/dead-letter", sure).json() == {"purged_count": 4, "has_more": True}
    assert erase(purger, "admin/dead-letter", sure).json()["has_more"] is False
    assert not Job.objects.exists()


def test_the_dead_letter_is_counted_by_queue_and_by_error(operator):
    for queue, error in (("mail", "Timeout"), ("mail", "Refused"), ("billing", "Timeout")):
        JobErrorFactory(job=JobFactory(dead=True, queue=queue), type=error)
    JobFactory(dead=True)

    body = operator.see("admin/dead-letter/stats").json()

    assert body["total"] == 4
    assert body["by_queue"] == {"mail": 2, "billing": 1, "default": 1}
    assert body["by_error_type"] == {"Timeout": 2, "Refused": 1, "Unknown": 1}
    assert body["oldest_at"] <= body["newest_at"]
    assert body["retention"] == {"max_age": "P180D", "max_count": 10_000}


def test_the_dead_letter_has_the_addresses_of_its_own_document_too():
    """Dead letter §10: the same verbs, without `/admin`."""
    client = OJSClient(make_key("on-call", scopes=["operate"])[1])
    for queue in ("email", "email", "billing"):
        JobFactory(dead=True, queue=queue)

    assert client.see("dead-letter").json()["total"] == 3
    assert client.see("dead-letter/stats").json()["by_queue"] == {"billing": 1, "email": 2}
    billing = {"filter": {"queue": "billing"}, "confirm": True}
    assert client.send("dead-letter/retry", billing).json()["succeeded"] == 1
    assert (
        refusal(erase(client, "dead-letter", {"queue": "email"}))["details"]["field"] == "confirm"
    )
    purged = erase(client, "dead-letter", {"queue": "email", "confirm": True})
    assert purged.json() == {"purged_count": 2, "has_more": False}
    assert client.see("dead-letter").json()["total"] == 0

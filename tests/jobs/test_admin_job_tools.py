"""An operator's tools for jobs in the admin: search, export, explain, act."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from datetime import timedelta
from urllib.parse import urlencode

import pytest
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

import jobs
from jobs import engine
from jobs.access.redaction import HIDDEN, redact, redact_text
from jobs.admin import confirm as confirming
from jobs.admin import filters, job_list, matrix
from jobs.admin import job as job_admin
from jobs.models import CronRun, Dependency, Job, Maintenance, OperatorAction, Workflow
from jobs.models.cron import Outcome
from jobs.record import rollup
from jobs.spec import queue_config
from jobs.spec.identifiers import uuid7
from jobs.spec.lifecycle import State
from jobs.spec.validation import new_job
from tests.factories import (
    JobErrorFactory,
    JobFactory,
    QueueFactory,
    WorkerFactory,
    ago,
    ahead,
    many_jobs,
)
from tests.operators import answer, choose, confirm, forms, list_of, messages, staff, viewer
from workers.models import Worker

pytestmark = pytest.mark.django_db

JOB, DEAD, QUEUE = "ojs_jobs_job", "ojs_jobs_deadjob", "ojs_jobs_queue"


def page_of(client, job):
    return client.get(reverse("admin:ojs_jobs_job_change", args=[job.pk]))


def everything_matched(client, action, query=""):
    """Choose an action for everything that matches the list's filter."""
    some = Job.objects.first()
    fields = {"action": action, "index": "0", "_selected_action": some.pk, "select_across": "1"}
    return client.post(list_of(JOB) + query, fields)


# Search


@pytest.mark.parametrize(
    ("term", "found"),
    [
        ("args.0:42", True),
        ("args.0:4", False),
        ("args.1.to:ann@example.com", True),
        ("args.1.to:bob", False),
        ("args.1.deep.er:yes", True),
        ("args.9:42", False),
        ("args.contains:42", False),
        ("args.1.on:true", True),
        ("args.1.off:null", False),
        ("args.1.to.0:a", False),
        ("args.1.list.2.0:7", True),
        ("args.2147483648:1", False),
        ("args.99999999999999999999:1", False),
        (f"args.{'0.' * 300}0:1", False),
        ("meta.3000000000:paid", True),
        ("meta.7:seven", True),
        ("result.3000000000:1", False),
        ("meta.tenant:acme", True),
        ("meta.tenant__in:acme", False),
        ("error:smtp_down", True),
        ("error:E42", True),
        ("after:2020-01-01", True),
        ("before:2020-01-01", False),
        ("after:2999-01-01T10:00", False),
    ],
)
def test_a_job_is_searched_by_what_is_in_it(admin_client, term, found):
    job = JobFactory(
        args=[
            42,
            {
                "to": "ann@example.com",
                "deep": {"er": "yes"},
                "list": [1, 2, [7]],
                "on": True,
                "off": None,
            },
        ],
        meta={"tenant": "acme", "3000000000": "paid", "7": "seven"},
    )
    JobErrorFactory(job=job, type="smtp_down", code="E42")

    page = admin_client.get(list_of(JOB), {"q": term})

    assert bool(page.context["cl"].result_list) is found


@pytest.mark.parametrize(
    "written", [str, lambda key: key.hex, "{{{}}}".format, lambda key: f"id:{key.hex}"]
)
def test_a_job_is_found_by_its_id_however_it_is_written(admin_client, written):
    job, _other = JobFactory(), JobFactory()

    page = admin_client.get(list_of(JOB), {"q": written(job.pk)})

    assert list(page.context["cl"].result_list) == [job]


def test_jobs_are_found_by_their_trace_and_their_unique_key(admin_client):
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    traced = JobFactory(meta={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
    named = JobFactory(meta={"trace_id": trace})
    unique = JobFactory(unique_key="9f86d081")
    JobFactory()

    def found(client, term):
        return set(client.get(list_of(JOB), {"q": term}).context["cl"].result_list)

    assert found(admin_client, f"trace:{trace}") == {traced, named}
    assert found(admin_client, "unique:9f86d081") == {unique}
    # A key can be made of values that are guessed.
    assert found(staff("view_job"), "unique:9f86d081") == set()
    assert found(staff("view_job", username="other"), f"trace:{trace}") == {traced, named}


@pytest.mark.parametrize(
    ("term", "said"),
    [
        ("stat:discarded", "There is no search word “stat:”."),
        ("stat:discarded", "Did you mean “state:”?"),
        ("foo:bar", "Words are: id: type: queue: state:"),
        ("foo.bar:1", "There is no search word “foo.bar:”."),
        ("after:yesterday", "“yesterday” is not a time: write 2026-01-31"),
        ("after:0001-01-01T00:00+14:00", "is not a time"),
        ("ended-before:9999-12-31T23:00-14:00", "is not a time"),
        ("state:dead", "“dead” is not a state. States are: scheduled, available,"),
        ("id:12", "“12” is not a job id: that is a UUID."),
        ("type:a before:", "“” is not a time"),
    ],
)
def test_what_is_no_search_is_refused_with_the_words_there_are(admin_client, term, said):
    JobFactory()

    page = admin_client.get(list_of(JOB), {"q": term})

    assert said in page.content.decode()
    assert not page.context["cl"].result_list
    assert "0 jobs" not in page.content.decode()
    assert admin_client.get(list_of(JOB) + "csv/", {"q": term}).status_code == 400


def test_every_type_is_offered_however_many_there_are_and_one_can_be_typed(admin_client):
    for number in range(54):
        JobFactory(type=f"type-{number}", completed=True, finished_at=ago(200))
    rollup.roll_up()
    for _ in range(20):
        JobFactory(type="newest")

    page = admin_client.get(list_of(JOB), {"queue": "default"}).content.decode()

    form = page.split('<form method="get" class="ojs-filter">')[1].split("</form>")[0]
    assert form.count("<option") == 55
    assert '<input type="hidden" name="queue" value="default">' in form
    typed = admin_client.get(list_of(JOB), {"queue": "default", "type": "type-3"})
    assert [job.type for job in typed.context["cl"].result_list] == ["type-3"]


def test_only_errors_and_types_of_dead_jobs_are_offered_for_the_dead_letter(admin_client):
    JobErrorFactory(job=JobFactory(type="alive"), type="survived")
    dead = JobFactory(dead=True, type="dead")
    JobErrorFactory(job=dead, type="first")
    JobErrorFactory(job=dead, type="last")

    filters = admin_client.get(list_of(DEAD)).context["cl"].filter_specs

    offered = {spec.parameter_name: spec.lookup_choices for spec in filters}
    assert offered["error"] == [("last", "last")]
    assert offered["type"] == [("dead", "dead")]


def test_the_list_is_narrowed_to_a_time(admin_client):
    new = JobFactory()
    JobFactory(id="018c2b6f-0000-7000-8000-000000000000")

    page = admin_client.get(list_of(JOB), {"since": "1h"})

    assert [job.pk for job in page.context["cl"].result_list] == [new.pk]


def test_states_are_counted_above_the_list(admin_client):
    for _ in range(2):
        JobFactory()
    JobFactory(dead=True)
    JobFactory(retryable=True)

    counts = dict(admin_client.get(list_of(JOB)).context["state_counts"])

    assert counts == dict.fromkeys(State, "0") | {
        State.AVAILABLE: "2",
        State.DISCARDED: "1",
        State.RETRYABLE: "1",
    }


def test_a_search_looks_through_the_newest_jobs_first_and_goes_on(admin_client, monkeypatch):
    monkeypatch.setattr(job_list, "SEARCHED", 3)
    ids = [f"018c2b6f-0{n}00-7000-8000-000000000000" for n in range(6)]
    for n, job_id in enumerate(ids):
        JobFactory(id=job_id, type="rare" if n < 2 else "often")

    page = admin_client.get(list_of(JOB), {"q": "type:rare"})
    assert page.context["cl"].result_list == []
    page = admin_client.get(list_of(JOB) + page.context["cl"].older_query)

    found = [str(job.pk) for job in page.context["cl"].result_list]
    assert found == ids[1::-1]


@pytest.mark.parametrize(
    ("model", "filters"),
    [(JOB, {"state": "discarded"}), (DEAD, {}), (DEAD, {"type": "often"})],
    ids=["discarded", "dead letter", "one type of it"],
)
def test_a_search_of_jobs_that_failed_looks_through_those_that_ended_last(
    admin_client, monkeypatch, model, filters
):
    monkeypatch.setattr(job_list, "SCATTERED", 3)
    jobs = [
        JobFactory(dead=True, type="often", tags=["rare" if n > 3 else "usual"], finished_at=ago(n))
        for n in range(1, 6)
    ]
    query = {"q": "tag:rare"} | filters

    page = admin_client.get(list_of(model), query)
    assert page.context["cl"].result_list == []
    page = admin_client.get(list_of(model) + page.context["cl"].older_query)
    assert {job.pk for job in page.context["cl"].result_list} == {jobs[3].pk, jobs[4].pk}
    assert not page.context["cl"].searched_since

    # An export has all that match, and so does an action.
    export = admin_client.get(f"{list_of(model)}csv/", query)
    assert b"".join(export.streaming_content).count(b"rare") == 2
    fields = {"action": "retry", "index": "0", "_selected_action": jobs[0].pk, "select_across": "1"}
    asked = admin_client.post(f"{list_of(model)}?{urlencode(query)}", fields)
    assert {job.pk for job in asked.context["objects"]} == {jobs[3].pk, jobs[4].pk}


def test_jobs_are_found_by_when_they_ended(admin_client):
    for age in (1, 3, 5):
        JobFactory(completed=True, type=f"t{age}", finished_at=ago(age * 3600))
    after, before = (f"{ago(hours * 3600):%Y-%m-%dT%H:%M:%S+00:00}" for hours in (4, 2))

    page = admin_client.get(list_of(JOB), {"q": f"ended-after:{after} ended-before:{before}"})

    assert [job.type for job in page.context["cl"].result_list] == ["t3"]


# Sensitive arguments


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"password": "x", "to": 1}', f'{{"password": "{HIDDEN}", "to": 1}}'),
        ('{"DB_PassWord": {"a": ["x"]}, "b": 2}', f'{{"DB_PassWord": "{HIDDEN}", "b": 2}}'),
        ('{"a": "\\"token\\": 1", "b": 2}', '{"a": "\\"token\\": 1", "b": 2}'),
        ('{"token": "abc', f'{{"token": "{HIDDEN}"'),
        ('{"token": {"a": "b", "c', f'{{"token": "{HIDDEN}"'),
        ('["password", "x"]', '["password", "x"]'),
        ('{"p\\u0061ssword": "x"}', f'{{"p\\u0061ssword": "{HIDDEN}"}}'),
    ],
)
def test_json_is_redacted_even_where_it_was_cut_off(text, shown):
    assert redact_text(text) == shown


def test_values_are_hidden_by_the_name_of_their_key_at_any_depth():
    value = [{"user": {"api_key": ["x"], "name": "Ann"}}, "secret"]

    assert redact(value) == [{"user": {"api_key": HIDDEN, "name": "Ann"}}, "secret"]


def test_who_may_not_see_them_finds_sensitive_arguments_nowhere():
    job = JobFactory(
        args=[{"to": "ann", "password": "hunter2"}],
        meta={"token": "hunter2"},
        attributes={"client_secret": "hunter2"},
        discarded=True,
        result={"secret": "hunter2"},
    )
    JobErrorFactory(job=job, details={"token": "hunter2"})
    looker = staff("view_job", "view_joberror")

    pages = [
        looker.get(list_of(JOB)).content,
        page_of(looker, job).content,
        b"".join(looker.get(f"{list_of(JOB)}csv/").streaming_content),
    ]
    for content in pages:
        assert b"ann" in content
        assert b"hunter2" not in content
    guess = looker.get(list_of(JOB), {"q": "args.0.password:hunter2"})
    assert guess.context["cl"].result_list == []


def test_who_may_see_them_does():
    job = JobFactory(args=[{"password": "hunter2"}])
    trusted = staff("view_job", "view_job_args")

    assert "hunter2" in page_of(trusted, job).content.decode()
    assert b"hunter2" in b"".join(trusted.get(f"{list_of(JOB)}csv/").streaming_content)


# CSV


def test_what_is_filtered_is_downloaded(admin_client):
    wanted = [JobFactory(queue="mail", args=[1, "ü"]), JobFactory(queue="mail")]
    JobFactory(queue="web")

    reply = admin_client.get(f"{list_of(JOB)}csv/?queue=mail")
    rows = list(csv.DictReader(io.StringIO(b"".join(reply.streaming_content).decode())))

    assert [row["id"] for row in rows] == [str(job.pk) for job in wanted[::-1]]
    assert rows[1]["args"] == '[1, "ü"]'
    assert "attachment" in reply["Content-Disposition"]


def test_no_cell_is_a_formula(admin_client):
    JobFactory(completed=True, finished_by="=HYPERLINK(1)", priority=-5)

    text = b"".join(admin_client.get(f"{list_of(JOB)}csv/").streaming_content).decode()

    assert "'=HYPERLINK(1)" in text
    assert ",-5," in text


def test_a_download_takes_the_permission_to_look():
    assert staff("view_queue").get(f"{list_of(JOB)}csv/").status_code == 403


# Why is it not running?


CLEAR = "Nothing known is in its way: it waits for a worker of its queue to fetch."


def why(client, **traits):
    return page_of(client, JobFactory(**traits)).context["why"]


def test_a_job_that_runs_or_is_over_needs_no_explanation(admin_client):
    assert why(admin_client, active=True) == []
    assert why(admin_client, completed=True) == []


def test_the_reasons_why_a_job_waits_are_shown(admin_client):
    QueueFactory(name="mail", paused_at=ago(60), paused_by="ops", pause_reason="Disk full")
    JobFactory(queue="mail", created_at=ago(10))

    assert why(admin_client, queue="mail") == [
        "The queue “mail” is paused by ops: Disk full",
        "1 job of its queue comes before it.",
        "No live worker serves the queue “mail”.",
    ]


def test_a_full_queue_and_busy_workers_are_shown(admin_client):
    QueueFactory(name="mail", concurrency=1)
    worker = WorkerFactory(queues=["mail"], concurrency=1)
    JobFactory(active=True, queue="mail", reserved_by=worker.pk)

    assert why(admin_client, queue="mail") == [
        "The queue's limit is reached: 1 of 1 jobs are active.",
        "The only worker that takes it from “mail” is busy.",
    ]


def test_a_job_whose_time_has_not_come_says_when_it_will(admin_client):
    WorkerFactory(queues=["default"])

    (scheduled,) = why(admin_client, scheduled=True)
    (retryable,) = why(admin_client, retryable=True, scheduled_at=ahead(90))
    (pending,) = why(admin_client, pending=True)

    assert scheduled.startswith("It is scheduled for ")
    assert retryable.startswith("Its next attempt is due at ")
    assert pending == "It is pending: it waits until somebody activates it."


def test_quiet_workers_fetch_nothing(admin_client):
    WorkerFactory(queues=["default"], state="quiet")

    (text,) = why(admin_client)

    assert text.startswith("No worker that serves “default” is running")


def test_the_jobs_that_it_waits_for_are_named(admin_client):
    new = [new_job({"type": kind, "args": []}, timezone.now()) for kind in ("extract", "report")]
    engine.enqueue_after(new, {new[1].id: [new[0].id]})
    first, second = (Job.objects.get(pk=each.id) for each in new)

    (text, *others) = page_of(admin_client, second).context["why"]

    assert text == f"It waits for 1 job to end: extract {first.pk} (available)."
    assert not any("has ended" in other for other in others)


def test_a_job_that_the_reaper_is_to_release_says_so(admin_client):
    ended, job = JobFactory(completed=True), JobFactory(pending=True)
    Dependency.objects.create(waiter=job, predecessor_id=ended.pk, position=0)

    (waits, released) = page_of(admin_client, job).context["why"]

    assert waits == f"It waits for 1 job to end: {ended.type} {ended.pk} (completed)."
    assert released == "What it waits for has ended: the reaper will release it."


def test_a_run_that_waits_for_earlier_ones_says_so(admin_client):
    job = JobFactory(pending=True)
    CronRun.objects.create(
        cron_name="nightly",
        job_id=job.pk,
        scheduled_for=ago(5),
        outcome=Outcome.TRIGGERED,
        held=True,
    )

    assert page_of(admin_client, job).context["why"] == [
        "It waits until earlier runs of the cron job “nightly” have ended."
    ]


def test_workers_that_cannot_do_what_it_needs_are_no_help(admin_client):
    WorkerFactory(queues=["default"], capabilities=["gpu"], job_types=["email.send"])

    assert why(admin_client, needs=["gpu"]) == [CLEAR]
    assert why(admin_client, needs=["gpu", "eu"], created_at=ago(900)) == [
        "The only running worker of “default” cannot do what it needs: gpu, eu."
    ]
    assert why(admin_client, type="video.cut", created_at=ago(1800)) == [
        "The only running worker of “default” does not take “video.cut”."
    ]


def test_workers_of_another_project_do_not_serve_it(admin_client):
    WorkerFactory(queues=["default"], project="other")

    for owner, whose in (("acme", "the project “acme”"), ("", "jobs without a project")):
        assert why(admin_client, project=owner, created_at=ago(9), queue="default")[-1].startswith(
            f"No live worker serves the queue “default” for {whose}: those that serve it are for "
        )


def test_workers_with_another_spec_of_its_type_are_no_help(admin_client):
    engine.register_specs({"video.cut": "v2"})
    worker = WorkerFactory(queues=["default"], protocol="rota", specs={"video.cut": "v1"})

    assert why(admin_client, type="video.cut") == [
        "The only running worker of “default” does not take “video.cut”."
    ]
    Worker.objects.filter(pk=worker.pk).update(specs={"video.cut": "v2"})
    assert why(admin_client, type="video.cut", created_at=ago(9)) == [CLEAR]


def test_a_rate_limit_that_is_reached_is_named(api, admin_client):
    WorkerFactory(queues=["mail"])
    limited = {"queue": "mail", "rate_limit": {"key": "smtp", "concurrency": 1}}
    first, second = (api.pushed(options=limited) for _ in range(2))
    assert [job["id"] for job in api.fetch("mail")] == [first]

    assert page_of(admin_client, Job.objects.get(pk=second)).context["why"] == [
        "Its rate limit “smtp” is reached: 1 of 1 jobs are active."
    ]


def test_a_limit_of_nothing_is_not_said_to_be_reached(api, admin_client):
    QueueFactory(name="mail", concurrency=0)
    WorkerFactory(queues=["mail"])
    limited = {"queue": "mail", "rate_limit": {"key": "smtp", "concurrency": 0}}
    waiting = api.pushed(options=limited)

    assert page_of(admin_client, Job.objects.get(pk=waiting)).context["why"] == [
        "The queue's limit is 0: none of its jobs starts.",
        "Its rate limit “smtp” is 0: no job starts.",
    ]


def test_the_rate_limit_of_a_queue_says_when_it_lets_the_next_one_start(api, admin_client):
    WorkerFactory(queues=["mail"])
    engine.queues.configure(
        "mail", queue_config.parse({"rate_limit": {"limit": 1, "period": "PT1H"}})
    )
    api.pushed(queue="mail")
    waiting = api.pushed(queue="mail")
    assert len(api.fetch("mail", count=5)) == 1

    (text,) = page_of(admin_client, Job.objects.get(pk=waiting)).context["why"]

    assert text.startswith(
        "The rate limit of the queue “mail” is reached: it lets the next job start"
    )
    assert "1 in 1 h" in admin_client.get(list_of(QUEUE)).content.decode()


def test_maintenance_keeps_every_job(admin_client):
    WorkerFactory(queues=["default"])
    Maintenance.objects.create(since=timezone.now(), reason="Database upgrade", started_by="ops")

    assert why(admin_client) == ["Maintenance mode is on: nothing is fetched. Database upgrade"]


def test_a_job_with_nothing_before_it_is_next(admin_client):
    WorkerFactory(queues=["default"])

    assert why(admin_client) == [CLEAR]


# Its timeline


def test_the_timeline_tells_each_step_and_its_length(admin_client, api):
    job_id = api.push(type="email.send").json()["job"]["id"]
    (fetched,) = engine.claim(["default"], worker_id="w1")
    engine.complete([engine.Completion(fetched.id, worker_id="w1")])

    steps = page_of(admin_client, Job.objects.get(pk=job_id)).context["timeline"]

    assert [step.kind for step in steps] == ["available", "started", "completed"]
    assert [step.attempt for step in steps][1] == 1
    assert steps[0].lasted.startswith("waited ") and steps[1].lasted.startswith("ran ")
    assert steps[-1].lasted == "–"


def test_a_job_that_its_worker_released_has_not_failed(admin_client, api):
    job_id = api.push(type="email.send").json()["job"]["id"]
    for pause in (timedelta(), timedelta(minutes=5)):
        (fetched,) = engine.claim(["default"], worker_id="w1")
        failure = engine.Failure(fetched.id, worker_id="w1", release=True, retry_in=pause)
        engine.fail([failure])

    steps = page_of(admin_client, Job.objects.get(pk=job_id)).context["timeline"]

    assert [(step.kind, step.state) for step in steps] == [
        ("available", "available"),
        ("started", "active"),
        ("released by its worker", "available"),
        ("started", "active"),
        ("released by its worker", "retryable"),
    ]


def test_a_job_whose_worker_was_lost_is_available_again(admin_client, api):
    job_id = api.push(type="email.send").json()["job"]["id"]
    engine.claim(["default"], worker_id="w1")
    engine.reclaim(["w1"])

    *_, last = page_of(admin_client, Job.objects.get(pk=job_id)).context["timeline"]

    assert (last.kind, last.state) == ("failed, to be tried again", "available")


def test_without_events_the_timeline_is_what_the_job_itself_knows(admin_client):
    job = JobFactory(completed=True)
    Job.objects.update(created_at=job.started_at - timedelta(minutes=1))
    job.refresh_from_db()

    steps = page_of(admin_client, job).context["timeline"]

    assert [step.kind for step in steps] == ["created", "started", "completed"]
    assert steps[0].lasted == "waited 1 min"


# Actions


def test_waiting_jobs_are_run_now():
    ops = staff("view_job", "run_job")
    jobs = [JobFactory(scheduled=True), JobFactory(retryable=True), JobFactory(pending=True)]
    done = JobFactory(completed=True)

    page = choose(ops, JOB, "run_now", *jobs, done)
    assert "1 of them is completed and will be skipped." in page.content.decode()
    page = answer(ops, page, reason="Cannot wait")

    assert messages(page) == [
        "3 jobs are available now. 1 was left as it is: its state does not allow it."
    ]
    assert Job.objects.filter(state=State.AVAILABLE).count() == 3
    action = OperatorAction.objects.get()
    assert (action.verb, action.count, action.reason) == ("run_job", 3, "Cannot wait")


def test_a_job_that_was_run_early_is_not_due_later(admin_client):
    early, waiting = JobFactory(scheduled=True), JobFactory(scheduled=True)

    answer(admin_client, choose(admin_client, JOB, "run_now", early))

    early.refresh_from_db()
    assert jobs.get(early.pk).scheduled_at is None
    assert jobs.get(waiting.pk).scheduled_at == waiting.scheduled_at
    assert early.scheduled_at is not None, "as it was enqueued"


def test_a_whole_filter_is_done_in_batches_to_exactly_what_was_shown(admin_client, monkeypatch):
    monkeypatch.setattr(confirming, "BATCH", 3)
    many_jobs(8, queue="mail")
    other = JobFactory(queue="web")

    page = everything_matched(admin_client, "cancel", "?queue=mail")
    late = JobFactory(queue="mail")
    done = answer(admin_client, page)

    assert messages(done) == ["8 jobs were cancelled."]
    left = Job.objects.filter(state=State.AVAILABLE).values_list("pk", flat=True)
    assert set(left) == {other.pk, late.pk}
    action = OperatorAction.objects.get()
    assert (action.verb, action.count) == ("cancel_job", 8)


@pytest.mark.parametrize(("typed", "cancelled"), [("", 0), ("4", 0), ("5", 5)])
def test_many_jobs_take_their_number_typed_in(admin_client, monkeypatch, typed, cancelled):
    monkeypatch.setattr(confirming, "TYPED_ABOVE", 4)
    many_jobs(5)

    page = everything_matched(admin_client, "cancel")
    answer(admin_client, page, typed=typed)

    assert Job.objects.filter(state=State.CANCELLED).count() == cancelled


def test_more_than_one_confirmation_covers_is_said(admin_client, monkeypatch):
    monkeypatch.setattr(job_admin, "CANCEL", replace(job_admin.CANCEL, most=2))
    many_jobs(3)

    page = everything_matched(admin_client, "cancel")
    assert "This covers the first 2" in page.content.decode()
    answer(admin_client, page)

    assert Job.objects.filter(state=State.CANCELLED).count() == 2


@pytest.mark.parametrize("action", ["cancel", "retry", "run_now", "discard"])
def test_a_user_who_may_only_view_can_do_nothing(action):
    job = JobFactory(dead=True)

    assert choose(viewer(), JOB, action, job).status_code == 403


# Queues and the dead letter


def test_a_queue_is_purged_by_who_types_its_name():
    ops = staff("view_queue", "purge_queue")
    queue = QueueFactory(name="mail")
    for trait in ("scheduled", "retryable", "pending", "active", "completed"):
        JobFactory(queue="mail", **{trait: True})
    JobFactory(queue="mail")
    JobFactory(queue="web")

    refused = confirm(ops, QUEUE, "purge", queue, typed="main")
    assert messages(refused) == ["Nothing was purged: these are not the names of the queues."]
    assert Job.objects.filter(queue="mail").count() == 6
    done = confirm(ops, QUEUE, "purge", queue, typed="mail", reason="Test data")

    assert messages(done) == ["4 jobs were deleted."]
    left = Job.objects.filter(queue="mail").values_list("state", flat=True)
    assert set(left) == {State.ACTIVE, State.COMPLETED}
    assert Job.objects.get(queue="web").state == State.AVAILABLE
    assert [action.verb for action in OperatorAction.objects.all()] == ["purge_queue"]


def test_a_purge_ends_the_workflows_of_what_it_takes_away(api):
    queue = QueueFactory(name="mail")
    steps = [{"type": kind, "args": [], "options": {"queue": "mail"}} for kind in ("a", "b")]
    api.send("workflows", {"type": "chain", "steps": steps})

    done = confirm(staff("view_queue", "purge_queue"), QUEUE, "purge", queue, typed="mail")

    assert messages(done) == ["0 jobs were deleted. 1 job of a workflow was cancelled."]
    assert Workflow.objects.get().state == "failed"


def test_the_dead_letter_is_counted_by_type_and_by_error_and_each_number_leads_there(admin_client):
    new = JobFactory(dead=True, type="email.send", finished_at=ago(60))
    JobErrorFactory(job=new, type="first")
    JobErrorFactory(job=new, type="smtp_down")
    old = JobFactory(dead=True, type="email.send", finished_at=timezone.now() - timedelta(days=2))
    JobErrorFactory(job=old, type="timeout")

    page = admin_client.get(list_of(DEAD))
    sections = {title: rows for title, _, rows in page.context["matrix"]["sections"]}
    (row,) = sections["By job type"]
    errors = {row.name: row.cells for row in sections["By last error"]}

    assert [count for count, _ in row.cells] == [1, 1, 2, 2]
    assert {name: [count for count, _ in cells] for name, cells in errors.items()} == {
        "smtp_down": [1, 1, 1, 1],
        "timeout": [0, 0, 1, 1],
    }
    for name, cells in errors.items():
        for count, query in cells:
            listed = admin_client.get(list_of(DEAD) + query).context["cl"].result_list
            assert len(listed) == count, (name, query)


def test_a_reason_leads_on_and_a_paused_queue_is_resumed_beside_it():
    ops = staff("view_job", "view_queue", "pause_queue")
    queue = QueueFactory(name="mail", paused_at=ago(60), paused_by="ann")
    page = page_of(ops, JobFactory(queue="mail"))

    ways = {text: url for text, url, _ in page.context["reasons"]}
    assert ways["The queue “mail” is paused by ann."] == "/admin/ojs_jobs/queue/mail/change/"
    # Not for a reader who may not view it.
    assert ways["No live worker serves the queue “mail”."] == ""
    form = next(form for form in forms(page) if form.fields.get("action") == "resume")
    done = answer(ops, ops.post(form.action, form.fields))

    assert done.redirect_chain[-1][0] == page.request["PATH_INFO"]
    queue.refresh_from_db()
    assert not queue.is_paused


def test_who_may_not_resume_is_not_offered_it(admin_client):
    QueueFactory(name="mail", paused_at=ago(60))
    job = JobFactory(queue="mail")

    page = page_of(staff("view_job", "view_queue"), job)
    whole = page_of(admin_client, job).context["reasons"]

    assert not any(form.fields.get("action") == "resume" for form in forms(page))
    assert "/admin/ojs_workers/worker/?queue=mail" in [url for _, url, _ in whole]


def test_what_fails_now_comes_before_what_failed_more_often():
    """Names without a row of their own are added up in the last row."""
    for number in range(matrix.ROWS + 1):
        for _ in range(2):
            job = JobFactory(dead=True, finished_at=timezone.now() - timedelta(days=2))
            JobErrorFactory(job=job, type=f"old_{number:02}")
    JobErrorFactory(job=JobFactory(dead=True), type="ValueError")

    _, (_, _, rows) = matrix.matrix(HttpRequest())["sections"]

    assert [row.name for row in rows] == [
        "ValueError",
        *(f"old_{number:02}" for number in range(matrix.ROWS - 1)),
        "other",
    ]
    assert rows[-1].others == 2
    assert rows[-1].cells == [(0, ""), (0, ""), (4, ""), (4, "")]


def test_a_cell_of_the_matrix_retries_what_it_counts(admin_client):
    wanted, other = JobFactory(dead=True), JobFactory(dead=True)
    JobErrorFactory(job=wanted, type="smtp_down")
    JobErrorFactory(job=other, type="timeout")
    page = admin_client.get(list_of(DEAD))
    form = next(form for form in forms(page) if form.fields.get("_selected_action") == "all")
    _, (_, _, rows) = page.context["matrix"]["sections"]
    count, query = next(row for row in rows if row.name == "smtp_down").cells[0]
    assert f'formaction="{query.replace("&", "&amp;")}"' in page.content.decode()

    question = admin_client.post(list_of(DEAD) + query, form.fields)
    done = answer(admin_client, question)

    assert count == 1
    assert done.redirect_chain[-1][0] == list_of(DEAD)
    assert list(Job.objects.filter(state=State.AVAILABLE)) == [wanted]


def test_a_number_of_the_matrix_that_is_not_complete_says_so(admin_client, monkeypatch):
    monkeypatch.setattr(filters, "DEAD", 2)
    monkeypatch.setattr(matrix, "DEAD", 2)
    for days in (0, 2, 3):
        moment = timezone.now() - timedelta(days=days, seconds=60)
        JobErrorFactory(job=JobFactory(dead=True, finished_at=moment), type="smtp_down")

    page = admin_client.get(list_of(DEAD))
    sections = page.context["matrix"]["sections"]

    # The third job is older than what was counted, and younger than seven days.
    for _, _, (row,) in sections:
        assert [text for _, text, _ in row.shown] == ["1", "1", "≥ 2", "≥ 2"]
    content = page.content.decode()
    assert "Retry all ≥ 2" in content and ">≥ 2</a>" in content
    assert "Retry all 2" not in content


def test_who_may_not_retry_sees_no_button_for_it_in_the_matrix():
    JobErrorFactory(job=JobFactory(dead=True))

    page = staff("view_deadjob").get(list_of(DEAD))

    assert page.context["matrix"]["sections"]
    assert "formaction" not in page.content.decode()


def test_a_job_finished_meanwhile_is_left_alone_by_every_verb():
    job = JobFactory(completed=True)
    gone = uuid7()

    assert engine.cancel_jobs([job.pk, gone]) == []
    assert engine.run_now([job.pk, gone]) == []


def test_a_jobs_life_is_drawn_in_proportion(admin_client):
    job = JobFactory(dead=True, created_at=ago(300), started_at=ago(200), finished_at=ago(100))

    drawn = str(page_of(admin_client, job).context["bar"])

    widths = [float(width) for width in re.findall(r' width="([0-9.]+)"', drawn)]
    assert len(widths) == 2 and abs(widths[0] - widths[1]) < 20
    assert "created: waited 1 min 40 s, started: ran 1 min 40 s" in drawn

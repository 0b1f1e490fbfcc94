"""Jobs in the admin: found, read, cancelled and retried."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from jobs.admin import job as job_admin
from jobs.admin import job_list, paging
from jobs.models import Event, Job
from jobs.spec.lifecycle import State
from tests.factories import JobErrorFactory, JobFactory, QueueFactory, ago, ahead
from tests.operators import (
    answer,
    buttons,
    choose,
    confirm,
    list_of,
    messages,
    press,
    staff,
    viewer,
)

pytestmark = pytest.mark.django_db

JOB = "ojs_jobs_job"
JOBS = "/admin/ojs_jobs/job/"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def page_of(job):
    return reverse("admin:ojs_jobs_job_change", args=[job.pk])


def listed(client, query=""):
    """The jobs that the list shows, in its order."""
    return [job.pk for job in client.get(list_of(JOB) + query).context["cl"].result_list]


@pytest.mark.parametrize("state", State)
def test_the_list_can_be_narrowed_to_a_state(admin_client, state):
    jobs = {name: JobFactory(**{} if name == "available" else {name: True}) for name in State}

    assert listed(admin_client, f"?state={state}") == [jobs[state].pk]


def test_the_list_can_be_narrowed_to_a_queue_and_a_type(admin_client):
    QueueFactory(name="mail")
    wanted = JobFactory(queue="mail", type="email.send")
    JobFactory(queue="mail", type="email.bounce")
    JobFactory(queue="default", type="email.send")

    page = admin_client.get(list_of(JOB))
    assert "?queue=mail" in page.content.decode()
    assert "?type=email.bounce" in page.content.decode()
    assert listed(admin_client, "?queue=mail&type=email.send") == [wanted.pk]


@pytest.mark.parametrize(
    "search",
    [
        "email.s",
        "{id}",
        "id:{id}",
        "type:email.send",
        "queue:mail",
        "state:active",
        "worker:web_1/a",
        "tag:urgent",
        'tag:"urgent"',
        "project:acme",
        "error:smtp_down",
        "queue:mail worker:web_1/a",
    ],
)
def test_a_job_is_found_by(admin_client, search):
    wanted = JobFactory(
        active=True, queue="mail", reserved_by="web_1/a", tags=["urgent"], project="acme"
    )
    JobErrorFactory(job=wanted, type="smtp_down")
    other = JobFactory(type="report.render", queue="default", tags=["urgently"])
    JobErrorFactory(job=other, type="smtp")

    page = admin_client.get(list_of(JOB), {"q": search.format(id=wanted.pk)})

    assert [job.pk for job in page.context["cl"].result_list] == [wanted.pk]


@pytest.mark.parametrize("newest", [10, 2])
def test_a_worker_that_died_finds_the_jobs_that_it_held(admin_client, monkeypatch, newest):
    """Also where only the newest jobs are searched."""
    monkeypatch.setattr(job_list, "SEARCHED", newest)
    JobErrorFactory(job=JobFactory(), type="worker_death", worker_id="web_2")
    JobFactory()
    lost = JobFactory(completed=True, finished_by="web_3")
    JobErrorFactory(job=lost, type="worker_death", worker_id="web_1")

    assert listed(admin_client, "?q=worker:web_1") == [lost.pk]


@pytest.mark.parametrize(
    "search", ["id:nonsense", "00000000-0000-4000-8000-000000000000", "queue:mail state:completed"]
)
def test_a_search_for_what_is_not_there_finds_nothing(admin_client, search):
    JobFactory(queue="mail")

    page = admin_client.get(list_of(JOB), {"q": search})

    assert page.context["cl"].result_list == []


def test_the_newest_jobs_come_first(admin_client):
    jobs = [JobFactory().pk for _ in range(3)]

    assert listed(admin_client) == jobs[::-1]


def test_the_list_shows_the_beginning_of_the_arguments(admin_client):
    JobFactory(args=[{"to": "user@example.com", "body": "x" * 10_000}])

    page = admin_client.get(list_of(JOB))

    assert "user@example.com" in page.content.decode()
    (job,) = page.context["cl"].result_list
    assert len(job.args_preview) < 100
    assert {"args", "meta", "result"} <= job.get_deferred_fields()


def test_no_more_is_counted_than_can_be_paged_through(admin_client, monkeypatch):
    monkeypatch.setattr(paging, "MOST", 3)
    for _ in range(5):
        JobFactory()

    page = admin_client.get(list_of(JOB))

    assert page.context["cl"].result_count == 3
    assert "more than 3 jobs" in page.content.decode()


@pytest.mark.parametrize("count", [1, 100])
def test_the_list_takes_the_same_queries_for_one_job_and_for_a_hundred(
    admin_client, django_assert_num_queries, count
):
    for number in range(count):
        QueueFactory(name=f"queue-{number}")
        JobFactory(active=True, queue=f"queue-{number}", reserved_by=f"worker-{number}")

    # Session, user, capped count, page of jobs, choices of queue and of type, the reaper.
    with django_assert_num_queries(10):
        page = admin_client.get(list_of(JOB))

    assert len(page.context["cl"].result_list) == count


def test_the_list_counts_no_further_than_it_must(admin_client, django_assert_num_queries):
    JobFactory()

    with django_assert_num_queries(10) as queries:
        admin_client.get(list_of(JOB))

    counts = [query["sql"] for query in queries if "COUNT(" in query["sql"]]
    assert len(counts) == 1
    assert f"LIMIT {paging.MOST + 1}" in counts[0]


def test_a_job_page_tells_its_whole_story(admin_client):
    job = JobFactory(
        retryable=True,
        args=[{"to": "user@example.com"}],
        meta={"trace": "abc"},
        created_at=ago(7290),
        scheduled_at=ahead(60),
        tags=["urgent"],
        attributes={"x-vendor": "kept"},
    )
    JobErrorFactory(
        job=job,
        attempt=1,
        type="smtp_down",
        message="No answer <script>",
        backtrace=["line 1", "line 2"],
        details={"host": "smtp-7"},
        worker_id="web_1/a",
    )

    content = admin_client.get(page_of(job)).content.decode()

    assert "user@example.com" in content
    assert "smtp_down" in content
    assert "No answer &lt;script&gt;" in content
    assert "line 1\nline 2" in content
    assert "smtp-7" in content
    assert "x-vendor" in content
    assert "urgent" in content
    assert "2 h 1 min ago" in content
    assert "/admin/ojs_workers/worker/web_5F1_2Fa/change/" in content


def test_a_job_cannot_be_edited_or_deleted_by_hand(admin_client):
    job = JobFactory()

    assert admin_client.post(page_of(job), {"type": "other"}).status_code == 403
    assert admin_client.post(f"{JOBS}{job.pk}/delete/", {"post": "yes"}).status_code == 403
    assert "_save" not in admin_client.get(page_of(job)).content.decode()
    assert Job.objects.get().type == job.type


def test_a_job_is_cancelled_after_a_confirmation_and_with_a_reason():
    ops = staff("view_job", "cancel_job", "retry_job")
    job, other = JobFactory(active=True), JobFactory()

    page = choose(ops, JOB, "cancel", job)
    assert str(job.pk) in page.content.decode()
    assert str(other.pk) not in page.content.decode()
    assert Job.objects.get(pk=job.pk).state == State.ACTIVE

    done = answer(ops, page, reason="Wrong recipients")

    assert messages(done) == ["1 job was cancelled."]
    assert Job.objects.get(pk=job.pk).state == State.CANCELLED
    assert Job.objects.get(pk=other.pk).state == State.AVAILABLE
    event = Event.objects.get(type="job.cancelled")
    assert event.data == {
        "cancelled_by": "ops",
        "reason": "Wrong recipients",
        "previous_state": "active",
    }
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.user.username) == (str(job.pk), "ops")
    assert entry.change_message == "Cancelled. Reason: Wrong recipients"


def test_a_job_that_finished_while_the_operator_was_asked_is_left_alone():
    ops = staff("view_job", "cancel_job", "retry_job")
    job, waiting = JobFactory(active=True), JobFactory()
    page = choose(ops, JOB, "cancel", job, waiting)
    Job.objects.filter(pk=job.pk).update(
        state=State.COMPLETED, finished_at=ago(0), reserved_until=None, reserved_by=""
    )

    done = answer(ops, page)

    assert messages(done) == [
        "1 job was cancelled. 1 was left as it is: its state does not allow it."
    ]
    assert Job.objects.get(pk=job.pk).state == State.COMPLETED
    assert [entry.object_id for entry in LogEntry.objects.all()] == [str(waiting.pk)]


def test_what_happens_is_what_was_shown_even_if_the_filter_matches_more_by_then():
    ops = staff("view_job", "cancel_job", "retry_job")
    job = JobFactory()
    page = ops.post(
        f"{JOBS}?state=available",
        {"action": "cancel", "index": "0", "select_across": "1", "_selected_action": [job.pk]},
    )
    late = JobFactory()

    done = answer(ops, page)

    assert messages(done) == ["1 job was cancelled."]
    assert done.redirect_chain[-1][0] == f"{JOBS}?state=available"
    assert Job.objects.get(pk=late.pk).state == State.AVAILABLE


def test_one_confirmation_covers_so_many_jobs_and_says_so(monkeypatch):
    monkeypatch.setattr(job_admin, "CANCEL", replace(job_admin.CANCEL, most=2))
    ops = staff("view_job", "cancel_job", "retry_job")
    jobs = [JobFactory() for _ in range(3)]

    page = choose(ops, JOB, "cancel", *jobs)
    assert "This covers the first 2" in page.content.decode()
    answer(ops, page)

    assert Job.objects.filter(state=State.CANCELLED).count() == 2


def test_a_discarded_job_is_retried_from_the_list_of_jobs():
    ops = staff("view_job", "cancel_job", "retry_job")
    job = JobFactory(discarded=True)

    done = confirm(ops, JOB, "retry", job, JobFactory(completed=True), reason="Server is back")

    assert messages(done) == [
        "1 job is available again, with fresh attempts. "
        "1 was left as it is: its state does not allow it."
    ]
    job.refresh_from_db()
    assert (job.state, job.attempt) == (State.AVAILABLE, 0)
    assert LogEntry.objects.get().change_message == "Retried. Reason: Server is back"


@pytest.mark.parametrize(
    ("state", "offered"),
    [
        ("scheduled", ["run_now", "cancel"]),
        ("pending", ["run_now", "cancel"]),
        ("active", ["cancel"]),
        ("retryable", ["run_now", "cancel"]),
        ("completed", ["erase"]),
        ("cancelled", ["erase"]),
        ("discarded", ["retry", "discard", "erase"]),
    ],
)
def test_a_job_page_offers_what_its_state_allows(admin_client, state, offered):
    job = JobFactory(**{state: True})

    assert buttons(admin_client.get(page_of(job))) == offered


def test_a_button_asks_and_leads_back_to_the_page_it_was_on(admin_client):
    job = JobFactory()

    page = press(admin_client, admin_client.get(page_of(job)), "cancel")
    done = answer(admin_client, page)

    assert done.redirect_chain[-1][0] == page_of(job)
    assert Job.objects.get().state == State.CANCELLED


def test_an_answer_does_not_lead_to_another_site(admin_client):
    job = JobFactory()

    done = answer(admin_client, choose(admin_client, JOB, "cancel", job), back="//evil.example/")

    assert done.redirect_chain[-1][0] == JOBS


def test_a_confirmation_made_up_by_hand_is_refused(admin_client):
    job = JobFactory()
    made_up = {"action": "cancel", "_selected_action": [job.pk], "confirmed": "1"}

    for shown in ["nonsense", '["nonsense"]', "7", json.dumps({"a": 1})]:
        assert admin_client.post(JOBS, made_up | {"shown": shown}).status_code == 400

    assert Job.objects.get().state == State.AVAILABLE


def test_who_may_only_look_sees_no_buttons_and_no_actions():
    job = JobFactory()
    client = viewer()

    assert buttons(client.get(page_of(job))) == []
    assert 'name="action"' not in client.get(JOBS).content.decode()


def test_the_history_of_a_job_tells_who_did_what(admin_client):
    job = JobFactory()
    confirm(admin_client, JOB, "cancel", job, reason="Duplicate")

    history = admin_client.get(f"{JOBS}{job.pk}/history/").content.decode()

    assert "Cancelled. Reason: Duplicate" in history


def test_jobs_that_run_are_listed_by_how_long_they_have(admin_client, monkeypatch):
    monkeypatch.setattr(job_admin.JobAdmin, "list_per_page", 2)
    for hours in (1, 3, 2):
        JobFactory(active=True, type=f"hours.{hours}", started_at=ago(3600 * hours))

    page = admin_client.get(JOBS, {"state": "active"})

    assert [job.type for job in page.context["cl"].result_list] == ["hours.3", "hours.2"]
    assert "running_since" in page.context["cl"].list_display
    following = admin_client.get(JOBS + page.context["cl"].older_page_query)
    assert [job.type for job in following.context["cl"].result_list] == ["hours.1"]
    back = admin_client.get(JOBS + following.context["cl"].newer_query)
    assert [job.type for job in back.context["cl"].result_list] == ["hours.3", "hours.2"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("…da5bbd91bcb3", "A job is found by its whole id; the button beside it copies it."),
        ("da5bbd91bcb3", "A job is found by its whole id; the button beside it copies it."),
        ("smtp_down", "For an error write error:smtp_down."),
        (
            "order-4711",
            "For a value of the arguments write args.0:order-4711, of the metadata "
            "meta.key:order-4711.",
        ),
        (
            "ann@example.com",
            "For a value of the arguments write args.0:ann@example.com, of the metadata "
            "meta.key:ann@example.com.",
        ),
        ("4711", "For a value of the arguments write args.0:4711, of the metadata meta.key:4711."),
        (
            "471100",
            "A job is found by its whole id; the button beside it copies it. For a value of the "
            "arguments write args.0:471100, of the metadata meta.key:471100.",
        ),
        (TRACE, f"For a trace write trace:{TRACE}."),
        ("queue:mail", ""),
        ("00000000-0000-4000-8000-000000000000", ""),
    ],
)
def test_a_word_that_finds_nothing_is_answered_with_what_may_be_meant(admin_client, text, hint):
    JobFactory(type="email.send", queue="web")

    page = admin_client.get(JOBS, {"q": text})

    assert page.context["cl"].hint == hint
    assert hint in page.content.decode()
    assert admin_client.get(JOBS, {"q": "email"}).context["cl"].hint == ""


def test_an_unknown_age_or_filter_finds_no_jobs(admin_client):
    """Never all jobs: what is listed can be selected and acted on."""
    JobFactory()

    assert not admin_client.get(JOBS, {"since": "nope"}).context["cl"].result_list
    page = admin_client.get(JOBS, {"created": "nope"}, follow=True)
    assert not page.context["cl"].result_list
    assert messages(page) == [
        "The address named a filter that does not exist: nothing is listed. "
        f'<a href="{JOBS}">List everything</a>'
    ]


def test_an_action_for_all_that_an_unknown_filter_matches_changes_no_job(admin_client):
    job = JobFactory()
    url = admin_client.get(JOBS, {"created": "nope"}).url
    selected = {"_selected_action": [job.pk], "select_across": "1", "index": "0"}

    page = admin_client.post(url, selected | {"action": "cancel"}, follow=True)

    assert messages(page)[0] == "There was nothing to do."

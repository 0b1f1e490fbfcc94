"""Dead letter in the admin: retried, or discarded for good (OJS dead letter §6)."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import DELETION, LogEntry
from django.urls import reverse

from jobs.admin.dead_letter import DeadJobAdmin
from jobs.models import DeadJob, Job, JobError
from jobs.spec.lifecycle import State
from tests.factories import JobErrorFactory, JobFactory, ago
from tests.operators import answer, buttons, choose, confirm, list_of, messages, press, staff

pytestmark = pytest.mark.django_db

DEAD = "ojs_jobs_deadjob"


def page_of(job):
    return reverse("admin:ojs_jobs_deadjob_change", args=[job.pk])


def test_the_list_holds_the_dead_letter_and_nothing_else(admin_client):
    old = JobFactory(dead=True, finished_at=ago(60))
    new = JobFactory(dead=True)
    JobFactory(discarded=True)
    JobFactory(completed=True)

    page = admin_client.get(list_of(DEAD))

    assert [job.pk for job in page.context["cl"].result_list] == [new.pk, old.pk]


def test_the_list_shows_the_last_error_of_each_job(admin_client):
    job = JobFactory(dead=True)
    JobErrorFactory(job=job, attempt=1, type="first_error")
    JobErrorFactory(job=job, attempt=2, type="last_error", message="Disk full")

    content = admin_client.get(list_of(DEAD)).content.decode()

    assert "last_error" in content
    assert "Disk full" in content
    assert "<strong>first_error" not in content


@pytest.mark.parametrize("count", [1, 100])
def test_the_list_takes_the_same_queries_for_one_job_and_for_a_hundred(
    admin_client, django_assert_num_queries, count
):
    for _ in range(count):
        JobErrorFactory(job=JobFactory(dead=True))

    # Session, user, capped count, page of jobs, their errors, choices of queue, the
    # matrix with the choices of type and error, reaper, maintenance.
    with django_assert_num_queries(9):
        page = admin_client.get(list_of(DEAD))

    assert len(page.context["cl"].result_list) == count


def test_dead_jobs_are_retried_with_fresh_attempts():
    ops = staff("view_deadjob", "retry_job")
    jobs = [JobFactory(dead=True), JobFactory(dead=True)]
    JobErrorFactory(job=jobs[0])

    done = confirm(ops, DEAD, "retry", *jobs, reason="Disk replaced")

    assert messages(done) == ["2 jobs are available again, with fresh attempts."]
    states = Job.objects.values_list("state", "attempt", "dead_letter")
    assert list(states) == [(State.AVAILABLE, 0, False)] * 2
    assert JobError.objects.count() == 1
    assert {entry.change_message for entry in LogEntry.objects.all()} == {
        "Retried. Reason: Disk replaced"
    }


def test_dead_jobs_are_discarded_for_good():
    ops = staff("view_deadjob", "discard_job")
    job, kept = JobFactory(dead=True), JobFactory(dead=True)
    JobErrorFactory(job=job)

    page = choose(ops, DEAD, "discard", job)
    assert "This cannot be undone" in page.content.decode()
    done = answer(ops, page, reason="Spam")

    assert messages(done) == ["1 job was deleted from the dead letter."]
    assert [job.pk for job in Job.objects.all()] == [kept.pk]
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.action_flag) == (str(job.pk), DELETION)
    assert entry.change_message == "Deleted from the dead letter. Reason: Spam"


def test_a_dead_job_of_a_running_workflow_is_not_discarded(api):
    api.send("workflows", {"type": "group", "jobs": [{"type": "a", "args": []}] * 2})
    failed = api.fetch()[0]["id"]
    api.nack(failed, retryable=False)
    ops = staff("view_deadjob", "discard_job")

    page = choose(ops, DEAD, "discard", DeadJob.objects.get())
    assert "workflows that have not ended" in page.content.decode()
    done = answer(ops, page)

    assert "1 was left as it is" in messages(done)[0]
    assert DeadJob.objects.exists()


def test_who_discards_a_job_on_its_page_is_led_to_the_list():
    ops = staff("view_deadjob", "discard_job")
    job = JobFactory(dead=True)

    done = answer(ops, press(ops, ops.get(page_of(job)), "discard"))

    assert done.request["PATH_INFO"] == list_of(DEAD)
    assert messages(done) == ["1 job was deleted from the dead letter."]


def test_a_dead_job_that_is_retried_from_its_page_is_shown_as_a_job():
    ops = staff("view_deadjob", "view_job", "retry_job")
    job = JobFactory(dead=True)

    done = answer(ops, press(ops, ops.get(page_of(job)), "retry"))

    assert done.request["PATH_INFO"] == f"{list_of('ojs_jobs_job')}{job.pk}/change/"
    assert messages(done) == ["1 job is available again, with fresh attempts."]


def test_who_sees_dead_jobs_only_gets_back_to_their_list():
    ops = staff("view_deadjob", "retry_job")
    job = JobFactory(dead=True)

    done = answer(ops, press(ops, ops.get(page_of(job)), "retry"))

    assert done.request["PATH_INFO"] == list_of(DEAD)
    assert messages(done) == [
        "1 job is available again, with fresh attempts.",
        "This job is no longer dead.",
    ]


def test_a_page_of_a_job_that_is_gone_says_so():
    ops = staff("view_deadjob", "view_job")
    job = JobFactory(dead=True)
    page = page_of(job)
    job.delete()

    assert "doesn’t exist" in messages(ops.get(page, follow=True))[0]


def test_a_job_retried_while_the_operator_was_asked_is_not_deleted():
    ops = staff("view_deadjob", "discard_job", "retry_job")
    job = JobFactory(dead=True)
    page = choose(ops, DEAD, "discard", job)
    confirm(ops, DEAD, "retry", job)

    done = answer(ops, page)

    assert messages(done) == [
        "None of these is there any more: they were changed or deleted meanwhile."
    ]
    assert Job.objects.get().state == State.AVAILABLE


@pytest.mark.parametrize(
    ("permission", "allowed"), [("retry_job", "retry"), ("discard_job", "discard")]
)
def test_to_retry_and_to_discard_are_two_permissions(permission, allowed):
    job = JobFactory(dead=True)
    client = staff("view_deadjob", permission)

    assert buttons(client.get(page_of(job))) == [allowed]
    for action in ("retry", "discard"):
        status = choose(client, DEAD, action, job).status_code
        assert status == (200 if action == allowed else 403)


def test_django_cannot_delete_past_the_engine(admin_client):
    job = JobFactory(dead=True)

    assert "delete_selected" not in admin_client.get(list_of(DEAD)).content.decode()
    reply = admin_client.post(reverse("admin:ojs_jobs_deadjob_delete", args=[job.pk]))
    assert reply.status_code == 403
    assert Job.objects.exists()


def test_the_button_of_a_dead_job_retries_it(admin_client):
    job = JobFactory(dead=True)

    page = press(admin_client, admin_client.get(page_of(job)), "retry")
    answer(admin_client, page)

    assert Job.objects.get().state == State.AVAILABLE


def test_a_job_has_one_history_wherever_it_was_retried(admin_client):
    job = JobFactory(dead=True)
    confirm(admin_client, DEAD, "retry", job, reason="Disk replaced")
    Job.objects.update(state=State.DISCARDED, dead_letter=True, finished_at=ago(0))

    for model in ("job", "deadjob"):
        history = admin_client.get(reverse(f"admin:ojs_jobs_{model}_history", args=[job.pk]))
        assert "Disk replaced" in history.content.decode()


def test_all_of_them_are_called_jobs_where_they_are_selected(admin_client, monkeypatch):
    monkeypatch.setattr(DeadJobAdmin, "list_per_page", 1)
    JobFactory.create_batch(2, dead=True)

    page = admin_client.get(list_of(DEAD)).content.decode()

    assert "Select all 2 dead jobs" in page

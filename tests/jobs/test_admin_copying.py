"""A job is edited and enqueued again as a copy; the form reports invalid values."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from jobs import engine
from jobs.models import Job, OperatorAction
from jobs.spec.lifecycle import State
from tests.factories import JobFactory
from tests.operators import UNSTORABLE, forms, messages, operator, staff

pytestmark = pytest.mark.django_db

SENT = {
    "type": "email.send",
    "queue": "mail",
    "priority": "7",
    "args": '["you@example.com", {"page": 2}]',
    "meta": '{"tenant": "acme"}',
    "tags": '["again"]',
    "delay_until": "",
    "reason": "The address was wrong",
}


def copy_of(job):
    return reverse("admin:ojs_jobs_job_copy", args=[job.pk])


def clerk(*more):
    return staff("view_job", "enqueue_job", *more)


def test_the_form_shows_the_original(admin_client):
    job = JobFactory(dead=True, args=[{"to": "ü"}], priority=3)

    page = admin_client.get(copy_of(job)).content.decode()

    assert "ü" in page
    assert 'name="priority" value="3"' in page


def test_an_edited_copy_is_fetched_and_the_original_stays(api):
    original = JobFactory(
        dead=True,
        queue="mail",
        attempt=3,
        retry={"max_attempts": 3},
        timeout=timedelta(seconds=20),
        attributes={"x_trace": "abc", "unique": {"keys": ["type"]}},
        result={"a": 1},
    )

    done = clerk().post(copy_of(original), SENT, follow=True)

    (fetched,) = api.fetch("mail")
    assert messages(done) == [f"The copy was enqueued as {fetched['id']}."]
    assert fetched["args"] == ["you@example.com", {"page": 2}]
    assert (fetched["meta"]["tenant"], fetched["priority"]) == ("acme", 7)
    assert (fetched["attempt"], fetched["max_attempts"], fetched["timeout_ms"]) == (1, 3, 20_000)
    assert fetched["x_trace"] == "abc"
    assert "unique" not in fetched and "result" not in fetched
    original.refresh_from_db()
    assert original.state == State.DISCARDED
    action = OperatorAction.objects.get()
    assert (action.verb, action.reason) == ("enqueue_job", "The address was wrong")
    assert action.selection == {"copy_of": str(original.pk), "ids": [fetched["id"]]}
    assert LogEntry.objects.get().object_id == fetched["id"]


def test_a_type_of_another_protocol_may_be_copied():
    original = JobFactory(dead=True, type="Billing.Invoices+Send")

    clerk().post(copy_of(original), SENT | {"type": original.type})

    assert Job.objects.exclude(pk=original.pk).get().type == "Billing.Invoices+Send"


def test_a_form_for_a_copy_that_is_sent_twice_makes_one_copy():
    original = JobFactory(dead=True)
    ops = staff("view_job", "view_deadjob", "enqueue_job")
    page = ops.get(copy_of(original))
    once = next(each.fields["once"] for each in forms(page) if "once" in each.fields)

    for _ in range(2):
        done = ops.post(copy_of(original), SENT | {"once": once}, follow=True)

    assert Job.objects.count() == 2
    assert done.request["PATH_INFO"].endswith(f"/{once}/change/")


def test_a_copy_may_be_made_for_later():
    clerk().post(copy_of(JobFactory()), SENT | {"delay_until": "+PT1H"})

    assert Job.objects.filter(state=State.SCHEDULED, queue="mail").count() == 1


def test_a_copy_stays_in_the_project_and_leaves_the_workflow():
    original = JobFactory(project="acme", parent_results=[{"a": 1}])

    clerk().post(copy_of(original), SENT)

    copy = Job.objects.exclude(pk=original.pk).get()
    assert (copy.project, copy.parent_results, copy.workflow_id) == ("acme", [{"a": 1}], None)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("args", "[1,"),
        ("args", '{"a": 1}'),
        ("args", "[NaN]"),
        ("meta", "[]"),
        ("tags", "[1]"),
        ("type", "no type!"),
        ("queue", "No Queue"),
        ("priority", "1000"),
        ("delay_until", "tomorrow"),
    ],
)
def test_what_no_job_can_have_is_refused_at_its_field(field, wrong):
    page = clerk().post(copy_of(JobFactory()), SENT | {field: wrong})

    assert list(page.context["form"].errors) == [field]
    assert wrong.replace('"', "&quot;") in page.content.decode()
    assert Job.objects.count() == 1
    assert not OperatorAction.objects.exists()


@pytest.mark.parametrize("value", UNSTORABLE.values(), ids=UNSTORABLE)
def test_arguments_that_the_api_does_not_store_are_refused_in_a_copy_too(value):
    page = clerk().post(copy_of(JobFactory()), SENT | {"args": f"[{value}]"})

    assert list(page.context["form"].errors) == ["args"]
    assert Job.objects.count() == 1


def test_who_may_not_enqueue_is_not_offered_it_and_refused():
    job = JobFactory()
    looker = staff("view_job", "retry_job")

    page = looker.get(reverse("admin:ojs_jobs_job_change", args=[job.pk]))
    assert "/copy/" not in page.content.decode()
    for send in (looker.get, looker.post):
        assert send(copy_of(job), SENT).status_code == 403
    assert Job.objects.count() == 1


def test_hidden_values_are_not_copied_by_who_may_not_see_them():
    job = JobFactory(args=[{"password": "hunter2"}])
    looker, trusted = clerk(), staff("view_job", "enqueue_job", "view_job_args", username="b")

    assert looker.get(copy_of(job)).status_code == 403
    assert "hunter2" in trusted.get(copy_of(job)).content.decode()


@pytest.mark.parametrize(
    ("hidden", "may"),
    [
        ({"args": [{"password": "hunter2"}]}, False),
        ({"meta": {"token": "hunter2"}}, False),
        ({"args": [{"message": "login(password=hunter2)"}]}, False),
        ({"attributes": {"x_secret": "hunter2"}}, False),
        ({"result": {"password": "hunter2"}}, True),
        ({}, True),
    ],
)
def test_a_copy_is_offered_to_whom_it_shows_nothing_hidden(hidden, may):
    job, looker = JobFactory(completed=True, **hidden), operator()

    page = looker.get(reverse("admin:ojs_jobs_job_change", args=[job.pk])).content.decode()
    form = looker.get(copy_of(job))

    assert (copy_of(job) in page) is may
    assert form.status_code == (200 if may else 403)
    assert "hunter2" not in page + form.content.decode()


@pytest.mark.parametrize("key", ["nonsense", "018c2b6f-0000-7000-8000-000000000000"])
def test_there_is_no_copy_of_what_is_not_there(admin_client, key):
    assert admin_client.get(reverse("admin:ojs_jobs_job_copy", args=[key])).status_code == 404


def test_a_job_that_waits_for_others_is_not_run_before_them():
    from django.utils import timezone

    from jobs.spec.validation import new_job

    first, second = (new_job({"type": "step", "args": []}, timezone.now()) for _ in range(2))
    engine.enqueue_after([first, second], {second.id: [first.id]})

    assert engine.run_now([second.id]) == []
    assert Job.objects.get(pk=second.id).state == State.PENDING


def test_the_original_is_discarded_once_the_copy_is_enqueued():
    original = JobFactory(dead=True)

    clerk("discard_job").post(copy_of(original), SENT | {"discard": "on"})

    copy = Job.objects.get()
    assert copy.pk != original.pk
    discarded = OperatorAction.objects.get(verb="discard_job")
    assert discarded.selection == {"copied_as": str(copy.pk), "ids": [str(original.pk)]}


def test_a_copy_that_is_refused_discards_nothing():
    original = JobFactory(dead=True)

    clerk("discard_job").post(copy_of(original), SENT | {"discard": "on", "priority": "1000"})

    assert Job.objects.get().pk == original.pk
    assert not OperatorAction.objects.exists()


@pytest.mark.parametrize("original", [{"completed": True}, {}], ids=["completed", "available"])
def test_only_a_dead_original_is_discarded(original):
    original = JobFactory(**original)
    client = clerk("discard_job")

    assert "discard" not in client.get(copy_of(original)).context["form"].fields
    client.post(copy_of(original), SENT | {"discard": "on"})

    assert Job.objects.filter(pk=original.pk).exists() and Job.objects.count() == 2


def test_who_may_not_discard_enqueues_a_copy_alone():
    original, client = JobFactory(dead=True), clerk()

    assert "discard" not in client.get(copy_of(original)).context["form"].fields
    client.post(copy_of(original), SENT | {"discard": "on"})

    assert Job.objects.filter(pk=original.pk).exists()


def test_original_and_copy_lead_to_each_other():
    original, client = JobFactory(dead=True), clerk("discard_job")
    client.post(copy_of(original), SENT)
    copy = Job.objects.exclude(pk=original.pk).get()

    def page(job):
        url = reverse("admin:ojs_jobs_job_change", args=[job.pk])
        return client.get(url).content.decode().partition('id="copies"')[2]

    assert reverse("admin:ojs_jobs_job_change", args=[copy.pk]) in page(original)
    assert reverse("admin:ojs_jobs_job_change", args=[original.pk]) in page(copy)

    engine.delete_dead([original.pk])
    assert str(original.pk) in page(copy) and "deleted" in page(copy)
    assert page(JobFactory()) == ""

"""A job made by hand: the form, what it refuses and where, and what it knows of a type."""

from __future__ import annotations

import pytest
from django.urls import reverse

from jobs.http.authentication import make_key
from jobs.models import Job, JobSchema, OperatorAction, Queue
from jobs.spec.lifecycle import State
from tests.factories import JobFactory, QueueFactory
from tests.operators import UNSTORABLE, forms, messages, staff

pytestmark = pytest.mark.django_db

SENT = {
    "type": "email.send",
    "args": '["ann@example.com"]',
    "queue": "mail",
    "delay_until": "",
    "priority": "0",
    "unique": "",
    "on_conflict": "reject",
    "meta": "{}",
    "tags": "[]",
    "options": "",
    "reason": "Asked for by phone",
}


def form():
    return reverse("admin:ojs_jobs_job_add")


def clerk(*more):
    return staff("view_job", "enqueue_job", *more)


def test_a_job_is_enqueued_shown_and_recorded(api):
    done = clerk().post(form(), SENT | {"options": '{"max_attempts": 7}'}, follow=True)

    (fetched,) = api.fetch("mail")
    assert messages(done) == [f"The job was enqueued as {fetched['id']}."]
    assert done.request["PATH_INFO"] == reverse("admin:ojs_jobs_job_change", args=[fetched["id"]])
    assert (fetched["type"], fetched["args"]) == ("email.send", ["ann@example.com"])
    assert fetched["max_attempts"] == 7
    action = OperatorAction.objects.get()
    assert (action.verb, action.reason) == ("enqueue_job", "Asked for by phone")
    assert action.selection == {"ids": [fetched["id"]]}


@pytest.mark.parametrize("on_conflict", ["reject", "ignore", "replace"])
@pytest.mark.parametrize("unique", ["", "type"])
def test_a_form_that_is_sent_twice_makes_one_job(unique, on_conflict):
    user = clerk()
    once = next(each.fields for each in forms(user.get(form())) if "once" in each.fields)
    sent = once | SENT | {"unique": unique, "on_conflict": on_conflict}

    user.post(form(), sent)
    again = user.post(form(), sent, follow=True)

    job = Job.objects.get()
    assert job.state == State.AVAILABLE
    assert again.request["PATH_INFO"] == reverse("admin:ojs_jobs_job_change", args=[job.pk])
    assert len(messages(again)) == 2 and "already" in messages(again)[1]
    assert OperatorAction.objects.count() == 1
    # Another form makes another job.
    user.post(form(), SENT)
    assert Job.objects.count() == 2


def test_a_type_with_a_nul_is_refused_at_its_field():
    page = clerk().post(form(), SENT | {"type": "a\x00b"})

    assert page.status_code == 200
    assert page.context["form"].errors["type"] == ["Null characters are not allowed."]
    assert not Job.objects.exists()


def test_a_job_may_be_made_for_later():
    clerk().post(form(), SENT | {"delay_until": "+PT1H"})

    assert Job.objects.get().state == State.SCHEDULED


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("args", "[1,"),
        ("args", '{"a": 1}'),
        ("meta", "[]"),
        ("type", "no type!"),
        ("queue", "No Queue"),
        ("delay_until", "tomorrow"),
        ("options", "[]"),
        ("options", '{"priority": 3}'),
        ("options", '{"max_attemps": 3}'),
        ("options", '{"max_attempts": "many"}'),
        ("unique", "by moon"),
    ],
)
def test_what_no_job_can_have_is_refused_at_its_field_and_nothing_typed_is_lost(field, wrong):
    page = clerk().post(form(), SENT | {field: wrong})

    found = page.context["form"].errors
    assert list(found) == [field]
    assert "Asked for by phone" in page.content.decode()
    assert not Job.objects.exists() and not OperatorAction.objects.exists()


@pytest.mark.parametrize("value", UNSTORABLE.values(), ids=UNSTORABLE)
@pytest.mark.parametrize(
    ("field", "document"),
    [
        ("args", "[{}]"),
        ("meta", '{{"a": {}}}'),
        ("tags", "[{}]"),
        ("options", '{{"rate_limit": {{"key": "k", "concurrency": 1, "a": {}}}}}'),
    ],
)
def test_what_the_api_does_not_store_is_refused_at_its_field(field, document, value):
    page = clerk().post(form(), SENT | {field: document.format(value)})

    assert list(page.context["form"].errors) == [field]
    assert not Job.objects.exists()


def test_a_number_that_is_too_large_is_refused_before_it_would_be_another(described):
    page = clerk().post(form(), SENT | FILLED | {"args": "[{}]", "input-[0].copies": str(2**53)})

    assert page.context["form"].errors["args"] == [
        "The number at $[0].copies is beyond ±(2^53 - 1); send it as a string."
    ]
    assert not Job.objects.exists()


def test_a_second_job_that_must_be_unique_is_refused_with_the_id_of_the_first():
    client, sent = clerk(), SENT | {"unique": "type args"}
    client.post(form(), sent)
    first = Job.objects.get()

    page = client.post(form(), sent)
    kept = client.post(form(), sent | {"on_conflict": "ignore"}, follow=True)

    assert str(first.pk) in page.context["form"].errors["unique"][0]
    assert messages(kept) == [f"There is such a job already, and it was kept: {first.pk}."]
    assert Job.objects.count() == OperatorAction.objects.count() == 1


def test_unique_by_type_and_arguments_lets_other_arguments_pass():
    client, sent = clerk(), SENT | {"unique": "type args"}

    client.post(form(), sent)
    client.post(form(), sent | {"args": '["ben@example.com"]'})

    assert Job.objects.count() == 2


def test_types_and_queues_are_suggested_to_who_may_see_them():
    JobFactory(type="known.type")
    QueueFactory(name="known-queue")

    seen = clerk("view_queue").get(form()).content.decode()
    unseen = staff("enqueue_job", username="b").get(form()).content.decode()

    for name in ("known.type", "known-queue"):
        assert f'<option value="{name}">' in seen
        assert name not in unseen


def test_the_form_can_be_filled_in_from_its_address():
    page = clerk().get(form(), {"type": "email.send", "queue": "mail", "args": '["x"]', "no": "1"})

    text = page.content.decode()
    assert 'value="email.send"' in text and 'value="mail"' in text and "[&quot;x&quot;]" in text


def test_who_may_enqueue_and_not_look_lands_on_the_index():
    done = staff("enqueue_job").post(form(), SENT)

    assert done["Location"] == reverse("admin:index")
    assert Job.objects.count() == 1


@pytest.mark.parametrize("send", ["get", "post"])
def test_who_may_not_enqueue_is_not_offered_the_form_and_refused(send):
    looker = staff("view_job", "retry_job")

    listed = looker.get(reverse("admin:ojs_jobs_job_changelist")).content.decode()

    assert form() not in listed
    assert getattr(looker, send)(form(), SENT).status_code == 403
    assert looker.get(reverse("admin:ojs_jobs_job_about")).status_code == 403
    assert not Job.objects.exists()


def test_the_fields_of_a_types_newest_schema_are_told():
    members = {"to": {"type": "string", "description": "Who"}, "how": {"enum": ["fast", "slow"]}}
    schema = {"items": [{"properties": members, "required": ["to"]}, {"type": "integer"}]}
    JobSchema.objects.create(type="email.send", version="1", version_number=1, schema={"x": 1})
    JobSchema.objects.create(type="email.send", version="2", version_number=2, schema=schema)
    about = reverse("admin:ojs_jobs_job_about")

    known = clerk().get(about, {"type": "email.send"}).json()
    unknown = staff("enqueue_job", username="b").get(about, {"type": "other"}).json()

    inputs = known.pop("inputs")
    assert 'name="input-[0].to"' in inputs and "&quot;fast&quot;" in inputs and "number" in inputs
    assert unknown.pop("inputs").strip() == ""
    assert known == {
        "schema": "Arguments of version 2",
        "fields": ["[0].to: string; required; Who", "[0].how: enum; fast, slow", "[1]: integer"],
    }
    assert unknown == {"schema": "", "fields": []}
    assert not Queue.objects.exists()


@pytest.mark.parametrize(
    "schema", [[], 1, {"items": 3}, {"properties": []}, {"properties": {"a": 1}, "required": 2}]
)
def test_a_schema_in_an_odd_form_breaks_nothing(schema):
    JobSchema.objects.create(type="t", version="1", version_number=1, schema=schema)

    reply = clerk().get(reverse("admin:ojs_jobs_job_about"), {"type": "t"})

    assert reply.status_code == 200


SCHEMA = {
    "type": "array",
    "prefixItems": [
        {
            "type": "object",
            "required": ["to"],
            "properties": {
                "to": {"type": "string", "description": "Who gets it"},
                "copies": {"type": ["integer", "null"]},
                "size": {"type": "number"},
                "how": {"enum": ["fast", 2, None]},
                "urgent": {"type": "boolean"},
                "lines": {"type": "array"},
            },
        },
        {"type": "string"},
    ],
}


@pytest.fixture
def described():
    JobSchema.objects.create(type="email.send", version="1", version_number=1, schema=SCHEMA)


FILLED = {
    "input-[0].to": "ann@example.com",
    "input-[0].copies": "2",
    "input-[0].size": "1.5",
    "input-[0].how": "2",
    "input-[0].urgent": "false",
    "input-[1]": "A title",
}


def test_what_is_filled_in_for_the_fields_of_a_schema_goes_into_the_arguments(described):
    sent = SENT | FILLED | {"args": '[{"to": "x", "lines": [1]}]'}

    clerk().post(form(), sent)

    about = {"to": "ann@example.com", "lines": [1], "copies": 2, "size": 1.5, "how": 2}
    assert Job.objects.get().args == [about | {"urgent": False}, "A title"]


def test_inputs_that_are_left_empty_leave_the_arguments_as_they_are(described):
    clerk().post(form(), SENT | {"input-[0].to": "", "input-[0].urgent": ""})

    assert Job.objects.get().args == ["ann@example.com"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"input-[0].copies": "two"}, "Enter a whole number."),
        ({"input-[0].how": '"slow"'}, "Select a valid choice."),
        ({"type": "other"}, "“[0].copies” was filled in, but is not an argument of “other”"),
        ({"args": "[7]"}, "Argument 0 is not an object, so “to” cannot be in it."),
    ],
)
def test_what_an_input_cannot_take_is_refused_and_nothing_typed_is_lost(described, wrong, said):
    page = clerk().post(form(), SENT | FILLED | wrong)

    text = page.content.decode()
    assert said in text
    assert "Asked for by phone" in text and not Job.objects.exists()
    assert "type" in wrong or 'value="ann@example.com"' in text


def test_without_script_a_button_shows_the_inputs_of_the_type(described):
    client = clerk()
    plain = client.get(form()).content.decode()
    assert "input-[" not in plain and 'name="_inputs"' in plain

    page = client.post(form(), SENT | {"_inputs": "1", "input-[1]": "A title"}).content.decode()

    assert 'name="input-[0].to"' in page and "Who gets it" in page
    assert 'value="A title"' in page and "input-[0].lines" not in page
    assert "Asked for by phone" in page and not Job.objects.exists()


def test_the_projects_of_the_keys_are_offered():
    assert 'name="project"' not in clerk().get(form()).content.decode()
    make_key("acme's", scopes=["produce"], project="acme")
    make_key("ours", scopes=["work"])
    client = staff("enqueue_job", "view_job", username="b")

    shown = client.get(form()).context["form"]
    client.post(form(), SENT | {"project": "acme"})
    refused = client.post(form(), SENT | {"project": "other"})

    assert [key for key, _ in shown.fields["project"].choices] == ["", "acme"]
    assert shown["project"].value() == ""
    assert Job.objects.get().project == "acme"
    assert list(refused.context["form"].errors) == ["project"]


def test_where_every_worker_is_of_one_project_it_is_chosen_already(settings):
    make_key("acme's", scopes=["work"], project="acme")
    make_key("watching", scopes=["observe"])
    client = clerk()

    assert client.get(form()).context["form"]["project"].value() == "acme"
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    assert client.get(form()).context["form"]["project"].value() == ""

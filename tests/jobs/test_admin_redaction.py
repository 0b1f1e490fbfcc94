"""Hidden values are hidden on every page, in every document, and from searches."""

from __future__ import annotations

import pytest
from django.urls import reverse
from django.utils import timezone

from jobs.access.redaction import HIDDEN, redact_prose
from jobs.models import Event, ProgressReport, Workflow
from tests.factories import JobErrorFactory, JobFactory
from tests.operators import list_of, staff

pytestmark = pytest.mark.django_db

SECRET = "hunter2"


def page_of(client, model, key):
    return client.get(reverse(f"admin:{model}_change", args=[key])).content.decode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password=hunter2 for ann", f"password={HIDDEN} for ann"),
        (
            "401 at https://x.example/?token=hunter2&page=1",
            f"401 at https://x.example/?token={HIDDEN}&page=1",
        ),
        ("Authorization: Bearer hunter2, refused", f"Authorization: {HIDDEN}, refused"),
        ("{'api_key': 'hunter2', 'to': 'ann'}", f"{{'api_key': {HIDDEN}, 'to': 'ann'}}"),
        ('{"password": "hun\\"ter2"}', f'{{"password": {HIDDEN}}}'),
        ("connect(host='a', db_password='hunter2')", f"connect(host='a', db_password={HIDDEN})"),
        ("The password was wrong.", "The password was wrong."),
        ("at 12:30: broken", "at 12:30: broken"),
    ],
)
def test_a_message_loses_the_values_that_it_quotes(text, shown):
    assert redact_prose(text) == shown


def test_a_long_message_is_looked_through_once():
    text = "password" * 20_000 + "='" + "\\" * 20_000

    assert len(redact_prose(text)) > 0


def test_nothing_of_a_job_shows_what_is_hidden():
    job = JobFactory(
        dead=True,
        args=[{"to": "ann", "password": SECRET}],
        meta={"token": SECRET},
        attributes={"client_secret": SECRET},
        result={"deep": [{"secret": SECRET}]},
        parent_results=[{"api_key": SECRET, "rows": 12}],
    )
    JobErrorFactory(
        job=job,
        message=f"login(password='{SECRET}')",
        backtrace=[f'  login(token="{SECRET}")'],
        details={"request": {"authorization": SECRET}},
    )
    now = timezone.now()
    ProgressReport.objects.create(
        job=job,
        attempt=job.attempt,
        value=0.5,
        data={"secret": SECRET},
        message=f"token={SECRET}",
        updated_at=now,
        told_at=now,
    )
    client = staff("view_job", "view_deadjob")

    for model in ("ojs_jobs_job", "ojs_jobs_deadjob"):
        page = page_of(client, model, job.pk)
        assert "ann" in page and HIDDEN in page
        assert SECRET not in page
        assert SECRET not in client.get(list_of(model)).content.decode()


def test_events_and_cron_jobs_hide_the_same(api):
    job_id = api.pushed()
    api.fetch()
    api.nack(job_id, message=f"password={SECRET}", retryable=False)
    template = {"type": "backup", "args": [{"password": SECRET}]}
    assert api.send("cron", {"name": "nightly", "cron": "0 0 * * *"} | template).status_code == 201
    client = staff("view_event", "view_cronjob")

    pages = [page_of(client, "ojs_jobs_cronjob", "nightly")]
    for event in Event.objects.filter(type__in=["job.failed", "job.discarded"]):
        pages.append(page_of(client, "ojs_jobs_event", event.pk))
    assert len(pages) == 3
    for page in pages:
        assert HIDDEN in page
        assert SECRET not in page


def test_a_workflow_hides_the_same(api):
    steps = [{"type": "first", "args": [{"password": SECRET}]}, {"type": "second", "args": []}]
    assert api.send("workflows", {"type": "chain", "steps": steps}).status_code == 201
    (job,) = api.fetch()
    api.nack(job["id"], message=f"token={SECRET}", retryable=False)

    page = page_of(staff("view_workflow"), "ojs_jobs_workflow", Workflow.objects.get().pk)

    assert "first" in page
    assert SECRET not in page


@pytest.mark.parametrize(
    "query",
    [
        "q=args.0.password:hunter2",
        'q=args.0:\'{"password": "hunter2"}\'',
        "args__0__password=hunter2",
        "args__0__password__startswith=h",
        "args__icontains=hunter2",
        "result__secret=hunter2",
        "attributes__client_secret=hunter2",
    ],
)
def test_no_list_answers_whether_a_hidden_value_was_guessed(query):
    JobFactory(args=[{"password": SECRET}], result={"secret": SECRET})
    JobFactory(args=[{"password": "other"}])

    page = staff("view_job").get(f"{list_of('ojs_jobs_job')}?{query}", follow=True)

    found = page.context and page.context.get("cl")
    assert page.status_code == 400 or len(found.result_list) in (0, 2)

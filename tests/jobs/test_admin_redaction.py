"""Hidden values are hidden on every page, in every document, and from searches."""

from __future__ import annotations

import pytest
from django.urls import reverse
from django.utils import timezone

from jobs.access import redaction
from jobs.access.redaction import HIDDEN, redact_prose, redact_text
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
        ("password={'old': 'hunter2', 'n': [1]}, ann", f"password={HIDDEN}, ann"),
        ("tokens=['x', 'hunter2'] of ann", f"tokens={HIDDEN} of ann"),
        ('{"secrets": ["]", "hunter2"], "to": 1}', f'{{"secrets": {HIDDEN}, "to": 1}}'),
        ("password=Secret('hunter2') for ann", f"password={HIDDEN} for ann"),
        ('password   =    "hunter2" for ann', f"password   =    {HIDDEN} for ann"),
        ("password == b'hunter2 x', ann", f"password == {HIDDEN}, ann"),
        ("Authorization: Token hunter2", f"Authorization: {HIDDEN}"),
        ('Authorization: Digest user="x", response="hunter2"', f"Authorization: {HIDDEN}"),
        ("Proxy-Authorization: Custom hunter2", f"Proxy-Authorization: {HIDDEN}"),
        ("X-Api-Key: hunter2, refused", f"X-Api-Key: {HIDDEN}, refused"),
        ("user[password]=hunter2&page=1", f"user[password]={HIDDEN}&page=1"),
        ("user%5Bpassword%5D=hunter2&page=1", f"user%5Bpassword%5D={HIDDEN}&page=1"),
        (
            r"{\"password\": \"hun\\\"ter2\", \"to\": \"ann\"}",
            rf"{{\"password\": {HIDDEN}, \"to\": \"ann\"}}",
        ),
        ('password="""hunter2""", ann', f"password={HIDDEN}, ann"),
        ("password={'old': 'hunter2', and cut", f"password={HIDDEN}"),
        ("password='hunter2, and cut", f"password={HIDDEN}"),
        (f"password={HIDDEN} for ann", f"password={HIDDEN} for ann"),
        ("The password was wrong.", "The password was wrong."),
        ("at 12:30: broken", "at 12:30: broken"),
    ],
)
def test_a_message_loses_the_values_that_it_quotes(text, shown):
    assert redact_prose(text) == shown


HOSTILE = [
    "a:",
    "a=b ",
    "password=",
    "password='",
    "password=(",
    "password:[]",
    "password=bearer ",
    "authorization: a b=",
    'password="\\',
    "\\",
    '"',
    "\\'",
    "a    ",
    "-",
    "password",
]


@pytest.mark.parametrize("part", HOSTILE)
def test_each_character_of_a_long_text_is_part_of_one_value_at_most(part, monkeypatch):
    read = []

    def end_of_value(text, begin, key):
        end = known(text, begin, key)
        read.append(end - begin)
        return end

    known = redaction._end_of_value
    monkeypatch.setattr(redaction, "_end_of_value", end_of_value)
    text = (part * redaction.LONGEST)[: redaction.LONGEST]

    redact_prose(text)
    redact_text(text)

    assert sum(read) <= len(text)
    if "password" not in part and "auth" not in part:
        assert read == []


def test_the_value_of_a_key_that_is_not_sensitive_is_not_looked_for(monkeypatch):
    def end_of_value(text, begin, key):
        pytest.fail("The rest of the text would be read again for each key.")

    monkeypatch.setattr(redaction, "_end_of_value", end_of_value)

    assert redact_prose("a:" * 1000 + "password") == "a:" * 1000 + "password"


def test_a_very_long_text_is_cut_with_a_mark():
    shown = redact_prose("x" * 1_000_000 + "password=hunter2")

    more = 1_000_016 - redaction.LONGEST
    assert shown == "x" * redaction.LONGEST + f"… [cut: {more} more characters]"


@pytest.mark.parametrize(
    ("patterns", "key", "is_hidden"),
    [
        (["*pass*"], "My-Passport", True),
        (["pin"], "pin", True),
        (["pin"], "pine", False),
        (["*_key"], "api_key", True),
        (["*_key"], "api_key_id", False),
        (["x-*"], "X-Token", True),
        (["a*z", "k?y"], "abz", True),
        (["a*z", "k?y"], "key", True),
        (["a*z", "k?y"], "my_key", False),
        ([], "password", False),
        (["*"], "anything", True),
    ],
)
def test_patterns_of_keys(settings, patterns, key, is_hidden):
    settings.OJS = settings.OJS | {"REDACT_KEYS": patterns}

    assert redaction.is_sensitive(key) is is_hidden


def test_whatever_a_worker_reports_in_words_is_read_as_words():
    job = {
        "args": [{"note": "password is a word"}],
        "progress_message": f"password='{SECRET}'",
        "errors": [
            {
                "message": f"password={SECRET}",
                "backtrace": [f'  f(password="{SECRET}")'],
                "details": {"ctx": [{"text": f"tokens=['{SECRET}']"}], "password": SECRET},
            }
        ],
        "cancellation": {"reason": f"token={SECRET}"},
    }

    shown = redaction.redact_job(job)

    assert SECRET not in str(shown)
    assert shown["args"] == job["args"]


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
        details={"request": {"authorization": SECRET}, "text": f"password={SECRET}"},
    )
    job.logs.create(message=f"password={SECRET}")
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

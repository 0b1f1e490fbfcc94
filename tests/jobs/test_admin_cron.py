"""Cron jobs in the admin: what runs when, run now, enable and disable."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse
from django.utils import translation

from jobs import engine
from jobs.admin.cron_words import in_words
from jobs.http.authentication import make_key
from jobs.models import CronJob, Job, OperatorAction
from jobs.spec.schedules import read_schedule
from tests.operators import (
    UNSTORABLE,
    answer,
    buttons,
    choose,
    confirm,
    list_of,
    messages,
    press,
    staff,
)

pytestmark = pytest.mark.django_db

CRON = "ojs_jobs_cronjob"


TEMPLATE = {"type": "report.make", "args": [1], "options": {"queue": "reports"}}
NEW = engine.NewCronJob("daily-report", "0 9 * * *", TEMPLATE, timezone="Asia/Tokyo")


@pytest.fixture
def cron():
    return engine.upsert_cron(NEW)[0]


def page_of(cron):
    return reverse(f"admin:{CRON}_change", args=[cron.pk])


UNFINISHED = "an earlier run has not finished"


def test_the_list_says_when_each_runs_next_and_what_became_of_it_last(admin_client, cron):
    empty = admin_client.get(list_of(CRON)).content.decode()
    engine.run_cron_now(cron.pk)
    engine.run_cron_now(cron.pk)

    page = admin_client.get(list_of(CRON)).content.decode()

    assert "daily-report" in empty and UNFINISHED not in empty
    for text in ("0 9 * * *", "Asia/Tokyo", "report.make", "enabled", "skipped", UNFINISHED):
        assert text in page


def test_the_page_says_it_in_words_and_names_the_next_five_runs(admin_client, cron):
    engine.run_cron_now(cron.pk)

    page = admin_client.get(page_of(cron)).content.decode()

    assert "At 09:00, every day" in page
    assert page.count("00:00:00 UTC") == 5, "nine o'clock in Tokyo"
    assert str(Job.objects.get().pk) in page
    assert buttons(admin_client.get(page_of(cron))) == ["run_now", "disable", "delete"]


def test_run_now_asks_and_then_enqueues(admin_client, cron):
    asked = press(admin_client, admin_client.get(page_of(cron)), "run_now")
    assert not Job.objects.exists() and "overlap policy" in asked.content.decode().lower()

    page = answer(admin_client, asked, reason="Numbers were late")

    assert Job.objects.get().queue == "reports"
    assert messages(page) == ["1 job was enqueued."]
    assert "Numbers were late" in LogEntry.objects.get().change_message


def test_run_now_says_when_the_overlap_policy_left_it_out(admin_client, cron):
    engine.run_cron_now(cron.pk)

    page = confirm(admin_client, CRON, "run_now", cron)

    assert Job.objects.count() == 1
    assert messages(page) == [f"Nothing was enqueued for “{cron.pk}”: {UNFINISHED}."]


def test_disable_and_enable(admin_client, cron):
    assert messages(confirm(admin_client, CRON, "disable", cron)) == ["1 cron job is disabled."]
    assert CronJob.objects.get().next_run_at is None
    assert buttons(admin_client.get(page_of(cron))) == ["run_now", "enable", "delete"]

    assert messages(confirm(admin_client, CRON, "enable", cron)) == ["1 cron job is enabled."]
    assert CronJob.objects.get().next_run_at is not None


def test_one_that_is_enabled_already_is_not_recorded_as_enabled(admin_client, cron):
    (said,) = messages(confirm(admin_client, CRON, "enable", cron))

    assert said.startswith("0 cron jobs are enabled. 1 was left as it is")
    assert not OperatorAction.objects.filter(verb="enable_cron").exists()


def test_enabling_says_which_time_zone_is_unknown_and_enables_the_others(admin_client, cron):
    other = engine.upsert_cron(replace(NEW, name="other", enabled=False))[0]
    engine.set_cron_enabled(cron.pk, enabled=False)
    CronJob.objects.filter(pk=cron.pk).update(timezone="Mars/Olympus")

    refused, done = messages(confirm(admin_client, CRON, "enable", cron, other))

    assert cron.pk in refused and "Mars/Olympus" in refused
    assert done == "1 cron job is enabled."
    assert [row.pk for row in CronJob.objects.filter(enabled=True)] == ["other"]


@pytest.mark.parametrize("action", ["run_now", "enable", "disable"])
def test_who_may_only_look_may_run_nothing(cron, action):
    client = staff("view_cronjob")

    assert choose(client, CRON, action, cron).status_code == 403
    assert buttons(client.get(page_of(cron))) == []
    assert not Job.objects.exists()


WORDS = {
    "0 5 * * MON": "At 05:00, on Monday",
    "0 0 * * 7,6": "At 00:00, on Saturday and Sunday",
    "*/15 9-17 * * MON-FRI": "Every 15 minutes, from 09:00 to 17:59, Monday to Friday",
    "23 0-20/2 * * *": "At minute 23, every 2 hours from 00:00 to 20:59",
    "0 */2 * * *": "At minute 0, every 2 hours",
    "5 8-20/4,22 * * *": "At 08:05, 12:05, 16:05, 20:05 and 22:05, every day",
    "7-59/10 * * 1,2 *": "Every 10 minutes (7–57), every hour, in January and February",
    "0,3,5 8-20/3,21 * * *": "At minutes 0, 3 and 5, in the hours 8, 11, 14, 17, 20 and 21",
    "* * * * * *": "Every second",
    "30 * * * * *": "At second 30, every minute",
    "0 0 1 */3 *": "At 00:00, on day 1 of the month, in January, April, July and October",
    "0 12 1,15 * MON": "At 12:00, on days 1 and 15 of the month or on Monday",
    "0 0 */10 * MON": "At 00:00, every 10 days of the month (1–31) and on Monday",
    "0 0 L,15W 6-8 *": "At 00:00, on the working day nearest to day 15 of the month, "
    "on the last day of the month, June to August",
    "0 0 L-3 * *": "At 00:00, 3 days before the last day of the month",
    "0 0 L-1W,LW * *": "At 00:00, on the working day nearest to the day before the last day of the "
    "month, on the last working day of the month",
    "0 0 1-7 * +MON": "At 00:00, on days 1–7 of the month and on Monday",
    "0 9 * * MON#2,5L": "At 09:00, on the second Monday of the month, "
    "on the last Friday of the month",
    "@every 1h30m": "Every 1 h 30 min",
}


@pytest.mark.parametrize("expression", WORDS)
def test_an_expression_in_words(expression):
    assert in_words(read_schedule(expression)) == WORDS[expression]


def test_the_words_are_in_the_readers_language():
    schedule = read_schedule("*/15 9-17 * * MON-FRI")
    nth = read_schedule("0 9 * * MON#2")

    with translation.override("de"):
        assert in_words(schedule) == "Alle 15 Minuten, von 09:00 bis 17:59, Montag bis Freitag"
        assert in_words(nth) == "Um 09:00, am zweiten Montag des Monats"
    with translation.override("es"):
        assert in_words(schedule) == "Cada 15 minutos, de 09:00 a 17:59, de lunes a viernes"
        assert in_words(nth) == "A las 09:00, el segundo lunes del mes"


SENT = {
    "name": "weekly-report",
    "description": "For the board",
    "enabled": "on",
    "expression": "0 9 * * MON",
    "timezone": "Asia/Tokyo",
    "overlap_policy": "enqueue",
    "type": "report.make",
    "queue": "reports",
    "args": "[7]",
    "meta": "{}",
    "options": '{"max_attempts": 2}',
    "reason": "New board",
    "_save": "1",
}


def add():
    return reverse(f"admin:{CRON}_add")


def test_a_cron_job_is_made_and_recorded():
    done = staff("view_cronjob", "add_cronjob").post(add(), SENT, follow=True)

    made = CronJob.objects.get()
    assert "weekly-report" in messages(done)[0]
    assert (made.pk, made.expression, made.timezone) == (
        "weekly-report",
        "0 9 * * MON",
        "Asia/Tokyo",
    )
    assert (made.overlap_policy, made.description) == ("enqueue", "For the board")
    assert made.enabled and made.next_run_at is not None
    assert made.template == {
        "type": "report.make",
        "args": [7],
        "options": {"queue": "reports", "max_attempts": 2},
    }
    action = OperatorAction.objects.get()
    assert (action.verb, action.reason) == ("add_cron", "New board")
    assert action.selection["ids"] == ["weekly-report"]
    engine.run_cron_now(made.pk)
    assert Job.objects.get().queue == "reports"


def test_a_cron_job_may_be_made_disabled():
    staff("add_cronjob").post(add(), {k: v for k, v in SENT.items() if k != "enabled"})

    made = CronJob.objects.get()
    assert not made.enabled and made.next_run_at is None


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("name", "No Name"),
        ("expression", "0 25 * * *"),
        ("expression", "never"),
        ("timezone", "CET"),
        ("type", "no type!"),
        ("queue", "No Queue"),
        ("args", "[1,"),
        ("args", "{}"),
        ("meta", "[]"),
        ("options", "[]"),
        ("options", '{"max_attempts": "many"}'),
        ("options", '{"max_attemps": 2}'),
        ("options", '{"queue": "other"}'),
        ("overlap_policy", "hope"),
    ],
)
def test_what_no_cron_job_can_have_is_refused_at_its_field(field, wrong):
    page = staff("add_cronjob").post(add(), SENT | {field: wrong})

    assert list(page.context["adminform"].form.errors) == [field]
    assert "For the board" in page.content.decode(), "what was typed is kept"
    assert not CronJob.objects.exists() and not OperatorAction.objects.exists()


@pytest.mark.parametrize("value", UNSTORABLE.values(), ids=UNSTORABLE)
@pytest.mark.parametrize(
    ("field", "document"),
    [("args", "[{}]"), ("meta", '{{"a": {}}}'), ("options", '{{"result_ttl": {}}}')],
)
def test_what_the_api_does_not_store_is_refused_at_its_field(field, document, value):
    page = staff("add_cronjob").post(add(), SENT | {field: document.format(value)})

    assert list(page.context["adminform"].form.errors) == [field]
    assert not CronJob.objects.exists()


def test_an_option_that_a_client_of_the_api_has_set_may_stay(cron):
    options = {"queue": "reports", "x_team": "board"}
    CronJob.objects.update(template=cron.template | {"options": options})
    client = staff("change_cronjob")

    refused = client.post(page_of(cron), SENT | {"options": '{"x_other": 1}'})
    done = client.post(page_of(cron), SENT | {"options": '{"x_team": "board"}'})

    assert list(refused.context["adminform"].form.errors) == ["options"]
    assert done.status_code == 302
    assert CronJob.objects.get().template["options"] == options


def test_a_name_that_is_taken_is_refused_and_leaves_its_owner_as_it_is(cron):
    page = staff("add_cronjob").post(add(), SENT | {"name": cron.pk})

    assert list(page.context["adminform"].form.errors) == ["name"]
    assert CronJob.objects.get().expression == "0 9 * * *"


def test_a_cron_job_is_changed_and_keeps_what_the_form_does_not_ask(cron):
    CronJob.objects.update(template=cron.template | {"version": "2.0"}, declared_by="shop")
    engine.set_cron_enabled(cron.pk, enabled=False)
    client = staff("view_cronjob", "change_cronjob")
    shown = client.get(page_of(cron)).content.decode()
    assert "The code of shop" in shown and "[\n  1\n]" in shown and 'value="reports"' in shown

    done = client.post(page_of(cron), SENT | {"name": "other", "args": "[8]"})

    assert done.status_code == 302
    changed = CronJob.objects.get()
    assert (changed.pk, changed.expression) == (cron.pk, "0 9 * * MON")
    assert changed.template["args"] == [8] and changed.template["version"] == "2.0"
    assert not changed.enabled, "that is said by a button"
    assert changed.declared_by == ""
    assert OperatorAction.objects.get().verb == "change_cron"


def test_what_is_hidden_from_a_user_is_not_overwritten_by_that_user(cron):
    CronJob.objects.update(template=cron.template | {"args": [{"password": "hunter2"}]})
    client = staff("view_cronjob", "change_cronjob")

    page = client.get(page_of(cron)).content.decode()

    assert "hunter2" not in page and "_save" not in page
    assert client.post(page_of(cron), SENT).status_code == 403
    trusted = staff("change_cronjob", "view_job_args", username="b")
    assert "hunter2" in trusted.get(page_of(cron)).content.decode()


def test_the_next_runs_are_shown_as_one_types_in_the_schedules_zone_and_the_readers():
    url = reverse(f"admin:{CRON}_preview")
    client = staff("add_cronjob")

    found = client.get(url, {"expression": "0 9 * * *", "timezone": "Asia/Tokyo"}).json()

    assert found["meaning"] == "At 09:00, every day"
    assert len(found["runs"]) == 5
    assert all(" 09:00:00 JST = " in run and " 00:00:00 UTC" in run for run in found["runs"])
    assert found["notes"] == [
        "The times are those of Asia/Tokyo, at present UTC+09:00.",
        "Its clocks do not change within a year.",
    ]


@pytest.mark.parametrize(
    ("expression", "zone", "said"),
    [
        ("0 9 * * *", "Europe/Berlin", "Its clocks change on "),
        ("@every 90m", "Europe/Berlin", "the time zone does not matter"),
    ],
)
def test_what_a_time_zone_means_is_explained(expression, zone, said):
    url = reverse(f"admin:{CRON}_preview")

    found = staff("change_cronjob").get(url, {"expression": expression, "timezone": zone}).json()

    assert said in found["notes"][-1]


@pytest.mark.parametrize(
    ("expression", "zone"), [("", "UTC"), ("0 25 * * *", "UTC"), ("@daily", "CET"), ("@daily", "")]
)
def test_what_is_no_schedule_has_a_problem_in_place_of_runs(expression, zone):
    url = reverse(f"admin:{CRON}_preview")

    found = staff("add_cronjob").get(url, {"expression": expression, "timezone": zone}).json()

    assert list(found) == ["problem"] and found["problem"]


def test_who_may_only_look_makes_and_changes_nothing(cron):
    client = staff("view_cronjob", "operate_cron")

    assert add() not in client.get(list_of(CRON)).content.decode()
    assert client.get(add()).status_code == 403
    assert client.post(add(), SENT).status_code == 403
    assert client.post(page_of(cron), SENT).status_code == 403
    assert client.get(reverse(f"admin:{CRON}_preview")).status_code == 403
    assert "_save" not in client.get(page_of(cron)).content.decode()


@pytest.mark.parametrize("begins", ["list", "page"])
def test_a_cron_job_is_deleted_and_that_is_recorded(cron, begins):
    client = staff("view_cronjob", "delete_cronjob")
    engine.upsert_cron(engine.NewCronJob("other", "@daily", cron.template))

    asked = (
        press(client, client.get(page_of(cron)), "delete")
        if begins == "page"
        else choose(client, CRON, "delete", cron)
    )
    page = answer(client, asked, reason="It is not read any more")

    assert page.request["PATH_INFO"] == list_of(CRON)
    assert messages(page) == ["1 cron job was deleted."]
    assert list(CronJob.objects.values_list("pk", flat=True)) == ["other"]
    done = OperatorAction.objects.get()
    assert (done.verb, done.reason, done.count) == ("delete_cron", "It is not read any more", 1)


def test_one_that_the_code_declares_is_not_deleted_and_the_reason_is_given(cron, api):
    CronJob.objects.update(declared_by="shop")
    client = staff("view_cronjob", "delete_cronjob")
    assert buttons(client.get(page_of(cron))) == []

    page = client.post(
        list_of(CRON), {"action": "delete", "_selected_action": cron.pk, "index": "0"}, follow=True
    )
    refused = api.delete(f"/ojs/v1/cron/{cron.pk}")

    assert messages(page)[0].startswith("“daily-report” is not deleted: the code of shop declares")
    assert refused.status_code == 409 and "shop" in refused.json()["error"]["message"]
    assert CronJob.objects.exists() and not OperatorAction.objects.exists()


def test_one_that_the_code_declares_meanwhile_stays(cron):
    client = staff("view_cronjob", "delete_cronjob")
    asked = choose(client, CRON, "delete", cron)
    CronJob.objects.update(declared_by="shop")

    answer(client, asked)

    assert CronJob.objects.exists()


def test_a_new_cron_job_belongs_to_the_project_that_was_chosen(cron):
    make_key("acme's", scopes=["work"], project="acme")
    client = staff("view_cronjob", "add_cronjob", "change_cronjob")

    client.post(add(), SENT | {"project": "acme"})

    made = CronJob.objects.get(pk=SENT["name"])
    assert made.project == "acme"
    assert "acme" in client.get(page_of(made)).content.decode()
    client.post(page_of(made), SENT | {"description": "Now with words"})
    made.refresh_from_db()
    assert (made.project, made.description) == ("acme", "Now with words")

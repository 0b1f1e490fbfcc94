"""Cron jobs in the admin: what runs when, run now, enable and disable."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse
from django.utils import translation

from jobs import engine
from jobs.admin.cron_words import in_words
from jobs.models import CronJob, Job
from jobs.spec.schedules import read_schedule
from tests.operators import answer, buttons, choose, confirm, list_of, messages, press, staff

pytestmark = pytest.mark.django_db

CRON = "ojs_jobs_cronjob"


@pytest.fixture
def cron():
    template = {"type": "report.make", "args": [1], "options": {"queue": "reports"}}
    new = engine.NewCronJob("daily-report", "0 9 * * *", template, timezone="Asia/Tokyo")
    return engine.upsert_cron(new)[0]


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
    assert buttons(admin_client.get(page_of(cron))) == ["run_now", "disable"]


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
    assert messages(page)[0].startswith(f"0 jobs were enqueued. ({UNFINISHED})")


def test_disable_and_enable(admin_client, cron):
    assert messages(confirm(admin_client, CRON, "disable", cron)) == ["1 cron job is disabled."]
    assert CronJob.objects.get().next_run_at is None
    assert buttons(admin_client.get(page_of(cron))) == ["run_now", "enable"]

    assert messages(confirm(admin_client, CRON, "enable", cron)) == ["1 cron job is enabled."]
    assert CronJob.objects.get().next_run_at is not None


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

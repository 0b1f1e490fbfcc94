"""Cron jobs in the admin: what runs when, run now, enable and disable."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from jobs import engine
from jobs.models import CronJob, Job
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


def test_the_list_says_when_each_runs_next_and_what_became_of_it_last(admin_client, cron):
    empty = admin_client.get(list_of(CRON)).content.decode()
    engine.run_cron_now(cron.pk)
    engine.run_cron_now(cron.pk)

    page = admin_client.get(list_of(CRON)).content.decode()

    assert "daily-report" in empty and "overlap_skip" not in empty
    for text in ("0 9 * * *", "Asia/Tokyo", "report.make", "enabled", "skipped", "overlap_skip"):
        assert text in page


def test_the_page_says_it_in_words_and_names_the_next_five_runs(admin_client, cron):
    engine.run_cron_now(cron.pk)

    page = admin_client.get(page_of(cron)).content.decode()

    assert "At 09:00 every day" in page
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
    assert "overlap_skip" in messages(page)[0]


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

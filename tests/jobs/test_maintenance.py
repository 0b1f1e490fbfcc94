"""Maintenance mode: one switch that makes everything wait (OJS admin API §12.1)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib import admin
from django.urls import reverse
from django.utils import timezone

import jobs
from jobs import engine
from jobs.access.audit import of_shell
from jobs.engine import maintenance
from jobs.engine.cron import NewCronJob
from jobs.errors import InMaintenance
from jobs.models import CronJob, Job, Maintenance, OperatorAction
from tests.factories import JobFactory, ago
from tests.operators import APPS, forms, list_of, operator, staff, viewer

pytestmark = pytest.mark.django_db

PAGE = "ojs_jobs_maintenance"


def begin(**how):
    return maintenance.begin(actor=of_shell(), **how)


def test_nothing_is_handed_out_and_enqueued_jobs_wait(api):
    begin(reason="Migration")
    api.pushed(queue="mail")

    assert api.fetch("mail") == []

    assert maintenance.end(actor=of_shell())
    assert len(api.fetch("mail")) == 1
    assert not maintenance.end(actor=of_shell())


def test_it_ends_by_itself(api):
    begin(until=timezone.now() + timedelta(minutes=1))
    api.pushed()
    assert api.fetch("default") == []

    Maintenance.objects.update(until=ago(1))

    assert len(api.fetch("default")) == 1


def test_a_job_that_became_due_is_not_promoted():
    JobFactory(scheduled=True, scheduled_at=ago(60))
    begin()

    assert engine.promote_due() == 0
    maintenance.end(actor=of_shell())
    assert engine.promote_due() == 1


def test_new_jobs_are_refused_if_asked_and_none_is_half_stored(api):
    begin(refuses_jobs=True, reason="Migration")

    refusal = api.push()
    assert refusal.status_code == 503
    assert refusal.json()["error"]["retryable"] is True
    assert "Migration" in refusal.json()["error"]["message"]
    with pytest.raises(InMaintenance):
        jobs.enqueue("email.send", [])
    assert not jobs.models.Job.objects.exists()

    maintenance.end(actor=of_shell())
    assert api.push().status_code == 201


def test_schedules_wait_and_are_caught_up_by_one_run():
    cron = NewCronJob("report", "* * * * *", {"type": "report.make", "args": []})
    engine.upsert_cron(cron)
    CronJob.objects.update(next_run_at=ago(600), anchored_at=ago(660))
    begin()

    assert engine.enqueue_due_schedules() == 0
    maintenance.end(actor=of_shell())
    assert engine.enqueue_due_schedules() == 1

    assert Job.objects.count() == 1


@pytest.mark.parametrize("strategy", ["reject", "replace", "ignore"])
def test_unique_jobs_are_refused_like_others_and_nothing_gives_way(api, strategy):
    unique = {"keys": ["type"], "on_conflict": strategy}
    api.pushed(type="a", unique=unique)
    begin(refuses_jobs=True)

    assert api.push(type="a", unique=unique).status_code == 503

    assert Job.objects.get().state == "available"


def test_a_worker_settles_what_it_holds(api):
    api.pushed()
    (job,) = api.fetch("default", worker_id="w")
    begin(refuses_jobs=True)

    assert api.send("workers/ack", {"job_id": job["id"], "worker_id": "w"}).status_code == 200


def test_an_operator_begins_and_ends_it_and_everybody_sees_it():
    ops = operator()
    url = list_of(PAGE)
    shown = ops.post(url, {"verb": "begin", "reason": "Upgrade", "minutes": "60"}, follow=True)

    notice = "Maintenance: no jobs are handed out. Upgrade (Begun by ops, ends in 5"
    assert notice in shown.content.decode()
    ours = [model._meta for model in admin.site._registry if model._meta.app_label in APPS]
    pages = [f"{opts.app_label}_{opts.model_name}" for opts in ours]
    shown = [ops.get(list_of(page)) for page in pages]
    unseen = [
        page
        for page, reply in zip(pages, shown, strict=True)
        if reply.status_code == 200 and notice not in reply.content.decode()
    ]
    assert len([reply for reply in shown if reply.status_code == 200]) > 10
    assert not unseen
    assert notice in ops.get(reverse("admin:index")).content.decode()

    (end,) = [form for form in forms(ops.get(url)) if form.fields.get("verb") == "end"]
    ops.post(url, end.fields)
    assert not Maintenance.objects.exists()
    verbs = OperatorAction.objects.order_by("id").values_list("verb", "selection__switched")
    assert list(verbs) == [("maintenance", "on"), ("maintenance", "off")]


def test_the_switch_needs_its_permission():
    for client in (viewer(), staff("change_queue", username="other")):
        for method in (client.get, client.post):
            assert method(list_of(PAGE)).status_code == 403
        client.post(list_of(PAGE), {"verb": "begin", "reason": "", "minutes": ""})
    assert not Maintenance.objects.exists()

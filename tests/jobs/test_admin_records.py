"""Record of events and the refused finishes in the admin: read only."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest
from django.urls import reverse

from jobs.models import Event, RefusedFinish
from tests.factories import JobFactory, ago
from tests.operators import list_of

pytestmark = pytest.mark.django_db

EVENT = "ojs_jobs_event"
REFUSED = "ojs_jobs_refusedfinish"


def event(kind, subject, **fields):
    return Event.objects.create(type=kind, subject=subject, time=ago(5), **fields)


def test_events_lead_to_what_they_are_about(admin_client):
    job = JobFactory()
    event("job.completed", str(job.pk), worker_id="web_1/a", data={"duration_ms": 1234})
    event("worker.started", "web_1/a")
    event("queue.paused", "mail")

    content = admin_client.get(list_of(EVENT)).content.decode()

    assert f"/admin/ojs_jobs/job/{job.pk}/change/" in content
    assert "/admin/ojs_workers/worker/web_5F1_2Fa/change/" in content
    assert "/admin/ojs_jobs/queue/mail/change/" in content


KEY = "0198c0de-0000-7000-8000-000000000001"


@pytest.mark.parametrize(
    ("kind", "subject", "page"),
    [
        ("progress.updated", KEY, f"ojs_jobs/job/{KEY}"),
        ("priority.changed", KEY, f"ojs_jobs/job/{KEY}"),
        ("backpressure.warning", "mail", "ojs_jobs/queue/mail"),
        ("dead_letter.pruned", "mail", "ojs_jobs/queue/mail"),
        ("workflow.completed", KEY, f"ojs_jobs/workflow/{KEY}"),
        ("cron.triggered", "daily", "ojs_jobs/cronjob/daily"),
        ("tenant.created", "acme", "ojs_jobs/tenant/acme"),
        ("scheduling.rebalanced", "heavy", "ojs_jobs/pool/heavy"),
        ("webhook.subscription.created", f"sub_{KEY}", f"ojs_workers/webhooksubscription/{KEY}"),
        ("webhook.dead", f"del_{KEY}", f"ojs_workers/webhookdelivery/{KEY}"),
        ("rate_limit.exceeded", "smtp", "ojs_jobs/ratelimit/smtp"),
        ("bulk.cancel.completed", "cancel", None),
        ("queue.deleted", "mail", None),
        ("queue.config_updated", "_default", None),
    ],
)
def test_an_event_leads_to_a_page_only_where_there_is_one(admin_client, kind, subject, page):
    of_job = {"job_type": "email.send"} if kind.split(".")[0] in ("progress", "priority") else {}
    event(kind, subject, **of_job)

    content = admin_client.get(list_of(EVENT)).content.decode()

    cell = content.partition('class="field-about')[2].partition("</td>")[0]
    assert subject[-12:] in cell
    found = re.findall(r'href="/admin/(.*?)/change/"', cell)
    assert found == ([] if page is None else [page])


def test_the_newest_event_comes_first_and_all_about_one_subject_are_found(admin_client):
    old = event("worker.started", "web_1")
    event("worker.started", "web_10")
    new = event("worker.stopped", "web_1")

    page = admin_client.get(list_of(EVENT), {"q": "web_1"})
    assert [found.pk for found in page.context["cl"].result_list] == [new.pk, old.pk]

    page = admin_client.get(list_of(EVENT), {"type": "worker.stopped"})
    assert [found.pk for found in page.context["cl"].result_list] == [new.pk]


def test_an_event_tells_its_data(admin_client):
    recorded = event("job.completed", "x", data={"duration_ms": 1234})

    page = admin_client.get(reverse("admin:ojs_jobs_event_change", args=[recorded.pk]))

    assert "&quot;duration_ms&quot;: 1234" in page.content.decode()


@pytest.mark.parametrize("search", ["web_1/a", "{job}"])
def test_a_refused_finish_is_found_by_its_worker_and_by_its_job(admin_client, search):
    job = uuid4()
    wanted = RefusedFinish.objects.create(
        job_id=job, operation="ack", worker_id="web_1/a", held_by="web_2", state="active"
    )
    RefusedFinish.objects.create(
        job_id=uuid4(), operation="fail", worker_id="web_2", state="completed"
    )

    page = admin_client.get(list_of(REFUSED), {"q": search.format(job=job)})

    assert [found.pk for found in page.context["cl"].result_list] == [wanted.pk]
    assert "/admin/ojs_workers/worker/web_5F2/change/" in page.content.decode()


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("model", [EVENT, REFUSED])
def test_the_lists_take_the_same_queries_for_one_row_and_for_a_hundred(
    admin_client, django_assert_num_queries, model, count
):
    for _ in range(count):
        event("worker.started", "web_1")
        RefusedFinish.objects.create(job_id=uuid4(), operation="ack", state="active")

    # Session, user, capped count, page of rows, the reaper.
    with django_assert_num_queries(6):
        page = admin_client.get(list_of(model))

    assert len(page.context["cl"].result_list) == count


def test_the_past_cannot_be_changed(admin_client):
    recorded = event("worker.started", "web_1")
    refused = RefusedFinish.objects.create(job_id=uuid4(), operation="ack", state="active")

    for model, row in ((EVENT, recorded), (REFUSED, refused)):
        for page in ("change", "delete"):
            url = reverse(f"admin:{model}_{page}", args=[row.pk])
            assert admin_client.post(url, {"type": "x", "post": "yes"}).status_code == 403
        assert admin_client.post(reverse(f"admin:{model}_add"), {}).status_code == 403

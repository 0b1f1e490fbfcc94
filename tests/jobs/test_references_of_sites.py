"""A site's own tables refer to jobs: their `on_delete` applies whoever deletes a job."""

# ruff: noqa: DJ008 (models of a shop that only tests see)

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.apps import apps
from django.db import models

from jobs import engine
from jobs.checks import check_settings
from jobs.engine import retention
from jobs.errors import Conflict
from jobs.http.authentication import make_key
from jobs.models import DeadJob, Job, Workflow
from jobs.spec.identifiers import uuid7
from tests.database import connection
from tests.factories import JobFactory, ago
from tests.ojs_client import OJSClient, refusal

pytestmark = [pytest.mark.one_database, pytest.mark.django_db(transaction=True)]

DAY = 86_400
APP = "ojs_project"


@pytest.fixture
def shop(transactional_db):
    """Tables of a shop; they are gone afterwards."""

    class Note(models.Model):
        job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="notes")

        class Meta:
            app_label = APP

    class Order(models.Model):
        job = models.OneToOneField(Job, on_delete=models.SET_NULL, null=True)

        class Meta:
            app_label = APP

    class Invoice(models.Model):
        job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="+")

        class Meta:
            app_label = APP

    class Report(models.Model):
        jobs = models.ManyToManyField(Job)

        class Meta:
            app_label = APP

    tables = Note, Order, Invoice, Report
    with connection.schema_editor() as editor:
        for table in tables:
            editor.create_model(table)
    yield SimpleNamespace(Note=Note, Order=Order, Invoice=Invoice, Report=Report)
    with connection.schema_editor() as editor:
        for table in tables:
            editor.delete_model(table)
    forget(*tables, Report.jobs.through)


def forget(*tables: type[models.Model]) -> None:
    for table in tables:
        del apps.all_models[APP][table._meta.model_name]
    apps.clear_cache()


def old_jobs(*types: str, **traits: object) -> list[Job]:
    """Jobs past their retention, the first one longest."""
    return [
        JobFactory(type=name, finished_at=ago((300 - place) * DAY), **traits)
        for place, name in enumerate(types)
    ]


def finished_workflow(days: int) -> Workflow:
    pk, then = uuid7(), ago(days * DAY)
    about = {"type": "group", "state": "completed", "created_at": then, "finished_at": then}
    return Workflow.objects.create(pk=pk, root_id=pk, **about)


def left() -> list[str]:
    return sorted(Job.objects.values_list("type", flat=True))


@pytest.mark.parametrize("trait", ["completed", "dead"])
def test_retention_deletes_jobs_with_what_goes_with_them_and_keeps_what_is_protected(shop, trait):
    traits = {trait: True}
    invoiced, noted, ordered, reported, _ = old_jobs(
        *("invoiced", "noted", "ordered", "reported", "plain"), **traits
    )
    shop.Invoice.objects.create(job=invoiced)
    shop.Note.objects.create(job=noted)
    order = shop.Order.objects.create(job=ordered)
    report = shop.Report.objects.create()
    report.jobs.add(reported)

    assert engine.prune_jobs() == 4
    assert engine.prune_jobs() == 0

    assert left() == ["invoiced"]
    assert shop.Note.objects.count() == 0
    order.refresh_from_db()
    assert order.job_id is None
    assert report.jobs.count() == 0


def test_a_protected_job_outlives_its_workflow(shop):
    invoiced, _ = old_jobs("invoiced", "plain", completed=True, workflow=finished_workflow(300))
    shop.Invoice.objects.create(job=invoiced)

    while engine.prune_workflows():
        pass

    assert left() == ["invoiced"]
    assert Job.objects.get().workflow_id is None
    assert not Workflow.objects.exists()


def test_nobody_can_delete_a_protected_job(shop):
    invoiced, _ = old_jobs("invoiced", "plain", dead=True)
    shop.Invoice.objects.create(job=invoiced)

    with pytest.raises(Conflict, match=f"'{invoiced.pk}' cannot be deleted"):
        engine.delete_dead([invoiced.pk])
    assert engine.delete_dead(list(Job.objects.values_list("pk", flat=True))) == 1
    assert engine.bulk.delete(Job.objects.all()) == []
    assert engine.bulk.purge(Job.objects.all(), ["discarded"]) == []
    erased = engine.erasure.erase(Job.objects.all())

    assert (erased.jobs, erased.left) == (0, [invoiced.pk])
    assert left() == ["invoiced"]


def test_a_workflow_with_a_protected_job_is_not_erased_in_part(shop):
    invoiced, _ = old_jobs("invoiced", "plain", completed=True, workflow=finished_workflow(1))
    shop.Invoice.objects.create(job=invoiced)

    erased = engine.erasure.erase(Job.objects.all())

    assert erased.jobs == 0
    assert left() == ["invoiced", "plain"]


def test_over_http_a_protected_job_is_a_conflict_and_the_dead_letter_is_purged_around_it(shop):
    key = make_key("cleaner", scopes=["ojs:admin:purge"])[1]
    client = OJSClient(key)
    invoiced, _ = old_jobs("invoiced", "plain", dead=True)
    shop.Invoice.objects.create(job=invoiced)

    one = client.delete(f"/ojs/v1/admin/dead-letter/{invoiced.pk}")
    everything = client.delete(
        "/ojs/v1/admin/dead-letter", data=b'{"confirm": true}', content_type="application/json"
    )

    assert (one.status_code, refusal(one)["code"]) == (409, "conflict")
    assert everything.json() == {"purged_count": 1, "has_more": False}
    assert list(DeadJob.objects.values_list("type", flat=True)) == ["invoiced"]


def test_a_job_in_hand_is_protected_too(shop):
    job = JobFactory(completed=True)
    shop.Invoice.objects.create(job=job)

    with pytest.raises(models.ProtectedError):
        retention.erase([job.pk])

    assert left() == [job.type]


def test_a_key_that_would_stop_retention_is_reported():
    class Copy(models.Model):
        job = models.ForeignKey(Job, on_delete=models.DO_NOTHING, related_name="+")
        source = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="+")
        log = models.ForeignKey(
            Job, on_delete=models.DO_NOTHING, related_name="+", db_constraint=False
        )

        class Meta:
            app_label = APP

    try:
        found = [message for message in check_settings() if message.id == "ojs.W033"]
    finally:
        forget(Copy)

    assert [message.obj for message in found] == [Copy._meta.get_field("job")]
    assert "ojs_project.Copy.job" in found[0].msg
    assert "ojs.W033" not in [message.id for message in check_settings()]

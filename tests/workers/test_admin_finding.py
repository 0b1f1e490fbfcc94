"""The command palette: what it finds by a name, and for whom."""

from __future__ import annotations

import pytest
from django.urls import reverse
from django.utils import timezone

from jobs.models import TypeRollup
from jobs.record import rollup
from tests.factories import JobFactory, QueueFactory, WorkerFactory
from tests.operators import answer, forms, staff, viewer
from workers.models import Worker

pytestmark = pytest.mark.django_db


def found(client, text):
    reply = client.get(reverse("admin:ojs_workers_dashboard_find"), {"q": text})
    return [(each["kind"], each["name"], each["url"]) for each in reply.json()["found"]]


@pytest.fixture
def named():
    start = rollup.floor(timezone.now(), rollup.HOUR)
    TypeRollup.objects.create(resolution=3600, start=start, type="mail.send")
    QueueFactory(name="mail")
    WorkerFactory(worker_id="mail-worker/1")


def test_a_name_finds_queues_types_and_workers(named):
    client = viewer()

    kinds = {kind: (name, url) for kind, name, url in found(client, "MAIL")}

    assert {kind: name for kind, (name, _) in kinds.items()} == {
        "queue": "mail",
        "type": "mail.send",
        "worker": "mail-worker/1",
    }
    for _, url in kinds.values():
        assert client.get(url).status_code == 200


def test_a_job_is_found_by_its_id():
    job = JobFactory()

    ((kind, name, url),) = found(viewer(), f" {job.pk} ")

    assert (kind, name) == ("job", str(job.pk))
    assert url == reverse("admin:ojs_jobs_job_change", args=[job.pk])
    assert found(viewer_named("b"), "018c2b6f-0000-7000-8000-000000000000") == []


def viewer_named(name):
    return staff("view_job", username=name)


def test_pages_are_found_by_their_names_and_without_a_name_all_of_them():
    client = staff("view_job", "enqueue_job", "view_queue")

    everything = [name for _, name, _ in found(client, "")]

    assert {"Jobs", "Add job", "Queues"} <= set(everything)
    assert "Workers" not in everything
    assert [name for _, name, _ in found(client, "queue")] == ["Queues"]


def test_nothing_is_found_that_the_user_may_not_look_at(named):
    job = JobFactory()
    client = staff("view_cronjob")

    assert found(client, "mail") == []
    assert found(client, str(job.pk)) == []


def test_a_type_leads_a_user_without_the_dashboard_to_its_jobs(named):
    ((_, _, url),) = found(staff("view_job"), "mail")

    assert url == reverse("admin:ojs_jobs_job_changelist") + "?type=mail.send"


def test_a_job_in_a_workers_list_is_cancelled_from_there():
    WorkerFactory(worker_id="w")
    job, other = (JobFactory(active=True, reserved_by="w") for _ in range(2))
    client = staff("view_worker", "view_job", "cancel_job")
    here = reverse("admin:ojs_workers_worker_change", args=["w"])
    page = client.get(here)
    form = next(each for each in forms(page) if each.fields.get("_selected_action") == str(job.pk))

    done = answer(client, client.post(form.action, form.fields), reason="Stuck")

    job.refresh_from_db()
    other.refresh_from_db()
    assert (job.state, other.state) == ("cancelled", "active")
    assert done.request["PATH_INFO"] == here
    assert Worker.objects.filter(pk="w").exists()


def test_who_may_not_cancel_is_not_offered_it():
    WorkerFactory(worker_id="w")
    JobFactory(active=True, reserved_by="w")

    page = viewer().get(reverse("admin:ojs_workers_worker_change", args=["w"]))

    assert not [form for form in forms(page) if form.fields.get("action") == "cancel"]

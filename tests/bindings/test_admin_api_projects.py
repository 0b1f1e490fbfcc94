"""The Admin API with a project's key: only its own jobs and workers."""

from __future__ import annotations

import json

import pytest

from jobs.http.authentication import make_key
from jobs.models import Job, Maintenance
from tests.factories import JobErrorFactory, JobFactory, WorkerFactory
from tests.ojs_client import OJSClient, refusal
from workers.models import Worker

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme():
    return OJSClient(make_key("acme", scopes=["operate"], project="acme")[1])


def ids(reply):
    return [item["id"] for item in reply.json()["items"]]


def test_a_project_finds_its_own_jobs(acme):
    mine = JobFactory(project="acme", dead=True)
    JobFactory(project="other", dead=True)
    JobFactory(dead=True)

    for path in ("admin/jobs", "admin/dead-letter"):
        body = acme.see(path).json()
        assert [item["id"] for item in body["items"]] == [str(mine.pk)]
        assert body["pagination"]["total"] == 1
    assert acme.see("admin/dead-letter/stats").json()["total"] == 1
    assert acme.see(f"admin/jobs/{mine.pk}").status_code == 200


def test_to_a_project_the_jobs_of_others_do_not_exist(acme):
    job = JobFactory(project="other", dead=True)
    path = f"admin/dead-letter/{job.pk}"

    replies = [acme.see(f"admin/jobs/{job.pk}"), acme.see(path), acme.delete(f"/ojs/v1/{path}")]
    replies += [acme.send(f"admin/jobs/{job.pk}/{verb}") for verb in ("cancel", "retry")]
    replies.append(acme.send(f"{path}/retry"))

    assert {reply.status_code for reply in replies} == {404}
    assert Job.objects.get().state == "discarded"


def test_a_project_purges_its_own_dead_letter(acme):
    for project in ("acme", "other", ""):
        JobErrorFactory(job=JobFactory(project=project, dead=True))

    reply = acme.delete(
        "/ojs/v1/admin/dead-letter",
        data=json.dumps({"confirm": True}),
        content_type="application/json",
    )

    assert reply.json()["purged_count"] == 1
    assert sorted(Job.objects.values_list("project", flat=True)) == ["", "other"]


def test_a_project_directs_its_own_workers(acme):
    WorkerFactory(worker_id="mine", project="acme")
    WorkerFactory(worker_id="theirs", project="other")
    dead = WorkerFactory(worker_id="ours", dead=True)

    listed = acme.see("admin/workers")
    assert ids(listed) == ["mine"] and listed.json()["summary"]["total"] == 1
    assert acme.send("admin/workers/mine/quiet").status_code == 200
    for reply in (
        acme.see("admin/workers/theirs"),
        acme.send("admin/workers/theirs/quiet"),
        acme.send("admin/workers/theirs/directive", {"directive": "terminate"}),
        acme.delete(f"/ojs/v1/admin/workers/{dead.pk}"),
    ):
        assert (reply.status_code, refusal(reply)["code"]) == (404, "not_found")
    directives = dict(Worker.objects.values_list("pk", "directive"))
    assert directives == {"mine": "quiet", "theirs": "", "ours": ""}


@pytest.mark.parametrize("path", ["stats", "stats/history", "system/config", "system/maintenance"])
def test_what_concerns_the_whole_server_is_nothing_for_a_project(acme, path):
    error = refusal(acme.see(f"admin/{path}"))

    assert (error["code"], error["details"]) == ("permission_denied", {"project": "acme"})
    switched = acme.send("admin/system/maintenance", {"enabled": True})
    assert switched.status_code == 403 and not Maintenance.objects.exists()

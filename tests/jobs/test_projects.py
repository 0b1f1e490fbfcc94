"""Projects: a project's key sees only its own jobs and workers, on every protocol."""

from __future__ import annotations

import orjson
import pytest

from jobs.http.authentication import make_key
from jobs.models import CronJob, Event, Job, Workflow
from jobs.spec.lifecycle import State
from tests.factories import JobFactory, ago
from tests.flare_client import FlareClient
from tests.flare_client import refusal as flare_refusal
from tests.ojs_client import OJSClient, refusal
from workers.bindings.flare import ids
from workers.chores import reaper
from workers.models import Worker

pytestmark = pytest.mark.django_db

ALL = ["produce", "work", "operate"]
NOT_FOUND = (404, "job_not_found")


@pytest.fixture
def site(settings):
    settings.OJS = {"FLARE": {"ENABLED": True}}
    return settings


def ojs(project=""):
    return OJSClient(make_key(project or "everything", scopes=ALL, project=project)[1])


def flare(project="", worker_id="flare-worker"):
    return FlareClient(make_key(project or "everything", scopes=ALL, project=project)[1], worker_id)


def code(reply):
    return reply.status_code, refusal(reply)["code"]


# Jobs over OJS HTTP


def test_a_job_belongs_to_the_project_of_the_key_it_came_with(site):
    ojs("acme").pushed()
    ojs("acme").send("jobs/batch", {"jobs": [{"type": "a.b", "args": []}]})
    ojs().pushed(project="acme")

    assert sorted(Job.objects.values_list("project", flat=True)) == ["", "acme", "acme"]


@pytest.mark.parametrize("owner", ["other", ""])
def test_to_a_project_the_jobs_of_others_do_not_exist(site, owner):
    acme = ojs("acme")
    job = JobFactory(project=owner, pending=True)

    for reply in (
        acme.see(f"jobs/{job.pk}"),
        acme.delete(f"/ojs/v1/jobs/{job.pk}"),
        acme.send(f"jobs/{job.pk}/cancel"),
        acme.send(f"jobs/{job.pk}/activate"),
        acme.send(f"jobs/{job.pk}/ack", {}),
    ):
        assert code(reply) == (404, "not_found")
    assert Job.objects.get().state == State.PENDING


def test_a_project_sees_its_own_jobs_and_a_key_without_one_sees_all(site):
    mine = ojs("acme").pushed()

    for client in (ojs("acme"), ojs()):
        assert client.see(f"jobs/{mine}").status_code == 200


def test_a_project_fetches_its_own_jobs_only(site):
    theirs, nobodys, mine = (ojs(project).pushed() for project in ("other", "", "acme"))

    assert [job["id"] for job in ojs("acme").fetch(count=10)] == [mine]
    assert ojs("acme").fetch() == []
    assert [job["id"] for job in ojs().fetch(count=10)] == [theirs, nobodys]


def test_a_job_that_is_due_goes_to_its_own_project_too(site):
    for project in ("other", "acme"):
        JobFactory(project=project, state=State.RETRYABLE, attempt=1, scheduled_at=ago(5))

    (job,) = ojs("acme").fetch(count=10)

    assert Job.objects.get(pk=job["id"]).project == "acme"


def test_a_project_can_neither_settle_nor_extend_what_is_not_its_own(site):
    job = JobFactory(project="other", active=True, reserved_by="w", reserved_until=ago(-60))
    acme = ojs("acme")

    assert code(acme.ack(job.pk)) == (404, "not_found")
    assert code(acme.nack(job.pk)) == (404, "not_found")
    (answer,) = acme.send("workers/ack", {"acks": [{"job_id": str(job.pk)}]}).json()["acks"]
    assert answer["status"] == 404
    beat = acme.send("workers/heartbeat", {"worker_id": "w", "active_job_ids": [str(job.pk)]})
    assert beat.json()["jobs_extended"] == []
    after = Job.objects.get()
    assert (after.state, after.reserved_until) == (State.ACTIVE, job.reserved_until)


def test_in_a_list_of_outcomes_each_is_answered_in_its_place(site):
    jobs = [
        JobFactory(project=project, active=True, reserved_by="w")
        for project in ("acme", "other", "acme")
    ]

    acks = [{"job_id": str(job.pk), "worker_id": "w"} for job in jobs]
    answers = ojs("acme").send("workers/ack", {"acks": acks}).json()["acks"]

    assert [answer["status"] for answer in answers] == [200, 404, 200]
    assert [answer["job_id"] for answer in answers] == [str(job.pk) for job in jobs]


def test_the_dead_letter_is_each_projects_own(site):
    mine, theirs = (JobFactory(dead=True, project=project) for project in ("acme", "other"))
    acme = ojs("acme")

    assert [job["id"] for job in acme.see("dead-letter").json()["jobs"]] == [str(mine.pk)]
    assert len(ojs().see("dead-letter").json()["jobs"]) == 2
    for reply in (
        acme.see(f"dead-letter/{theirs.pk}"),
        acme.send(f"dead-letter/{theirs.pk}/retry"),
        acme.delete(f"/ojs/v1/dead-letter/{theirs.pk}"),
    ):
        assert code(reply) == (404, "not_found")
    assert acme.send(f"dead-letter/{mine.pk}/retry").status_code == 200


def test_events_are_those_of_the_projects_own_jobs(site):
    mine = ojs("acme").pushed()
    ojs("other").pushed()
    ojs().pushed()

    events = ojs("acme").see("events").json()

    assert {event["subject"] for event in events["events"]} == {mine}
    assert len(ojs().see("events").json()["events"]) == Event.objects.count()


def test_the_events_of_a_project_can_be_paged_through_whatever_lies_between(site, monkeypatch):
    monkeypatch.setattr("jobs.api.queues.LOOKED_AT", 4)
    mine = []
    for _ in range(3):
        mine.append(ojs("acme").pushed())
        for _ in range(5):
            ojs("other").pushed()
    acme, found, cursor, more = ojs("acme"), [], None, True

    while more:
        page = acme.see("events", limit=2, **({"after": cursor} if cursor else {})).json()
        found += [event["subject"] for event in page["events"]]
        cursor, more = page["cursor"], page["has_more"]

    assert found == mine
    mine.append(acme.pushed())
    assert [
        event["subject"] for event in acme.see("events", after=cursor).json()["events"]
    ] == mine[-1:]


@pytest.mark.parametrize("name", ["subject", "types", "job_types", "queues", "worker_id"])
@pytest.mark.parametrize("page", [{}, {"page": 1}])
def test_no_filter_tells_whether_events_of_other_projects_match(site, monkeypatch, name, page):
    monkeypatch.setattr("jobs.api.queues.LOOKED_AT", 4)
    their_id = ojs("other").pushed(type="their.secret", options={"queue": "theirs"})
    for _ in range(5):
        ojs("other").pushed()
    matching = {
        "subject": [their_id, their_id[:-1] + "*"],
        "types": ["job.enqueued", "job.*"],
        "job_types": ["their.secret", "their.*"],
        "queues": ["theirs", "the*"],
        "worker_id": ["w"],
    }[name]
    ojs("other").fetch("theirs", worker_id="w")
    acme = ojs("acme")

    def seen(wanted):
        return acme.see("events", **page, **{name: wanted}).json()

    for wanted in matching:
        assert seen(wanted) == seen("nothing*" if wanted.endswith("*") else f"0{wanted[1:]}")


def test_events_of_a_projects_own_job_are_found_whatever_lies_between(site, monkeypatch):
    monkeypatch.setattr("jobs.api.queues.LOOKED_AT", 4)
    for _ in range(5):
        ojs("other").pushed()
    mine = ojs("acme").pushed()

    (event,) = ojs("acme").see("events", job_id=mine).json()["events"]

    assert event["subject"] == mine


def test_results_are_those_of_the_projects_own_jobs(site):
    mine, theirs = (JobFactory(completed=True, result=1, project=p) for p in ("acme", "other"))
    acme = ojs("acme")

    assert code(acme.see(f"jobs/{theirs.pk}/result")) == (404, "not_found")
    results = acme.send("jobs/results", {"ids": [str(mine.pk), str(theirs.pk)]}).json()["results"]
    assert results[str(mine.pk)]["result"] == 1
    assert results[str(theirs.pk)] is None


def test_progress_and_checkpoints_are_those_of_the_projects_own_jobs(site):
    job = JobFactory(project="other", active=True, reserved_by="w")
    acme = ojs("acme")
    said = {"job_id": str(job.pk), "progress": 0.5, "worker_id": "w"}

    for reply in (
        acme.send("workers/progress", said),
        acme.send(f"jobs/{job.pk}/progress", said),
        acme.see(f"jobs/{job.pk}/progress"),
        acme.send(f"jobs/{job.pk}/checkpoint", {"state": 1}),
        acme.see(f"jobs/{job.pk}/checkpoint"),
    ):
        assert code(reply) == (404, "not_found")
    assert ojs("other").see(f"jobs/{job.pk}/progress").json()["progress"] is None


STEP = {"type": "a.b", "args": []}


def test_a_workflow_and_all_its_jobs_belong_to_the_project(site):
    acme = ojs("acme")
    inside = {"type": "group", "jobs": [STEP, STEP]}
    batch = {"type": "batch", "jobs": [STEP], "callbacks": {"on_success": STEP}}
    for document in ({"type": "chain", "steps": [STEP, inside, STEP]}, batch):
        assert acme.send("workflows", document).status_code == 201
    while jobs := acme.fetch(count=10):
        for job in jobs:
            acme.ack(job["id"])

    assert Job.objects.count() == 6
    assert set(Job.objects.values_list("project", "state")) == {("acme", State.COMPLETED)}
    assert set(Workflow.objects.values_list("project", "state")) == {("acme", "completed")}


def test_what_undoes_a_step_belongs_to_the_project(site):
    acme = ojs("acme")
    saga = {"type": "chain", "steps": [STEP | {"compensate": STEP}, STEP]}
    assert acme.send("workflows", saga).status_code == 201
    acme.ack(acme.fetch()[0]["id"])
    acme.nack(acme.fetch()[0]["id"], retryable=False)

    assert ojs("other").fetch() == []
    acme.ack(acme.fetch()[0]["id"])

    assert list(Job.objects.values_list("project", flat=True)) == ["acme"] * 3
    assert Workflow.objects.get().state == "compensated"


def test_to_a_project_the_workflows_of_others_do_not_exist(site):
    for owner in ("other", "", "acme"):
        ojs(owner).send("workflows", {"type": "chain", "name": owner, "steps": [STEP]})
    acme = ojs("acme")

    assert [flow["name"] for flow in acme.see("workflows").json()["workflows"]] == ["acme"]
    assert len(ojs().see("workflows").json()["workflows"]) == 3
    for foreign in Workflow.objects.exclude(project="acme"):
        for reply in (
            acme.see(f"workflows/{foreign.pk}"),
            acme.see(f"workflows/{foreign.pk}/progress"),
            acme.send(f"workflows/{foreign.pk}/cancel"),
            acme.delete(f"/ojs/v1/workflows/{foreign.pk}"),
        ):
            assert code(reply) == (404, "not_found")
    assert not Workflow.objects.filter(state="cancelled").exists()


def test_a_queue_is_shared_but_its_figures_are_those_of_the_projects_own_jobs(site):
    acme = ojs("acme")
    acme.pushed()
    for _ in range(2):
        ojs("other").pushed()

    stats = acme.see("queues/default/stats").json()["stats"]
    assert (stats["available"], stats["depth"]) == (1, 1)
    assert acme.see("queues/default").json()["counts"]["available"] == 1
    assert acme.see("queues/default/priority-stats").json()["total"] == 1
    assert ojs().see("queues/default/stats").json()["stats"]["available"] == 3


def test_a_project_purges_its_own_jobs_and_deletes_no_queue(site):
    acme = ojs("acme")
    acme.pushed()
    kept = ojs("other").pushed()
    said = orjson.dumps({"confirm": True, "states": ["available"]})

    path = "/ojs/v1/queues/default"
    purged = acme.delete(f"{path}/jobs", data=said, content_type="application/json")
    deleted = acme.delete(path, data=b'{"strategy": "discard"}', content_type="application/json")

    assert purged.json()["purged_count"] == 1
    assert code(deleted) == (403, "permission_denied")
    assert str(Job.objects.get().pk) == kept


QUEUE, SPECS = "/ojs/v1/queues/default", "/ojs/v1/job-specs"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("post", f"{QUEUE}/pause", {}),
        ("post", f"{QUEUE}/resume", {}),
        ("post", f"/ojs/v1/admin{QUEUE.removeprefix('/ojs/v1')}/pause", {}),
        ("put", f"{QUEUE}/config", {"concurrency": 1}),
        ("post", "/ojs/v1/queues", {"name": "new"}),
        ("post", SPECS, {"specs": {"a.b": "v1"}}),
        ("delete", f"{SPECS}/a.b", {}),
    ],
)
def test_what_all_projects_share_is_not_for_the_key_of_one(site, method, path, body):
    """Otherwise one project's operator could stop the jobs of all others."""
    ojs().pushed()

    reply = getattr(ojs("acme"), method)(
        path, data=orjson.dumps(body), content_type="application/json"
    )

    assert code(reply) == (403, "permission_denied")


def test_a_job_is_unique_in_its_project_and_never_meets_those_of_others(site):
    unique = {"unique": {"keys": ["type"], "on_conflict": "replace"}}
    theirs, nobodys = ojs("other").pushed(**unique), ojs().pushed(**unique)
    first, second = ojs("acme").pushed(**unique), ojs("acme").pushed(**unique)

    states = {str(job.pk): job.state for job in Job.objects.all()}
    assert states[theirs] == states[nobodys] == states[second] == State.AVAILABLE
    assert states[first] == State.CANCELLED


# Workers


def test_a_worker_belongs_to_the_project_of_its_key(site):
    flare("acme").register()
    ojs("acme").send("workers/heartbeat", {"worker_id": "ojs-worker"})

    assert set(Worker.objects.values_list("project", flat=True)) == {"acme"}


# Flare


def test_over_flare_the_jobs_of_other_projects_are_not_found(site):
    job_id = flare("other").enqueued()
    acme = flare("acme")

    assert acme.poll() == []
    flare("other", "theirs").poll()
    for reply in (
        acme.ack(job_id),
        acme.fail(job_id),
        acme.beat(job_id),
        acme.cancel(job_id),
        acme.get(f"/flare/v1/jobs/{job_id}"),
    ):
        assert flare_refusal(reply) == NOT_FOUND
    assert Job.objects.get().state == State.ACTIVE


def test_another_projects_job_is_not_found_whosever_worker_id_comes_with_it(site):
    job_id = flare("other", "shared-id").enqueued()
    flare("other", "shared-id").poll()
    acme = flare("acme", "shared-id")

    for reply in (acme.ack(job_id), acme.fail(job_id), acme.beat(job_id)):
        assert flare_refusal(reply) == NOT_FOUND
    assert Job.objects.get().state == State.ACTIVE


def test_over_flare_a_project_works_on_its_own_jobs(site):
    acme = flare("acme")
    job_id = acme.enqueued()

    assert [job["id"] for job in acme.poll()] == [job_id]
    assert acme.beat(job_id).json() == {"status": "ok"}
    assert acme.ack(job_id).status_code == 200
    assert ojs("acme").job(ids.read(job_id))["state"] == "completed"


def test_a_continuation_can_only_follow_a_job_of_its_own_project(site):
    theirs = flare("other").enqueued()

    assert flare_refusal(flare("acme").enqueue(parent_id=theirs)) == NOT_FOUND
    assert flare("other").enqueue(parent_id=theirs).status_code == 201


# Cron


def test_a_schedule_and_what_it_enqueues_belong_to_the_project(site):
    schedule = {"job_type": "a.b", "cron_expression": "0 3 * * *"}
    flare("acme").register(recurring_schedules=[schedule])
    flare("other", "theirs").register(recurring_schedules=[schedule])
    CronJob.objects.filter(project="acme").update(next_run_at=ago(1))
    reaper.sweep()

    assert Job.objects.get().project == "acme"
    assert [cron["name"] for cron in ojs("acme").see("cron").json()["crons"]] == ["rjob_a.b@acme"]
    assert code(ojs("acme").see("cron/rjob_a.b@other")) == (404, "not_found")
    assert code(ojs("acme").delete("/ojs/v1/cron/rjob_a.b@other")) == (404, "not_found")


def test_a_project_cannot_take_the_schedule_of_another(site):
    nightly = {"name": "nightly", "cron": "0 3 * * *", "type": "a.b", "args": []}
    assert ojs("other").send("cron", nightly).status_code == 201

    assert code(ojs("acme").send("cron", nightly)) == (403, "permission_denied")
    assert ojs().send("cron", nightly).status_code == 200
    assert CronJob.objects.get().project == "other"


# Queries


@pytest.mark.postgres
def test_a_key_without_a_project_asks_nothing_more(site, django_assert_num_queries):
    client = ojs()
    job_id = client.pushed()
    client.fetch(worker_id="w")

    with django_assert_num_queries(1):
        client.ack(job_id, worker_id="w")

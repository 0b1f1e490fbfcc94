"""Each project has its own worker ids: what is stored, what is shown, and the cost."""

from __future__ import annotations

import json

import pytest
from django.core.management import CommandError, call_command

from jobs import engine
from jobs.http.authentication import Caller, make_key
from jobs.models import ApiKey, Event, Job
from jobs.spec.lifecycle import State
from jobs.spec.worker_ids import LONGEST, qualified, shown, spellings
from tests.factories import JobErrorFactory, JobFactory, WorkerFactory, ago
from tests.flare_client import FlareClient
from tests.ojs_client import OJSClient, refusal
from workers import protocol
from workers.access import admission, names
from workers.access.claims import ForeignWorker
from workers.bindings.agq import verify
from workers.chores import reaper
from workers.models import Directive, Worker
from workers.protocol import Description, SessionClaim

pytestmark = pytest.mark.django_db

BOX = {"worker_id": "w", "hostname": "box", "pid": 1, "queues": ["default"], "concurrency": 5}
ERROR = {"code": "handler_error", "message": "It broke."}
OTHERS = pytest.mark.parametrize("owner", ["other", ""], ids=["of a project", "of none"])


def ojs(project: str = "", scopes: tuple[str, ...] = ("work", "produce", "operate"), **bound: str):
    return OJSClient(make_key("key", scopes=list(scopes), project=project, **bound)[1])


@pytest.fixture
def acme():
    return ojs("acme")


def stored() -> dict[str, str]:
    """Stored id → project."""
    return dict(Worker.objects.values_list("pk", "project"))


def holder(job_id: str) -> str:
    return Job.objects.get(pk=job_id).reserved_by


def silence(name: str) -> None:
    assert Worker.objects.filter(pk=name).update(last_heartbeat_at=ago(3600))


# Ids


@pytest.mark.parametrize("worker_id", ["w", "host-1:4711", "a/b", "x" * 255, "@", "/"])
@pytest.mark.parametrize("project", ["acme", "a@", "p" * 100, "a@/b"])
def test_a_stored_id_is_its_projects_alone_and_leads_back_to_the_id(worker_id, project):
    name = qualified(worker_id, project)

    assert len(name) <= LONGEST
    assert name in spellings(worker_id, project)
    assert shown(worker_id, project) == worker_id
    known_as = shown(name, project)
    assert known_as == worker_id or len(worker_id) > 150
    assert qualified(known_as, project) == name, "what is shown can be asked for"
    for other in ("", "acm", "acme/", "a", "b"):
        assert name not in spellings(worker_id, other)
        assert shown(name, other) == name


def test_long_ids_with_the_same_beginning_are_distinguished():
    assert qualified("x" * 254 + "a", "acme") != qualified("x" * 254 + "b", "acme")


@pytest.mark.parametrize("path", ["register", "heartbeat", "fetch"])
def test_a_long_id_tells_nothing_of_another_projects_worker(acme, path):
    long = "x" * 250
    ojs().send("workers/register", BOX | {"worker_id": long})

    def tried(worker_id: str):
        body = BOX if path == "register" else {"queues": ["default"]} if path == "fetch" else {}
        return refusal(acme.send(f"workers/{path}", body | {"worker_id": worker_id}))

    taken, free = tried(long), tried("y" * 250)

    assert taken["message"] == free["message"]
    assert "at most 249 characters in the project 'acme'" in free["message"]
    assert list(stored()) == [long]


def test_the_longest_id_of_a_project_is_shown_whole_whoever_else_has_it(acme):
    longest = "x" * 249
    ojs("beta").send("workers/register", BOX | {"worker_id": longest})

    reply = acme.send("workers/register", BOX | {"worker_id": longest})

    assert reply.status_code == 200, reply.content
    assert reply.json()["worker_id"] == longest
    assert stored() == {longest: "beta", f"acme@/{longest}": "acme"}


def test_a_worker_of_an_earlier_release_keeps_its_long_id(acme):
    WorkerFactory(pk="x" * 250, project="acme")

    assert acme.send("workers/heartbeat", {"worker_id": "x" * 250}).status_code == 200


@pytest.mark.parametrize("worker_id", ["acme@/w", "@/", "w@/"])
def test_what_can_be_a_stored_id_is_no_clients(acme, settings, worker_id):
    settings.OJS = {"FLARE": {"ENABLED": True}}
    flare = FlareClient(make_key("flare", scopes=["work"])[1], worker_id)

    for client in (acme, ojs()):
        for path, body in (
            ("register", BOX),
            ("heartbeat", {}),
            ("fetch", {"queues": ["default"]}),
            ("deregister", {}),
        ):
            error = refusal(client.send(f"workers/{path}", body | {"worker_id": worker_id}))
            assert (error["code"], error["details"]["field"]) == ("invalid_request", "worker_id")
            assert "'@/'" in error["message"]
    assert flare.register().status_code == 400
    assert not Worker.objects.exists()


def test_no_key_is_bound_to_a_stored_id(admin_client, capsys):
    with pytest.raises(CommandError, match=r"--worker-id: .*“@/”"):
        call_command("createapikey", name="k", scopes="work", worker_id="acme@/w", project="acme")
    form = {"name": "ci", "scopes": ["work"], "worker_id": "acme@/w"}
    page = admin_client.post("/admin/ojs_jobs/apikey/add/", form)

    assert "worker_id" in page.context["adminform"].form.errors
    assert not ApiKey.objects.exists()


# Whose worker it is


@OTHERS
@pytest.mark.parametrize("gone", [{}, {"dead": True}, {"left": True}], ids=["live", "dead", "left"])
def test_an_id_that_another_worker_has_can_be_registered_and_is_stored_beside_it(acme, owner, gone):
    WorkerFactory(worker_id="w", project=owner, hostname="theirs", **gone)

    assert acme.send("workers/register", BOX).json()["worker_id"] == "w"

    assert stored() == {"w": owner, "acme@/w": "acme"}
    assert Worker.objects.get(pk="w").hostname == "theirs"
    assert ojs(owner).send("workers/heartbeat", {"worker_id": "w"}).status_code == 200
    assert ojs(owner).send("workers/register", BOX).status_code == 200
    assert stored() == {"w": owner, "acme@/w": "acme"}


@OTHERS
def test_a_worker_is_discovered_by_its_heartbeat_beside_another_of_its_id(acme, owner):
    theirs = WorkerFactory(
        worker_id="w", project=owner, labels=["theirs"], last_heartbeat_at=ago(9)
    )

    reply = acme.send("workers/heartbeat", {"worker_id": "w", "labels": ["ours"]})

    assert reply.json()["state"] == "running"
    assert stored() == {"w": owner, "acme@/w": "acme"}
    theirs.refresh_from_db()
    assert (theirs.labels, theirs.last_heartbeat_at < ago(5)) == (["theirs"], True)


def test_a_project_alone_with_an_id_has_it_as_it_is(acme):
    acme.send("workers/register", BOX)
    acme.send("workers/heartbeat", {"worker_id": "v"})

    assert stored() == {"w": "acme", "v": "acme"}


def test_a_worker_keeps_its_name_when_the_plain_id_is_free_again(acme):
    WorkerFactory(worker_id="w", project="other")
    acme.send("workers/register", BOX)
    Worker.objects.filter(pk="w").delete()

    acme.send("workers/heartbeat", {"worker_id": "w"})
    acme.send("workers/register", BOX)

    assert stored() == {"acme@/w": "acme"}


@OTHERS
def test_leaving_and_leaving_again_concern_ones_own_worker(acme, owner):
    WorkerFactory(worker_id="w", project=owner)
    assert acme.send("workers/deregister", {"worker_id": "w"}).json()["deregistered"] is False
    acme.send("workers/register", BOX)

    assert acme.send("workers/deregister", {"worker_id": "w"}).json() == {
        "ok": True,
        "worker_id": "w",
        "deregistered": True,
    }
    assert dict(Worker.objects.values_list("pk", "state")) == {
        "w": "running",
        "acme@/w": "terminated",
    }


def test_a_quiet_worker_of_another_project_holds_nothing_up(acme):
    """The gate of a fetch looks the worker up by its stored id."""
    WorkerFactory(worker_id="w", project="other", directive="quiet", concurrency=1)
    job_id = acme.pushed()

    assert [job["id"] for job in acme.fetch(worker_id="w")] == [job_id]
    assert holder(job_id) == "acme@/w"


def test_each_has_its_own_place_for_jobs(acme):
    for client in (ojs("other"), acme):
        client.send("workers/register", BOX | {"concurrency": 1})
        client.pushed(), client.pushed()

    assert len(acme.fetch(worker_id="w", count=5)) == 1
    assert len(ojs("other").fetch(worker_id="w", count=5)) == 1
    assert acme.fetch(worker_id="w", count=5) == []


@OTHERS
def test_a_job_may_be_kept_for_one_worker_of_its_project(acme, owner):
    WorkerFactory(worker_id="w", project=owner)
    acme.send("workers/register", BOX)
    job_id = acme.pushed(meta={"capabilities": ["worker:w"]})

    assert acme.fetch(worker_id="v") == []
    assert [job["id"] for job in acme.fetch(worker_id="w")] == [job_id]


def test_a_worker_that_is_to_prove_an_ability_is_the_projects_own():
    for name, project in (("w", "other"), ("acme@/w", "acme")):
        registered = {"protocol": "agq", "registered_at": ago(1), "queues": ["ready"]}
        WorkerFactory(worker_id=name, project=project, capabilities=["jq"], **registered)

    question = verify.ask("jq", {"a": 1}, "w", Caller(project="acme"))

    asked = {"queues": ["ready"], "registered": True}
    assert protocol.fetch(worker_id="w", project="other", **asked) == []
    (job,) = protocol.fetch(worker_id="acme@/w", project="acme", **asked)
    assert job.id == question.job_id


def test_the_names_that_fences_ask_for_are_the_stored_ones(acme):
    """Two workers have the same id; one of them holds a job that has no project."""
    nobodys = ojs()
    nobodys.send("workers/register", BOX)
    acme.send("workers/register", BOX)
    job_id = acme.pushed()
    assert nobodys.fetch(worker_id="w")[0]["id"] == job_id

    for reply in (
        acme.ack(job_id, worker_id="w"),
        acme.send(f"jobs/{job_id}/checkpoint", {"worker_id": "w", "state": 1}),
        acme.send("workers/nack", {"job_id": job_id, "worker_id": "w", "requeue": True}),
    ):
        assert reply.status_code == 409
    beat = acme.send("workers/heartbeat", {"worker_id": "w", "active_jobs": [job_id]}).json()
    assert (beat["jobs_extended"], beat["jobs_lost"]) == ([], [job_id])
    assert (
        acme.send("workers/progress", {"worker_id": "w", "job_id": job_id, "progress": 1}).json()[
            "progress"
        ]
        is None
    )
    assert nobodys.ack(job_id, worker_id="w").status_code == 200


def test_lists_of_reports_are_each_of_the_worker_they_name(acme):
    for name in ("v", "w"):
        WorkerFactory(worker_id=name, project="other")
    held = [acme.pushed() for _ in range(3)]
    for worker_id in ("w", "v", "w"):
        acme.fetch(worker_id=worker_id)
    acks = [{"job_id": held[0]}, {"job_id": held[1], "worker_id": "v"}]

    reply = acme.send(
        "workers/fetch",
        {
            "queues": ["default"],
            "worker_id": "w",
            "acks": acks,
            "nacks": [{"job_id": held[2], "requeue": True}],
        },
    ).json()

    assert [each["status"] for each in reply["acks"] + reply["nacks"]] == [200] * 3
    finished = Job.objects.filter(state=State.COMPLETED).order_by("pk")
    assert list(finished.values_list("finished_by", flat=True)) == ["acme@/w", "acme@/v"]


# Workers without a record


def test_a_job_is_not_lost_when_another_project_takes_the_id_after_its_fetch(acme):
    first, second = acme.pushed(), acme.pushed()
    assert len(acme.fetch(worker_id="w", count=2)) == 2
    assert holder(first) == "w"

    ojs("other").send("workers/register", BOX)
    beat = acme.send("workers/heartbeat", {"worker_id": "w", "active_jobs": [first]}).json()

    assert beat["jobs_extended"] == [first]
    assert (holder(first), holder(second)) == ("acme@/w", "acme@/w")
    assert acme.ack(first, worker_id="w").status_code == 200
    assert acme.ack(second, worker_id="w").status_code == 200


def test_two_without_a_record_finish_what_each_fetched(acme):
    clients = {"acme": acme, "other": ojs("other")}
    jobs = {project: client.pushed() for project, client in clients.items()}
    for client in clients.values():
        assert len(client.fetch(worker_id="w")) == 1

    clients["acme"].send("workers/heartbeat", {"worker_id": "w"})
    Worker.objects.all().delete()
    clients["other"].send("workers/heartbeat", {"worker_id": "w"})

    for project, client in clients.items():
        assert client.ack(jobs[project], worker_id="w").status_code == 200


def test_a_job_is_not_lost_when_the_plain_id_is_free_again(acme):
    WorkerFactory(worker_id="w", project="other")
    job_id = acme.pushed()
    acme.fetch(worker_id="w")
    assert holder(job_id) == "acme@/w"

    Worker.objects.all().delete()

    assert acme.ack(job_id, worker_id="w").status_code == 200


def test_what_a_worker_without_a_project_holds_is_not_taken_over(acme):
    """A registered worker, by contrast, is known to be the job's possible holder."""
    WorkerFactory(worker_id="w", project="")
    job_id = acme.pushed()
    ojs().fetch(worker_id="w")

    acme.send("workers/heartbeat", {"worker_id": "w"})

    assert holder(job_id) == "w"


@pytest.mark.parametrize("event", ["death", "new process", "removal"])
def test_what_happens_to_a_worker_is_nothing_to_one_without_a_record(acme, event):
    job_id = acme.pushed()
    acme.fetch(worker_id="w")
    other = ojs("other")
    theirs = other.pushed()
    other.send("workers/register", BOX)
    other.fetch(worker_id="w")

    if event == "new process":
        other.send("workers/register", BOX)
    else:
        silence("w")
        if event == "death":
            reaper.sweep()
        else:
            assert other.delete("/ojs/v1/admin/workers/w").json()["jobs_rescheduled"] == 1

    assert Job.objects.get(pk=theirs).state == State.AVAILABLE
    assert (Job.objects.get(pk=job_id).state, holder(job_id)) == (State.ACTIVE, "w")
    assert acme.ack(job_id, worker_id="w").status_code == 200


def test_a_worker_that_has_changed_to_a_key_of_a_project_is_recovered_whole(acme):
    """The jobs that it fetched without a project are its own, too."""
    ojs().pushed()
    acme.send("workers/register", BOX)
    ojs().fetch(worker_id="w")

    silence("w")
    reaper.sweep()

    assert Job.objects.get().state == State.AVAILABLE


def test_a_record_made_by_an_older_server_counts_first(acme):
    """It knows only plain ids: both releases must agree on where the worker is stored."""
    WorkerFactory(worker_id="acme@/w", project="acme")
    WorkerFactory(worker_id="w", project="acme")
    job = JobFactory(project="acme", active=True, reserved_by="acme@/w")

    assert acme.ack(job.pk, worker_id="w").status_code == 200
    assert acme.see("admin/workers/w").json()["id"] == "w"
    assert names.stored_names(["w"], "acme") == {"w": "w"}


# Bound keys


@OTHERS
def test_a_key_of_a_project_and_a_worker_speaks_for_its_projects_worker(acme, owner):
    WorkerFactory(worker_id="w", project=owner)
    theirs = JobFactory(project="acme", active=True, reserved_by="w" if not owner else "v")
    bound = ojs("acme", ("work", "produce"), worker_id="w")
    bound.send("workers/register", BOX)
    job_id = bound.pushed()
    assert [job["id"] for job in bound.fetch()] == [job_id]
    path = f"/ojs/v1/jobs/{job_id}/checkpoint"

    assert bound.send(f"jobs/{job_id}/checkpoint", {"state": 7}).status_code == 200
    assert bound.get(path).json()["state"] == 7
    assert bound.delete(path).status_code == 200
    assert bound.get(f"/ojs/v1/jobs/{theirs.pk}/checkpoint").status_code == 409
    assert bound.ack(job_id).status_code == 200
    assert Job.objects.get(pk=job_id).finished_by == "acme@/w"


def test_a_label_of_another_projects_worker_is_nothing_to_a_key_for_it():
    WorkerFactory(worker_id="w", project="other", labels=["gpu"])
    labelled = ojs("acme", ("work",), label="gpu")

    assert labelled.send("workers/heartbeat", {"worker_id": "w"}).status_code == 403
    assert labelled.send("workers/register", BOX | {"labels": ["gpu"]}).status_code == 200
    assert labelled.send("workers/heartbeat", {"worker_id": "w"}).status_code == 200
    assert stored() == {"w": "other", "acme@/w": "acme"}


# What is shown


@pytest.fixture
def twins(acme):
    """Two workers `w` with a job each, of which one has failed before."""
    other = ojs("other")
    for client in (other, acme):
        client.send("workers/register", BOX)
        client.pushed(retry={"max_attempts": 5, "initial_interval": "PT0.001S"})
        (job,) = client.fetch(worker_id="w")
        failed = {"job_id": job["id"], "worker_id": "w", "error": ERROR}
        assert client.send("workers/nack", failed).status_code == 200
        Job.objects.filter(state=State.RETRYABLE).update(scheduled_at=ago(1))
        assert len(client.fetch(worker_id="w")) == 1
    return {job.project: str(job.pk) for job in Job.objects.all()}


def test_a_project_reads_the_id_it_gave_and_an_operator_the_stored_one(acme, twins):
    job_id = twins["acme"]
    error = {"acme": "w", "": "acme@/w"}

    for project, client in (("acme", acme), ("", ojs())):
        assert client.job(job_id)["errors"][0]["worker_id"] == error[project]
        answer = client.see(f"admin/jobs/{job_id}").json()
        assert answer["worker_id"] == answer["errors"][0]["worker_id"] == error[project]
        listed = client.see("admin/jobs", worker_id=error[project]).json()["items"]
        assert [(job["id"], job["worker_id"]) for job in listed] == [(job_id, error[project])]
        events = client.see("events", worker_id=error[project], types="job.started").json()
        assert {event["data"]["worker_id"] for event in events["events"]} == {error[project]}
        assert {event["subject"] for event in events["events"]} == {job_id}
        assert client.see("events", worker_id=f"{error[project][:-1]}*").json()["events"]
        worker = client.see(f"admin/workers/{error[project]}").json()
        assert (worker["id"], worker["project"]) == (error[project], "acme")
        assert [job["worker_id"] for job in worker["jobs"]] == [error[project]]


def test_the_list_of_workers_is_the_projects_own_in_the_order_of_its_ids(acme, twins):
    for name in ("a", "z"):
        acme.send("workers/heartbeat", {"worker_id": name})

    own = acme.see("admin/workers").json()
    all_of_them = ojs().see("admin/workers").json()

    assert [worker["id"] for worker in own["items"]] == ["a", "w", "z"]
    assert (own["summary"]["total"], own["items"][1]["active_jobs"]) == (3, 1)
    assert {(worker["id"], worker["project"]) for worker in all_of_them["items"]} == {
        ("w", "other"),
        ("acme@/w", "acme"),
        ("a", "acme"),
        ("z", "acme"),
    }


@pytest.mark.parametrize("project", ["acme", ""])
def test_orders_reach_the_worker_that_was_meant(acme, twins, project):
    client, named = (acme, "w") if project else (ojs(), "acme@/w")

    quieted = client.send(f"admin/workers/{named}/quiet").json()
    many = {"filter": {"worker_id": named}, "confirm": True}
    resumed = client.send("admin/workers/bulk/resume", many).json()
    answer = client.send(f"admin/workers/{named}/directive", {"directive": "terminate"}).json()

    assert (quieted["id"], quieted["desired_state"]) == (named, "quiet")
    assert (resumed["workers"], resumed["signalled"]) == ([named], 1)
    assert (answer["id"], len(answer["directives"])) == (named, 3)
    assert set(Directive.objects.values_list("worker_id", flat=True)) == {"acme@/w"}
    beat = acme.send("workers/heartbeat", {"worker_id": "w"}).json()
    assert beat["state"] == "terminate"
    refused = client.send(f"admin/workers/{named}/resume")
    assert f"Worker '{named}' is terminating" in refusal(refused)["message"]


def test_a_queue_that_others_serve_is_unserved_for_a_project_without_its_workers(acme, twins):
    everybody = {"all": True, "dry_run": True}

    assert acme.send("admin/workers/bulk/quiet", everybody).json()["unserved_queues"] == ["default"]
    ojs().send("workers/register", BOX | {"worker_id": "for-all"})
    assert acme.send("admin/workers/bulk/quiet", everybody).json()["unserved_queues"] == []


def test_what_an_earlier_owner_of_the_id_was_ordered_is_not_shown(acme):
    ojs("other").send("workers/register", BOX)
    ojs("other").send("admin/workers/w/quiet", {"reason": "their secret"})
    Worker.objects.all().delete()
    acme.send("workers/register", BOX)

    reply = acme.see("admin/workers/w")

    assert reply.json()["directives"] == [] and b"secret" not in reply.content


def test_a_silent_worker_is_removed_by_the_id_its_project_knows(acme, twins):
    silence("acme@/w"), silence("w")

    removed = acme.delete("/ojs/v1/admin/workers/w").json()

    assert (removed["id"], removed["jobs_rescheduled"]) == ("w", 1)
    assert stored() == {"w": "other"}


def test_the_fleet_command_shows_projects_and_takes_them(twins, capsys):
    call_command("fleet", "status", "--all", "--format", "json")
    answer = json.loads(capsys.readouterr().out)["workers"]
    call_command("fleet", "quiet", "--project", "acme", "--worker", "w")
    call_command("fleet", "status", "--worker", "acme@/w")
    table = capsys.readouterr().out

    assert {(worker["worker_id"], worker["project"]) for worker in answer} == {
        ("w", "other"),
        ("acme@/w", "acme"),
    }
    assert "acme@/w  acme" in table and "quiet" in table
    assert dict(Worker.objects.values_list("pk", "directive")) == {"w": "", "acme@/w": "quiet"}


def test_the_fleet_command_says_nothing_of_projects_where_there_are_none(capsys):
    WorkerFactory(worker_id="w")

    call_command("fleet", "status", "--all")

    assert "PROJECT" not in capsys.readouterr().out


def test_the_admin_shows_the_stored_id_and_its_project(admin_client, twins):
    page = admin_client.get("/admin/ojs_workers/worker/").content.decode()

    assert "acme@/w" in page and "project acme" in page and "project other" in page


def test_signals_and_events_name_the_stored_id(acme, django_capture_on_commit_callbacks):
    from workers.signals import worker_registered

    WorkerFactory(worker_id="w", project="other")
    heard = []
    worker_registered.connect(
        lambda **sent: heard.append(sent["worker_id"]), weak=False, dispatch_uid="t"
    )
    try:
        with django_capture_on_commit_callbacks(execute=True):
            acme.send("workers/register", BOX)
    finally:
        worker_registered.disconnect(dispatch_uid="t")

    assert heard == ["acme@/w"]
    assert Event.objects.get(type="worker.started").subject == "acme@/w"


# Concurrent requests


def test_a_name_that_was_taken_in_this_moment_is_refused_and_asked_for_again():
    WorkerFactory(worker_id="w", project="other", labels=["theirs"], active_job_ids=["a"])
    about = Description(project="acme", labels=["new"])

    for act in (
        lambda name: protocol.register(name, about),
        lambda name: protocol.register(name, about, claim=SessionClaim(("",), True)),
        lambda name: protocol.beat(name, description=about, active_job_ids=[], project="acme"),
    ):
        with pytest.raises(ForeignWorker):
            act("w")
        admission.as_worker(Caller(project="acme"), "w", act, name="w")
        assert stored() == {"w": "other", "acme@/w": "acme"}
        Worker.objects.filter(project="acme").delete()
    theirs = Worker.objects.get()
    assert (theirs.labels, theirs.active_job_ids, theirs.incarnation) == (["theirs"], ["a"], 1)
    assert protocol.deregister("w", project="acme") is False


# Queries


@pytest.mark.postgres
def test_the_name_of_a_projects_worker_costs_one_query(acme, django_assert_num_queries):
    nobodys = ojs()
    calls = {
        "workers/heartbeat": {"worker_id": "w"},
        "workers/fetch": {"worker_id": "w", "queues": ["empty"]},
    }
    for client in (acme, nobodys):
        client.send("workers/register", BOX | {"worker_id": "w" if client is acme else "v"})

    for path, body in calls.items():
        nobodys.send(path, body | {"worker_id": "v"}), acme.send(path, body)
        with django_assert_num_queries(1 if path.endswith("heartbeat") else 2):
            nobodys.send(path, body | {"worker_id": "v"})
        with django_assert_num_queries(2 if path.endswith("heartbeat") else 3):
            acme.send(path, body)


def test_a_name_costs_nothing_without_a_project(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert admission.admit(Caller(), "w") == "w"
        assert names.stored_names(["w", "v"], "") == {"w": "w", "v": "v"}


def test_errors_of_the_engine_carry_no_names(acme, twins):
    job = JobFactory(project="acme", active=True, reserved_by="acme@/v")
    JobErrorFactory(job=job, worker_id="acme@/v")
    engine.save_checkpoint(job.pk, 1, worker_id="acme@/v")

    replies = [
        acme.ack(job.pk, worker_id="w"),
        acme.send("workers/nack", {"job_id": str(job.pk), "worker_id": "w", "error": ERROR}),
        acme.send(f"jobs/{job.pk}/checkpoint", {"worker_id": "w", "state": 1}),
        ojs("acme", ("work",), worker_id="w").get(f"/ojs/v1/jobs/{job.pk}/checkpoint"),
    ]

    for reply in replies:
        assert reply.status_code == 409
        assert b"@/" not in reply.content

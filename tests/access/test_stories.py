"""Rules for keys, written out as examples, because the table itself can be wrong."""

from __future__ import annotations

import json
import re

import pytest

from jobs import engine
from jobs.access import Binding, Command, OfProject, authorize, declare, find
from jobs.api import verbs
from jobs.errors import PermissionDenied
from jobs.http.authentication import Caller, make_key
from jobs.http.base import OJSViewSet
from jobs.http.fast_path import fast
from jobs.models import Checkpoint, Event, Job, OperatorAction
from tests.factories import JobErrorFactory, JobFactory, WorkerFactory
from tests.ojs_client import OJSClient, refusal

pytestmark = pytest.mark.django_db

SECRET = "correct horse"


def client(*scopes: str, **bound: str) -> OJSClient:
    return OJSClient(make_key("key", scopes=list(scopes), **bound)[1])


# The table


def test_what_is_not_declared_is_refused_to_everybody():
    everything = Caller(scopes=frozenset({"produce", "work", "operate"}))

    with pytest.raises(PermissionDenied, match="is not declared"):
        authorize(everything, find(Binding.OJS, "jobs.explode"))


class UndeclaredViewSet(OJSViewSet):
    resource = "jobs"

    def explode(self, request):
        return self.carry_out(verbs.create)


@pytest.mark.parametrize("is_fast", [False, True])
def test_an_action_of_a_viewset_that_is_not_declared_is_refused(rf, is_fast):
    view = UndeclaredViewSet.as_view({"post": "explode"})
    view = fast(view, verbs.create) if is_fast else view
    _, key = make_key("key", scopes=["produce", "work", "operate"])
    asked = rf.post(
        "/explode",
        {"type": "email.send", "args": []},
        content_type="application/json",
        headers={"Authorization": f"Bearer {key}"},
    )

    assert view(asked).status_code == 403
    assert not Job.objects.exists()


def test_nothing_is_declared_twice():
    with pytest.raises(ValueError, match="twice"):
        declare(Command(Binding.OJS, "jobs.create", (), OfProject.OWN, is_open=True))


# Checkpoints


@pytest.fixture
def held():
    job = JobFactory(active=True, reserved_by="theirs")
    engine.save_checkpoint(job.pk, {"page": 7}, worker_id="theirs")
    WorkerFactory(worker_id="mine", labels=["gpu"])
    WorkerFactory(worker_id="theirs", labels=["cpu"])
    return job


@pytest.mark.parametrize("bound", [{"worker_id": "mine"}, {"label": "gpu"}], ids=str)
def test_a_bound_key_leaves_the_checkpoints_of_others_alone(held, bound):
    path = f"/ojs/v1/jobs/{held.pk}/checkpoint"
    mine = client("work", **bound)

    replies = [mine.get(path), mine.delete(path)]

    assert [refusal(reply)["code"] for reply in replies] == ["conflict"] * 2
    assert b"page" not in b"".join(reply.content for reply in replies)
    saved = mine.send(f"jobs/{held.pk}/checkpoint", {"state": 1, "worker_id": "mine"})
    assert refusal(saved)["code"] == "conflict"
    assert Checkpoint.objects.get(is_cleared=False).state == {"page": 7}


@pytest.mark.parametrize("bound", [{"worker_id": "theirs"}, {"label": "cpu"}, {}], ids=str)
def test_a_key_reads_saves_and_deletes_the_checkpoints_of_its_own_worker(held, bound):
    path = f"/ojs/v1/jobs/{held.pk}/checkpoint"
    own = client("work", **bound)

    assert own.get(path).json()["state"] == {"page": 7}
    saved = own.send(f"jobs/{held.pk}/checkpoint", {"state": 8, "worker_id": "theirs"})
    assert saved.status_code == 200
    assert own.delete(path).status_code == 200
    assert not Checkpoint.objects.filter(is_cleared=False).exists()


def test_a_worker_that_lost_its_job_has_lost_the_checkpoint_with_it(held):
    """The next attempt, by another worker, continues from there."""
    Job.objects.filter(pk=held.pk).update(reserved_by="next")

    reply = client("work", worker_id="theirs").delete(f"/ojs/v1/jobs/{held.pk}/checkpoint")

    assert refusal(reply)["code"] == "conflict"
    assert Checkpoint.objects.filter(is_cleared=False).exists()


# Redaction


@pytest.fixture
def dead():
    job = JobFactory(dead=True, args=[{"password": SECRET}], meta={"api_key": SECRET})
    JobErrorFactory(job=job, message=f"login(password='{SECRET}') failed")
    return job


@pytest.mark.parametrize("way", ["list", "one", "retry"])
def test_who_only_operates_reads_no_secrets_in_the_dead_letter(dead, way):
    operator, trusted = client("operate"), client("operate", "ojs:admin:args")

    def ask(who: OJSClient) -> dict:
        if way == "list":
            return who.see("dead-letter").json()["jobs"][0]
        if way == "one":
            return who.see(f"dead-letter/{dead.pk}").json()["job"]
        return who.send(f"dead-letter/{dead.pk}/retry").json()["job"]

    in_clear = ask(trusted) if way != "retry" else None
    shown = ask(operator)

    assert SECRET not in json.dumps(shown)
    assert (shown["args"], shown["redacted"]) == ([{"password": "[hidden]"}], True)
    assert in_clear is None or in_clear["args"] == [{"password": SECRET}]
    assert Job.objects.get().args == [{"password": SECRET}]


def test_who_may_see_arguments_gets_them_with_the_retry(dead):
    reply = client("operate", "ojs:admin:args").send(f"dead-letter/{dead.pk}/retry")

    assert reply.json()["job"]["args"] == [{"password": SECRET}]


def counted(who: OJSClient, guess: str, operation: str):
    chosen = {"meta": {"api_key": guess}, "state": "discarded"}
    return who.send(f"jobs/bulk/{operation}", {"filter": chosen, "dry_run": True})


@pytest.mark.parametrize("operation", ["retry", "delete"])
def test_who_only_operates_guesses_no_secret_by_counting(dead, operation):
    asked = [counted(client("operate"), guess, operation) for guess in (SECRET, "wrong")]

    assert [refusal(reply)["code"] for reply in asked] == ["permission_denied"] * 2
    assert asked[0].json()["error"]["message"] == asked[1].json()["error"]["message"]
    for more in ("ojs:admin:args", "produce"):
        trusted = client("operate", more)
        assert counted(trusted, SECRET, operation).json()["total_matched"] == 1
        assert counted(trusted, "wrong", operation).json()["total_matched"] == 0


def test_the_record_of_what_was_selected_has_no_hidden_value(dead):
    chosen = {"meta": {"api_key": SECRET}, "state": "discarded"}

    reply = client("operate", "ojs:admin:args").send("jobs/bulk/delete", {"filter": chosen})

    assert reply.json()["deleted"] == 1
    recorded = OperatorAction.objects.get(verb="discard_job").selection
    assert recorded["filter"] == {"meta": {"api_key": "[hidden]"}, "state": "discarded"}


def test_who_only_operates_still_selects_by_what_is_not_hidden():
    JobFactory(dead=True, meta={"customer": "c-17"})
    chosen = {"meta": {"customer": "c-17"}, "state": "discarded"}

    reply = client("operate").send("jobs/bulk/delete", {"filter": chosen, "dry_run": True})

    assert reply.json()["total_matched"] == 1


def test_who_enqueues_sees_arguments(dead):
    """`produce` is the scope of the clients that wrote them."""
    assert client("produce").job(dead.pk)["args"] == [{"password": SECRET}]


# Ids


@pytest.mark.parametrize("way", ["jobs", "jobs/batch", "jobs/bulk"])
def test_who_chooses_an_id_of_another_projects_job_learns_only_that_it_is_taken(way):
    """Whatever that job is: the refusal is the same but for the id that the client sent."""
    theirs = [
        JobFactory(project="globex", queue="payroll", args=["secret"]),
        JobFactory(project="globex", completed=True, result="secret"),
    ]
    acme = client("produce", project="acme")
    replies = []
    for job in theirs:
        asked = {"id": str(job.pk), "type": "email.send", "args": []}
        reply = acme.send(way, asked if way == "jobs" else {"jobs": [asked]})
        replies.append(reply.content.decode().replace(str(job.pk), "ID"))
        document = reply.json()["items"][0] if way == "jobs/bulk" else reply.json()
        assert document["error"]["code"] == "duplicate"
        assert acme.see(f"jobs/{job.pk}").status_code == 404

    first, second = (re.sub(r'"request_id":"[^"]*"', "", each) for each in replies)
    assert first == second


# The audit


def test_what_a_producer_does_with_one_job_is_in_its_events_and_what_operators_do_in_the_audit():
    producer, operator = client("produce"), client("operate")
    first, second = JobFactory(), JobFactory()

    assert producer.delete(f"/ojs/v1/jobs/{first.pk}").status_code == 200
    assert not OperatorAction.objects.exists()
    assert operator.send(f"admin/jobs/{second.pk}/cancel").status_code == 200

    assert [action.verb for action in OperatorAction.objects.all()] == ["cancel_job"]
    for job in (first, second):
        event = Event.objects.get(subject=str(job.pk), type="job.cancelled")
        assert event.data["cancelled_by"] == "key"

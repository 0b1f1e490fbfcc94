"""Workers that name a tenant in a header, on each protocol whose clients send headers."""

from __future__ import annotations

import pytest
from websockets.exceptions import InvalidStatus

from jobs import engine
from jobs.http.authentication import make_key
from jobs.models import ApiKey, Job, OperatorAction
from jobs.spec.lifecycle import State
from tests.factories import JobFactory
from tests.flare_client import FlareClient
from tests.ojs_client import OJSClient
from workers.bindings.flare import ids
from workers.models import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

protocols = pytest.mark.parametrize("protocol", ["ojs", "flare", "rota"])
REGISTRATION = {
    "worker_id": "w",
    "hostname": "box",
    "queues": ["default"],
    "specs": [{"id": "email.send", "checksum": "v1"}],
}


@pytest.fixture
def ask(rota, settings):
    """Returns a function that asks for jobs: the HTTP status, and the ids of the jobs."""
    settings.OJS = {"FLARE": {"ENABLED": True}}
    engine.register_specs({"email.send": "v1"})

    def over_ojs(key, **headers):
        reply = OJSClient(key, **headers).send(
            "workers/fetch", {"worker_id": "w", "queues": ["default"]}
        )
        found = reply.json().get("jobs", ())
        return reply.status_code, [job["id"] for job in found]

    def over_flare(key, **headers):
        http = FlareClient(key, "w")
        reply = http.post(
            "/flare/v1/workers/poll",
            {"worker_id": "w", "queues": ["default"]},
            content_type="application/json",
            headers=headers,
        )
        found = reply.json().get("jobs", ())
        return reply.status_code, [str(ids.read(job["id"])) for job in found]

    def over_rota(key, **headers):
        try:
            line = rota(key, **headers)
        except InvalidStatus as refusal:
            return refusal.response.status_code, []
        line(registration=REGISTRATION, wanted=0)
        line(wanted=1)
        try:
            return 200, [line.hear(0.5)["job"]["id"]]
        except TimeoutError:
            return 200, []

    return {"ojs": over_ojs, "flare": over_flare, "rota": over_rota}


@protocols
def test_a_worker_gets_the_jobs_of_the_tenant_that_it_names_and_no_others(ask, protocol):
    _, key = make_key("any", scopes=["work"])
    other = JobFactory(project="tenant-b")

    before = ask[protocol](key, **{"X-OJS-Tenant": "tenant-a"})
    own = JobFactory(project="tenant-a")
    after = ask[protocol](key, **{"X-OJS-Tenant": "tenant-a"})

    assert (before, after) == ((200, []), (200, [str(own.pk)]))
    other.refresh_from_db()
    assert other.state == State.AVAILABLE
    assert {worker.project for worker in Worker.objects.all()} <= {"tenant-a"}


@protocols
def test_a_worker_that_names_a_tenant_wrongly_is_refused(ask, protocol):
    _, key = make_key("any", scopes=["work"])
    _, acme = make_key("acme", scopes=["work"], project="acme")
    JobFactory(project="acme")

    assert ask[protocol](key, **{"X-OJS-Tenant": "Bad Name!"}) == (400, [])
    assert ask[protocol](acme, **{"X-OJS-Tenant": "other"}) == (403, [])

    refused = OperatorAction.objects.get(verb="refuse_request")
    assert refused.selection["protocol"] == protocol
    assert refused.selection["reason"] == "permission_denied"
    assert ask[protocol](acme, **{"X-OJS-Tenant": "acme"}) == (200, [str(Job.objects.get().pk)])


def test_a_connection_remains_its_tenants_whenever_its_key_is_checked(rota):
    engine.register_specs({"email.send": "v1"})
    _, key = make_key("any", scopes=["work"])
    line = rota(key, **{"X-OJS-Tenant": "tenant-a"})
    line(registration=REGISTRATION, wanted=1)

    ApiKey.objects.update(scopes=["work", "produce"])
    JobFactory(project="tenant-b")
    own = JobFactory(project="tenant-a")

    assert line.hear()["job"]["id"] == str(own.pk)
    ApiKey.objects.update(project="tenant-b")
    (refusal,) = line(wanted=1)
    assert refusal["error"]["code"] == "permission_denied"
    assert Job.objects.get(project="tenant-b").state == State.AVAILABLE

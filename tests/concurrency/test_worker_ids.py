"""Projects that take the same worker id at the same moment: each gets its own record."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from jobs.http.authentication import Caller, make_key
from jobs.models import Job
from jobs.spec.lifecycle import State
from jobs.spec.worker_ids import shown
from tests.factories import WorkerFactory, ago
from tests.flare_client import FlareClient
from tests.ojs_client import OJSClient
from workers import protocol
from workers.access import admission
from workers.access.claims import ForeignWorker
from workers.models import Worker
from workers.protocol import Description

from .threads import in_step, while_it_waits

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

ROUNDS = 60
PROJECTS = ("acme", "other", "third")


def key(project: str) -> str:
    return make_key(project, scopes=["work", "produce"], project=project)[1]


def registers(client: OJSClient, project: str, worker_id: str) -> Any:
    about = {"hostname": project, "pid": 1, "queues": ["default"], "concurrency": 1}
    return client.send("workers/register", about | {"worker_id": worker_id, "labels": [project]})


def beats(client: OJSClient, project: str, worker_id: str) -> Any:
    about = {"hostname": project, "labels": [project], "active_jobs": []}
    return client.send("workers/heartbeat", about | {"worker_id": worker_id})


def polls(client: OJSClient, project: str, worker_id: str) -> Any:
    flare = FlareClient(worker_id=worker_id)
    flare.defaults |= client.defaults
    return flare.poll_reply(queues=[project])


VERBS = [registers, beats, polls]


@pytest.mark.parametrize(
    "verbs", [[verb] * 3 for verb in VERBS] + [VERBS], ids=["register", "beat", "poll", "each"]
)
def test_all_that_arrive_with_an_id_at_once_are_let_in(verbs, settings):
    settings.OJS = {"FLARE": {"ENABLED": True}}
    clients = {project: OJSClient(key(project)) for project in PROJECTS}

    def arrive(verb: Callable[..., Any], project: str, number: int) -> Any:
        return verb(clients[project], project, f"w{number}")

    replies = in_step(
        ROUNDS, *(partial(arrive, verb, name) for verb, name in zip(verbs, PROJECTS, strict=True))
    )

    refused = [reply.content for round in replies for reply in round if reply.status_code != 200]
    assert refused == []
    known = {(worker.project, shown(worker.pk, worker.project)) for worker in workers()}
    assert known == {(project, f"w{number}") for project in PROJECTS for number in range(ROUNDS)}
    for worker in workers():
        said = (worker.hostname or worker.queues[0], *worker.labels)
        assert set(said) == {worker.project}, "another's heartbeat went into it"
    plain = {worker.pk for worker in workers() if "@/" not in worker.pk}
    assert plain == {f"w{number}" for number in range(ROUNDS)}, "the first has the plain id"


def workers() -> list[Worker]:
    return list(Worker.objects.all())


@pytest.mark.postgres
@pytest.mark.parametrize("verb", ["register", "beat"])
def test_one_that_waits_for_the_id_to_be_stored_gets_another_name(verb):
    """The other's record is not committed yet when the id is looked up."""
    about = Description(project="acme", hostname="ours", queues=["default"])

    def act(name: str) -> str:
        if verb == "register":
            protocol.register(name, about)
        else:
            protocol.beat(name, description=about, project="acme")
        return name

    caller = Caller(project="acme")
    name = while_it_waits(
        lambda: WorkerFactory(worker_id="w", project="other"),
        lambda: admission.as_worker(caller, "w", act),
    )

    assert name == "acme@/w"
    assert dict(Worker.objects.values_list("pk", "project")) == {"w": "other", "acme@/w": "acme"}


def test_what_is_fetched_while_another_project_takes_the_id_is_finished():
    """Without a record, so that the name may change between a fetch and the report."""
    clients = {project: OJSClient(key(project)) for project in ("acme", "other")}
    jobs = [clients["acme"].pushed() for _ in range(ROUNDS)]

    def works(number: int) -> int:
        (job,) = clients["acme"].fetch(worker_id=f"w{number}")
        reply = clients["acme"].ack(job["id"], worker_id=f"w{number}")
        return reply.status_code

    def takes(number: int) -> int:
        return registers(clients["other"], "other", f"w{number}").status_code

    assert in_step(ROUNDS, works, takes) == [[200, 200]] * ROUNDS
    assert Job.objects.filter(pk__in=jobs, state=State.COMPLETED).count() == ROUNDS


@pytest.mark.postgres
def test_a_heartbeat_of_a_project_is_not_written_into_the_record_of_another():
    """Not in a batched statement, either."""
    about = {
        "worker_id": "w",
        "project": "other",
        "hostname": "theirs",
        "last_heartbeat_at": ago(9),
    }
    theirs = WorkerFactory(**about)

    with pytest.raises(ForeignWorker):
        protocol.beat("w", active_job_ids=[], description=Description(hostname="x"), project="acme")

    assert Worker.objects.filter(**about).count() == 1
    assert protocol.beat("w", active_job_ids=[], project="other").state == "running"
    theirs.refresh_from_db()
    assert theirs.last_heartbeat_at > about["last_heartbeat_at"]


@pytest.mark.postgres
def test_a_heartbeat_with_others_in_one_statement_is_its_own_workers():
    """One statement for two projects' workers with the same id does not mix them up."""
    clients = {project: OJSClient(key(project)) for project in PROJECTS}
    for project, client in clients.items():
        assert registers(client, project, "w").status_code == 200

    replies = in_step(
        ROUNDS,
        *(
            lambda number, project=project: beats(clients[project], project, "w").status_code
            for project in PROJECTS
        ),
    )

    assert replies == [[200] * 3] * ROUNDS
    for worker in workers():
        assert (worker.hostname, worker.labels) == (worker.project, [worker.project])

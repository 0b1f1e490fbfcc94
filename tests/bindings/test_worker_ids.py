"""Two projects with the same worker id: over all four protocols, and between each pair of them.

The servers of AGQ and Rota are real processes, those of OJS and Flare answer in this one.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

pytest.importorskip("redis")
pytest.importorskip("websockets")

from django.db.models import F

from jobs import engine
from jobs.http.authentication import make_key
from jobs.models import Job
from jobs.spec.lifecycle import State
from tests import protocol_clients
from tests.bindings.listening import agq_and_rota, loop_in_thread
from tests.factories import JobFactory, ago
from workers.chores import reaper
from workers.models import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

PROTOCOLS = protocol_clients.PROTOCOLS
ID = "worker-1"
FIRST, SECOND = "acme", "umbrella"
"""The project whose worker registers first gets the plain id."""
NAMES = {FIRST: ID, SECOND: f"{SECOND}@/{ID}"}


@pytest.fixture(scope="module")
def ports(django_db_setup, tmp_path_factory):
    """Ports of the servers of AGQ and Rota."""
    with agq_and_rota(tmp_path_factory.mktemp("servers"), API_KEY_CACHE=0) as ports:
        yield ports


@pytest.fixture(scope="module")
def loop():
    """The event loop of the connections of Rota workers."""
    with loop_in_thread() as loop:
        yield loop


@pytest.fixture
def hire(ports, loop, transactional_db, settings):
    """Returns a function that registers a worker of a project: `hire("agq", "acme")`."""
    settings.OJS = {"FLARE": {"ENABLED": True}, "API_KEY_CACHE": 0}
    engine.register_specs(protocol_clients.SPECS)
    keys: dict[str, str] = {}
    with contextlib.ExitStack() as stack:

        def begin(protocol: str, project: str, worker_id: str = ID) -> Any:
            if project not in keys:
                _, keys[project] = make_key(project, scopes=["work"], project=project)
            key = keys[project]
            worker = {
                "ojs": lambda: protocol_clients.OJSWorker(worker_id, key),
                "flare": lambda: protocol_clients.FlareWorker(worker_id, key),
                "agq": lambda: protocol_clients.AGQWorker(worker_id, ports["agq"], key),
                "rota": lambda: protocol_clients.RotaWorker(worker_id, ports["rota"], loop, key),
            }[protocol]()
            stack.callback(worker.close)
            worker.register()
            return worker

        yield begin


def job_of(project: str) -> str:
    options = {"type": protocol_clients.TYPE, "queue": protocol_clients.QUEUE}
    return str(JobFactory(project=project, args=[project], **options).pk)


def holders() -> dict[str, str]:
    return dict(Job.objects.filter(state=State.ACTIVE).values_list("project", "reserved_by"))


def records() -> dict[str, tuple[str, str, str]]:
    """Project → stored id, protocol and state of its worker."""
    return {
        project: (name, protocol, state)
        for project, name, protocol, state in Worker.objects.values_list(
            "project", "worker_id", "protocol", "state"
        )
    }


def silence(project: str) -> None:
    """Make its worker's last sign of life older than its timeout."""
    long_ago = ago(1) - F("heartbeat_timeout")
    assert Worker.objects.filter(project=project).update(last_heartbeat_at=long_ago)


@pytest.mark.parametrize("second", PROTOCOLS)
@pytest.mark.parametrize("first", PROTOCOLS)
def test_workers_of_two_projects_live_beside_each_other_under_one_id(hire, first, second):
    crew = {FIRST: hire(first, FIRST), SECOND: hire(second, SECOND)}
    jobs = {project: job_of(project) for project in crew}

    given = {project: worker.claim() for project, worker in crew.items()}
    held = holders()
    for project, worker in crew.items():
        assert worker.still_holds(jobs[project])
        assert worker.progress(jobs[project], 0.5)

    assert {project: job.id for project, job in given.items()} == jobs
    assert {project: job.args for project, job in given.items()} == {
        project: [project] for project in crew
    }
    assert held == NAMES
    assert {project: name for project, (name, *_) in records().items()} == NAMES
    assert {protocol for _, protocol, _ in records().values()} == {first, second}
    assert all(crew[project].complete(jobs[project]) for project in crew)


@pytest.mark.parametrize("starting", [FIRST, SECOND])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_new_process_of_one_takes_nothing_from_the_other(hire, protocol, starting):
    crew = {project: hire(protocol, project) for project in NAMES}
    jobs = {project: job_of(project) for project in crew}
    for worker in crew.values():
        worker.claim()
    (other,) = NAMES.keys() - {starting}

    crew[starting].close()
    hire(protocol, starting)

    assert crew[other].still_holds(jobs[other])
    assert crew[other].complete(jobs[other])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_reports_on_the_jobs_of_its_own_project_alone(hire, protocol):
    crew = {project: hire(protocol, project) for project in NAMES}
    jobs = {project: job_of(project) for project in crew}
    for worker in crew.values():
        worker.claim()

    for project, other in ((FIRST, SECOND), (SECOND, FIRST)):
        for report in ("complete", "still_holds"):
            # Refused, or not found, in the protocol's own form.
            with contextlib.suppress(AssertionError):
                assert not getattr(crew[project], report)(jobs[other])
    assert holders() == NAMES, "nothing has changed"
    assert crew[FIRST].complete(jobs[FIRST])
    assert crew[SECOND].fail(jobs[SECOND], "SMTPError")

    done, failed = (Job.objects.get(pk=jobs[project]) for project in (FIRST, SECOND))
    assert (done.state, done.finished_by) == (State.COMPLETED, NAMES[FIRST])
    assert (failed.state, failed.errors.get().worker_id) == (State.RETRYABLE, NAMES[SECOND])


@pytest.mark.parametrize("dying", [FIRST, SECOND])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_death_of_one_is_nothing_to_the_other_and_it_may_return(hire, protocol, dying):
    crew = {project: hire(protocol, project) for project in NAMES}
    jobs = {project: job_of(project) for project in crew}
    for worker in crew.values():
        worker.claim()
    (living,) = NAMES.keys() - {dying}

    silence(dying)
    reaper.sweep()
    after_death = holders()
    states = {project: state for project, (_, _, state) in records().items()}
    assert crew[living].still_holds(jobs[living])
    heir = hire(protocol, dying)
    again = heir.claim()
    assert heir.complete(again.id)

    assert states == {dying: "terminated", living: "running"}
    assert after_death == {living: NAMES[living]}
    assert (again.id, again.attempt) == (jobs[dying], 2)
    assert Job.objects.get(pk=jobs[dying]).errors.get().worker_id == NAMES[dying]
    assert crew[living].complete(jobs[living])
    assert {name for name, _, state in records().values() if state == "running"} == set(
        NAMES.values()
    )


@pytest.mark.parametrize("second", PROTOCOLS)
@pytest.mark.parametrize("first", PROTOCOLS)
def test_an_id_whose_worker_is_dead_can_be_used_by_another_project_and_kept(hire, first, second):
    hire(first, FIRST).close()
    silence(FIRST)
    reaper.sweep()

    newcomer = hire(second, SECOND)
    returned = hire(first, FIRST)
    for project, worker in ((FIRST, returned), (SECOND, newcomer)):
        job_id = job_of(project)
        assert worker.claim().id == job_id
        assert worker.complete(job_id)

    assert records() == {
        FIRST: (NAMES[FIRST], first, "running"),
        SECOND: (NAMES[SECOND], second, "running"),
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_project_that_is_alone_with_an_id_has_it_as_it_is(hire, protocol):
    hire(protocol, FIRST)

    assert records() == {FIRST: (ID, protocol, "running")}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_worker_may_call_itself_as_another_one_is_stored(hire, protocol):
    with pytest.raises(Exception, match=r"must not contain|Invalid worker ID"):
        hire(protocol, FIRST, NAMES[SECOND])

    assert not Worker.objects.exists()

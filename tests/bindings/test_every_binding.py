"""The same scenario over all four protocols, and between each pair of them.

The servers of AGQ and Rota are real processes, those of OJS and Flare answer in this one.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta

import pytest

pytest.importorskip("redis")
pytest.importorskip("websockets")

from django.contrib.admin.utils import quote
from django.db.models import F
from django.urls import reverse
from django.utils import timezone

from jobs import engine
from jobs.models import Job, RefusedFinish
from jobs.spec.lifecycle import State
from tests import operators, protocol_clients
from tests.bindings.listening import agq_and_rota, loop_in_thread
from tests.factories import ago
from tests.ojs_client import OJSClient
from workers.chores import reaper
from workers.models import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

WORKER = "ojs_workers_worker"
PROTOCOLS = protocol_clients.PROTOCOLS
protocols = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture(scope="module")
def ports(django_db_setup, tmp_path_factory):
    """Ports of the servers of AGQ and Rota."""
    with agq_and_rota(tmp_path_factory.mktemp("servers"), ALLOW_ANONYMOUS=1) as ports:
        yield ports


@pytest.fixture(scope="module")
def loop():
    """The event loop of the connections of Rota workers."""
    with loop_in_thread() as loop:
        yield loop


@pytest.fixture
def hire(ports, loop, transactional_db, settings):
    """Returns a function that registers a worker: `hire("agq", "worker-2")`."""
    settings.OJS = {"ALLOW_ANONYMOUS": True, "FLARE": {"ENABLED": True}}
    engine.register_specs(protocol_clients.SPECS)
    with contextlib.ExitStack() as stack:

        def begin(protocol, name="worker"):
            worker_id = f"{name}-{protocol}"
            worker = {
                "ojs": lambda: protocol_clients.OJSWorker(worker_id),
                "flare": lambda: protocol_clients.FlareWorker(worker_id),
                "agq": lambda: protocol_clients.AGQWorker(worker_id, ports["agq"]),
                "rota": lambda: protocol_clients.RotaWorker(worker_id, ports["rota"], loop),
            }[protocol]()
            stack.callback(worker.close)
            worker.register()
            return worker

        yield begin


def enqueue(**options):
    return str(
        protocol_clients.jobs.enqueue(
            protocol_clients.TYPE, [1], queue=protocol_clients.QUEUE, **options
        ).id
    )


def row(job_id):
    return Job.objects.get(pk=job_id)


def is_silenced(worker):
    """Make its last sign of life older than its timeout."""
    long_ago = ago(1) - F("heartbeat_timeout")
    assert Worker.objects.filter(pk=worker.id).update(last_heartbeat_at=long_ago)


# Each protocol


@protocols
def test_a_worker_is_given_a_job_reports_on_it_and_completes_it(hire, protocol):
    worker = hire(protocol)
    job_id = enqueue()

    given = worker.claim()
    held = row(job_id)
    assert worker.progress(job_id, 0.5)
    shown = OJSClient().see(f"jobs/{job_id}/progress").json()
    assert worker.complete(job_id)

    assert (given.id, given.args, given.attempt) == (job_id, [1], 1)
    assert (held.state, held.reserved_by) == (State.ACTIVE, worker.id)
    assert shown["progress"] == 0.5
    done = row(job_id)
    assert (done.state, done.finished_by, done.unfenced) == (State.COMPLETED, worker.id, False)
    known = Worker.objects.get()
    assert (known.worker_id, known.protocol, known.state) == (worker.id, protocol, "running")
    assert not worker.complete(job_id), "once is enough"


@protocols
def test_what_failed_is_tried_again_and_what_fails_for_good_is_dead(hire, protocol):
    worker = hire(protocol)
    job_id = enqueue(retry={"max_attempts": 2, "initial_interval": "PT1H", "max_interval": "PT1H"})

    worker.claim()
    assert worker.fail(job_id, "SMTPError")
    first = row(job_id)
    assert worker.is_given_nothing()
    Job.objects.update(scheduled_at=ago(1))
    again = worker.claim()
    assert worker.fail(job_id, "SMTPError")

    assert first.state == State.RETRYABLE
    assert (again.id, again.attempt) == (job_id, 2)
    last = row(job_id)
    assert (last.state, last.dead_letter) == (State.DISCARDED, True)
    errors = list(last.errors.order_by("id").values_list("attempt", "type", "worker_id"))
    assert errors == [(1, "SMTPError", worker.id), (2, "SMTPError", worker.id)]


@protocols
def test_no_failure_is_refused_for_the_text_of_its_error(hire, protocol):
    worker = hire(protocol)
    job_id = enqueue(retry={"max_attempts": 9, "initial_interval": "PT1H", "max_interval": "PT1H"})
    texts = {"\0 \ud83d ü😀": r"\x00 \ud83d ü😀", "x" * 2**21: "x" * 2**20}

    for text in texts:
        Job.objects.update(scheduled_at=ago(1))
        worker.claim()
        assert worker.fail(job_id, text, text)
        assert row(job_id).state == State.RETRYABLE

    errors = row(job_id).errors.order_by("id").values_list("type", "message")
    assert list(errors) == [(text[:255], text) for text in texts.values()]


def test_details_of_a_failure_over_agq_have_the_limit_of_all_protocols(hire):
    worker = hire("agq")
    job_id = enqueue()
    worker.claim()

    assert worker._update(job_id, status="failed", error="m", task_results=["y" * 30] * 100_000)

    assert list(row(job_id).errors.get().details) == ["omitted"]


@protocols
def test_a_job_that_takes_too_long_is_taken_back_from_a_worker_that_lives(hire, protocol):
    worker = hire(protocol)
    job_id = enqueue()
    worker.claim()

    Job.objects.update(reserved_until=ago(1))
    reaper.sweep()

    assert not worker.still_holds(job_id)
    assert not worker.complete(job_id)
    again = worker.claim()
    assert (again.id, again.attempt) == (job_id, 2)
    assert row(job_id).errors.get().type == "visibility_timeout"
    assert worker.complete(job_id)


@protocols
def test_a_job_is_kept_by_saying_that_it_is_being_run(hire, protocol):
    worker = hire(protocol)
    job_id = enqueue()
    worker.claim()
    Job.objects.update(reserved_until=timezone.now() + timedelta(seconds=5))

    assert worker.still_holds(job_id)

    assert row(job_id).reserved_until > timezone.now() + timedelta(seconds=30)


@protocols
def test_a_worker_learns_that_its_job_was_cancelled(hire, protocol):
    worker = hire(protocol)
    job_id = enqueue()
    worker.claim()

    OJSClient().send(f"jobs/{job_id}/cancel")

    assert not worker.still_holds(job_id)
    assert not worker.complete(job_id)
    assert row(job_id).state == State.CANCELLED


@protocols
def test_quiet_is_honoured_until_it_is_taken_back(hire, protocol):
    worker = hire(protocol)
    inherited = enqueue()
    worker.claim()
    known = Worker.objects.get()
    ops = operators.operator()

    operators.confirm(ops, WORKER, "quiet", known)
    waiting = enqueue()
    assert worker.is_given_nothing()
    if worker.hears_directives:
        assert worker.directive() == "quiet"
    assert worker.still_holds(inherited) and worker.complete(inherited), "it may finish"
    page = ops.get(reverse(f"admin:{WORKER}_change", args=[quote(worker.id)])).content.decode()
    operators.confirm(ops, WORKER, "resume", known)

    assert ("quiet is enforced at fetch" in page) != worker.hears_directives
    assert worker.claim().id == waiting


@protocols
def test_a_worker_with_the_directive_terminate_gets_no_jobs(hire, protocol):
    worker = hire(protocol)
    enqueue()

    operators.confirm(operators.operator(), WORKER, "terminate", Worker.objects.get())

    assert worker.is_given_nothing()
    if worker.hears_directives:
        assert worker.directive() == "terminate"


def test_all_stand_in_one_list_and_one_button_quiets_them(hire):
    crew = [hire(protocol) for protocol in PROTOCOLS]
    ops = operators.operator()

    page = ops.get(operators.list_of(WORKER)).content.decode()
    operators.confirm(ops, WORKER, "quiet", *Worker.objects.all())
    job_id = enqueue()

    for worker in crew:
        assert worker.id in page
        assert worker.is_given_nothing(), worker.protocol
    assert row(job_id).state == State.AVAILABLE


# Each pair


@pytest.mark.parametrize("runner", PROTOCOLS)
@pytest.mark.parametrize("producer", protocol_clients.PRODUCERS)
def test_what_one_enqueues_another_runs(hire, ports, producer, runner):
    worker = hire(runner)

    job = protocol_clients.PRODUCERS[producer](ports["agq"])
    given = worker.claim()
    assert worker.complete(job.id)

    assert (given.id, given.args) == (job.id, job.args)
    assert job.ended()


@pytest.mark.parametrize("heir", PROTOCOLS)
@pytest.mark.parametrize("silent", PROTOCOLS)
def test_the_job_of_a_silent_worker_goes_to_another_and_stays_there(hire, silent, heir):
    """Split brain: the worker declared dead continues, and may no longer touch the job."""
    first, second = hire(silent, "first"), hire(heir, "second")
    job_id = enqueue()
    first.claim()
    assert not second.complete(job_id), "it is not its own"
    assert not second.still_holds(job_id)

    is_silenced(first)
    reaper.sweep()
    gone = Worker.objects.get(pk=first.id)
    again = second.claim()
    refused = (
        first.still_holds(job_id),
        first.complete(job_id),
        first.fail(job_id, "SMTPError"),
    )
    held = row(job_id)
    assert second.complete(job_id)

    assert gone.state == "terminated" and gone.died_at is not None
    assert (again.id, again.attempt) == (job_id, 2)
    assert refused == (False, False, False)
    assert (held.state, held.reserved_by) == (State.ACTIVE, second.id)
    done = row(job_id)
    assert (done.state, done.attempt, done.finished_by) == (State.COMPLETED, 2, second.id)
    assert [(error.attempt, error.type) for error in done.errors.all()] == [(1, "worker_death")]
    late = RefusedFinish.objects.filter(worker_id=first.id).order_by("id")
    assert [record.operation for record in late] == ["ack", "fail"]


@pytest.mark.parametrize("protocol", ["ojs", "flare"])
def test_a_worker_that_was_taken_for_dead_is_alive_by_asking_for_work(hire, protocol):
    worker = hire(protocol, "w")
    is_silenced(worker)
    reaper.sweep()
    job_id = enqueue()

    assert worker.claim().id == job_id

    assert Worker.objects.get(pk=worker.id).state == "running"

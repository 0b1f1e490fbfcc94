"""`runjobworker` as real processes that get real signals: §2, §4.6, §7, §8, §9 and §10.4.

Each rule of the worker's side holds for a worker inside a site and for one over HTTP.
"""

from __future__ import annotations

import contextlib
import signal
from typing import Any

import pytest

import jobs
from jobs import engine
from jobs.models import Job, RefusedFinish
from tests.database import atomic, connection
from tests.factories import ago
from tests.processes import eventually, free_port
from tests.workers.site import Shop, becomes, ends_with, state_of, tell, worker_becomes
from workers.lifecycle import WorkerState
from workers.models import Worker

pytestmark = [pytest.mark.slow]


@pytest.fixture
def shop(either_shop: Shop) -> Shop:
    return either_shop


def errors_of(job: Any) -> list[str]:
    return [error.type for error in Job.objects.get(pk=job.id).errors.all()]


# Registering, running, leaving


def test_a_worker_registers_works_and_leaves(shop):
    made = jobs.enqueue("shop.echo", [1, "two"], meta={"tenant": "acme"}, queue="mail")
    with shop.worker("--queues", "mail,default", "--labels", "blue,gpu") as started:
        becomes(made, "completed")
        worker = worker_becomes("running")
        assert (worker.queues, worker.labels) == (["mail", "default"], ["blue", "gpu"])
        assert (worker.pid, worker.concurrency) == (started.process.pid, 10)
        assert worker.registered_at and worker.started_at and worker.hostname
        assert worker.version.startswith("django-ojs/")

        assert started.terminate() == 0

    job = Job.objects.get()
    assert job.result == {"args": [1, "two"], "meta": {"tenant": "acme"}, "attempt": 1}
    assert job.finished_by == worker.pk
    worker.refresh_from_db()
    assert worker.state == "terminated" and worker.left_at


def test_heartbeats_name_every_active_job_however_busy_the_handlers_are(shop):
    spins = [jobs.enqueue("shop.spin", [f"spin{n}"]) for n in range(4)]
    working = jobs.enqueue("shop.work", ["work"])
    with shop.worker():
        shop.wait_for("spin0.began", "spin1.began", "spin2.began", "spin3.began", "work.began")

        def reported():
            wanted = {str(job.id) for job in [*spins, working]}
            return set(Worker.objects.get().active_job_ids) == wanted

        eventually(reported)
        sequence = Worker.objects.get().sequence
        eventually(lambda: Worker.objects.get().sequence > sequence + 3)
        shop.go("spin0", "spin1", "spin2", "spin3", "work")
        becomes(spins[3], "completed")
        eventually(lambda: Worker.objects.get().active_job_ids == [])


def test_a_handler_that_holds_the_interpreter_costs_no_job(shop):
    """As C code may, for many heartbeat intervals: the worker is late, but nothing more happens."""
    made = jobs.enqueue("shop.hold", ["hold"])
    with shop.worker() as started:
        assert shop.wait_for("hold.ended") == ""
        becomes(made, "completed")
        sequence = Worker.objects.get().sequence or 0
        eventually(lambda: (Worker.objects.get().sequence or 0) > sequence + 1)
        assert (Job.objects.get().attempt, worker_becomes("running").left_at) == (1, None)
        assert "was refused" not in started.output


def test_a_worker_that_was_forgotten_is_there_again_with_all_it_said(shop):
    with shop.worker("--labels", "blue"):
        worker_becomes("running")
        Worker.objects.all().delete()

        assert worker_becomes("running").labels == ["blue"]


def test_a_worker_started_before_its_server_waits_for_it(tmp_path, database_url):
    shop = Shop(tmp_path, database_url, "http")
    port = free_port()
    shop.url = f"http://127.0.0.1:{port}"
    made = jobs.enqueue("shop.echo")
    with shop.starting() as started:
        started.wait_for("The server is unavailable")
        with shop.server(port):
            becomes(made, "completed")
            assert started.terminate() == 0


# Never more than its concurrency (§8.2)


def test_no_more_jobs_are_active_than_the_concurrency(shop):
    made = [jobs.enqueue("shop.work", [f"job{n}"]) for n in range(4)]
    with shop.worker("--concurrency", "2"):
        shop.wait_for("job0.began", "job1.began")
        sequence = worker_becomes("running").sequence or 0
        eventually(lambda: (Worker.objects.get().sequence or 0) > sequence + 2)
        assert [state_of(job) for job in made] == ["active"] * 2 + ["available"] * 2

        shop.go("job0")
        shop.wait_for("job2.began")
        assert state_of(made[3]) == "available"
        shop.go("job1", "job2", "job3")
        becomes(made[3], "completed")


def test_no_job_waits_behind_another_that_takes_its_time(shop):
    """Short jobs share a thread; a job that turns out to be long gets its own."""
    names = [f"job{n}" for n in range(10)]
    small, long = {"type": "shop.noop"}, [{"type": "shop.work", "args": [name]} for name in names]
    jobs.enqueue_many([*long[:1], *([small] * 3), *long[1:5], *([small] * 20), *long[5:]])
    with shop.worker():
        shop.wait_for(*[f"{name}.began" for name in names])
        eventually(lambda: Job.objects.filter(state="completed").count() == 23)
        shop.go(*names)
        eventually(lambda: Job.objects.filter(state="completed").count() == 33)


def test_a_type_may_have_a_limit_of_its_own(shop):
    made = [jobs.enqueue("shop.scarce", [f"scarce{n}"]) for n in range(3)]
    other = jobs.enqueue("shop.echo")
    with shop.worker():
        becomes(other, "completed")
        shop.wait_for("scarce0.began", "scarce1.began")
        assert not shop.has("scarce2.began")
        shop.go("scarce0", "scarce1", "scarce2")
        for job in made:
            becomes(job, "completed")
    assert {job.attempt for job in Job.objects.all()} == {1}, "giving back costs no attempt"


# Signals (§9) and shutdown (§7)


def test_sigterm_lets_active_jobs_end_and_fetches_no_other(shop):
    active = jobs.enqueue("shop.work", ["active"])
    with shop.worker() as started:
        shop.wait_for("active.began")

        tell(started, signal.SIGTERM)
        worker_becomes("terminate")
        later = jobs.enqueue("shop.echo")
        shop.go("active")

        ends_with(started)
    assert (state_of(active), state_of(later)) == ("completed", "available")
    assert Worker.objects.get().left_at


def test_what_outlives_the_grace_period_is_failed_as_shutdown(shop):
    sync = jobs.enqueue("shop.work", ["sync"])
    patient = jobs.enqueue("shop.patient", ["patient"])
    slow = jobs.enqueue("shop.work_async", ["async"])
    with shop.worker("--grace-period", "0.5") as started:
        shop.wait_for("sync.began", "patient.began", "async.began")

        tell(started, signal.SIGTERM)

        ends_with(started)
    for job in (sync, patient, slow):
        assert (state_of(job), errors_of(job)) == ("retryable", ["shutdown"])
    assert shop.wait_for("patient.ended") == "shutdown"
    assert shop.wait_for("async.cancelled") == "shutdown"
    assert Worker.objects.get().left_at


def test_async_jobs_whose_threads_hang_do_not_keep_the_process(shop):
    names = [f"stuck{number}" for number in range(12)]
    stuck = [jobs.enqueue("shop.wait_in_thread", [name]) for name in names]
    middleware = '["jobs.middleware.RestoreContext", "jobs.middleware.LogExecution"]'
    arguments = ["--concurrency", "12", "--grace-period", "0.5"]
    with shop.worker(*arguments, EXECUTION_MIDDLEWARE=middleware) as started:
        shop.wait_for(*(f"{name}.began" for name in names))

        tell(started, signal.SIGTERM)

        ends_with(started)
    for job in stuck:
        assert (state_of(job), errors_of(job)) == ("retryable", ["shutdown"])


def test_sigtstp_quiets_and_sigcont_resumes(shop):
    active = jobs.enqueue("shop.work", ["active"])
    with shop.worker() as started:
        shop.wait_for("active.began")

        tell(started, signal.SIGTSTP)
        worker_becomes("quiet")
        waiting = jobs.enqueue("shop.echo")
        shop.go("active")
        becomes(active, "completed")
        sequence = Worker.objects.get().sequence
        eventually(lambda: Worker.objects.get().sequence > sequence + 2)
        assert state_of(waiting) == "available"

        tell(started, signal.SIGCONT)
        becomes(waiting, "completed")
        assert worker_becomes("running")
        tell(started, signal.SIGTSTP)
        worker_becomes("quiet")
        assert started.terminate() == 0


def test_nothing_leads_back_from_terminate(shop):
    jobs.enqueue("shop.work", ["active"])
    with shop.worker() as started:
        shop.wait_for("active.began")
        tell(started, signal.SIGTERM)
        worker_becomes("terminate")

        for number in (signal.SIGCONT, signal.SIGTSTP):
            tell(started, number)
        later = jobs.enqueue("shop.echo")
        sequence = Worker.objects.get().sequence
        eventually(lambda: Worker.objects.get().sequence > sequence + 2)
        assert Worker.objects.get().state == "terminate"
        shop.go("active")

        ends_with(started)
    assert state_of(later) == "available"


def test_one_sigint_ends_gracefully(shop):
    active = jobs.enqueue("shop.work", ["active"])
    with shop.worker() as started:
        shop.wait_for("active.began")

        tell(started, signal.SIGINT)
        worker_becomes("terminate")
        shop.go("active")

        ends_with(started)
    assert state_of(active) == "completed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_twice_a_worker_does_not_wait(shop, number):
    active = jobs.enqueue("shop.work", ["active"])
    with shop.worker("--grace-period", "3600") as started:
        shop.wait_for("active.began")

        tell(started, number)
        worker_becomes("terminate")
        tell(started, number)

        ends_with(started)
    assert (state_of(active), errors_of(active)) == ("retryable", ["shutdown"])


@pytest.mark.postgres
def test_asked_a_third_time_a_worker_exits_whatever_it_is_doing(tmp_path, database_url):
    shop = Shop(tmp_path, database_url)
    with shop.worker() as started, atomic():
        with connection.cursor() as cursor:
            # Nothing else helps: the worker waits for its database and cannot stop properly.
            cursor.execute("LOCK TABLE ojs_workers_worker, ojs_jobs_job")
        tell(started, signal.SIGTERM)
        started.wait_for("From running to terminate")
        # Two signals that the system does not merge into one.
        tell(started, signal.SIGINT)
        tell(started, signal.SIGTERM)
        assert started.wait() in (128 + signal.SIGINT, 128 + signal.SIGTERM)


# Directives (§4.4)


def test_the_server_quiets_resumes_and_terminates(shop):
    with shop.worker() as started:
        worker_becomes("running")
        Worker.objects.all().direct(WorkerState.QUIET)
        worker_becomes("quiet")
        waiting = jobs.enqueue("shop.echo")

        Worker.objects.all().resume()
        becomes(waiting, "completed")
        worker_becomes("running")

        Worker.objects.all().direct(WorkerState.TERMINATE)
        ends_with(started)
    assert Worker.objects.get().left_at


def test_the_server_cannot_resume_a_worker_that_quieted_itself(shop):
    with shop.worker() as started:
        tell(started, signal.SIGTSTP)
        worker_becomes("quiet")

        Worker.objects.update(directive="running")
        sequence = Worker.objects.get().sequence
        eventually(lambda: Worker.objects.get().sequence > sequence + 2)

        assert Worker.objects.get().state == "quiet"


# Lost reservations (§10.4) and servers that go away (§4.6)


def test_a_lost_reservation_reaches_the_handler_and_the_worker_goes_on(shop):
    made = jobs.enqueue("shop.patient", ["patient"])
    with shop.worker() as started:
        shop.wait_for("patient.began")
        Job.objects.update(queue="elsewhere")
        engine.reclaim(set(Job.objects.values_list("reserved_by", flat=True)))

        assert shop.wait_for("patient.ended") == "lost"
        started.wait_for("was refused")
        next_one = jobs.enqueue("shop.echo")
        becomes(next_one, "completed")
    assert (state_of(made), errors_of(made)) == ("available", ["worker_death"])
    assert RefusedFinish.objects.get().job_id == made.id


def test_a_handler_can_ask_whether_the_job_is_still_its_own(shop):
    jobs.enqueue("shop.beat", ["mine"])
    jobs.enqueue("shop.beat", ["lost"])
    with shop.worker(HEARTBEAT_INTERVAL=60, HEARTBEAT_TIMEOUT=600):
        shop.wait_for("mine.began", "lost.began")
        lost = Job.objects.filter(args=["lost"])
        # Together: a heartbeat in between would extend the reservation.
        with atomic():
            lost.update(queue="elsewhere", reserved_until=ago(1))
            engine.expire()

        assert shop.wait_for("lost.still_ours") == "False"
        shop.go("mine")
        assert shop.wait_for("mine.still_ours") == "True"


def test_work_that_ends_while_the_server_is_away_is_reported_when_it_is_back(
    tmp_path, database_url
):
    shop = Shop(tmp_path, database_url, "http")
    port = free_port()
    made = jobs.enqueue("shop.work", ["work"])
    with contextlib.ExitStack() as stack:
        with shop.server(port):
            started = stack.enter_context(shop.worker())
            shop.wait_for("work.began")
        started.wait_for("Heartbeat failed")
        shop.go("work")
        shop.wait_for("work.ended")
        started.wait_for("The server is unavailable")
        with shop.server(port):
            becomes(made, "completed")
            started.wait_for("Heartbeats are answered again")
            assert Job.objects.get().attempt == 1
            after = jobs.enqueue("shop.echo")
            becomes(after, "completed")
            assert started.terminate() == 0


@pytest.mark.postgres
def test_a_database_that_drops_all_connections_stops_no_worker(tmp_path, database_url):
    shop = Shop(tmp_path, database_url)
    made = jobs.enqueue("shop.work", ["work"])
    with shop.worker() as started:
        shop.wait_for("work.began")
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        shop.go("work")
        becomes(made, "completed")
        after = jobs.enqueue("shop.echo")
        becomes(after, "completed")
        assert started.terminate() == 0

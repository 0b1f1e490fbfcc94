"""Abilities of handlers, in real worker processes of a site."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.utils import timezone

import jobs
from jobs import engine
from jobs.models import Job
from jobs.spec.lifecycle import State
from jobs.spec.validation import new_job
from tests import shop as shop_app
from tests.once import once_is_enough
from tests.processes import eventually, free_port, running
from tests.workers.site import (
    LATER,
    Shop,
    becomes,
    burst,
    ends_with,
    reclaim_all,
    state_of,
    tell,
    the_error_of,
    worker_becomes,
)
from workers.models import Worker
from workers.runtime import handler

pytestmark = [once_is_enough, pytest.mark.slow]


def test_a_burst_runs_all_there_is_and_ends(either_shop):
    jobs.enqueue_many({"type": "shop.noop", "args": [n]} for n in range(250))

    burst(either_shop)

    assert set(Job.objects.values_list("state", flat=True)) == {"completed"}
    assert Worker.objects.get().left_at


def test_what_a_handler_raises_decides_what_follows(either_shop):
    made = {
        how: jobs.enqueue("shop.fail", [how], retry=LATER)
        for how in ("retry", "discard", "dead_letter", "snooze", "exit", "unjson", "crash")
    }
    unknown = jobs.enqueue("shop.nobody")

    output = burst(either_shop)

    found = {how: Job.objects.get(pk=job.id) for how, job in made.items()}
    states = {how: (job.state, job.dead_letter) for how, job in found.items()}
    assert states == {
        "retry": ("retryable", False),
        "discard": ("discarded", False),
        "dead_letter": ("discarded", True),
        "snooze": ("retryable", False),
        "exit": ("retryable", False),
        "unjson": ("discarded", True),
        "crash": ("retryable", False),
    }
    assert found["retry"].retry_delay.total_seconds() == 3600
    assert found["snooze"].retry_delay.total_seconds() == 3600
    assert found["snooze"].attempt_counted and not found["snooze"].errors.exists()
    assert the_error_of(made["exit"]).type == "SystemExit"
    assert the_error_of(made["unjson"]).type == "invalid_result"
    assert the_error_of(unknown).type == "handler_not_found"
    crash = the_error_of(made["crash"])
    assert (crash.type, crash.code) == ("ConnectionError", "handler_error")
    assert crash.message == "no route: crash"
    assert "tests/shop/handlers.py" in crash.backtrace[1]
    assert f"[shop.fail {made['crash'].id}] Attempt 1 of 3 failed: no route: crash" in output
    assert 'raise ConnectionError(f"no route: {how}")' in output, "and where"
    assert f"[shop.nobody {unknown.id}] This worker has no handler" in output
    assert f"[shop.fail {made['retry'].id}] Ended by Retry('busy')." in output


def test_no_handler_can_end_its_worker_or_leave_its_job_unsettled(either_shop):
    ways = ("illegible", "mute", "rude", "for ever", "cancelled", "just now", "large")
    made = [
        jobs.enqueue(type, [how], retry=LATER)
        for type in ("shop.fail", "shop.fail_async")
        for how in ways
    ]

    # More exceptions other than Exception than there are threads.
    burst(either_shop, "--concurrency", "1")

    found = [Job.objects.get(pk=job.id) for job in made]
    recorded = [
        (job.state, job.errors.count(), error.type, error.message[:20])
        for job in found
        for error in [job.errors.last()]
    ]
    expected = [
        ("retryable", 1, "FileNotFoundError", r"a\x00b \udcffxxxxxxx"),
        ("retryable", 1, "tests.shop.handlers.Mute", "<exception str() fai"),
        ("retryable", 1, "tests.shop.handlers.Rude", "<exception str() fai"),
        ("retryable", 1, "ValueError", "11574074 days, 1:46:"),
        ("retryable", 1, "asyncio.exceptions.CancelledError", ""),
        ("discarded", 3, "retry", "Retry"),
        ("discarded", 1, "invalid_result", "The result may have "),
    ]
    assert recorded == expected * 2
    assert all(job.dead_letter for job in found if job.state == "discarded")


def test_an_attempt_goes_on_where_the_last_one_stopped(either_shop):
    made = jobs.enqueue("shop.resume", ["resume"])
    with either_shop.worker():
        becomes(made, "completed")
    assert Job.objects.get(pk=made.id).result == [True, {"done": 1}, {"done": 2}]


def test_a_step_is_done_once_and_what_it_enqueues_is_a_child_of_its_job(shop):
    made = jobs.enqueue("shop.deliver", ["deliver"])
    with shop.worker():
        becomes(made, "completed")
    child = Job.objects.get(type="shop.noop")
    assert Job.objects.get(pk=made.id).result == [str(child.pk), "sent"]
    assert child.attributes == {"parent_id": str(made.id), "root_id": str(made.id)}


def test_progress_is_there_to_be_seen_while_the_job_runs(either_shop):
    made = jobs.enqueue("shop.advance", ["advance"])
    with either_shop.worker():
        eventually(lambda: engine.progress_of(made.id).value == 1.0)
        assert engine.progress_of(made.id).data["message"] == r"page 100 of a\udcff"
        assert state_of(made) == "active"
        either_shop.go("advance")
        becomes(made, "completed")


def test_a_job_is_given_the_results_of_the_jobs_it_waited_for(shop):
    first = jobs.enqueue("shop.echo", [1])
    now = timezone.now()
    waiter = new_job({"type": "shop.parents", "args": []}, now)
    engine.enqueue_after([waiter], {waiter.id: [first.id]})
    with shop.worker():
        becomes(waiter, "completed")
    assert Job.objects.get(pk=waiter.id).result == [Job.objects.get(pk=first.id).result]


def test_a_checkpoint_of_a_lost_job_raises_in_its_handler(either_shop):
    made = jobs.enqueue("shop.resume_on_cue", ["late"])
    with either_shop.worker(HEARTBEAT_INTERVAL=60, HEARTBEAT_TIMEOUT=600):
        either_shop.wait_for("late.began")
        Job.objects.update(queue="elsewhere")
        reclaim_all()
        either_shop.go("late")
        assert either_shop.wait_for("late.ended") == "lost"
    assert engine.find_checkpoint(made.id) is None


@pytest.mark.parametrize("kind", ["shop.hurried", "shop.hurried_async"])
def test_a_handler_that_takes_too_long_is_interrupted_and_its_place_is_free(either_shop, kind):
    made = jobs.enqueue(kind, ["late"], retry=LATER)
    with either_shop.worker("--concurrency", "1"):
        assert either_shop.wait_for("late.ended") == "timeout"
        becomes(made, "retryable")
        after = jobs.enqueue("shop.echo")
        becomes(after, "completed")
    assert the_error_of(made).type == "timeout"


def test_a_job_may_bring_a_shorter_timeout(shop):
    made = jobs.enqueue("shop.work", ["late"], timeout=0.2, retry=LATER)
    with shop.worker():
        becomes(made, "retryable")
    assert the_error_of(made).type == "timeout"


def test_a_worker_can_leave_unknown_types_to_others(either_shop):
    unknown, known = jobs.enqueue("shop.nobody"), jobs.enqueue("shop.echo")

    burst(either_shop, "--known-types")

    assert (state_of(unknown), state_of(known)) == ("available", "completed")


# Django tasks


def test_a_django_task_runs_in_a_worker(shop, settings):
    settings.TASKS = shop_app.TASKS
    from tests.shop import tasks

    result = tasks.add.enqueue(1, right=2)
    slow = tasks.add_slowly.enqueue(3, 4)
    from_go = jobs.enqueue("invoice.send", [{"order": 9}])

    burst(shop)

    result.refresh()
    slow.refresh()
    assert (result.return_value, slow.return_value) == (3, 7)
    assert result.worker_ids == [Worker.objects.get().pk]
    assert Job.objects.get(pk=from_go.id).result == {"order": 9, "copy_to": ""}


def test_a_django_task_has_a_limit_and_a_time_of_its_own(shop, settings):
    settings.TASKS = shop_app.TASKS
    from tests.shop import tasks

    late = [tasks.hurried.enqueue("late"), tasks.hurried_async.enqueue("late")]
    scarce = [tasks.scarce.enqueue(f"scarce{n}") for n in range(2)]
    with shop.worker():
        for result in late:
            becomes(result, "retryable")
        shop.wait_for("scarce0.began")
        assert not shop.has("scarce1.began")
        shop.go("scarce0", "scarce1")
        for result in scarce:
            becomes(result, "completed")
    assert {the_error_of(result).type for result in late} == {"timeout"}


# Several processes


def test_a_supervisor_restarts_crashed_children_and_ends_all_on_a_signal(shop):
    made = jobs.enqueue("shop.die", ["crash"])
    with shop.worker("--processes", "2") as started:
        died = shop.wait_for("crash.died")
        eventually(lambda: Worker.objects.count() == 3)
        reclaim_all()
        becomes(made, "completed")
        assert shop.wait_for("crash.ended") not in (died, str(started.process.pid))

        # Ctrl-C reaches the whole foreground group; each child gets it only once.
        os.killpg(started.process.pid, signal.SIGINT)
        ends_with(started)
    assert Worker.objects.filter(left_at__isnull=True).count() == 1, "the one that crashed"


def test_children_end_with_their_supervisor(shop):
    jobs.enqueue("shop.work", ["work"])
    with shop.worker("--processes", "2", "--grace-period", "0") as started:
        shop.wait_for("work.began")
        eventually(lambda: Worker.objects.count() == 2)
        tell(started, signal.SIGKILL)
        eventually(lambda: Worker.objects.filter(left_at__isnull=False).count() == 2)
    assert Job.objects.get().state == State.RETRYABLE


def test_signals_reach_all_children(shop):
    with shop.worker("--processes", "2") as started:
        eventually(lambda: Worker.objects.filter(state="running").count() == 2)
        tell(started, signal.SIGTSTP)
        eventually(lambda: Worker.objects.filter(state="quiet").count() == 2)
        tell(started, signal.SIGCONT)
        eventually(lambda: Worker.objects.filter(state="running").count() == 2)
        assert started.terminate() == 0


def test_a_process_that_takes_too_much_memory_drains_and_another_takes_over(shop):
    jobs.enqueue("shop.grow", ["grow", 400])
    working = jobs.enqueue("shop.work", ["work"])
    with shop.worker("--processes", "1", "--max-memory", "300") as started:
        shop.wait_for("grow.began", "work.began")
        started.wait_for("its memory limit")
        shop.go("work")
        ends_with(started, 75)
    assert state_of(working) == "completed"


def test_a_supervisor_replaces_a_process_at_its_memory_limit(shop):
    jobs.enqueue("shop.grow", ["grow", 400])
    with shop.worker("--processes", "2", "--max-memory", "300") as started:
        first = shop.wait_for("grow.began")
        eventually(lambda: Worker.objects.filter(left_at__isnull=False).exists())
        eventually(lambda: Worker.objects.filter(left_at__isnull=True).count() == 2)
        assert str(Worker.objects.get(left_at__isnull=False).pid) == first
        assert started.terminate() == 0


# Refusals


@pytest.mark.parametrize(
    ("register", "problem"),
    [
        (lambda: handler(len), "requires the type of its jobs"),
        (lambda: handler("Not A Type"), "is not a job type"),
        (lambda: handler("shop.wrong")("text"), "is no function"),
        (lambda: handler("shop.wrong", timeout="5")(len), "must be seconds or a timedelta"),
        (lambda: handler("shop.wrong", versions=None)(len), "no range of versions"),
    ],
)
def test_a_handler_that_cannot_be_is_refused_at_once(register, problem):
    with pytest.raises(ImproperlyConfigured, match=problem):
        register()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--queues", ""], "at least one queue"),
        (["--queues", "Not A Queue"], "not a queue name"),
        (["--queues", "a" * 129], "not a queue name"),
        (["--queues", "Not A Queue", "--queues", "mail"], "not a queue name"),
        (["--concurrency", "-1"], "--concurrency must be positive, not -1"),
        (["--concurrency", "0"], "--concurrency must be positive, not 0"),
        (["--max-memory", "-1"], "--max-memory must be positive"),
        (["--grace-period", "nan"], "--grace-period must be positive"),
        (["--labels", "a" * 256], "255 characters"),
        (["--url", "ftp://jobs.example.com"], "not an address"),
        (["--url", "http://jobs.example.com:99999"], "Port out of range"),
        (["--url", "http://[::1"], "IPv6"),
        (["--processes", "2", "--worker-id", "w"], "for a single process"),
        (["--worker-id", "acme@/w"], "must not contain '@/'"),
        (["--alive-file", "/nowhere/alive"], "No such file or directory"),
    ],
)
def test_the_command_line_is_checked(arguments, problem):
    """Before anything is started, so no database is needed."""
    with pytest.raises(CommandError, match=problem):
        call_command("runjobworker", *arguments)


def test_a_worker_with_a_wrong_key_ends_and_says_why(tmp_path, database_url):
    shop = Shop(tmp_path, database_url, "http")
    with (
        shop.server(free_port()),
        shop.starting("--api-key", "ojs_wrong") as started,
    ):
        ends_with(started, 1)
        assert "unknown or revoked" in started.output


def test_the_worker_of_a_site_says_it_is_running(shop):
    with shop.worker("--worker-id", "worker_of_mine"):
        assert worker_becomes("running").pk == "worker_of_mine"


EMBEDDING = """
import signal, sys, threading
import django
django.setup()
from workers.runtime.client import LocalClient
from workers.runtime.options import Options, new_worker_id
from workers.runtime.process import WorkerProcess

process = WorkerProcess(LocalClient(new_worker_id()), Options(queues=["embedded"], concurrency=4))
codes = []
thread = threading.Thread(target=lambda: codes.append(process.run()))
thread.start()
signal.sigwait({signal.SIGUSR1})
process.state.terminate("the application")
thread.join()
sys.exit(codes[0])
"""


def test_a_worker_can_be_embedded_in_a_thread_of_another_program(shop):
    """As in docs/worker.md: the program's signals remain its own, and it ends the worker."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # inherited, for it to wait on
    try:
        made = jobs.enqueue("shop.noop", queue="embedded")
        command = [sys.executable, "-c", EMBEDDING]
        with running(command, shop.folder / "embedding.log", shop.environment()) as program:
            becomes(made, "completed")
            assert worker_becomes("running").pid == program.process.pid

            tell(program, signal.SIGUSR1)
            ends_with(program)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    assert Worker.objects.get().left_at

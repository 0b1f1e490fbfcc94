"""Handlers and transactions, in real worker processes: effects that happen exactly once."""

from __future__ import annotations

import signal

import pytest
from django.contrib.auth.models import Group

import jobs
from jobs.models import Job
from tests import shop as shop_app
from tests.database import connection
from tests.processes import eventually, free_port
from tests.workers.site import (
    LATER,
    Shop,
    becomes,
    burst,
    ends_with,
    reclaim_all,
    state_of,
    the_error_of,
)

pytestmark = pytest.mark.slow


def test_a_handler_that_leaves_a_transaction_open_harms_no_other(shop):
    jobs.enqueue("shop.leave_transaction_open")
    with shop.worker("--concurrency", "1"):
        made = jobs.enqueue("shop.connections")
        becomes(made, "completed")
    assert Job.objects.get(pk=made.id).result == [False, True]
    assert not Group.objects.exists()


SHOP_WORKER = "worker of the shop"


@pytest.mark.postgres
def test_a_connection_that_shall_not_last_is_closed_when_its_job_ends(shop, monkeypatch):
    """`CONN_MAX_AGE = 0`, Django's default: only connections that fetch, beat and listen remain."""
    monkeypatch.setenv("SHOP_CONN_MAX_AGE", "0")
    monkeypatch.setenv("PGAPPNAME", SHOP_WORKER)
    made = [jobs.enqueue("shop.connections") for _ in range(20)]
    with shop.worker() as started:
        for job in made:
            becomes(job, "completed")
        eventually(lambda: connections_of_the_worker() == 3, lambda: started.output)


def connections_of_the_worker() -> int:
    # Not all there are: threads of earlier tests may keep some.
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = %s"
            # This process has that name, too, if it has connected again meanwhile.
            " AND pid <> pg_backend_pid()",
            [SHOP_WORKER],
        )
        (count,) = cursor.fetchone()
    return int(count)


@pytest.mark.one_database
def test_work_and_completion_are_one_transaction(shop):
    jobs.enqueue("shop.charge", ["once"])

    burst(shop)

    job = Job.objects.get()
    assert (job.state, job.result) == ("completed", "once")
    assert Group.objects.get().name == "once"


@pytest.mark.one_database
def test_a_failing_handler_leaves_no_effect(shop):
    made = jobs.enqueue("shop.charge", ["never", "fail"], retry=LATER)

    burst(shop)

    assert state_of(made) == "retryable"
    assert not Group.objects.exists()


@pytest.mark.one_database
def test_a_worker_that_is_killed_in_the_middle_leaves_no_effect_and_loses_no_job(shop):
    made = jobs.enqueue("shop.charge", ["once", "die"])
    with shop.starting("--burst") as started:
        ends_with(started, -signal.SIGKILL)
    assert not Group.objects.exists()

    reclaim_all()
    burst(shop)

    assert (state_of(made), Job.objects.get().attempt) == ("completed", 2)
    assert Group.objects.get().name == "once"


@pytest.mark.one_database
@pytest.mark.postgres
def test_a_lost_reservation_takes_the_work_back(shop):
    """Only if a second writer need not wait for the handler's transaction."""
    made = jobs.enqueue("shop.charge", ["lost", "wait"])
    with shop.worker() as started:
        shop.wait_for("lost.began")
        Job.objects.update(queue="elsewhere")
        reclaim_all()
        shop.go("lost")
        started.wait_for("was refused")
    assert state_of(made) == "available"
    assert not Group.objects.exists()


def test_such_a_handler_does_not_run_where_the_database_is_not(tmp_path, database_url):
    shop = Shop(tmp_path, database_url, "http")
    made = jobs.enqueue("shop.charge", ["never"])
    with shop.server(free_port()):
        burst(shop)
    assert the_error_of(made).type == "handler_needs_database"


@pytest.mark.one_database
def test_a_django_task_is_one_transaction_with_its_completion_if_it_asks_for_that(shop, settings):
    settings.TASKS = shop_app.TASKS
    from tests.shop import tasks

    paid = tasks.charge.enqueue("paid")
    declined = tasks.charge.enqueue("declined", "decline")

    burst(shop)

    paid.refresh()
    assert paid.return_value == "paid"
    assert Group.objects.get().name == "paid", "nothing is left of the one that failed"
    job = Job.objects.get(pk=declined.id)
    assert (job.state, job.max_attempts) == ("retryable", 2)

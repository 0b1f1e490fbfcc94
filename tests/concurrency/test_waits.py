"""What was read before waiting for a lock is read again after it.

PostgreSQL rereads a row for which it had to wait, and decides by the new version; but it keeps the
earlier result of a subquery.
"""

from __future__ import annotations

import pytest

from jobs.access.audit import Actor
from jobs.errors import Conflict
from jobs.http.authentication import caller_of, make_key
from jobs.models import ApiKey, Job
from jobs.spec.lifecycle import State
from tests.database import atomic
from tests.factories import JobFactory, WorkerFactory, ago
from workers import protocol
from workers.chores import reaper
from workers.fleet import drain, removal, rolling
from workers.lifecycle import WorkerState
from workers.models import Worker

from .threads import together, while_it_waits

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.postgres,
]

OPS = Actor("ops", "test")


def test_a_worker_resumed_while_a_rolling_drain_reaches_for_it_is_not_terminated():
    WorkerFactory(worker_id="w")
    drain.start(["w"], actor=OPS)
    rolling.drive()
    protocol.beat("w", state=WorkerState.QUIET)

    while_it_waits(lambda: Worker.objects.filter(pk="w").resume(), rolling.drive)

    assert Worker.objects.get().directive == WorkerState.RUNNING


def test_a_worker_whose_heartbeat_extends_its_late_job_is_not_flagged():
    WorkerFactory(worker_id="w")
    job = JobFactory(active=True, reserved_by="w", reserved_until=ago(1))

    while_it_waits(
        lambda: protocol.beat("w", active_job_ids=[str(job.pk)]), reaper.expire_reservations
    )

    assert Worker.objects.get().flagged_at is None
    assert Job.objects.get().state == State.ACTIVE


def test_a_dead_worker_that_returns_while_it_is_removed_is_alive_and_keeps_its_jobs():
    WorkerFactory(worker_id="w", dead=True)
    job = JobFactory(active=True, reserved_by="w")

    def remove() -> bool:
        try:
            removal.remove("w", actor=OPS)
        except Conflict:
            return False
        return True

    assert not while_it_waits(lambda: protocol.beat("w", active_job_ids=[str(job.pk)]), remove)
    assert Job.objects.get().state == State.ACTIVE
    assert Worker.objects.live().exists()


def test_no_request_waits_for_its_key_to_be_noted_as_used():
    """A row that is locked is skipped."""
    record, key = make_key("billing")

    with atomic():
        ApiKey.objects.select_for_update().get(pk=record.pk)
        (caller,) = together(lambda: caller_of(key))

    assert caller.name == "billing"
    record.refresh_from_db()
    assert record.last_used_at is None

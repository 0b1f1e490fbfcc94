"""The five timelines of the OJS worker protocol, §11, line by line over HTTP.

Time passes by moving every moment in the database into the past; a reaper runs after each step.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from jobs.models import Job
from workers.chores import reaper
from workers.lifecycle import WorkerState
from workers.models import Worker

pytestmark = pytest.mark.django_db


class Timeline:
    """§11's two columns: a worker that sends, and a backend that answers."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.now = 0

    def at(self, moment: int) -> None:
        """Let it be `T+moment` seconds."""
        passed = timedelta(seconds=moment - self.now)
        self.now = moment
        Worker.objects.update(last_heartbeat_at=F("last_heartbeat_at") - passed)
        Job.objects.active().update(
            started_at=F("started_at") - passed, reserved_until=F("reserved_until") - passed
        )
        reaper.sweep()

    def register(self) -> dict[str, Any]:
        return self._ask(
            "workers/register", hostname="web-1", pid=1, queues=["email"], concurrency=10
        )

    def fetch(self) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = self._ask("workers/fetch", queues=["email"])["jobs"]
        return jobs

    def beat(self, *jobs: str, state: str = "running") -> dict[str, Any]:
        return self._ask(
            "workers/heartbeat", state=state, active_jobs=len(jobs), active_job_ids=list(jobs)
        )

    def ack(self, job: str) -> str:
        return str(self._ask("workers/ack", job_id=job)["state"])

    def fail(self, job: str, **error: str) -> str:
        return str(self._ask("workers/nack", job_id=job, error=error)["state"])

    def deregister(self) -> bool:
        return bool(self._ask("workers/deregister")["ok"])

    def enqueued(self, count: int) -> list[str]:
        return [self.api.pushed(options={"queue": "email"}) for _ in range(count)]

    def holding(self, count: int) -> list[str]:
        """Ids of jobs that the worker got before the timeline begins."""
        self.register()
        jobs = self.enqueued(count)
        assert [self.fetch()[0]["id"] for _ in jobs] == jobs
        return jobs

    def job(self, job: str) -> dict[str, Any]:
        document: dict[str, Any] = self.api.job(job)
        return document

    def _ask(self, path: str, **body: Any) -> dict[str, Any]:
        reply = self.api.send(path, {"worker_id": "w", **body})
        assert reply.status_code == 200, reply.content
        document: dict[str, Any] = reply.json()
        return document


@pytest.fixture
def timeline(api) -> Timeline:
    return Timeline(api)


def test_11_1_normal_heartbeat_flow(timeline):
    job_1, job_2 = timeline.enqueued(2)

    timeline.at(0)
    registered = timeline.register()
    assert (registered["ok"], registered["heartbeat_interval"]) == (True, 5)
    assert Worker.objects.live().filter(pk="w").exists(), "store worker record"
    (fetched,) = timeline.fetch()
    assert (fetched["id"], fetched["state"]) == (job_1, "active")

    timeline.at(5)
    reply = timeline.beat(job_1)
    assert reply["state"] == "running"
    assert reply["server_time"].endswith("Z")

    timeline.at(8)
    assert timeline.ack(job_1) == "completed"

    timeline.at(10)
    assert timeline.beat()["state"] == "running"
    assert [job["id"] for job in timeline.fetch()] == [job_2]

    timeline.at(15)
    assert timeline.beat(job_2)["state"] == "running"
    assert (timeline.job(job_1)["state"], timeline.job(job_2)["state"]) == ("completed", "active")


def test_11_2_server_initiated_quiet_and_terminate(timeline):
    j1, j2, j3 = timeline.holding(3)
    timeline.enqueued(1)

    timeline.at(0)
    Worker.objects.filter(pk="w").direct(WorkerState.QUIET)  # deployment initiated
    assert timeline.beat(j1, j2, j3)["state"] == "quiet"
    assert timeline.fetch() == [], "even if it did not stop by itself"

    timeline.at(5)
    assert timeline.beat(j1, j2, j3, state="quiet")["state"] == "quiet", "keep quiet"

    timeline.at(8)
    assert timeline.ack(j1) == "completed"

    timeline.at(10)
    assert timeline.beat(j2, j3, state="quiet")["state"] == "quiet"

    timeline.at(12)
    assert timeline.ack(j2) == "completed"

    timeline.at(15)
    Worker.objects.filter(pk="w").direct(WorkerState.TERMINATE)  # all old workers are quiet
    assert timeline.beat(j3, state="quiet")["state"] == "terminate"

    timeline.at(18)
    assert timeline.ack(j3) == "completed"

    timeline.at(20)
    assert timeline.beat(state="terminate")["state"] == "terminate"
    assert timeline.deregister()
    assert not Worker.objects.live().exists(), "remove worker record"
    assert [timeline.job(job).get("errors") for job in (j1, j2, j3)] == [None, None, None]


def test_11_3_worker_crash_and_recovery(timeline):
    j1, j2 = timeline.holding(2)

    timeline.at(0)
    assert timeline.beat(j1, j2)["state"] == "running"

    timeline.at(3)  # the worker crashes

    for missed in (5, 10, 15, 20, 25):
        timeline.at(missed)
        assert Worker.objects.live().exists(), f"T+{missed}s is too early to give up on it"
        assert timeline.job(j1)["state"] == "active"

    timeline.at(30)
    assert not Worker.objects.live().exists(), "declared dead, and its record removed"
    for job in (j1, j2):
        recovered = timeline.job(job)
        assert recovered["state"] == "available"
        assert recovered["attempt"] == 2
        assert [error["type"] for error in recovered["errors"]] == ["worker_death"]


@pytest.mark.slow
def test_11_4_visibility_timeout_extension_for_a_long_running_job(timeline):
    (job_1,) = timeline.enqueued(1)
    timeline.register()

    def times_out_at() -> int:
        left = Job.objects.get(pk=job_1).reserved_until - timezone.now()
        return timeline.now + round(left.total_seconds())

    timeline.at(0)
    assert [job["id"] for job in timeline.fetch()] == [job_1]
    assert times_out_at() == pytest.approx(1800, abs=10)

    for moment in (5, 10):
        timeline.at(moment)
        assert timeline.beat(job_1)["jobs_extended"] == [job_1]
        assert times_out_at() == pytest.approx(moment + 1800, abs=10)

    for moment in range(35, 2400, 25):  # job continues processing, timeout keeps resetting
        timeline.at(moment)
        assert timeline.beat(job_1)["jobs_extended"] == [job_1]

    timeline.at(2400)
    timeline.beat(job_1)
    assert times_out_at() == pytest.approx(4200, abs=10)

    for moment in (2425, 2450, 2475, 2499):
        timeline.at(moment)
        timeline.beat(job_1)

    timeline.at(2500)
    assert timeline.ack(job_1) == "completed"
    done = timeline.job(job_1)
    assert (done["attempt"], done.get("errors")) == (1, None), "41 minutes, and never taken back"


def test_11_5_sigterm_graceful_shutdown(timeline):
    j1, j2, j3 = timeline.holding(3)
    timeline.enqueued(1)

    timeline.at(1)  # SIGTERM received: the worker stops fetching, 25 s of grace

    timeline.at(5)
    assert timeline.beat(j1, j2, j3, state="terminate")["state"] == "terminate"
    assert timeline.fetch() == [], "even if it did not stop by itself"

    timeline.at(8)
    assert timeline.ack(j1) == "completed"

    timeline.at(12)
    assert timeline.ack(j2) == "completed"

    timeline.at(15)
    assert timeline.beat(j3, state="terminate")["state"] == "terminate"

    timeline.at(26)  # the grace period expires
    assert timeline.fail(j3, type="shutdown", message="worker shutting down") == "retryable"
    retried = timeline.job(j3)
    assert retried["attempt"] == 1
    assert [error["type"] for error in retried["errors"]] == ["shutdown"]
    assert timeline.deregister()
    assert not Worker.objects.live().exists(), "remove worker record"

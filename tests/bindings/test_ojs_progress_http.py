"""Progress over HTTP (OJS progress)."""

from __future__ import annotations

from datetime import timedelta

import orjson
import pytest

from jobs import engine
from jobs.http import waiting
from jobs.models import Event, Job, ProgressReport
from jobs.spec.identifiers import uuid7
from tests.database import connection
from tests.factories import JobFactory, ago, ahead
from tests.ojs_client import refusal

pytestmark = pytest.mark.django_db


@pytest.fixture
def job():
    return JobFactory(active=True, reserved_by="w")


def report(api, job, **body):
    reply = api.put(f"/ojs/v1/jobs/{job.pk}/progress", data=body, content_type="application/json")
    assert reply.status_code == 200, reply.content
    return reply.json()


def test_progress_is_kept_and_returned_with_its_data(api, job):
    assert api.see(f"jobs/{job.pk}/progress").json() == {
        "job_id": str(job.pk),
        "state": "active",
        "progress": None,
        "data": None,
        "message": None,
        "updated_at": None,
    }

    report(api, job, progress=0.47, data={"rows": 14}, message="Half way")

    reply = api.see(f"jobs/{job.pk}/progress")
    told = reply.json()
    assert (told["progress"], told["data"], told["message"]) == (0.47, {"rows": 14}, "Half way")
    assert (reply.headers["X-OJS-Progress"], reply.headers["Cache-Control"]) == ("0.47", "no-cache")


@pytest.mark.parametrize(
    ("said", "kept"),
    [([1.5], 1.0), ([-3], 0.0), ([0.5, 0.3], 0.5), ([0.5, 0.7], 0.7), ([0.2, -1], 0.2)],
)
def test_progress_is_clamped_and_never_goes_down(api, job, said, kept):
    for value in said:
        told = report(api, job, progress=value)

    assert told["progress"] == kept


def test_data_alone_keeps_the_number_and_the_number_alone_keeps_the_data(api, job):
    report(api, job, progress=0.5)
    assert report(api, job, data={"at": 1})["progress"] == 0.5
    assert report(api, job, progress=0.6)["data"] == {"at": 1}


def test_a_report_restarts_the_visibility_timeout(api, job):
    Job.objects.update(reserved_until=ahead(1), reserved_for=timedelta(minutes=30))

    report(api, job, progress=0.1)

    assert Job.objects.get().reserved_until > ahead(1700)


def test_a_report_about_a_job_that_is_not_active_is_ignored_without_a_word(api):
    waiting = JobFactory()
    assert report(api, waiting, progress=0.5)["progress"] is None
    assert not ProgressReport.objects.exists()


def test_a_worker_that_lost_the_job_neither_reports_nor_holds_it_on(api, job):
    Job.objects.update(reserved_until=ago(1))
    assert report(api, job, progress=0.5, worker_id="other")["progress"] is None
    assert Job.objects.get().reserved_until < ahead(0)


def test_the_next_attempt_starts_afresh_and_a_failure_keeps_what_was_said(api):
    job_id = api.pushed(options={"retry": {"max_attempts": 2, "initial_interval_ms": 1}})
    job = Job.objects.get()
    api.fetch()
    report(api, job, progress=0.8)
    api.nack(job_id)
    assert api.see(f"jobs/{job_id}/progress").json()["progress"] == 0.8

    Job.objects.update(scheduled_at=ago(1))
    api.fetch()
    assert api.see(f"jobs/{job_id}/progress").json()["progress"] is None
    assert report(api, job, progress=0.1)["progress"] == 0.1
    api.ack(job_id)
    assert api.see(f"jobs/{job_id}/progress").json()["progress"] == 1.0


def test_many_reports_in_a_second_leave_one_event_and_the_last_value(api, job, monkeypatch):
    # An hour, because ten requests may take longer than a second.
    monkeypatch.setattr("jobs.engine.progress.EVENTS_EVERY", timedelta(hours=1))
    for step in range(10):
        report(api, job, progress=step / 10)
    assert Event.objects.filter(type="progress.updated").count() == 1
    assert ProgressReport.objects.get().value == 0.9

    ProgressReport.objects.update(told_at=ago(7200))
    report(api, job, progress=1)
    assert Event.objects.filter(type="progress.updated").count() == 2


def test_the_percentage_of_the_public_sdks(api, job):
    reply = api.send("workers/progress", {"job_id": str(job.pk), "percentage": 65})
    assert reply.json()["progress"] == 0.65


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "progress"),
        ({"progress": "half"}, "progress"),
        ({"progress": True}, "progress"),
        ({"data": [1]}, "data"),
        ({"data": {"x": "y" * 70_000}}, "data"),
        ({"progress": 1, "message": 5}, "message"),
    ],
)
def test_a_report_that_says_nothing_or_nonsense_is_refused(api, job, body, field):
    reply = api.send(f"jobs/{job.pk}/progress", body)
    assert refusal(reply)["details"].get("field", field) == field
    assert reply.status_code == 400


def test_progress_of_no_job_is_not_found(api):
    for reply in (
        api.see(f"jobs/{uuid7()}/progress"),
        api.send(f"jobs/{uuid7()}/progress", {"progress": 1}),
    ):
        assert reply.status_code == 404


def test_progress_goes_with_its_job(api, job, settings):
    settings.OJS = {**settings.OJS, "COMPLETED_RETENTION": 0}
    report(api, job, progress=0.5)
    api.ack(job.pk)

    assert engine.prune_jobs() == 1


def test_the_job_shows_its_progress(api, job):
    assert "progress" not in api.see(f"jobs/{job.pk}").json()["job"]

    report(api, job, progress=0.25, data={"rows": 1})

    shown = api.see(f"jobs/{job.pk}").json()["job"]
    assert (shown["progress"], shown["progress_data"]) == (0.25, {"rows": 1})
    assert api.ack(job.pk).status_code == 200
    assert api.see(f"jobs/{job.pk}").json()["job"]["progress"] == 1.0


def test_a_checkpoint_in_a_report_comes_with_the_next_attempt(api):
    job_id = api.pushed()
    api.fetch(worker_id="w")
    reported = {"progress": 0.7, "checkpoint": {"row": 70}, "worker_id": "w"}
    api.put(f"/ojs/v1/jobs/{job_id}/progress", reported, content_type="application/json")
    stranger = reported | {"checkpoint": {"row": 0}, "worker_id": "other"}
    api.put(f"/ojs/v1/jobs/{job_id}/progress", stranger, content_type="application/json")
    api.nack(job_id, worker_id="w", error={"code": "oops", "message": "no"})

    Job.objects.update(scheduled_at=ago(1))
    (again,) = api.fetch(worker_id="w")

    assert again["last_checkpoint"] == {"row": 70}


def follow(api, job):
    reply = api.see(f"jobs/{job.pk}/progress/stream")
    assert reply["Content-Type"] == "text/event-stream"
    blocks = (block.decode().strip() for block in reply.streaming_content)
    assert next(blocks).startswith("retry: ")
    for block in blocks:
        name, data = block.removeprefix("event: ").split("\ndata: ")
        yield name, orjson.loads(data)


def test_a_stream_tells_each_report_and_ends_with_the_job(api, job):
    """OJS progress §7.2."""
    report(api, job, progress=0.47, data={"rows": 14})
    events = follow(api, job)
    name, data = next(events)
    assert (name, data["progress"], data["data"]) == ("progress", 0.47, {"rows": 14})

    report(api, job, progress=0.52)
    assert next(events)[1]["progress"] == 0.52
    api.ack(job.pk, worker_id="w")

    name, data = next(events)
    assert (name, data["progress"], data["state"]) == ("completed", 1.0, "completed")
    assert list(events) == []


@pytest.mark.parametrize(("state", "event"), [("dead", "failed"), ("cancelled", "cancelled")])
def test_a_stream_tells_how_else_a_job_may_end(api, state, event):
    (told,) = follow(api, JobFactory(**{state: True}))

    assert told[0] == event


def test_there_is_no_stream_of_a_job_that_is_not_there(api):
    reply = api.see(f"jobs/{uuid7()}/progress/stream")

    assert reply.status_code == 404 and refusal(reply)["code"] == "not_found"


def test_beyond_the_waiters_there_may_be_a_stream_tells_how_it_stands(api, job, monkeypatch):
    monkeypatch.setattr(waiting, "PLACES", 0)
    report(api, job, progress=0.5)

    assert [name for name, _ in follow(api, job)] == ["progress"]


BEFORE = "attempt, value, data, message, checkpoint, updated_at, told_at"
"""The columns that servers of the previous release use."""


def test_servers_of_the_release_before_write_reports_that_are_read(api, job):
    key = job.pk.hex if connection.vendor == "sqlite" else job.pk
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO ojs_jobs_progressreport (job_id, {BEFORE}) "
            "VALUES (%s, 1, 0.4, NULL, 'two of five', NULL, %s, %s)",
            [key, ago(1), ago(1)],
        )

    assert api.see(f"jobs/{job.pk}/progress").json()["progress"] == 0.4


def test_servers_of_the_release_before_read_what_is_written_now(api, job):
    report(api, job, progress=0.4)

    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {BEFORE} FROM ojs_jobs_progressreport")
        (row,) = cursor.fetchall()

    assert (row[1], row[4]) == (0.4, None)

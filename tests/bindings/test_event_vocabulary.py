"""Every event of the vocabulary is emitted, with what its schema requires, in the record and as a
signal (OJS events §3, §4; cron §9; timeouts §11; progress §11)."""

from __future__ import annotations

from typing import Any

import pytest

from jobs import engine, signals
from jobs.models import CronJob, Event, Job
from jobs.spec.timestamps import format_timestamp, parse_timestamp
from tests.factories import ago
from tests.ojs_client import OJSClient
from workers import signals as worker_signals
from workers.chores import reaper

REQUIRED = {
    "job.enqueued": "job_type queue",
    "job.started": "job_type queue worker_id attempt",
    "job.completed": "job_type queue duration_ms attempt",
    "job.failed": "job_type queue attempt error.code error.message error.retryable",
    "job.discarded": "job_type queue total_attempts last_error.code last_error.message",
    "job.retrying": "job_type queue attempt max_attempts next_retry_at error.code error.message",
    "job.cancelled": "job_type queue",
    "job.heartbeat": "job_type queue worker_id attempt visible_until",
    "job.scheduled": "job_type queue scheduled_at",
    "job.expired": "job_type queue created_at expired_at ttl_ms",
    "job.progress": "job_type queue worker_id attempt progress_percent progress_message",
    "queue.paused": "queue",
    "queue.resumed": "queue",
    "worker.started": "worker_id queues concurrency",
    "worker.stopped": "worker_id reason uptime_ms",
    "worker.quiet": "worker_id active_jobs",
    "worker.heartbeat": "worker_id active_jobs queues",
    "workflow.started": "workflow_id workflow_name total_steps",
    "workflow.step_completed": "workflow_id workflow_name step_id step_type duration_ms "
    "steps_remaining",
    "workflow.completed": "workflow_id workflow_name total_steps duration_ms",
    "workflow.failed": "workflow_id workflow_name failed_step_id failed_step_type error.code "
    "error.message",
    "cron.triggered": "cron_name cron_expr job_type job_id scheduled_at cron_expression timezone "
    "run_count scheduled_time actual_time",
    "cron.skipped": "cron_name cron_expr job_type reason existing_job_id active_job_id "
    "cron_expression timezone scheduled_time",
    # Of other documents
    "progress.updated": "job_id progress data",
    "job.timeout": "job_id job_type queue timeout_kind limit_seconds elapsed_seconds attempt",
    "job.stalled": "job_id job_type queue timeout_kind limit_seconds elapsed_seconds attempt",
    "job.ttl_expired": "job_id job_type queue timeout_kind limit_seconds elapsed_seconds",
    "job.retry_exhausted": "job_type queue total_attempts last_error.code last_error.message",
    "job.dead_lettered": "job_type queue total_attempts last_error.code last_error.message",
    "job.total_timeout": "job_id job_type queue timeout_kind limit_seconds elapsed_seconds attempt",
}
"""Event → required members of `data`."""

OF_THE_VOCABULARY = list(REQUIRED)[: list(REQUIRED).index("progress.updated")]


@pytest.fixture
def api(settings):
    settings.OJS = {"ALLOW_ANONYMOUS": True, "CONFORMANCE_MODE": True, "RECORD_HEARTBEATS": True}
    return OJSClient()


def everything_happens(api: OJSClient) -> None:
    about = {"hostname": "h", "pid": 1, "queues": ["default"], "concurrency": 3}
    api.send("workers/register", {"worker_id": "w"} | about)
    _a_workflow(api, fails=False)
    _a_workflow(api, fails=True)
    api.send("queues/default/pause", {})
    api.send("queues/default/resume", {})
    api.send("jobs/" + api.pushed(scheduled_at="+PT1H") + "/cancel", {})
    _a_schedule(api)
    job_id = api.pushed(timeout=60)
    api.fetch(worker_id="w")
    report = {"progress": 0.5, "message": "half", "data": {"row": 1}, "worker_id": "w"}
    api.put(f"/ojs/v1/jobs/{job_id}/progress", report, content_type="application/json")
    api.send("workers/heartbeat", {"worker_id": "w", "state": "quiet", "active_job_ids": [job_id]})
    _time_passes(api)
    api.send("workers/deregister", {"worker_id": "w"})


def _a_workflow(api: OJSClient, *, fails: bool) -> None:
    step = {"type": "a.b", "args": [], "options": {"retry": {"max_attempts": 1}}}
    body = {"type": "chain", "name": "etl", "steps": [step, step]}
    assert api.send("workflows", body).status_code == 201
    api.ack(api.fetch(worker_id="w")[0]["id"], worker_id="w")
    (second,) = api.fetch(worker_id="w")
    if fails:
        api.nack(second["id"], worker_id="w")
    else:
        api.ack(second["id"], worker_id="w")


def _a_schedule(api: OJSClient) -> None:
    about = {"type": "a.b", "options": {"queue": "c"}}
    api.send("cron", {"name": "nightly", "cron": "@daily"} | about)
    for _ in range(2):
        CronJob.objects.update(next_run_at=ago(1))
        engine.enqueue_due_schedules()


def _time_passes(api: OJSClient) -> None:
    """The held job runs too long and is retried; others expire, stall or exceed total time."""
    Job.objects.filter(state="active").update(started_at=ago(61))
    api.pushed(options={"queue": "ttl", "enqueue_ttl": 60})
    Job.objects.filter(queue="ttl").update(expires_at=ago(1))
    api.pushed(options={"queue": "slow", "total_timeout": 60})
    Job.objects.filter(queue="slow").update(deadline=ago(1))
    api.pushed(options={"queue": "stuck"})
    api.fetch("stuck", worker_id="other")
    Job.objects.filter(queue="stuck").update(reserved_until=ago(1))
    reaper.sweep(["timeouts", "expired-jobs", "total-timeouts", "expired-reservations"])


def member(data: dict[str, Any], path: str) -> Any:
    for name in path.split("."):
        data = data[name]
    return data


def test_every_event_has_the_members_its_schema_requires(db, api):
    everything_happens(api)

    reply = api.see("events", limit=1000).json()
    events = {event["type"]: event for event in reply["events"]}
    assert set(REQUIRED) <= set(events)
    for kind, members in REQUIRED.items():
        for path in members.split():
            assert member(events[kind]["data"], path) is not None, f"{kind}: {path}"
    # OJS conformance L0-EVT-002
    for event in reply["events"]:
        if event["type"].startswith("job."):
            assert all(event[name] for name in ("job_id", "queue", "state", "timestamp")), event
    states = {kind: event.get("state") for kind, event in events.items()}
    assert states["job.stalled"] == states["job.timeout"] == "active"
    assert states["job.total_timeout"] == states["job.ttl_expired"] == "discarded"
    assert events["job.progress"]["data"]["progress_percent"] == 50
    moments = {
        f"{event['type']}: {name}": value
        for event in reply["events"]
        for name, value in event["data"].items()
        if name.endswith(("_at", "until"))
    }
    assert {"job.expired: created_at", "job.heartbeat: visible_until"} <= set(moments)
    for place, value in moments.items():
        assert format_timestamp(parse_timestamp(value)) == value, place


def test_a_job_that_had_expired_when_it_was_enqueued_had_no_time_to_live(db, api):
    api.pushed(expires_at="2020-01-01T00:00:00Z")

    engine.discard_expired()

    (expired,) = api.see("events", types="job.expired").json()["events"]
    assert expired["data"]["ttl_ms"] == 0


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    "meta", [{"trace_id": TRACE}, {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}]
)
def test_every_event_of_a_job_names_its_trace(db, api, meta):
    """OJS events §8.1, §8.3."""
    api.pushed(queue="other", meta={"trace_id": 5, "traceparent": "no"})
    job_id = api.pushed(meta=meta, retry={"max_attempts": 1}, timeout=60)
    api.fetch(worker_id="w")
    api.send("workers/heartbeat", {"worker_id": "w", "active_job_ids": [job_id]})
    api.nack(job_id, worker_id="w")

    traces = {
        event["type"]: event["data"].get("trace_id")
        for event in api.see("events", job_id=job_id).json()["events"]
    }
    assert set(traces.values()) == {TRACE}
    assert list(traces) == [
        *("job.enqueued", "job.started", "job.heartbeat", "job.failed"),
        *("job.retry_exhausted", "job.discarded", "job.dead_lettered"),
    ]
    others = api.see("events", queue="other").json()["events"]
    assert all("trace_id" not in event["data"] for event in others)


@pytest.mark.parametrize(
    ("retry", "error", "expected"),
    [
        ({"max_attempts": 1, "on_exhaustion": "discard"}, {}, ["retry_exhausted", "discarded"]),
        ({"max_attempts": 3}, {"retryable": False}, ["discarded", "dead_lettered"]),
    ],
)
def test_what_is_not_exhausted_or_not_kept_has_no_event_of_that(db, api, retry, error, expected):
    job_id = api.pushed(retry=retry)
    api.fetch(worker_id="w")

    api.nack(job_id, worker_id="w", **error)

    found = [event["type"] for event in api.see("events", job_id=job_id).json()["events"]]
    assert found[found.index("job.failed") + 1 :] == [f"job.{kind}" for kind in expected]


def test_every_event_of_the_vocabulary_is_told_as_a_signal_after_commit(transactional_db, api):
    sent = signals.SENT | worker_signals.SENT
    assert set(sent) == set(OF_THE_VOCABULARY)
    heard: set[str] = set()
    receivers = []
    for kind, signal in sent.items():

        def receiver(kind: str = kind, **about: Any) -> None:
            about_this = kind not in signals.TELLS_EVENTS or about["events"][0].type == kind
            assert about_this
            heard.add(kind)

        receivers.append(receiver)
        signal.connect(receiver)
    try:
        everything_happens(api)
    finally:
        for receiver, signal in zip(receivers, sent.values(), strict=True):
            signal.disconnect(receiver)

    assert heard == set(sent)


def test_signals_are_sent_where_nothing_is_recorded(db, api, settings, signals_at_once):
    settings.OJS = settings.OJS | {"RECORD_EVENTS": False}
    heard = []

    def receiver(**about: Any) -> None:
        heard.extend(event.subject for event in about["events"])

    signals.queue_paused.connect(receiver)
    try:
        with signals_at_once(execute=True):
            api.send("queues/mail/pause", {})
    finally:
        signals.queue_paused.disconnect(receiver)

    assert heard == ["mail"]
    assert not Event.objects.exists()


@pytest.fixture
def signals_at_once(django_capture_on_commit_callbacks):
    return django_capture_on_commit_callbacks


def test_heartbeats_are_recorded_only_if_a_setting_asks_for_them(db, api, settings):
    settings.OJS = settings.OJS | {"RECORD_HEARTBEATS": False}
    job_id = api.pushed()
    api.fetch(worker_id="w")

    api.send("workers/heartbeat", {"worker_id": "w", "active_job_ids": [job_id]})

    assert not Event.objects.filter(type__endswith=".heartbeat").exists()

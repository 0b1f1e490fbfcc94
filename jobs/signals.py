"""Signals for the site: named in the past tense, one per kind of event, sent after commit.

Each carries a set. Django logs errors of receivers, which stop nothing (`send_robust`). A
`worker_id` is the stored id, which is `PROJECT@/ID` where two projects have a worker `ID`.
"""

from __future__ import annotations

from typing import Any

from django.dispatch import Signal

from .store.database import on_commit

jobs_enqueued = Signal()
"""`jobs`: the new jobs, as `NewJob`."""
jobs_claimed = Signal()
"""`jobs`: the claimed jobs; `worker_id`."""
jobs_completed = Signal()
"""`job_ids`: they were acknowledged."""
jobs_failed = Signal()
"""`outcomes`: one for each failed job."""
jobs_reclaimed = Signal()
"""`count`, `error_type`: jobs reclaimed; `discarded`: ids of the jobs that had no attempts left;
`returned`: ids of the others, which are available again."""
jobs_cancelled = Signal()
"""`job_ids`: they were cancelled."""
jobs_promoted = Signal()
"""`count`: scheduled and retryable jobs that became available."""
jobs_discarded = Signal()
"""`count`, `reason`: jobs that expired before they ran."""
jobs_extended = Signal()
"""`job_ids`, `worker_id`: a heartbeat restarted their visibility timeouts."""
job_progressed = Signal()
"""`events`: reports of progress, at most one per second for each job."""
queue_paused = Signal()
"""`events`: the queue is the event's `subject`."""
queue_resumed = Signal()
"""`events`, as above."""
workflow_started = Signal()
"""`events`: the first job of a workflow began; its id is the event's `subject`."""
workflow_step_completed = Signal()
"""`events`: a step of a workflow completed."""
workflow_finished = Signal()
"""`workflow_id`, `state`: a workflow completed, failed, was cancelled or compensated."""
cron_triggered = Signal()
"""`events`: a schedule enqueued a job; its name is the event's `subject`."""
cron_skipped = Signal()
"""`events`: an occurrence of a schedule enqueued no job; `data["reason"]` gives the reason."""
finish_refused = Signal()
"""`job_id`, `operation`, `worker_id`: a worker tried to settle a job it does not hold."""


SENT = {
    "job.enqueued": jobs_enqueued,
    "job.scheduled": jobs_enqueued,
    "job.started": jobs_claimed,
    "job.heartbeat": jobs_extended,
    "job.progress": job_progressed,
    "job.completed": jobs_completed,
    "job.failed": jobs_failed,
    "job.retrying": jobs_failed,
    "job.discarded": jobs_failed,
    "job.expired": jobs_discarded,
    "job.cancelled": jobs_cancelled,
    "queue.paused": queue_paused,
    "queue.resumed": queue_resumed,
    "workflow.started": workflow_started,
    "workflow.step_completed": workflow_step_completed,
    "workflow.completed": workflow_finished,
    "workflow.failed": workflow_finished,
    "cron.triggered": cron_triggered,
    "cron.skipped": cron_skipped,
}
"""The signal of each event of the vocabulary (OJS events §3); those of workers are in
`workers.signals`. An attempt that ends with its reservation is reported by `jobs_reclaimed`."""

TELLS_EVENTS = (
    "job.progress",
    "queue.paused",
    "queue.resumed",
    "workflow.started",
    "workflow.step_completed",
    "cron.triggered",
    "cron.skipped",
)
"""Events whose signals carry `events`: rows with `type`, `subject`, `time` and `data`. They are
sent even if `RECORD_EVENTS` is off."""


def send_on_commit(signal: Signal, sender: Any, **details: Any) -> None:
    on_commit(lambda: signal.send_robust(sender, **details))

"""What happened, for the site to hang on: past tense, one per kind, sent after commit.

Each carries a set. Receivers that fail are logged by Django and stop nothing (`send_robust`).
"""

from __future__ import annotations

from typing import Any

from django.dispatch import Signal

from .database import on_commit

jobs_enqueued = Signal()
"""`jobs`: the new jobs, as `NewJob`."""
jobs_claimed = Signal()
"""`jobs`: the claimed jobs; `worker_id`."""
jobs_completed = Signal()
"""`job_ids`; `worker_id` where all were settled by one."""
jobs_failed = Signal()
"""`outcomes`: one for each failed job, saying what became of it."""
jobs_reclaimed = Signal()
"""`count`, `error_type`: reservations taken back."""
jobs_cancelled = Signal()
"""`job_ids`."""
jobs_promoted = Signal()
"""`count`: scheduled and retryable jobs that became available."""
jobs_discarded = Signal()
"""`count`, `reason`: jobs that expired before they ran."""
workflow_finished = Signal()
"""`workflow_id`, `state`: a workflow completed, failed or was cancelled."""
finish_refused = Signal()
"""`job_id`, `operation`, `worker_id`: somebody settled a job it does not hold."""


def send_on_commit(signal: Signal, sender: Any, **details: Any) -> None:
    on_commit(lambda: signal.send_robust(sender, **details))

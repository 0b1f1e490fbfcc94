"""Every way a job may change: `from jobs import engine; engine.claim(...)`."""

from .claim import ClaimedJob, claim
from .control import (
    Change,
    activate,
    cancel,
    cancel_jobs,
    delete_dead,
    not_dead,
    pause,
    resume,
    retry,
    retry_one,
)
from .cron import (
    NewCronJob,
    delete_cron,
    enqueue_due_schedules,
    run_cron_now,
    set_cron_enabled,
    upsert_cron,
)
from .enqueue import enqueue, forget_queues
from .failure import fail
from .outcomes import Completion, Failure, Outcome
from .reclaim import VISIBILITY_TIMEOUT, WORKER_DEATH, Cause, expire, reclaim
from .reservations import extend
from .retention import prune_events, prune_jobs
from .settle import complete
from .timers import discard_expired, promote_due, time_out

__all__ = [
    "VISIBILITY_TIMEOUT",
    "WORKER_DEATH",
    "Cause",
    "Change",
    "ClaimedJob",
    "Completion",
    "Failure",
    "NewCronJob",
    "Outcome",
    "activate",
    "cancel",
    "cancel_jobs",
    "claim",
    "complete",
    "delete_cron",
    "delete_dead",
    "discard_expired",
    "enqueue",
    "enqueue_due_schedules",
    "expire",
    "extend",
    "fail",
    "forget_queues",
    "not_dead",
    "pause",
    "promote_due",
    "prune_events",
    "prune_jobs",
    "reclaim",
    "resume",
    "retry",
    "retry_one",
    "run_cron_now",
    "set_cron_enabled",
    "time_out",
    "upsert_cron",
]

"""Every way a job may change: `from jobs import engine; engine.claim(...)`."""

from .checkpoints import Saved, clear_checkpoint, find_checkpoint, save_checkpoint
from .claim import ClaimedJob, claim
from .control import (
    Change,
    activate,
    cancel,
    delete_dead,
    not_dead,
    pause,
    resume,
    retry,
    retry_one,
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
    "Outcome",
    "Saved",
    "activate",
    "cancel",
    "claim",
    "clear_checkpoint",
    "complete",
    "delete_dead",
    "discard_expired",
    "enqueue",
    "expire",
    "extend",
    "fail",
    "find_checkpoint",
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
    "save_checkpoint",
    "time_out",
]

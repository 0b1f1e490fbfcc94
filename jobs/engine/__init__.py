"""Every way a job may change: `from jobs import engine; engine.claim(...)`."""

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
from .reservations import extend, keep_alive, last_reservation, reserve
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
    "activate",
    "cancel",
    "claim",
    "complete",
    "delete_dead",
    "discard_expired",
    "enqueue",
    "expire",
    "extend",
    "fail",
    "forget_queues",
    "keep_alive",
    "last_reservation",
    "not_dead",
    "pause",
    "promote_due",
    "prune_events",
    "prune_jobs",
    "reclaim",
    "reserve",
    "resume",
    "retry",
    "retry_one",
    "time_out",
]

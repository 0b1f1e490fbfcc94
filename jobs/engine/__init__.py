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
from .reservations import extend
from .retention import prune_events, prune_jobs
from .settle import complete
from .specs import Line, forget_specs, matching_types, register_specs, write_lines
from .timers import discard_expired, promote_due, time_out

__all__ = [
    "VISIBILITY_TIMEOUT",
    "WORKER_DEATH",
    "Cause",
    "Change",
    "ClaimedJob",
    "Completion",
    "Failure",
    "Line",
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
    "forget_specs",
    "matching_types",
    "not_dead",
    "pause",
    "promote_due",
    "prune_events",
    "prune_jobs",
    "reclaim",
    "register_specs",
    "resume",
    "retry",
    "retry_one",
    "time_out",
    "write_lines",
]

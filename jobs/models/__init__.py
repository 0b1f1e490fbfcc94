"""What is stored about jobs: the job, its errors, its queue, what happened to it, and who may ask.

Instances never write themselves; state moves only through `JobQuerySet.transition()` and the
statements of `jobs.engine`.
"""

from .apikey import ApiKey, Scope, all_scopes
from .event import Event
from .job import DeadJob, Job, JobError, RefusedFinish
from .queue import Listener, Queue
from .spec import JobLog, JobSpec

__all__ = [
    "ApiKey",
    "DeadJob",
    "Event",
    "Job",
    "JobError",
    "JobLog",
    "JobSpec",
    "Listener",
    "Queue",
    "RefusedFinish",
    "Scope",
    "all_scopes",
]

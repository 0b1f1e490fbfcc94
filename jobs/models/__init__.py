"""What is stored about jobs: the job, its errors, its queue, what happened to it, and who may ask.

Instances never write themselves; state moves only through `JobQuerySet.transition()` and the
statements of `jobs.engine`.
"""

from .apikey import ApiKey, Scope, all_scopes
from .event import Event
from .job import DeadJob, Job, JobError, RefusedFinish
from .limits import BulkRequest, RateLimit
from .queue import Listener, Queue
from .workflow import Dependency, ProgressReport, Workflow, WorkflowState, WorkflowType

__all__ = [
    "ApiKey",
    "BulkRequest",
    "DeadJob",
    "Dependency",
    "Event",
    "Job",
    "JobError",
    "Listener",
    "ProgressReport",
    "Queue",
    "RateLimit",
    "RefusedFinish",
    "Scope",
    "Workflow",
    "WorkflowState",
    "WorkflowType",
    "all_scopes",
]

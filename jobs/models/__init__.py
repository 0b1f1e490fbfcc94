"""What is stored about jobs: the job, its errors, its queue, what happened to it, and who may ask.

Instances never write themselves; state moves only through `JobQuerySet.transition()` and the
statements of `jobs.engine`.
"""

from .apikey import ApiKey, Scope, all_scopes
from .audit import OperatorAction, Source
from .checkpoint import Checkpoint
from .cron import CronJob, CronRun, OverlapPolicy
from .event import Event
from .job import DeadJob, Job, JobError, RefusedFinish
from .maintenance import Maintenance
from .queue import Listener, Queue
from .rollup import QueueSample, Rollup, RollupMark
from .workflow import Dependency, ProgressReport, Workflow, WorkflowState, WorkflowType

__all__ = [
    "ApiKey",
    "Checkpoint",
    "CronJob",
    "CronRun",
    "DeadJob",
    "Dependency",
    "Event",
    "Job",
    "JobError",
    "Listener",
    "Maintenance",
    "OperatorAction",
    "OverlapPolicy",
    "ProgressReport",
    "Queue",
    "QueueSample",
    "RefusedFinish",
    "Rollup",
    "RollupMark",
    "Scope",
    "Source",
    "Workflow",
    "WorkflowState",
    "WorkflowType",
    "all_scopes",
]

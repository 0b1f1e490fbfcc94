"""Models of jobs: the job, its errors, its queue, its events, and the keys that give access.

Instances never write themselves; state moves only through `JobQuerySet.transition()` and the
statements of `jobs.engine`.
"""

from .apikey import ApiKey, Scope, all_scopes
from .audit import OperatorAction, Source
from .bulk import BulkOperation, BulkState, BulkVerb
from .checkpoint import Checkpoint
from .cron import CronJob, CronRun, OverlapPolicy
from .endpoint import Endpoint
from .event import Event
from .job import DeadJob, Job, JobError, RefusedFinish
from .limits import BulkRequest, RateLimit
from .maintenance import Maintenance
from .metrics import JobCounter, QueueFlow
from .pool import Pool, PoolPlace, PoolStrategy
from .queue import Listener, Queue, QueuePolicy
from .rollup import QueueRollup, QueueSample, Rollup, RollupMark, TypeRollup
from .schema import JobSchema, SchemaMode, SchemaRegistry, ValidationMode
from .spec import JobLog, JobSpec
from .tenant import Tenant
from .workflow import (
    Dependency,
    PendingRelease,
    ProgressReport,
    Workflow,
    WorkflowState,
    WorkflowType,
)

__all__ = [
    "ApiKey",
    "BulkOperation",
    "BulkRequest",
    "BulkState",
    "BulkVerb",
    "Checkpoint",
    "CronJob",
    "CronRun",
    "DeadJob",
    "Dependency",
    "Endpoint",
    "Event",
    "Job",
    "JobCounter",
    "JobError",
    "JobLog",
    "JobSchema",
    "JobSpec",
    "Listener",
    "Maintenance",
    "OperatorAction",
    "OverlapPolicy",
    "PendingRelease",
    "Pool",
    "PoolPlace",
    "PoolStrategy",
    "ProgressReport",
    "Queue",
    "QueueFlow",
    "QueuePolicy",
    "QueueRollup",
    "QueueSample",
    "RateLimit",
    "RefusedFinish",
    "Rollup",
    "RollupMark",
    "SchemaMode",
    "SchemaRegistry",
    "Scope",
    "Source",
    "Tenant",
    "TypeRollup",
    "ValidationMode",
    "Workflow",
    "WorkflowState",
    "WorkflowType",
    "all_scopes",
]

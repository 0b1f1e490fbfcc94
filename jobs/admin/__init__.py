"""Jobs, dead letter, queues, API keys and the record of events in the Django admin."""

from .api_key import ApiKeyAdmin
from .audit import OperatorActionAdmin
from .bulk_operation import BulkOperationAdmin
from .cron import CronJobAdmin
from .dead_letter import DeadJobAdmin
from .event import EventAdmin, RefusedFinishAdmin
from .job import JobAdmin
from .maintenance import MaintenanceAdmin
from .pool import PoolAdmin
from .queue import QueueAdmin
from .rate_limit import RateLimitAdmin
from .schema import JobSchemaAdmin
from .tenant import TenantAdmin
from .workflow import WorkflowAdmin

__all__ = [
    "ApiKeyAdmin",
    "BulkOperationAdmin",
    "CronJobAdmin",
    "DeadJobAdmin",
    "EventAdmin",
    "JobAdmin",
    "JobSchemaAdmin",
    "MaintenanceAdmin",
    "OperatorActionAdmin",
    "PoolAdmin",
    "QueueAdmin",
    "RateLimitAdmin",
    "RefusedFinishAdmin",
    "TenantAdmin",
    "WorkflowAdmin",
]

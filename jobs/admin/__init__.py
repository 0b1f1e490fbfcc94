"""Jobs, dead letter, queues, API keys and the record of events in the Django admin."""

from .api_key import ApiKeyAdmin
from .cron import CronJobAdmin
from .dead_letter import DeadJobAdmin
from .event import EventAdmin, RefusedFinishAdmin
from .job import JobAdmin
from .queue import QueueAdmin
from .workflow import WorkflowAdmin

__all__ = [
    "ApiKeyAdmin",
    "CronJobAdmin",
    "DeadJobAdmin",
    "EventAdmin",
    "JobAdmin",
    "QueueAdmin",
    "RefusedFinishAdmin",
    "WorkflowAdmin",
]

"""Jobs, dead letter, queues, API keys and the record of events in the Django admin."""

from .api_key import ApiKeyAdmin
from .audit import OperatorActionAdmin
from .dead_letter import DeadJobAdmin
from .event import EventAdmin, RefusedFinishAdmin
from .job import JobAdmin
from .maintenance import MaintenanceAdmin
from .queue import QueueAdmin

__all__ = [
    "ApiKeyAdmin",
    "DeadJobAdmin",
    "EventAdmin",
    "JobAdmin",
    "MaintenanceAdmin",
    "OperatorActionAdmin",
    "QueueAdmin",
    "RefusedFinishAdmin",
]

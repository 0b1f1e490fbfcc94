"""Admin pages of the fleet."""

from . import audit, notices, why  # noqa: F401 (register what our pages say in others)
from .alert import AlertAdmin, AlertNotificationAdmin
from .alert_rule import AlertRuleAdmin
from .dashboard import DashboardAdmin
from .mark import MarkAdmin
from .operation import FleetOperationAdmin
from .spec import JobSpecAdmin
from .webhook import WebhookDeliveryAdmin, WebhookSubscriptionAdmin
from .worker import WorkerAdmin

__all__ = [
    "AlertAdmin",
    "AlertNotificationAdmin",
    "AlertRuleAdmin",
    "DashboardAdmin",
    "FleetOperationAdmin",
    "JobSpecAdmin",
    "MarkAdmin",
    "WebhookDeliveryAdmin",
    "WebhookSubscriptionAdmin",
    "WorkerAdmin",
]

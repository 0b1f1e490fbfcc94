"""Models of workers, of operators' directives and operations, of alerts, webhooks, housekeeping."""

from .alert import Alert, AlertNotification, AlertRule, Announced, Channel
from .dashboard import Dashboard
from .directive import FOLLOWED, Answer, Directive
from .fleet_sample import FleetSample
from .housekeeping import EventCursor, Reaper, Sweep
from .mark import Mark, MarkKind
from .operation import (
    FINAL,
    IN_WORK,
    UNFINISHED,
    FleetOperation,
    OperationState,
    OperationStep,
    Phase,
)
from .webhook import (
    DeliveryState,
    WebhookCounter,
    WebhookDelivery,
    WebhookFormat,
    WebhookSubscription,
)
from .worker import Worker, default_heartbeat_timeout, places

__all__ = [
    "FINAL",
    "FOLLOWED",
    "IN_WORK",
    "UNFINISHED",
    "Alert",
    "AlertNotification",
    "AlertRule",
    "Announced",
    "Answer",
    "Channel",
    "Dashboard",
    "DeliveryState",
    "Directive",
    "EventCursor",
    "FleetOperation",
    "FleetSample",
    "Mark",
    "MarkKind",
    "OperationState",
    "OperationStep",
    "Phase",
    "Reaper",
    "Sweep",
    "WebhookCounter",
    "WebhookDelivery",
    "WebhookFormat",
    "WebhookSubscription",
    "Worker",
    "default_heartbeat_timeout",
    "places",
]

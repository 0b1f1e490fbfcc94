"""All hooks of the public conformance suite; loaded only with `CONFORMANCE_MODE`.

The suite empties the server between two cases, and some of its jobs specify the directive that
their worker is to get. A system check refuses the mode outside `DEBUG`.
"""

from __future__ import annotations

from typing import Any

from django.core.signals import request_started
from django.db.models import Model
from django.dispatch import receiver
from rest_framework.response import Response

from jobs import engine
from jobs import models as job_models
from jobs.conf import ojs_settings
from jobs.http.base import OJSViewSet
from jobs.http.request import Request
from jobs.models import Job
from jobs.store.database import atomic

from . import models, protocol
from .lifecycle import WorkerState

LEFT_BY_CASES: tuple[type[Model], ...] = (
    job_models.Checkpoint,
    job_models.CronRun,
    job_models.CronJob,
    job_models.Dependency,
    job_models.PendingRelease,
    job_models.ProgressReport,
    job_models.JobError,
    job_models.JobLog,
    job_models.Job,
    job_models.JobSpec,
    job_models.Workflow,
    job_models.Event,
    job_models.RefusedFinish,
    job_models.Queue,
    job_models.RateLimit,
    job_models.BulkRequest,
    job_models.BulkOperation,
    job_models.JobCounter,
    job_models.QueueFlow,
    job_models.QueuePolicy,
    job_models.QueueRollup,
    job_models.QueueSample,
    job_models.Rollup,
    job_models.RollupMark,
    job_models.TypeRollup,
    job_models.Maintenance,
    job_models.JobSchema,
    job_models.SchemaMode,
    job_models.SchemaRegistry,
    job_models.Pool,
    job_models.PoolPlace,
    job_models.Tenant,
    job_models.OperatorAction,
    models.WebhookDelivery,
    models.WebhookSubscription,
    models.WebhookCounter,
    models.AlertNotification,
    models.Alert,
    models.AlertRule,
    models.Mark,
    models.Directive,
    models.OperationStep,
    models.FleetOperation,
    models.FleetSample,
    models.Worker,
)
"""Models whose rows a case may leave behind. Keys and running processes are kept."""


def is_on() -> bool:
    return ojs_settings.CONFORMANCE_MODE


class ConformanceViewSet(OJSViewSet):
    """`/ojs/v1/admin/reset`, which exists only while the mode is on."""

    resource = "reset"

    def reset(self, request: Request) -> Response:
        """Delete everything that a case may have left behind."""
        with atomic():
            for model in LEFT_BY_CASES:
                model._default_manager.all().delete()
        engine.forget_queues()
        return Response({"reset": True})


@receiver(request_started, dispatch_uid="ojs_conformance_queues")
def forget_queues(**kwargs: Any) -> None:
    """Another server process may have deleted queues that this process has cached."""
    if is_on():
        engine.forget_queues()


def obey_test_directive(reply: protocol.Reply) -> None:
    """Let a job's `meta.test_directive` set the directive for its worker."""
    if not is_on():
        return
    jobs = Job.objects.filter(pk__in=reply.jobs_extended).values_list("meta", flat=True)
    for meta in jobs:
        directive = meta.get("test_directive")
        if directive in (WorkerState.QUIET, WorkerState.TERMINATE):
            reply.state = WorkerState(directive)


protocol.before_reply = obey_test_directive

"""Labels of the audit's verbs on a page; the record keeps the permission's name."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.contrib.admin import SimpleListFilter
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..access.permissions import APPS
from ..models.audit import REFUSED

VERBS = {
    "quiet_worker": _("quieted workers"),
    "resume_worker": _("resumed workers"),
    "terminate_worker": _("terminated workers"),
    "unflag_worker": _("cleared the flag of workers"),
    "delete_worker": _("removed workers"),
    "drain_fleet": _("drained the fleet"),
    "enqueue_job": _("enqueued jobs by hand"),
    "run_job": _("ran jobs now"),
    "retry_job": _("retried jobs"),
    "cancel_job": _("cancelled jobs"),
    "discard_job": _("discarded jobs"),
    "delete_job": _("deleted jobs"),
    "erase_job": _("erased jobs"),
    "purge_history": _("deleted execution history"),
    "run_bulkoperation": _("stopped or continued bulk operations"),
    "change_job": _("changed jobs"),
    "view_job_args": _("saw encoded values in clear"),
    "cancel_workflow": _("cancelled workflows"),
    "pause_queue": _("paused queues"),
    "drain_queue": _("drained queues"),
    "resume_queue": _("resumed queues"),
    "add_queue": _("added queues"),
    "change_queue": _("changed queues"),
    "purge_queue": _("deleted the jobs of queues"),
    "delete_queue": _("deleted queues"),
    "change_ratelimit": _("changed rate limits"),
    "operate_cron": _("ran or switched cron jobs"),
    "run_now_cron": _("ran cron jobs now"),
    "enable_cron": _("enabled cron jobs"),
    "disable_cron": _("disabled cron jobs"),
    "add_cron": _("made cron jobs"),
    "change_cron": _("changed cron jobs"),
    "delete_cron": _("deleted cron jobs"),
    "register_spec": _("registered or withdrew job specs"),
    "manage_schema": _("changed job schemas or their validation"),
    "manage_tenant": _("changed the limits or shares of tenants"),
    "manage_pool": _("changed worker pools"),
    "manage_keys": _("managed API keys"),
    "add_mark": _("added marks"),
    "maintenance": _("switched maintenance mode"),
    "manage_alerts": _("managed alert rules"),
    "manage_webhooks": _("managed webhooks"),
    "acknowledge_alert": _("acknowledged alerts"),
    REFUSED: _("was refused (401, 403)"),
}


def verb(name: str) -> str:
    """Return the label of a verb; the verb itself if it has none here."""
    return str(VERBS.get(name, name))


def model_of(kind: str) -> Any:
    """Return the model of an action's targets; None if it is none of our models."""
    for app in APPS:
        try:
            return apps.get_model(app, kind)
        except LookupError:
            continue
    return None


def kind(name: str) -> str:
    """Return the label of the targets' model; the name itself if it is none of our models."""
    model = model_of(name)
    return str(model._meta.verbose_name) if model else name


class VerbFilter(SimpleListFilter):
    title = _("verb")
    parameter_name = "verb"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        """Offer the verbs that have been recorded, by their labels."""
        done = model_admin.model.objects.order_by().values_list("verb", flat=True).distinct()
        return sorted(((name, verb(name)) for name in done), key=lambda choice: choice[1])

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(verb=self.value()) if self.value() else queryset

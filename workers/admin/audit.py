"""Workers in the audit's pages: the orders they received, and drains."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Q
from django.utils.translation import gettext as _

from jobs.admin import display
from jobs.admin.audit import found_by, leads_to
from jobs.models import OperatorAction

from ..fleet.orders import VERBS
from ..models import Directive, FleetOperation


@found_by
def heard(word: str) -> Q:
    """Orders that a worker received: an action lists only the first of many workers."""
    orders = Directive.objects.filter(worker_id=word, action_id__isnull=False)
    return Q(pk__in=orders.values("action_id"))


@leads_to
def orders_and_drains(action: OperatorAction, site_name: str) -> Iterator[tuple[str, str]]:
    if action.verb in VERBS.values() and Directive.objects.filter(action_id=action.pk).exists():
        url = display.admin_url(site_name, "ojs_workers_worker", "order", action.pk)
        yield _("Progress of the order"), url
    for operation in FleetOperation.objects.filter(action_id=action.pk)[:10]:
        url = display.admin_url(site_name, "ojs_workers_fleetoperation", "change", operation.pk)
        yield str(operation), url

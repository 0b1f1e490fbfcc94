"""Makes and changes subscriptions, and writes them down (OJS webhooks §6)."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import F, Q
from django.db.models.functions import Now

from jobs.access.audit import Actor, record_action
from jobs.access.projects import scope_to
from jobs.conf import ojs_settings
from jobs.errors import Conflict, NotFound, NotInstalled
from jobs.record import events
from jobs.spec.identifiers import parse_uuid
from jobs.spec.timestamps import format_timestamp
from jobs.store import clock
from jobs.store.database import atomic

from ..models import DeliveryState, WebhookDelivery, WebhookSubscription
from . import delivery_jobs
from .requests import OVERLAP

VERB = "manage_webhooks"
"""In the audit, and the permission that it takes in the admin."""
UNSHOWN = frozenset({"url", "metadata"})
"""Columns of which the audit has only the names."""
MOST = 200
"""Subscriptions of a project, and of all keys without one."""
NOTHING_TO_READ = 'There are no events to send: OJS["RECORD_EVENTS"] is off.'


def new_secret() -> str:
    return f"whsec_{secrets.token_urlsafe(32)}"


def find(name: str, project: str) -> WebhookSubscription:
    """Return the subscription with this id, for a key of `project`.

    Raises:
        NotFound: there is none, or it is another project's.
    """
    keys = parse_name(name, "sub_")
    rows = scope_to(WebhookSubscription.objects.filter(pk__in=keys), project)
    found: WebhookSubscription | None = rows.first()
    if found is None:
        raise NotFound(
            f"Webhook subscription '{name}' not found.",
            hint="See those that there are: GET /ojs/v1/webhooks/subscriptions.",
            resource_type="webhook_subscription",
            resource_id=name,
        )
    return found


def parse_name(name: str, prefix: str) -> list[UUID]:
    """Return the key of a row by its id on the wire; none if it is not one."""
    key = parse_uuid(name.removeprefix(prefix)) if name.startswith(prefix) else None
    return [] if key is None else [key]


def require_room(project: str) -> None:
    """
    Raises:
        NotInstalled: this server keeps no record of events.
        Conflict: there are too many subscriptions.
    """
    if not ojs_settings.RECORD_EVENTS:
        raise NotInstalled(NOTHING_TO_READ)
    if WebhookSubscription.objects.filter(project=project).count() >= MOST:
        raise Conflict(f"There are {MOST} webhook subscriptions, and there may not be more.")


def create(
    actor: Actor,
    columns: dict[str, Any],
    *,
    secret: str = "",
    project: str = "",
    reason: str = "",
) -> WebhookSubscription:
    """Make a subscription to the events from now on.

    Args:
        columns: of the model, checked by `requests.read_changes()`.
        secret: empty means a new one.

    Raises:
        NotInstalled: this server keeps no record of events.
        Conflict: there are too many.
    """
    require_room(project)
    begins_after = events.horizon()
    with atomic():
        made: WebhookSubscription = WebhookSubscription.objects.create(
            **columns,
            secret=secret or new_secret(),
            project=project,
            begins_after=begins_after,
            created_at=clock.now(),
            created_by=actor.name[:255],
        )
        _announce("webhook.subscription.created", made)
        what = {"created": made.host, "events": made.events}
        record_change(actor, made, what, reason=reason)
    return made


def change(
    actor: Actor, row: WebhookSubscription, columns: dict[str, Any], *, reason: str = ""
) -> WebhookSubscription:
    """Set columns of a subscription; return it as it is then.

    What becomes active gets the events from now on, and what waited for it. What is made inactive
    is paused, also if the server had disabled it.
    """
    begins_after = events.horizon()
    with atomic():
        same = WebhookSubscription.objects.filter(pk=row.pk)
        if columns.get("active"):
            again = {"begins_after": begins_after, "disabled_reason": "", "failing_since": None}
            if same.filter(active=False).update(**again):
                delivery_jobs.limit(row.pk, is_failing=False)
        elif columns.get("active") is False:
            same.update(disabled_reason="")
        if columns:
            same.update(**columns)
            shown = {name: value for name, value in columns.items() if name not in UNSHOWN}
            what = {"changed": sorted(columns)} | shown
            record_change(actor, row, what, reason=reason)
        return find(row.name, "")


def switch(actor: Actor, row: WebhookSubscription, *, on: bool, reason: str = "") -> bool:
    """Resume or pause a subscription; return whether it was not that already."""
    with atomic():
        other = WebhookSubscription.objects.filter(switchable(on), pk=row.pk)
        if other.select_for_update().first() is None:
            return False
        change(actor, row, {"active": on}, reason=reason)
        return True


def switchable(on: bool) -> Q:
    """Subscriptions that can be resumed, or paused: also one that the server had disabled."""
    return Q(active=False) if on else Q(active=True) | ~Q(disabled_reason="")


def rotate(
    actor: Actor,
    row: WebhookSubscription,
    *,
    secret: str = "",
    overlap: timedelta = OVERLAP,
    reason: str = "",
) -> WebhookSubscription:
    """Give a subscription a new secret (§8.3); return it.

    Args:
        overlap: how long deliveries are signed with the previous secret as well.
    """
    with atomic():
        WebhookSubscription.objects.filter(pk=row.pk).update(
            previous_secret=F("secret"),
            previous_until=Now() + overlap,
            secret=secret or new_secret(),
        )
        record_change(actor, row, {"rotated": row.host}, reason=reason)
        return find(row.name, "")


def delete(actor: Actor, row: WebhookSubscription, *, reason: str = "") -> bool:
    """Delete a subscription, its deliveries with it, and cancel their jobs (§6.5).

    Return whether it was there still.
    """
    with atomic():
        same = WebhookSubscription.objects.filter(pk=row.pk)
        if same.select_for_update().first() is None:
            return False
        _announce("webhook.subscription.deleted", row)
        record_change(actor, row, {"deleted": row.host}, reason=reason)
        delivery_jobs.cancel(
            row.deliveries.pending(), by=actor.name, reason="The subscription was deleted."
        )
        delivery_jobs.forget(row)
        WebhookSubscription.objects.filter(pk=row.pk).delete()
        return True


def record_change(
    actor: Actor, row: WebhookSubscription, what: dict[str, Any], *, reason: str = ""
) -> None:
    """Write an entry of the audit: never a secret, and of a URL only the host."""
    record_action(
        actor,
        VERB,
        kind="webhooksubscription",
        count=1,
        selection={"ids": [str(row.pk)]} | what,
        reason=reason,
        history=False,
    )


def _announce(kind: str, row: WebhookSubscription) -> None:
    about = {"subscription_id": row.name, "events": row.events}
    events.record([events.webhook_event(kind, row.name, **about)])


def document(row: WebhookSubscription) -> dict[str, Any]:
    """A subscription on the wire, without its secret (§6.3)."""
    found: dict[str, Any] = {
        "id": row.name,
        "url": row.url,
        "events": row.events,
        "active": row.active,
        "metadata": row.metadata,
        "format": row.format,
        "timeout": row.timeout,
        "created_at": format_timestamp(row.created_at),
    }
    filters = {"queues": row.queues, "job_types": row.job_types}
    if given := {name: texts for name, texts in filters.items() if texts}:
        found["filter"] = given
    if row.disabled_reason:
        found["disabled_reason"] = row.disabled_reason
    moments = {
        "delivered_at": row.delivered_at,
        "failing_since": row.failing_since,
        "previous_secret_until": row.previous_until if row.has_two_secrets else None,
    }
    return found | {name: format_timestamp(value) for name, value in moments.items() if value}


def delivery_document(row: WebhookDelivery, *, whole: bool = False) -> dict[str, Any]:
    """A delivery on the wire; `whole`: with what is sent."""
    last = row.last_attempt
    found: dict[str, Any] = {
        "id": row.name,
        "subscription_id": f"sub_{row.subscription_id}",
        "event_id": row.event_id,
        "event_type": row.event_type,
        "subject": row.subject,
        "status": row.state,
        "tries": row.tries,
        "created_at": format_timestamp(row.created_at),
        "last_status_code": last.get("status"),
        "last_error": last.get("error"),
        "attempts": row.attempts,
    }
    if row.waits_until is not None:
        found["next_attempt_at"] = format_timestamp(row.waits_until)
    if row.finished_at is not None:
        found["finished_at"] = format_timestamp(row.finished_at)
    if whole:
        found["body"] = row.body
    return found


def find_delivery(name: str, project: str) -> WebhookDelivery:
    """Return the delivery with this id, for a key of `project`.

    Raises:
        NotFound: there is none, or it is another project's.
    """
    rows = WebhookDelivery.objects.filter(pk__in=parse_name(name, "del_"))
    if project:
        rows = rows.filter(subscription__project=project)
    found: WebhookDelivery | None = rows.first()
    if found is None:
        raise NotFound(
            f"Webhook delivery '{name}' not found.",
            resource_type="webhook_delivery",
            resource_id=name,
        )
    return found


def replay(actor: Actor, row: WebhookDelivery, *, reason: str = "") -> WebhookDelivery:
    """Send a delivery once more, as if it were new: with the same id, so that a receiver that has
    it can leave it out (§7.5).

    Raises:
        Conflict: its subscription is not active.
    """
    with atomic():
        active = WebhookSubscription.objects.active().values("pk")
        same = WebhookDelivery.objects.filter(pk=row.pk)
        delivery_jobs.cancel(same, by=actor.name, reason="The delivery is sent once more.")
        replayed = same.filter(subscription__in=active).update(
            state=DeliveryState.PENDING, tries=0, next_try_at=Now(), finished_at=None
        )
        if not replayed:
            raise Conflict(f"The subscription of '{row.name}' is not active.")
        record_change(actor, row.subscription, {"replayed": row.name}, reason=reason)
        found = find_delivery(row.name, "")
        delivery_jobs.enqueue([found])
        same.update(job_id=found.job_id)
        return found

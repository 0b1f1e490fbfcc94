"""Sends deliveries, each until it succeeds or is dead (OJS webhooks §7): one attempt, in its steps.

What comes between attempts is the matter of the job that carries the delivery (`delivery_jobs`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from uuid import UUID

import orjson
from django.db import IntegrityError
from django.db.models import Count, F, Q
from django.db.models.functions import Now
from django.utils.translation import gettext as _

import jobs
from jobs.conf import ojs_settings
from jobs.errors import TooManyConnections
from jobs.http import outbound
from jobs.http.renderers import dumps
from jobs.models import Event
from jobs.record import events
from jobs.spec import cloudevents
from jobs.spec.identifiers import uuid7
from jobs.spec.timestamps import format_timestamp
from jobs.store import clock
from jobs.store.database import alias, atomic

from ..models import DeliveryState, WebhookDelivery, WebhookFormat, WebhookSubscription
from . import counting, delivery_jobs
from .delivery_jobs import PAUSES, TRIES
from .fan_out import written

logger = logging.getLogger("workers.webhooks")

LONGEST_PAUSE = PAUSES[-1]
LONGEST_HOLD = timedelta(minutes=1)
"""How long other deliveries wait because of one that a receiver put off: after that, one of them
finds out whether it takes more."""
REDIRECTS = 3
KEPT_ATTEMPTS = 20
SHOWN = 500
"""Characters of a response, or of an error, that are kept."""
BACKLOG = 100_000
"""Pending deliveries with which a subscription is disabled."""
DEAD_KEPT = timedelta(days=30)
PRUNED = 1_000
BURIALS = 20
"""Batches at once."""
TEST = "webhook.test"
TEST_TIMEOUT = 10
TESTS_AT_ONCE = 2
USER_AGENT = f"OJS-Webhook/1.0 (django-ojs/{jobs.__version__})"

testing = threading.BoundedSemaphore(TESTS_AT_ONCE)
"""Held while a test is sent: each may take seconds of a thread of the server."""


@dataclass(frozen=True)
class Attempt:
    """One attempt of a delivery."""

    key: UUID
    job_id: UUID | None
    """None for a test."""
    subscription: UUID
    event_type: str
    number: int
    """From 1 on."""
    url: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    timeout: float
    at: datetime
    earlier: list[dict[str, Any]] = field(repr=False)


@dataclass(frozen=True)
class Outcome:
    """What became of an attempt."""

    attempt: Attempt
    duration: float
    """Seconds."""
    status: int | None = None
    """Of the response; None if there was none."""
    text: str = ""
    """The beginning of the response, or the error."""
    retry_after: str = ""
    is_final: bool = False
    """Another attempt would not succeed."""

    @property
    def is_success(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_dead(self) -> bool:
        return not self.is_success and (self.is_final or self.attempt.number >= TRIES)

    @property
    def state(self) -> DeliveryState:
        if self.is_success:
            return DeliveryState.DELIVERED
        return DeliveryState.DEAD if self.is_dead else DeliveryState.PENDING

    @property
    def reason(self) -> str:
        """Why it failed, without the response: that stays in the delivery."""
        return self.text if self.status is None else f"HTTP {self.status}"

    @property
    def entry(self) -> dict[str, Any]:
        """The attempt in the record of the delivery."""
        entry: dict[str, Any] = {
            "at": format_timestamp(self.attempt.at),
            "duration_ms": round(self.duration * 1000),
        }
        if self.status is not None:
            entry["status"] = self.status
        if not self.is_success:
            entry["error"] = f"HTTP {self.status}: {self.text}" if self.status else self.text
        return entry

    def pause(self, now: datetime) -> timedelta:
        """How long after this attempt the next one follows.

        A receiver can ask for more time (§7.1), not for less: each attempt is one of a few (§7.2).
        """
        planned = PAUSES[min(self.attempt.number, len(PAUSES)) - 1]
        return max(planned, self.asked(now))

    def asked(self, now: datetime) -> timedelta:
        """How long a receiver that limits the rate of requests asks to wait; 0 if it does not."""
        asked = read_retry_after(self.retry_after, now) if self.status == 429 else None
        return max(asked or timedelta(), timedelta())


def read_retry_after(text: str, now: datetime) -> timedelta | None:
    """Return how long a receiver asks to wait: seconds or a date, a day at most; None if it does
    not, or not in a way that can be read."""
    if text.isascii() and text.isdecimal() and len(text) < 10:
        asked = timedelta(seconds=int(text))
    else:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        asked = moment.replace(tzinfo=moment.tzinfo or UTC) - now
    return min(asked, LONGEST_PAUSE)


def message_of(
    row: WebhookDelivery, subscription: WebhookSubscription
) -> tuple[dict[str, str], bytes]:
    """The headers that belong to the body, and the body; every attempt has the same.

    A CloudEvent is stored in structured mode. In binary mode its attributes are headers (OJS
    CloudEvents §9.3), which the signature does not cover.
    """
    body = row.body.encode()
    event = orjson.loads(body) if b'"datacontenttype"' in body else {}
    if "datacontenttype" not in event:
        return {"Content-Type": "application/json"}, body
    if subscription.format == WebhookFormat.BINARY:
        return cloudevents.in_headers(event), dumps(event["data"])
    return {"Content-Type": cloudevents.STRUCTURED}, body


def headers_of(
    row: WebhookDelivery, subscription: WebhookSubscription, body: bytes, now: datetime
) -> dict[str, str]:
    """The headers of an attempt, signed with each secret of the subscription (§5.3, §8.1)."""
    moment = int(now.timestamp())
    signed = [outbound.sign(each, body, moment) for each in subscription.secrets_at(now)]
    return {
        "User-Agent": USER_AGENT,
        "X-OJS-Event-Type": row.event_type,
        "X-OJS-Delivery-ID": row.name,
        "X-OJS-Subscription-ID": subscription.name,
        "X-OJS-Timestamp": str(moment),
        "X-OJS-Signature": ",".join(f"sha256={each}" for each in signed),
    }


def attempt_of(row: WebhookDelivery, subscription: WebhookSubscription, now: datetime) -> Attempt:
    headers, body = message_of(row, subscription)
    return Attempt(
        key=row.pk,
        job_id=row.job_id,
        subscription=subscription.pk,
        event_type=row.event_type,
        number=row.tries,
        url=subscription.url,
        body=body,
        headers=headers | headers_of(row, subscription, body, now),
        timeout=subscription.timeout,
        at=now,
        earlier=row.attempts,
    )


def carried_by(job_id: UUID, key: UUID) -> Any:
    """Return the delivery that a job is to send, with the database's `now`.

    None if there is nothing to do: it was deleted, sent or replayed, or its subscription is not
    active.
    """
    mine = WebhookDelivery.objects.pending().filter(pk=key, job_id=job_id)
    row = mine.select_related("subscription").annotate(now=Now()).first()
    if row is None or row.subscription.active:
        return row
    # When it is resumed, there will be a job for what has waited.
    paused = WebhookSubscription.objects.filter(active=False)
    mine.filter(subscription__in=paused.values("pk")).update(job_id=None)
    return None


def begin(row: WebhookDelivery) -> Attempt | None:
    """Begin an attempt; None if the delivery was replayed or deleted meanwhile."""
    same = WebhookDelivery.objects.pending().filter(pk=row.pk, job_id=row.job_id, tries=row.tries)
    if not same.update(tries=F("tries") + 1):
        return None
    row.tries += 1
    return attempt_of(row, row.subscription, clock.now())


def send(attempt: Attempt) -> Outcome:
    """Make an attempt; touches no database."""
    began = time.monotonic()
    try:
        reply = outbound.post(
            attempt.url,
            attempt.body,
            attempt.headers,
            timeout=attempt.timeout,
            redirects=REDIRECTS,
            only_https=not ojs_settings.WEBHOOKS_ALLOW_HTTP,
        )
    except outbound.OutboundError as problem:
        return Outcome(
            attempt,
            time.monotonic() - began,
            text=str(problem)[:SHOWN],
            is_final=isinstance(problem, outbound.Refused),
        )
    return Outcome(
        attempt,
        time.monotonic() - began,
        reply.status,
        text=reply.text[:SHOWN],
        retry_after=reply.retry_after,
        is_final=400 <= reply.status < 500 and reply.status != 429,
    )


def note(outcome: Outcome) -> timedelta | None:
    """Note what became of an attempt; return the pause until the next, None if there is none."""
    now = clock.now()
    with atomic():
        if _finish(outcome, now):
            _note_health(outcome)
            counting.add(outcome)
            events.record([_event(outcome)])
    if asked := outcome.asked(now):
        delivery_jobs.hold(outcome.attempt.subscription, now + min(asked, LONGEST_HOLD))
    return outcome.pause(now) if outcome.state == DeliveryState.PENDING else None


def _finish(outcome: Outcome, now: datetime) -> bool:
    """Write an outcome; False if the delivery was replayed or deleted meanwhile."""
    attempt = outcome.attempt
    same = WebhookDelivery.objects.pending().filter(
        pk=attempt.key, job_id=attempt.job_id, tries=attempt.number
    )
    entries = [*attempt.earlier, outcome.entry][-KEPT_ATTEMPTS:]
    changes: dict[str, Any] = {"state": outcome.state, "attempts": entries}
    if outcome.state == DeliveryState.PENDING:
        changes["next_try_at"] = now + outcome.pause(now)
    else:
        changes["finished_at"] = now
    return bool(same.update(**changes))


def _note_health(outcome: Outcome) -> None:
    """Note whether a subscription works; disable one that a whole series of attempts did not reach.

    A response of 4xx comes from a receiver that works.
    """
    key = outcome.attempt.subscription
    row = WebhookSubscription.objects.filter(pk=key)
    if outcome.is_success:
        recovered = row.filter(failing_since__isnull=False)
        if recovered.update(delivered_at=Now(), failing_since=None):
            delivery_jobs.limit(key, is_failing=False)
        else:
            row.update(delivered_at=Now())
    elif not outcome.is_final:
        if row.filter(failing_since__isnull=True).update(failing_since=Now()):
            delivery_jobs.limit(key, is_failing=True)
        if outcome.is_dead:
            long_ago = Now() - sum(PAUSES, timedelta())
            text = _("No delivery has succeeded for as long as one is tried.")
            unreached = row.active().filter(failing_since__lte=long_ago)
            if unreached.update(active=False, disabled_reason=text):
                logger.warning("A webhook subscription was disabled: nothing has reached it.")


def _event(outcome: Outcome) -> Any:
    attempt = outcome.attempt
    kinds = {
        DeliveryState.DELIVERED: "webhook.delivered",
        DeliveryState.PENDING: "webhook.failed",
        DeliveryState.DEAD: "webhook.dead",
    }
    data: dict[str, Any] = {
        "subscription_id": f"sub_{attempt.subscription}",
        "event_type": attempt.event_type,
        "tries": attempt.number,
        "duration_ms": round(outcome.duration * 1000),
        "status_code": outcome.status,
    }
    if not outcome.is_success:
        data["error"] = outcome.entry["error"]
    return events.webhook_event(kinds[outcome.state], f"del_{attempt.key}", **data)


def test(subscription: WebhookSubscription) -> Outcome:
    """Send a synthetic event at once, active or not, and keep it among the deliveries (§6.6).

    Raises:
        TooManyConnections: this process is sending others: each may take seconds of a thread.
    """
    now = clock.now()
    time_text = format_timestamp(now)
    envelope: dict[str, Any] = {
        "specversion": "1.0",
        "id": f"evt_{uuid7()}",
        "type": TEST,
        "source": events.SOURCES["webhook"],
        "time": time_text,
        "timestamp": time_text,
        "subject": subscription.name,
        "data": {"subscription_id": subscription.name},
    }
    row = WebhookDelivery(
        subscription=subscription,
        event_id=envelope["id"],
        event_type=TEST,
        subject=subscription.name,
        body=written(envelope, is_cloudevent=subscription.format != WebhookFormat.OJS),
        created_at=now,
        next_try_at=now,
        tries=1,
    )
    if not testing.acquire(blocking=False):
        raise TooManyConnections(
            "Other webhooks are being tested: try again in some seconds.", limit=TESTS_AT_ONCE
        )
    try:
        attempt = attempt_of(row, subscription, now)
        outcome = send(replace(attempt, timeout=min(attempt.timeout, TEST_TIMEOUT)))
    finally:
        testing.release()
    row.state = DeliveryState.DELIVERED if outcome.is_success else DeliveryState.DEAD
    row.attempts, row.finished_at = [outcome.entry], clock.now()
    # The subscription may have been deleted meanwhile.
    with contextlib.suppress(IntegrityError), atomic():
        row.save(force_insert=True)
    return outcome


def forget(job_ids: Sequence[str]) -> None:
    """Delete the deliveries of events of these jobs, and what is recorded of them."""
    rows = WebhookDelivery.objects.filter(subject__in=job_ids)
    delivery_jobs.cancel(rows.pending(), reason="The delivery was erased.")
    # A receiver's response may quote what it got.
    recorded = Event.objects.using(alias()).filter(type__startswith="webhook.")
    recorded.filter(subject__in=[row.name for row in rows.only("pk")]).delete()
    rows.delete()


def prune() -> int:
    """Delete one batch of old deliveries; disable subscriptions with too many pending ones, and
    find those that their jobs have lost."""
    _disable_overfull()
    for _each in range(BURIALS):
        if _bury_lost() < delivery_jobs.BATCH:
            break
    delivery_jobs.mend()
    old = Q(state=DeliveryState.DELIVERED, finished_at__lte=Now() - ojs_settings.EVENT_RETENTION)
    old |= Q(state=DeliveryState.DEAD, finished_at__lte=Now() - DEAD_KEPT)
    rows = WebhookDelivery.objects.finished().filter(old)
    ids = list(rows.order_by("finished_at").values_list("pk", flat=True)[:PRUNED])
    return WebhookDelivery.objects.filter(pk__in=ids).delete()[0] if ids else 0


def _bury_lost() -> int:
    """Note the end of one batch of deliveries that their jobs have lost for good."""
    with atomic():
        rows = delivery_jobs.bury()
        counting.add_dead(rows)
        events.record([_event_of_lost(row) for row in rows])
    return len(rows)


def _event_of_lost(row: WebhookDelivery) -> Any:
    was_last = row.tries >= TRIES
    return events.webhook_event(
        "webhook.dead",
        row.name,
        subscription_id=f"sub_{row.subscription_id}",
        event_type=row.event_type,
        tries=row.tries,
        status_code=None,
        error="The last attempt did not come to its end." if was_last else "Its job was cancelled.",
    )


def _disable_overfull() -> None:
    failing = WebhookSubscription.objects.failing()
    pending = (
        WebhookDelivery.objects.pending()
        .filter(subscription__in=failing.values("pk"))
        .order_by()
        .values("subscription")
    )
    full = pending.annotate(count=Count("pk")).filter(count__gt=BACKLOG)
    text = _("More than %(count)s deliveries waited.") % {"count": BACKLOG}
    ids = [row["subscription"] for row in full]
    if ids and WebhookSubscription.objects.active().filter(pk__in=ids).update(
        active=False, disabled_reason=text
    ):
        logger.warning("Webhook subscriptions were disabled: %s", text)

"""Sends deliveries, each until it succeeds or is dead (OJS webhooks §7).

A receiver that is slow or away must not hold up the others. So a process has only a few requests
under way for each subscription, one for a subscription that is failing, and leaves half of its
threads to those that answer quickly.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit
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
from jobs.record import events
from jobs.spec import cloudevents
from jobs.spec.identifiers import uuid7
from jobs.spec.timestamps import format_timestamp
from jobs.store import clock
from jobs.store.database import atomic, connection

from ..models import DeliveryState, WebhookDelivery, WebhookFormat, WebhookSubscription
from ..outbox import LEASE, Outbox
from . import counting
from .fan_out import written

logger = logging.getLogger("workers.webhooks")

PAUSES = tuple(timedelta(seconds=each) for each in (30, 120, 600, 3600, 14_400, 43_200, 86_400))
"""After the first attempt, the second and so on (§7.2)."""
TRIES = len(PAUSES) + 1
LONGEST_PAUSE = PAUSES[-1]
REDIRECTS = 3
AT_ONCE = 32
EACH = 4
"""Requests under way for one subscription."""
SLOW_AT_ONCE = AT_ONCE // 2
SLOW = 2.0
"""Seconds; a subscription that answered later than that, or failed, is slow."""
KEPT_ATTEMPTS = 20
SHOWN = 500
"""Characters of a response, or of an error, that are kept."""
BACKLOG = 100_000
"""Pending deliveries with which a subscription is disabled."""
DEAD_KEPT = timedelta(days=30)
PRUNED = 1_000
TEST = "webhook.test"
TEST_TIMEOUT = 10
TESTS_AT_ONCE = 2
USER_AGENT = f"OJS-Webhook/1.0 (django-ojs/{jobs.__version__})"

testing = threading.BoundedSemaphore(TESTS_AT_ONCE)
"""Held while a test is sent: each may take seconds of a thread of the server."""


@dataclass(frozen=True)
class Attempt:
    """One attempt of a delivery that this process has reserved."""

    key: UUID
    subscription: UUID
    event_type: str
    number: int
    """From 1 on."""
    url: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    timeout: float
    is_slow: bool
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
        """How long after this attempt the next one follows."""
        if self.status == 429 and (asked := read_retry_after(self.retry_after, now)) is not None:
            return asked
        return PAUSES[min(self.attempt.number, len(PAUSES)) - 1]


def read_retry_after(text: str, now: datetime) -> timedelta | None:
    """Return how long a receiver asks to wait: seconds or a date, a day at most; None if it does
    not, or not in a way that can be read."""
    if text.isascii() and text.isdecimal() and len(text) < 10:
        asked = timedelta(seconds=int(text))
    else:
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            return None
        asked = moment.replace(tzinfo=moment.tzinfo or UTC) - now
    return min(max(asked, timedelta(seconds=1)), LONGEST_PAUSE)


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


def attempt_of(
    row: WebhookDelivery, subscription: WebhookSubscription, now: datetime, *, is_slow: bool = False
) -> Attempt:
    headers, body = message_of(row, subscription)
    return Attempt(
        key=row.pk,
        subscription=subscription.pk,
        event_type=row.event_type,
        number=row.tries,
        url=subscription.url,
        body=body,
        headers=headers | headers_of(row, subscription, body, now),
        timeout=subscription.timeout,
        is_slow=is_slow,
        at=now,
        earlier=row.attempts,
    )


class Turns:
    """Which subscription's turn it is, as far as this process knows."""

    def __init__(self) -> None:
        self._taken: dict[UUID, int] = {}
        self._number = 0
        self._last: dict[UUID, float] = {}
        """How long the last attempt took, in seconds."""

    def noted(self, outcome: Outcome) -> None:
        self._last[outcome.attempt.subscription] = outcome.duration

    def share(
        self, free: int, sending: Collection[Attempt], waiting: Sequence[WebhookSubscription]
    ) -> list[tuple[WebhookSubscription, int, bool]]:
        """Divide free threads: subscriptions, how many attempts each may begin, and whether it is
        slow. Those that waited longest for their turn come first."""
        busy = Counter(each.subscription for each in sending)
        slow = SLOW_AT_ONCE - sum(each.is_slow for each in sending)
        found = []
        for row in sorted(waiting, key=lambda row: self._taken.get(row.pk, 0)):
            is_slow = row.failing_since is not None or self._last.get(row.pk, 0) > SLOW
            most = 1 if row.failing_since is not None else EACH
            room = min(most - busy[row.pk], free, slow if is_slow else free)
            if room <= 0:
                continue
            self._number += 1
            self._taken[row.pk] = self._number
            found.append((row, room, is_slow))
            free -= room
            slow -= room if is_slow else 0
        return found


_turns = Turns()


def take(free: int, sending: Collection[Attempt]) -> list[Attempt]:
    """Reserve deliveries that are due, for this process."""
    waiting = list(WebhookSubscription.objects.with_work())
    if not waiting:
        return []
    shares = _turns.share(free, sending, waiting)
    owners = {row.pk: (row, is_slow) for row, _room, is_slow in shares}
    keys: list[UUID] = []
    for owner, room, _is_slow in shares:
        due = WebhookDelivery.objects.due().filter(subscription=owner).order_by("next_try_at", "pk")
        keys += due.values_list("pk", flat=True)[:room]
    if not keys:
        return []
    skip = connection().features.has_select_for_update_skip_locked
    with atomic():
        due = WebhookDelivery.objects.due().filter(pk__in=keys).order_by("pk")
        rows: list[WebhookDelivery] = list(due.select_for_update(skip_locked=skip))
        mine = WebhookDelivery.objects.filter(pk__in=[row.pk for row in rows])
        mine.update(tries=F("tries") + 1, next_try_at=Now() + LEASE)
    now = clock.now()
    found = []
    for row in rows:
        row.tries += 1
        owner, is_slow = owners[row.subscription_id]
        found.append(attempt_of(row, owner, now, is_slow=is_slow))
    return found


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
        # PostgreSQL stores no null characters.
        text=" ".join(reply.text.replace("\x00", " ").split())[:SHOWN],
        retry_after=reply.retry_after,
        is_final=400 <= reply.status < 500 and reply.status != 429,
    )


def note(outcomes: Sequence[Outcome]) -> None:
    """Note what became of attempts: one transaction."""
    now = clock.now()
    with atomic():
        changed = [each for each in outcomes if _finish(each, now)]
        _note_health(changed)
        counting.add(changed)
        events.record(map(_event, changed))
    for each in outcomes:
        _turns.noted(each)
        if not each.is_success:
            logger.log(
                logging.WARNING if each.is_dead else logging.INFO,
                "Webhook delivery del_%s to %s failed (try %s): %s",
                each.attempt.key,
                urlsplit(each.attempt.url).hostname,
                each.attempt.number,
                each.entry["error"],
            )


def _finish(outcome: Outcome, now: datetime) -> bool:
    """Write an outcome; False if the delivery was replayed or deleted meanwhile."""
    attempt = outcome.attempt
    same = WebhookDelivery.objects.pending().filter(pk=attempt.key, tries=attempt.number)
    entries = [*attempt.earlier, outcome.entry][-KEPT_ATTEMPTS:]
    changes: dict[str, Any] = {"state": outcome.state, "attempts": entries}
    if outcome.state == DeliveryState.PENDING:
        changes["next_try_at"] = now + outcome.pause(now)
    else:
        changes["finished_at"] = now
    return bool(same.update(**changes))


def _note_health(outcomes: Sequence[Outcome]) -> None:
    """Note which subscriptions work; disable those that a whole series of attempts did not reach.

    A response of 4xx comes from a receiver that works.
    """
    well = {each.attempt.subscription for each in outcomes if each.is_success}
    badly = {each.attempt.subscription for each in outcomes if not each.is_final} - well
    rows = WebhookSubscription.objects
    # Locked in the order of ids, as in every process that does this.
    locked = rows.filter(pk__in=well | badly).order_by("pk").select_for_update(no_key=True)
    list(locked.values_list("pk", flat=True))
    rows.filter(pk__in=well).update(delivered_at=Now(), failing_since=None)
    rows.filter(pk__in=badly, failing_since__isnull=True).update(failing_since=Now())
    ended = {each.attempt.subscription for each in outcomes if each.is_dead and not each.is_final}
    long_ago = Now() - sum(PAUSES, timedelta())
    unreached = rows.active().filter(pk__in=ended & badly, failing_since__lte=long_ago)
    text = _("No delivery has succeeded for as long as one is tried.")
    if unreached.update(active=False, disabled_reason=text):
        logger.warning("Webhook subscriptions were disabled: nothing has reached them.")


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


outbox: Outbox[Attempt, Outcome] = Outbox("ojs-webhooks", AT_ONCE, take=take, send=send, note=note)
"""Sends deliveries while it runs."""


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
    """Delete the deliveries of events of these jobs."""
    WebhookDelivery.objects.filter(subject__in=job_ids).delete()


def prune() -> int:
    """Delete one batch of old deliveries, and disable subscriptions with too many pending ones."""
    _disable_overfull()
    old = Q(state=DeliveryState.DELIVERED, finished_at__lte=Now() - ojs_settings.EVENT_RETENTION)
    old |= Q(state=DeliveryState.DEAD, finished_at__lte=Now() - DEAD_KEPT)
    rows = WebhookDelivery.objects.finished().filter(old)
    ids = list(rows.order_by("finished_at").values_list("pk", flat=True)[:PRUNED])
    return WebhookDelivery.objects.filter(pk__in=ids).delete()[0] if ids else 0


def _disable_overfull() -> None:
    failing = WebhookSubscription.objects.active().filter(failing_since__isnull=False)
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

"""Requests about subscriptions and deliveries, declared (OJS webhooks §5, §6)."""

from __future__ import annotations

import difflib
import re
from datetime import timedelta
from typing import Any

from jobs.conf import ojs_settings
from jobs.http import outbound
from jobs.http.parameters import OneOf, Page, Word
from jobs.http.renderers import dumps
from jobs.record.vocabulary import TYPES
from jobs.spec.fields import Document, inside, refuse
from jobs.spec.members import (
    Boolean,
    Choice,
    Duration,
    Integer,
    Members,
    Object,
    Schema,
    Text,
    Texts,
    words,
)
from jobs.spec.operator_requests import Reason
from jobs.spec.validation import QUEUE_LENGTH, QUEUE_PATTERN, TYPE_LENGTH

from ..models import DeliveryState, WebhookFormat
from ..models.webhook import LONGEST_SECRET

MOST_PATTERNS = 100
METADATA_SIZE = 16_384
"""Bytes of JSON."""
NEVER_SENT = frozenset({"webhook.delivered", "webhook.failed", "webhook.dead"})
"""Deliveries of them would cause others without end."""
SENT = sorted(TYPES.keys() - NEVER_SENT)
PATTERNS = ["*", *sorted({f"{kind.rpartition('.')[0]}.*" for kind in SENT} | {"webhook.*"}), *SENT]
"""What a subscription may name."""
# A filter that matches no name is a mistake: nothing would be sent, and nobody would notice.
QUEUES = re.compile(rf"(\*|{QUEUE_PATTERN.pattern}\*?)")
JOB_TYPES = re.compile(r"(\*|[a-zA-Z][a-zA-Z0-9_.+-]*\*?)")
"""Types of every protocol, or what they begin with."""
LONGEST_OVERLAP = timedelta(days=30)
OVERLAP = timedelta(hours=24)
TIMEOUTS = (5, 60)
"""Seconds that an attempt may take (§7.3)."""


class EventTypes(Texts):
    """Types of events; `job.*` and `*` match several."""

    def check(self, value: Any, place: str) -> list[str]:
        found = super().check(value, place)
        for index, pattern in enumerate(found):
            if pattern not in PATTERNS:
                close = difflib.get_close_matches(pattern, PATTERNS, n=1)
                hint = f" Did you mean '{close[0]}'?" if close else ""
                raise refuse(
                    f"{place}[{index}]", f"No event that is sent has the type {pattern!r}.{hint}"
                )
        return list(dict.fromkeys(found))

    def items_schema(self) -> Schema:
        return {"type": "string", "enum": PATTERNS}


class EventFilter(Members, closed=True):
    queues = Texts(
        "`mail.*` matches what begins with `mail.`.",
        pattern=QUEUES,
        longest=QUEUE_LENGTH,
        most=MOST_PATTERNS,
    )
    job_types = Texts(
        "The same for types of jobs.",
        pattern=JOB_TYPES,
        longest=TYPE_LENGTH,
        most=MOST_PATTERNS,
    )


class Url(Text):
    """A URL that this server may send requests to."""

    def read(self, document: Document) -> str | None:
        url = super().read(document)
        return None if url is None else self.check(url, self.name)

    def check(self, value: Any, place: str) -> str:
        url = super().check(value, place)
        try:
            outbound.read_url(url, only_https=not ojs_settings.WEBHOOKS_ALLOW_HTTP)
        except outbound.Refused as problem:
            raise refuse(place, f"The '{place}' field is refused: {problem}") from None
        return url


class Secret(Members):
    secret = Text(
        "Signs the deliveries; the server makes one up if it is absent.",
        longest=LONGEST_SECRET,
        pattern=re.compile(r"[!-~]{16,255}"),
        secret=True,
    )


class ChangeSubscription(Members, closed=True):
    url = Url(
        "Where events are sent to: `https://`.",
        longest=2000,
        filled=True,
        schema={"pattern": "^https?://[!-~]+$"},
    )
    events = EventTypes(
        "Types of events; `job.*` matches what begins with `job.`, `*` everything.",
        least=1,
        most=MOST_PATTERNS,
        longest=64,
    )
    filter = Object("Only events that match it; `null`: all.", of=EventFilter, nullable=True)
    active = Boolean("False: nothing is sent.")
    metadata = Object("Anything, 16 KB of JSON at most.")
    format = Choice(
        words(*WebhookFormat.values),
        "How events are written: as OJS does, or as CloudEvents in structured or binary mode.",
    )
    timeout = Integer("Seconds that an attempt may take.", least=TIMEOUTS[0], most=TIMEOUTS[1])


class NewSubscription(ChangeSubscription, Secret, needs=("url", "events")):
    pass


class RotateSecret(Reason, Secret):
    overlap = Duration(
        "How long deliveries are signed with the previous secret as well: 30 days at most.",
        most=LONGEST_OVERLAP,
    ).default(OVERLAP)


class DeliveryQuery(Page):
    subscription_id = Word()
    status = OneOf(DeliveryState.values)
    event_type = Word()


def matches(pattern: str, text: str) -> bool:
    """Whether a text is what the pattern names, or begins with what is before its `*`."""
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def read_changes(body: Document) -> dict[str, Any]:
    """Return the columns that a request sets.

    Raises:
        InvalidRequest: a member breaks its rule.
    """
    changes: dict[str, Any] = {
        name: value
        for name in ("url", "events", "active", "metadata", "format", "timeout")
        if (value := getattr(ChangeSubscription, name).read(body)) is not None
    }
    if len(dumps(changes.get("metadata"))) > METADATA_SIZE:
        text = f"The 'metadata' field may have at most {METADATA_SIZE} bytes of JSON."
        raise refuse("metadata", text, limit=METADATA_SIZE)
    if "filter" in body:
        given = ChangeSubscription.filter.read(body) or {}
        with inside("filter"):
            for name in given:
                # A misspelt filter would send everything to someone else.
                if name not in EventFilter.names:
                    known = ", ".join(EventFilter.members)
                    raise refuse(name, f"There is no filter by '{name}', only by {known}.")
            changes["queues"] = EventFilter.queues.read(given) or []
            changes["job_types"] = EventFilter.job_types.read(given) or []
    return changes

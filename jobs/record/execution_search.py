"""Search of the execution history of all jobs (OJS execution history §7.4).

The record has no index on time, for every event would pay for it. Its ids are in the order of time,
but for the length of a transaction: so a moment is found by bisection, and what is asked for is
read backwards from there. One request reads a limited part of the record, however few entries
match; its cursor continues where it stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Max, Q, QuerySet, TextField
from django.db.models.functions import Cast

from ..access.projects import scope_to
from ..models import Event, Job
from ..spec.identifiers import parse_uuid
from ..store.database import alias
from .events import job_ids_of
from .execution import EVERYTHING, TYPES, Reader, entries, events_of

CHUNK = 1000
"""Events that are read at a time."""
CHUNKS = 50
"""Most chunks of one request."""
WINDOW = 20_000
"""Ids among which one chunk looks for its events."""
LATE = timedelta(minutes=10)
"""How much later than its time an event may have got its id."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The filters of a search; empty ones match everything."""

    query: str = ""
    """A text that the entry contains, whatever its case."""
    start: datetime | None = None
    end: datetime | None = None
    event_types: Sequence[str] = ()
    queues: Sequence[str] = ()
    job_types: Sequence[str] = ()
    actor_type: str = ""


class Place(NamedTuple):
    """Where the next page begins: below an entry."""

    event: int
    entry: int
    seen: int = 0
    """Entries of the pages before."""


@dataclass(frozen=True, slots=True)
class Found:
    """A page of the search, newest first."""

    entries: list[dict[str, Any]]
    next: Place | None
    estimate: int
    """About how many entries match in all."""
    milliseconds: int


def search(
    wanted: Wanted, *, limit: int, below: Place | None = None, reader: Reader = EVERYTHING
) -> Found:
    """Return the entries that match, newest first, at most `limit` of them.

    A page may have fewer, even none, and still name a next one.
    """
    began = time.monotonic()
    lowest, highest = _range(wanted)
    top = highest if below is None else min(highest, below.event)
    rows = _matching(wanted)
    found: list[tuple[tuple[int, int], dict[str, Any]]] = []
    position = top
    for _ in range(CHUNKS):
        if position < lowest or len(found) > limit:
            break
        bottom = max(lowest, position - WINDOW + 1)
        within = rows.filter(pk__gte=bottom, pk__lte=position)
        chunk = list(within.order_by("-pk")[:CHUNK])
        position = (chunk[-1].pk if len(chunk) == CHUNK else bottom) - 1
        for place, document in _newest_first(_own(chunk, reader), reader):
            is_next = below is None or place < (below.event, below.entry)
            if is_next and _matches(document, wanted):
                found.append((place, document))
    page, seen = found[:limit], below.seen if below else 0
    following: Place | None = None
    if len(found) > limit:
        following = Place(*page[-1][0], seen + len(page))
    elif position >= lowest:
        following = Place(position + 1, 0, seen + len(page))
    looked_at, left = top - position, max(0, position - lowest + 1)
    estimate = seen + len(found) + round(len(found) * left / max(1, looked_at))
    # Of events whose transactions overlapped, a later one may have the lower id.
    documents = sorted(
        (document for _, document in page), key=lambda entry: entry["timestamp"], reverse=True
    )
    return Found(documents, following, estimate, round(1000 * (time.monotonic() - began)))


def _range(wanted: Wanted) -> tuple[int, int]:
    """Return the ids between which all events are that match the times."""
    rows = Event.objects.using(alias())
    highest = rows.aggregate(last=Max("pk"))["last"] or 0
    lowest = rows.order_by("pk").values_list("pk", flat=True).first() or 1
    if wanted.end is not None:
        highest = min(highest, first_since(wanted.end + LATE, lowest, highest))
    if wanted.start is not None:
        lowest = first_since(wanted.start - LATE, lowest, highest)
    return lowest, highest


def first_since(moment: datetime, lowest: int, highest: int) -> int:
    """Return about the first id whose event is not before `moment`, by bisection."""
    times = Event.objects.using(alias()).order_by("pk").values_list("time", flat=True)
    while lowest < highest:
        middle = (lowest + highest) // 2
        found = times.filter(pk__gte=middle).first()
        if found is None or found >= moment:
            highest = middle
        else:
            lowest = middle + 1
    return lowest


def _matching(wanted: Wanted) -> QuerySet[Event]:
    """The events of the record that may have entries that match."""
    rows = Event.objects.using(alias()).filter(
        type__in=events_of(wanted.event_types or TYPES), **_between(wanted)
    )
    if wanted.queues:
        rows = rows.filter(queue__in=list(wanted.queues))
    if wanted.job_types:
        rows = rows.filter(job_type__in=list(wanted.job_types))
    if wanted.query and _is_plain(wanted.query):
        rows = rows.annotate(text=Cast("data", TextField()))
        choice = Q(text__icontains=wanted.query)
        for column in ("subject", "queue", "job_type", "worker_id"):
            choice |= Q(**{f"{column}__icontains": wanted.query})
        # Entries may also contain words that are not in the record, such as `job.attempt_failed`.
        named = [kind for kind in TYPES if wanted.query.lower() in kind]
        rows = rows.filter(choice | Q(type__in=events_of(named)))
    return rows


def _between(wanted: Wanted) -> dict[str, datetime]:
    given = {"time__gte": wanted.start, "time__lt": wanted.end}
    return {name: moment for name, moment in given.items() if moment is not None}


def _is_plain(text: str) -> bool:
    """Whether databases write the text in JSON as it is."""
    return json.dumps(text) == f'"{text}"'


def _own(chunk: list[Event], reader: Reader) -> list[Event]:
    """Return the events of a project's own jobs: an event itself has no project."""
    if not reader.project:
        return chunk
    own = scope_to(Job.objects.using(alias()).filter(pk__in=job_ids_of(chunk)), reader.project)
    keys = set(own.values_list("pk", flat=True))
    return [event for event in chunk if event.job_type and parse_uuid(event.subject) in keys]


def _newest_first(
    chunk: list[Event], reader: Reader
) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    return reversed(list(entries(chunk[::-1], reader)))


def _matches(document: dict[str, Any], wanted: Wanted) -> bool:
    if wanted.event_types and document["event_type"] not in wanted.event_types:
        return False
    if wanted.actor_type and document.get("actor", {}).get("type") != wanted.actor_type:
        return False
    # In what the reader sees, so that a hidden value cannot be guessed by searching for it.
    return not wanted.query or wanted.query.lower() in _text(document)


def _text(value: Any) -> str:
    """Return all values of a document in lower case, a line for each."""
    if isinstance(value, dict):
        return "\n".join(map(_text, value.values()))
    if isinstance(value, list):
        return "\n".join(map(_text, value))
    return str(value).lower()

"""Channels that a client may subscribe to, and filters by event type (OJS realtime §3.2, §5.6)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..errors import InvalidRequest, JobNotFound, NotFound
from ..models import Queue
from ..spec.identifiers import parse_uuid

ALL = "all"
JOB, QUEUE = "job:", "queue:"
MOST_TYPES = 100
LONGEST_TYPE = 64
DOUBLED = frozenset({"progress.updated"})
"""Types that the record has in addition to another one for the same thing: sent only on request."""


class Channel(NamedTuple):
    """A channel to which a client may subscribe."""

    name: str
    """As on the wire: `job:ID`, `queue:NAME` or `all`."""
    job_id: str = ""
    queue: str = ""

    @property
    def is_all(self) -> bool:
        return not (self.job_id or self.queue)


def parse(text: str) -> Channel:
    """
    Raises:
        InvalidRequest: this is not a channel.
        JobNotFound: no job can have this id.
    """
    if text == ALL:
        return Channel(ALL)
    if text.startswith(JOB):
        return job(text.removeprefix(JOB))
    if text.startswith(QUEUE) and text != QUEUE:
        return queue(text.removeprefix(QUEUE))
    raise InvalidRequest(
        f"There is no channel {text[:100]!r}.",
        hint="Subscribe to 'job:ID', 'queue:NAME' or 'all'.",
        field="channel",
    )


def job(text: str) -> Channel:
    """
    Raises:
        JobNotFound: no job can have this id.
    """
    job_id = parse_uuid(text)
    if job_id is None:
        raise JobNotFound(text[:100])
    return Channel(f"{JOB}{job_id}", job_id=str(job_id))


def queue(name: str) -> Channel:
    return Channel(f"{QUEUE}{name}", queue=name)


def require_queue(name: str) -> Queue:
    """
    Raises:
        NotFound: the queue has never been used.
    """
    found = Queue.objects.filter(pk=name).first()
    if found is None:
        raise NotFound(f"Queue '{name}' not found.", resource_type="queue", resource_id=name)
    return found


class Face(NamedTuple):
    """How an event is shown: under its name in this document, or under that in the record."""

    is_own: bool
    """Whether it is shown under its name in the record."""


AS_HERE, AS_RECORDED = Face(False), Face(True)


class Filter:
    """The types that a subscription wants; all of them if it names none."""

    def __init__(self, types: Iterable[str] | None = None) -> None:
        """
        Args:
            types: names from this document or from the record; `job.*` matches a prefix.

        Raises:
            InvalidRequest: there are too many, or one is too long.
        """
        self.types = None if types is None else tuple(dict.fromkeys(types))
        if self.types is not None and (
            len(self.types) > MOST_TYPES or any(len(name) > LONGEST_TYPE for name in self.types)
        ):
            raise InvalidRequest(
                f"Name at most {MOST_TYPES} event types, of up to {LONGEST_TYPE} characters.",
                field="event_types",
            )
        self._faces: dict[tuple[str, str], Face | None] = {}

    def face(self, name: str, recorded: str) -> Face | None:
        """Return how an event is shown to the subscription; None if it is not.

        Args:
            name: its type in this document, and `recorded` in the record.
        """
        key = (name, recorded)
        try:
            return self._faces[key]
        except KeyError:
            found = self._faces[key] = self._decide(name, recorded)
            return found

    def _decide(self, name: str, recorded: str) -> Face | None:
        if self.types is None:
            return None if recorded in DOUBLED else AS_HERE
        if any(_matches(wanted, name) for wanted in self.types) and recorded not in DOUBLED:
            return AS_HERE
        return AS_RECORDED if any(_matches(wanted, recorded) for wanted in self.types) else None


def _matches(wanted: str, name: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted

"""Query parameters, declared as bodies are: read here, described by the OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

from django.core.exceptions import TooManyFieldsSent
from django.http import QueryDict

from ..errors import InvalidRequest
from ..models import WorkflowState, WorkflowType
from ..record.execution import ACTORS
from ..spec import tenants
from ..spec.bulk_requests import Bulk
from ..spec.fields import Document
from ..spec.members import Member, Members, Schema

MOST = 200
"""Entries per page."""
LONGEST_SHOWN = 80
"""Characters of an unknown parameter that its refusal repeats."""
SEVERAL = "Several, separated by commas; `job.*` matches what begins with `job.`"


class Word(Member[str | None]):
    """Any text; an empty one counts as absent."""

    def check(self, value: Any, place: str) -> str:
        found: str = value
        return found

    def rules(self) -> Schema:
        return {"type": "string"}


class WholeNumber(Member[int | None]):
    """A whole number, both ends included."""

    def __init__(self, about: str = "", *, least: int, most: int, **words: Any) -> None:
        super().__init__(about, **words)
        self.least, self.most = least, most

    def check(self, value: Any, place: str) -> int:
        if value.isascii() and value.isdecimal() and len(value) < 16:
            found = int(value)
            if self.least <= found <= self.most:
                return found
        raise InvalidRequest(
            f"The '{place}' parameter must be a whole number between {self.least} and {self.most}, "
            f"not {value[:LONGEST_SHOWN]!r}.",
            field=place,
        )

    def rules(self) -> Schema:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


class OneOf(Member[str | None]):
    """One of some words.

    Args:
        sentence: the refusal, a template with `{name}`, `{choices}` and `{value}`.
        strict: refuse an empty value, which otherwise counts as absent.
    """

    def __init__(
        self,
        choices: Iterable[str],
        about: str = "",
        *,
        sentence: str = "The '{name}' parameter must be one of {choices}, not {value!r}.",
        strict: bool = False,
        **words: Any,
    ) -> None:
        super().__init__(about, **words)
        self.choices = [str(choice) for choice in choices]
        self.sentence = sentence
        self.is_strict = strict

    def read(self, document: Document) -> str | None:
        if not self.is_strict and document.get(self.name) == "":
            return self.absent
        return super().read(document)

    def check(self, value: Any, place: str) -> str:
        if value not in self.choices:
            message = self.sentence.format(name=place, choices=", ".join(self.choices), value=value)
            raise InvalidRequest(message, field=place)
        found: str = value
        return found

    def rules(self) -> Schema:
        return {"type": "string", "enum": self.choices}


class NoQuery(Members):
    """Of an endpoint that takes no parameters."""


def query_of(meta: Mapping[str, Any]) -> QueryDict:
    """Parse the query of a request.

    Raises:
        InvalidRequest: it has more parameters than Django takes.
    """
    try:
        return QueryDict(meta.get("QUERY_STRING", ""))
    except TooManyFieldsSent:
        raise InvalidRequest("The URL has too many parameters.") from None


def check_names(query: type[Members], parameters: Mapping[str, Any]) -> None:
    """
    Raises:
        InvalidRequest: a parameter is none of the declared ones: it would change nothing.
    """
    for name in parameters:
        if name not in query.names:
            known = ", ".join(member.name for member in query.described())
            there = f"there are {known}" if known else "this endpoint takes none"
            shown = name[:LONGEST_SHOWN]
            raise InvalidRequest(f"There is no parameter {shown!r}; {there}.", field=shown)


TRUTH: dict[str, Any] = {
    "sentence": "The '{name}' parameter must be true or false.",
    "strict": True,
}
KNOWN: dict[str, Any] = {"sentence": "The '{name}' parameter must be one of {choices}."}


class Cursor(Members):
    cursor = Word("`pagination.next_cursor` of the page before.")


class Page(Cursor):
    limit = WholeNumber("Most entries of a page.", least=1, most=MOST).default(50)
    offset = WholeNumber("For older clients.", least=0, most=1_000_000).default(0)

    page = WholeNumber("The same by number, for older clients.", least=1, most=10_000)
    per_page = WholeNumber("The same as `limit`.", least=1, most=MOST)


class JobsQuery(Page):
    queue = Word()
    state = Word("Several, separated by commas.")
    type = Word("`email.*` means all that begin so.")
    since = Word("Created then or later.", schema={"format": "date-time"})
    until = Word("Created before.", schema={"format": "date-time"})


class DeadLetterQuery(Page):
    """A page has 100 at most."""

    queue = Word()
    type = Word("`email.*` means all that begin so.")
    error_type = Word("The type of the last error.")
    since = Word("Discarded then or later.", schema={"format": "date-time"})
    until = Word("Discarded before.", schema={"format": "date-time"})
    limit = WholeNumber("A page has 100 at most.", least=1, most=MOST).default(50)


class EventQuery(Cursor):
    after = Word("The cursor of the last answer.")
    limit = WholeNumber(least=1, most=1000).default(100)
    types = Word(SEVERAL)
    event_types = Word(SEVERAL)
    queue = Word(SEVERAL)
    queues = Word(SEVERAL)
    job_types = Word(SEVERAL)
    job_id = Word(SEVERAL)
    subject = Word(SEVERAL)
    worker_id = Word(SEVERAL)
    type = Word("The same as `types`.")
    page = WholeNumber(
        "Pages by number, newest first, instead of the order of a cursor.", least=1, most=10_000
    )
    per_page = WholeNumber("Entries of such a page.", least=1, most=100)


class FollowQuery(Members):
    event_types = Word(SEVERAL)
    types = Word(SEVERAL)
    last_event_id = Word("The same as the header `Last-Event-ID`.")


class ChannelQuery(FollowQuery):
    channel = Word("`job:ID`, `queue:NAME` or `all`.").default("all")
    queue = Word("The same as `channel=queue:NAME`.")
    job_id = Word("The same as `channel=job:ID`.")


class ResultQuery(Members):
    wait = OneOf(("true", "false", "1", "0"), "Wait until the job has finished.", **TRUTH).default(
        "false"
    )
    timeout = WholeNumber(
        'Seconds to wait, at most `OJS["MAX_WAIT"]`.', least=0, most=86_400
    ).default(30)


BLOCK_TIMEOUT = WholeNumber(
    'Seconds to wait for room in a full queue that says `block`, `OJS["MAX_WAIT"]` at most.',
    least=0,
    most=86_400,
)
BLOCK_TIMEOUT.name = "OJS-Block-Timeout"
LAST_EVENT_ID = Word("The last event the client has: what came after it is sent first.")
LAST_EVENT_ID.name = "Last-Event-ID"
TENANT = Word("The tenant of the request: of its jobs, or the only one that it can see.")
TENANT.name = tenants.HEADER
IDEMPOTENCY_KEY = copy(Bulk.idempotency_key)
IDEMPOTENCY_KEY.name = "Idempotency-Key"


class WorkflowQuery(Page):
    state = OneOf(WorkflowState.values, **KNOWN)
    type = OneOf(WorkflowType.values, **KNOWN)
    name = Word()


COMMAS = "Several, separated by commas."
DATE_TIME: Schema = {"format": "date-time"}


class ExecutionQuery(Members):
    """The history of a job."""

    limit = WholeNumber("Most entries of a page.", least=1, most=1000).default(50)
    cursor = Word("`next_cursor` of the page before.")


class ExecutionSearch(Members):
    """The history of all jobs."""

    query = Word("A text that the entry contains.")
    start = Word("Then or later.", schema=DATE_TIME)
    end = Word("Before.", schema=DATE_TIME)
    event_types = Word(COMMAS)
    queues = Word(COMMAS)
    job_types = Word(COMMAS)
    actor_type = OneOf(ACTORS)
    limit = WholeNumber(
        "Most entries of a page. More than 1000 count as 1000.", least=1, most=1_000_000_000
    ).default(50)
    cursor = Word("`next_cursor` of the page before.")


class ExecutionStatistics(Members):
    """Sums of the history."""

    start = Word("A day before `end` where it is left out.", schema=DATE_TIME)
    end = Word(schema=DATE_TIME)
    queues = Word(COMMAS)
    job_types = Word(f"{COMMAS} Not together with `queues`.")
    group_by = OneOf(("minute", "hour", "day")).default("hour")


class ExecutionPurge(Members):
    """Events to delete."""

    before = Word("Older ones are deleted.", schema=DATE_TIME).required()
    queues = Word(COMMAS)
    event_types = Word(COMMAS)


class CronQuery(Page):
    enabled = OneOf(("true", "false"), **TRUTH)


class CronHistoryQuery(Members):
    limit = WholeNumber(least=1, most=200).default(50)


# The Admin API


class AdminPage(Cursor):
    page = WholeNumber(least=1, most=10_000).default(1)
    per_page = WholeNumber(least=1, most=100).default(20)
    limit = WholeNumber("The same as `per_page`.", least=1, most=100)


class JobSearch(AdminPage):
    queue = Word()
    state = Word("Several, separated by commas.")
    type = Word("`email.*` means all that begin so.")
    since = Word("Created then or later.")
    until = Word("Created before.")
    worker_id = Word()
    error_type = Word("Of the last error.")
    sort = OneOf(("created_at", "scheduled_at", "priority", "discarded_at")).default("created_at")
    order = OneOf(("asc", "desc")).default("desc")


class HistoryQuery(Members):
    period = OneOf(("1m", "5m", "1h", "1d")).default("5m")
    since = Word("An hour before `until` where it is left out.")
    until = Word()
    queue = Word()


class QueueSearch(AdminPage):
    state = OneOf(("active", "paused", "draining"))

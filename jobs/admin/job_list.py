"""Lists of jobs that read only the beginning of the arguments, and search no more than needed."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import CharField, Q, QuerySet
from django.db.models.functions import Cast, Left
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext

from ..access.redaction import may_see, redact_text
from ..models import Job
from ..models.job import DUE_STATES
from ..spec.identifiers import moment_of, parse_uuid, typed_uuid
from ..spec.lifecycle import State
from .paging import FiguresChangeList, KeysetChangeList
from .search import BadSearch, search

PREVIEW = 80
BIG = ("args", "meta", "result", "attributes", "retry", "parent_results")
"""Columns that may hold a megabyte each: not for lists."""
SEARCHED = 100_000
"""Newest jobs that are searched for what no index finds."""
SCATTERED = 10_000
"""The same of jobs in a state that few end in, by their end: these rows are all over the table."""
INDEXED_PARAMETERS = frozenset({"state", "since"})
INDEXED_OF_DEAD = frozenset({"type", "queue"})
FRAGMENT = re.compile(r"…?[0-9a-fA-F-]{6,36}")
"""What may be a part of a job's id."""
SEPARATOR = "~"
"""Separates the parts of a key in a URL."""
BEFORE = re.compile(r"(?:^|\s)before:\S+")
ENDED_BEFORE = re.compile(r"(?:^|\s)ended-before:\S+")


def is_by_due(request: HttpRequest) -> bool:
    """Whether the list is of jobs that become due: scheduled ones, or those between attempts."""
    return request.GET.get("state") in DUE_STATES


def is_running(request: HttpRequest) -> bool:
    """Whether the list is of jobs that run."""
    return request.GET.get("state") == State.ACTIVE


class JobChangeList(FiguresChangeList):
    """Reads only the beginning of the arguments, and searches no more jobs than necessary."""

    searched_since: Any = None
    """Jobs created before this, or ended before it, were not searched; None if all were."""
    is_by_end = False
    """The search goes back from job to job by their ends, not by their creation."""
    problem = ""
    """Why the text in the search box is not a valid search."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        jobs: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        model_admin: Any = self.model_admin
        filtered = {name for name, value in self.params.items() if value} - INDEXED_PARAMETERS
        state, oldest = self.params.get("state"), None
        try:
            if not model_admin.is_searched_by_id:
                jobs = self._newest_ended(jobs, request, filtered - INDEXED_OF_DEAD)
            elif state in (State.DISCARDED, State.CANCELLED):
                jobs = self._newest_ended(jobs, request, filtered)
            elif filtered and state in (None, State.COMPLETED, State.AVAILABLE):
                oldest = self._oldest_searched()
            jobs = search(jobs, self.query, sees_all=may_see(request.user), since=oldest)
        except BadSearch as problem:
            self.problem = str(problem)
            return self.root_queryset.none()
        preview = Left(Cast("args", CharField()), PREVIEW + 1)
        return jobs.defer(*BIG).annotate(args_preview=preview)

    def _oldest_searched(self) -> UUID | None:
        """Return the id of the last of the newest `SEARCHED` jobs, before the moment that the
        search names, if any; None if there are not so many."""
        before = " ".join(BEFORE.findall(self.query))
        newest = search(Job.objects.all(), before).order_by("-pk").values_list("pk", flat=True)
        oldest = next(iter(newest[SEARCHED : SEARCHED + 1]), None)
        if oldest is not None:
            self.searched_since = moment_of(oldest)
        return oldest

    def _newest_ended(
        self, jobs: QuerySet[Any], request: HttpRequest, filtered: set[str]
    ) -> QuerySet[Any]:
        """Return those of the `SCATTERED` jobs that ended last, before the moment that is named.

        Only for the list itself: actions for all that match, and exports, are for all of them.
        """
        address = request.resolver_match
        is_list = bool(address and str(address.url_name).endswith("_changelist"))
        if not filtered or not is_list or request.method == "POST":
            return jobs
        rows: Any = self.root_queryset.filter(finished_at__isnull=False)
        if state := self.params.get("state"):
            rows = rows.filter(state=state)
        else:  # of the dead letter, with an index for each
            named = {name: self.params[name] for name in INDEXED_OF_DEAD if self.params.get(name)}
            rows = rows.filter(**named)
        rows = search(rows, " ".join(ENDED_BEFORE.findall(self.query)))
        ends = rows.order_by("-finished_at").values_list("finished_at", flat=True)
        edge = next(iter(ends[SCATTERED - 1 : SCATTERED]), None)
        if edge is None or not rows.filter(finished_at__lt=edge).exists():
            return jobs
        self.searched_since, self.is_by_end = edge, True
        return jobs.filter(finished_at__gte=edge)

    @property
    def older_query(self) -> str:
        """Return the query string of the same search among older jobs."""
        if self.is_by_end:
            term, known, edge = "ended-before", ENDED_BEFORE, self.searched_since
        else:
            # Jobs of the same millisecond may be on either side of the boundary.
            term, known = "before", BEFORE
            edge = self.searched_since + timedelta(milliseconds=1)
        text = known.sub("", self.query).strip()
        before = f"{term}:{edge:%Y-%m-%dT%H:%M:%S.%f+00:00}"
        return self.get_query_string({"q": f"{text} {before}".strip()}, ["p", "older", "newer"])

    @property
    def hint(self) -> str:
        """What may have been meant, if a single word finds nothing."""
        if self.result_list or self.problem or not re.fullmatch(r"[^\s:\"']+", self.query):
            return ""
        if re.fullmatch(r"[0-9a-f]{32}", self.query):
            return gettext("For a trace write %(term)s.") % {"term": f"trace:{self.query}"}
        if typed_uuid(self.query):
            return ""
        if self.query.isidentifier() and not FRAGMENT.fullmatch(self.query):
            return gettext("For an error write %(term)s.") % {"term": f"error:{self.query}"}
        hints = []
        if FRAGMENT.fullmatch(self.query):
            hints.append(gettext("A job is found by its whole id; the button beside it copies it."))
        if self.query.isdigit() or not FRAGMENT.fullmatch(self.query):
            text = gettext("For a value of the arguments write %(args)s, of the metadata %(meta)s.")
            values = {"args": f"args.0:{self.query}", "meta": f"meta.key:{self.query}"}
            hints.append(text % values)
        return " ".join(hints)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        is_redacted = not may_see(request.user)
        for job in self.result_list:
            job.is_redacted = is_redacted
            if is_redacted:
                job.args_preview = redact_text(job.args_preview)


class NewestJobs(KeysetChangeList, JobChangeList):
    """In the order of ids: any page costs the same as the first."""


class ByMoment(KeysetChangeList, JobChangeList):
    """In the order of a column with a moment, then of ids."""

    column: str
    after, before = "lt", "gt"
    """Lookups of what comes after a row in the list, and before it."""

    def read_key(self, text: str) -> tuple[datetime, UUID] | None:
        when, _, name = text.partition(SEPARATOR)
        job_id = parse_uuid(name)
        try:
            moment = datetime.fromisoformat(when)
        except ValueError:
            return None
        return (moment, job_id) if job_id and timezone.is_aware(moment) else None

    def key_of(self, row: Any) -> str:
        return f"{getattr(row, self.column).isoformat()}{SEPARATOR}{row.pk}"

    def older_than(self, rows: Any, key: tuple[datetime, UUID]) -> Any:
        return self._beyond(rows, key, self.after)

    def newer_than(self, rows: Any, key: tuple[datetime, UUID]) -> Any:
        return self._beyond(rows, key, self.before)

    def _beyond(self, rows: Any, key: tuple[datetime, UUID], lookup: str) -> Any:
        moment, job_id = key
        beyond = Q((f"{self.column}__{lookup}", moment)) | Q((f"pk__{lookup}", job_id))
        # The second condition is where the index is entered; the first separates equal moments.
        return rows.filter(beyond, (f"{self.column}__{lookup}e", moment))


class NewestDead(ByMoment):
    """In the order of discarding."""

    column = "finished_at"


class SoonestDue(ByMoment):
    """Jobs that become due, the next one first: in the order of ids, a page would read them all."""

    column = "scheduled_at"
    after, before = "gt", "lt"
    is_by_due = True

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        return [self.column, "pk"]


class LongestRunning(ByMoment):
    """Jobs that run, the one that has been running longest first.

    No index has this order, but there are no more of them than the workers run at once.
    """

    column = "started_at"
    after, before = "gt", "lt"
    is_by_start = True

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        return [self.column, "pk"]

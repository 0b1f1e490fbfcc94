"""Search box of the job list: `type:email.send queue:mail worker:w1 id:…`.

All terms must match. A bare word is a job id, or the beginning of a type.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from difflib import get_close_matches
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet, Value
from django.db.models.functions import Substr
from django.db.models.lookups import Exact
from django.utils import timezone
from django.utils.text import smart_split, unescape_string_literal
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..access.redaction import is_hidden
from ..models import JobError
from ..spec.identifiers import first_id, typed_uuid
from ..spec.lifecycle import State
from ..spec.timestamps import to_utc
from ..spec.traces import TRACE_ID, TRACEPARENT
from ..store.expressions import JSONArrayHas, TextAt

HELP = _(
    "A job id, the beginning of a type, or: id: type: queue: state: worker: tag: project: error: "
    "trace: unique: args.0: meta.key: after:2026-01-31T12:00 before: ended-after: ended-before:"
)

NOTHING = Q(pk__in=[])


class BadSearch(ValueError):
    """The text is not a valid search; the message names the word and the valid ones."""


def _id(text: str) -> Q:
    job_id = typed_uuid(text)
    if job_id is None:
        raise BadSearch(gettext("“%(text)s” is not a job id: that is a UUID.") % {"text": text})
    return Q(pk=job_id)


def _state(text: str) -> Q:
    if text not in State.values:
        about = {"text": text, "states": ", ".join(State.values)}
        raise BadSearch(gettext("“%(text)s” is not a state. States are: %(states)s.") % about)
    return Q(state=text)


def _bare(text: str) -> Q:
    job_id = typed_uuid(text)
    return Q(type__startswith=text) if job_id is None else Q(pk=job_id)


def _worker(text: str) -> Any:
    """What it holds or finished, and what it failed or died with."""
    return Q(reserved_by=text) | Q(finished_by=text), JobError.objects.filter(worker_id=text)


# A condition, the rows of another table of which one must be the job's, or several of these of
# which one must be met.
TERMS: dict[str, Callable[[str], Any]] = {
    "id": _id,
    "type": lambda text: Q(type=text),
    "queue": lambda text: Q(queue=text),
    "state": _state,
    "worker": _worker,
    "project": lambda text: Q(project=text),
    "tag": lambda text: JSONArrayHas("tags", text),
    "trace": lambda text: _trace(text),
    "unique": lambda text: Q(unique_key=text),
    "error": lambda text: JobError.objects.filter(Q(type=text) | Q(code=text)),
    "after": lambda text: _created(text, "gte"),
    "before": lambda text: _created(text, "lt"),
    "ended-after": lambda text: Q(finished_at__gte=_moment(text)),
    "ended-before": lambda text: Q(finished_at__lt=_moment(text)),
}
HIDDEN_BEHIND: dict[str, Callable[[], bool]] = {
    # A key is a hash of values that may be hidden: with this term, guesses could be tried.
    "unique": lambda: True,
    "trace": lambda: is_hidden([TRACEPARENT, TRACE_ID]),
}
"""Terms that may tell hidden values to a user who does not see all."""
DOCUMENTS = ("args", "meta", "result")


def _created(text: str, lookup: str) -> Q:
    """Filter by id: a UUIDv7 begins with its creation time, and the primary key is its index."""
    return Q(**{f"pk__{lookup}": first_id(_moment(text))})


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        if timezone.is_naive(moment):
            moment = timezone.make_aware(moment)
        return to_utc(moment)
    except ValueError:
        problem = gettext("“%(text)s” is not a time: write 2026-01-31 or 2026-01-31T12:00.")
        raise BadSearch(problem % {"text": text}) from None


def _trace(text: str) -> Any:
    """The trace that `meta` names (`spec.traces.trace_id_of`)."""
    of_parent = Substr(TextAt("meta", [TRACEPARENT]), 4, 32)
    return Exact(TextAt("meta", [TRACE_ID]), Value(text)), Exact(of_parent, Value(text))


def _inside(path: str, text: str) -> Any:
    """The value at `args.0.name`, as text."""
    column, *keys = path.split(".")
    return Exact(TextAt(column, keys), Value(text))


def search(
    jobs: QuerySet[Any], text: str, *, sees_all: bool = True, since: UUID | None = None
) -> QuerySet[Any]:
    """Return the jobs that match every term.

    Args:
        sees_all: False for a user who could otherwise guess hidden values by searching for them.
        since: the lowest id of the jobs that are searched; None means all.

    Raises:
        BadSearch: a term is invalid.
    """
    if since is not None:
        jobs = jobs.filter(pk__gte=since)
    for word in smart_split(text):
        term = _term(word, sees_all)
        either = term if isinstance(term, tuple) else (term,)
        jobs = jobs.filter(reduce(or_, (_condition(each, since) for each in either)))
    return jobs


def _condition(term: Any, since: UUID | None) -> Any:
    if not isinstance(term, QuerySet):
        return term
    # Bounded as well, for otherwise PostgreSQL reads the rows of all jobs.
    bound = {} if since is None else {"job_id__gte": since}
    return Exists(term.filter(job=OuterRef("pk"), **bound))


def _term(word: str, sees_all: bool) -> Any:
    key, colon, value = word.partition(":")
    if colon and key in TERMS:
        if not sees_all and key in HIDDEN_BEHIND and HIDDEN_BEHIND[key]():
            return NOTHING
        return TERMS[key](_unquoted(value))
    value = _unquoted(value)
    document, dot, path = key.partition(".")
    if colon and dot and path and document in DOCUMENTS:
        if not sees_all and (is_hidden(path.split(".")) or value.lstrip()[:1] in ("{", "[")):
            return NOTHING  # nor may a whole object be guessed
        return _inside(key, value)
    if colon and word[0] not in "\"'":
        raise _unknown(key)
    return _bare(_unquoted(word))


def _unknown(key: str) -> BadSearch:
    words = [*TERMS, *(f"{document}.…" for document in DOCUMENTS)]
    problem = gettext("There is no search word “%(key)s:”. Words are: %(words)s.")
    text = problem % {"key": key, "words": " ".join(f"{word}:" for word in words)}
    if near := get_close_matches(key, TERMS, 1):
        text += " " + gettext("Did you mean “%(key)s:”?") % {"key": near[0]}
    return BadSearch(text)


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] in "\"'" and text[0] == text[-1]:
        return unescape_string_literal(text)
    return text

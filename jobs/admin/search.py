"""The search box of the job list: `type:email.send queue:mail worker:w1 id:…`.

All terms must match. A bare word is a job id, or the beginning of a type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.text import smart_split, unescape_string_literal
from django.utils.translation import gettext_lazy as _

from ..expressions import JSONArrayHas
from ..identifiers import parse_uuid
from ..models import JobError

HELP = _("A job id, the beginning of a type, or: id: type: queue: state: worker: tag: error:")

NOTHING = Q(pk__in=[])


def _id(text: str) -> Q:
    job_id = parse_uuid(text)
    return NOTHING if job_id is None else Q(pk=job_id)


def _bare(text: str) -> Q:
    job_id = parse_uuid(text)
    return Q(type__startswith=text) if job_id is None else Q(pk=job_id)


TERMS: dict[str, Callable[[str], Any]] = {
    "id": _id,
    "type": lambda text: Q(type=text),
    "queue": lambda text: Q(queue=text),
    "state": lambda text: Q(state=text),
    "worker": lambda text: Q(reserved_by=text) | Q(finished_by=text),
    "tag": lambda text: JSONArrayHas("tags", text),
    "error": lambda text: Exists(JobError.objects.filter(job=OuterRef("pk"), type=text)),
}


def search(jobs: QuerySet[Any], text: str) -> QuerySet[Any]:
    for word in smart_split(text):
        jobs = jobs.filter(_term(word))
    return jobs


def _term(word: str) -> Any:
    key, colon, value = word.partition(":")
    if not colon or key not in TERMS:
        return _bare(_unquoted(word))
    return TERMS[key](_unquoted(value))


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] in "\"'" and text[0] == text[-1]:
        return unescape_string_literal(text)
    return text

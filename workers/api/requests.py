"""Requests of operators about workers."""

from __future__ import annotations

from typing import Any

from jobs.http.parameters import AdminPage, OneOf, WholeNumber, Word
from jobs.spec.fields import refuse
from jobs.spec.members import Boolean, Choice, Member, Members, Object, Schema, Text, Texts, words
from jobs.spec.operator_requests import Reason

from ..fleet.marks import ALL_KINDS
from ..lifecycle import WorkerState
from ..models import MarkKind
from .documents import STATES

ORDERS = {
    "quiet": WorkerState.QUIET,
    "terminate": WorkerState.TERMINATE,
    "running": WorkerState.RUNNING,
    "resume": WorkerState.RUNNING,
}
"""Directives that a request may give to a worker."""


class OneOrSeveral(Member[list[str] | None]):
    """One text or several, none of them empty."""

    one = Text()
    several = Texts()

    def check(self, value: Any, place: str) -> list[str]:
        if type(value) is list:
            found = self.several.check(value, place)
        else:
            found = [self.one.check(value, place)]
        if not found or not all(found):
            raise refuse(place, f"The '{place}' field must not be empty.", validation="min_length")
        return found

    def each(self) -> Schema:
        return self.one.rules() | {"minLength": 1}

    def rules(self) -> Schema:
        each = self.each()
        return {"oneOf": [each, {"type": "array", "items": each, "minItems": 1}]}


class ShownStates(OneOrSeveral):
    def each(self) -> Schema:
        return {"type": "string", "enum": [str(state) for state in STATES]}


class WorkerFilter(Members, closed=True):
    """Of several labels all must match, of other values any."""

    label = OneOrSeveral("Several: all of them must match.")
    queue = OneOrSeveral()
    hostname = OneOrSeveral()
    version = OneOrSeveral()
    protocol = OneOrSeveral()
    worker_id = OneOrSeveral()
    state = ShownStates()


class OrderMany(Reason):
    filter = Object(of=WorkerFilter)
    all = Boolean("Instead of a filter: every worker.").default(False)
    dry_run = Boolean("Only report which workers it would address.").default(False)
    confirm = Boolean("Must be true, except for a dry run.").default(False)


class DirectMany(OrderMany):
    """Without a filter, every worker."""

    directive = Choice(ORDERS, sentence="The '{name}' field must be one of {choices}.").required()


class Direct(Reason):
    directive = Choice(ORDERS, sentence="The '{name}' field must be one of {choices}.").required()


class NewMark(Members, closed=True):
    kind = Choice(words(*MarkKind.values), "Others are read from the audit.").default(
        str(MarkKind.DEPLOYMENT)
    )
    text = Text("The version, or what happened.", longest=255, filled=True).required()


class MarkSearch(Members):
    since = Word("A day before `until` where it is left out.")
    until = Word()
    kind = OneOf(ALL_KINDS)
    limit = WholeNumber("Most marks, the newest.", least=1, most=200).default(100)


class WorkerSearch(AdminPage):
    state = OneOf(STATES)
    label = Word()
    queue = Word()
    hostname = Word()
    version = Word()
    protocol = Word()

"""Requests of operators about workers."""

from __future__ import annotations

from typing import Any

from jobs.http.parameters import AdminPage, OneOf, Word
from jobs.spec.fields import refuse
from jobs.spec.members import Boolean, Choice, Member, Members, Object, Schema, Text, Texts
from jobs.spec.operator_requests import Reason

from ..lifecycle import WorkerState
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


class Direct(Reason):
    directive = Choice(ORDERS, sentence="The '{name}' field must be one of {choices}.").required()


class WorkerSearch(AdminPage):
    state = OneOf(STATES)
    label = Word()
    queue = Word()
    hostname = Word()
    version = Word()
    protocol = Word()

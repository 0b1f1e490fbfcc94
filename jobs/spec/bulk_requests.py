"""Requests about many jobs (OJS HTTP §9.2; bulk operations; results §9.3)."""

from __future__ import annotations

from typing import Any

from ..conf import ojs_settings
from .fields import missing, refuse, wrong_type
from .lifecycle import State
from .members import (
    Array,
    Boolean,
    Choice,
    Integer,
    Member,
    Members,
    Moment,
    Object,
    OlderThan,
    Schema,
    Text,
    Texts,
    words,
)
from .validation import Envelope, Priority

SIZE = {"validation": "size"}
LONGEST_KEY = 256
MOST_RESULTS = 1000
MOST_META = 10
SMALLINT = 2**15


class Batch(Members):
    jobs = Array(
        of=Envelope,
        least=1,
        most=lambda: ojs_settings.MAX_BATCH,
        sentence="A batch must hold {least} to {most} jobs, not {size}.",
        details=SIZE,
    ).required()


class NewPriority(Members, closed=True):
    priority = Priority().required()


class ResultIds(Members):
    ids = Texts(
        longest=64,
        least=1,
        most=MOST_RESULTS,
        sentence="Give {least} to {most} ids, not {size}.",
        details=SIZE,
    ).required()


class Bulk(Members):
    atomicity = Choice(
        words("atomic", "partial"),
        "All or none, or as many as possible.",
        sentence="'{name}' must be 'atomic' or 'partial', not {value!r}.",
    ).default("partial")
    idempotency_key = Text(
        "A repetition with the same key gets the same response.",
        longest=LONGEST_KEY,
    )


class BulkEnqueue(Bulk):
    # Exceeding the maximum number is refused elsewhere, with its own status.
    jobs = Array(
        of=Envelope,
        least=1,
        sentence="A bulk request must hold at least one job.",
        details=SIZE,
    ).required()


class States(Member[frozenset[State] | None]):
    """One state, or several."""

    one = Choice({str(state): state for state in State})
    several = Texts()

    def check(self, value: Any, place: str) -> frozenset[State]:
        names = [value] if type(value) is str else self.several.check(value, place)
        if not names:
            raise missing(f"filter.{place}")
        for name in names:
            if name not in State.values:
                raise refuse(f"filter.{place}", f"There is no state {name!r}.")
        return frozenset(State(name) for name in names)

    def rules(self) -> Schema:
        one = self.one.rules()
        return {"oneOf": [one, {"type": "array", "items": one, "minItems": 1}]}


class MetaFilter(Member[dict[str, Any] | None]):
    """Members that `meta` must have."""

    whole = Object()

    def check(self, value: Any, place: str) -> dict[str, Any]:
        found = self.whole.check(value, place)
        if len(found) > MOST_META:
            raise refuse(f"filter.{place}", f"At most {MOST_META} members.")
        for name, wanted in found.items():
            if type(wanted) not in (str, int, float, bool):
                raise wrong_type(f"filter.{place}.{name}", "string", wanted)
        return found

    def rules(self) -> Schema:
        scalar = {"type": ["string", "number", "boolean"]}
        return {"type": "object", "maxProperties": MOST_META, "additionalProperties": scalar}


class BulkFilter(Members, component="JobFilter", closed=True, rules={"minProperties": 1}):
    type = Text()
    queue = Text()
    project = Text("Jobs of keys of this project.")
    state = States("One state, or several.")
    enqueued_before = Moment()
    enqueued_after = Moment()
    since = Moment()
    until = Moment()
    finished_before = Moment()
    finished_after = Moment()
    older_than = OlderThan("Finished before then, or longer ago: `7d`.")
    error_type = Text("Of the last error.", filled=True)
    priority = Integer(least=-SMALLINT, most=SMALLINT - 1)
    meta = MetaFilter()
    workflow = Text("Id of a workflow: its jobs, and those of workflows inside it.", longest=36)


class BulkChange(
    Bulk,
    closed=True,
    rules={"allOf": [{"oneOf": [{"required": ["job_ids"]}, {"required": ["filter"]}]}]},
):
    job_ids = Texts(longest=64, least=1, sentence="Name at least one job.", details=SIZE)
    filter = Object(of=BulkFilter)
    dry_run = Boolean("Count only.").default(False)

"""Runs verbs of the engine and records the results, without ids and clocks.

A moment is recorded as its distance from the beginning of the scenario, in steps of ten minutes,
and so is a measured period: a busy machine makes no difference.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
from django.db import models
from django.utils import timezone

from jobs import engine
from jobs.engine import ClaimedJob, Outcome
from jobs.errors import OJSError
from jobs.models import (
    Checkpoint,
    CronJob,
    CronRun,
    Dependency,
    Event,
    Job,
    JobCounter,
    JobError,
    ProgressReport,
    Queue,
    RateLimit,
    Workflow,
)
from jobs.spec.envelope import claimed_envelope
from jobs.spec.timestamps import parse_timestamp
from jobs.spec.validation import new_job
from workers.chores import tallies
from workers.models import Worker

GRAIN = timedelta(minutes=10)
UUIDS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MEASURED = frozenset({"elapsed_seconds", "duration_ms", "uptime_ms"})
"""Members whose values are measured, not chosen."""
LEFT_OUT: dict[type[models.Model], set[str]] = {
    Event: {"id", "txid"},
    JobError: {"id"},
    CronRun: {"id"},
    Dependency: {"id"},
    JobCounter: {"id"},
    Job: {"id"},
    Workflow: {"id", "root_id"},
}
"""Columns that are the database's own keys."""
TABLES: tuple[type[models.Model], ...] = (
    JobError,
    Workflow,
    Dependency,
    Queue,
    RateLimit,
    CronJob,
    CronRun,
    ProgressReport,
    Checkpoint,
    Worker,
)


class World:
    """A scenario in progress: the actions, results and events so far."""

    def __init__(self) -> None:
        self.start = timezone.now()
        self.steps: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}
        self._seen = 0

    # Actions

    def do(self, verb: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run a verb; record its result, or the code of its refusal, and its events."""
        answer: Any
        try:
            found = answer = verb(*arguments, **options)
        except OJSError as refusal:
            found, answer = None, {"refused": refusal.code, "details": refusal.details}
        self._name_new()
        self.steps.append(
            {
                "did": getattr(verb, "__name__", str(verb)),
                "answer": self.plain(answer),
                "events": self._events(),
            }
        )
        return found

    def enqueue(self, *documents: dict[str, Any]) -> list[UUID]:
        """Enqueue jobs in one call; return their ids."""
        new = [new_job({"args": []} | document, timezone.now()) for document in documents]
        stored = self.do(engine.enqueue, new)
        return [] if stored is None else [job.id for job in stored]

    def backdate(self, job_id: UUID, **columns: timedelta) -> None:
        """Move these columns of a job into the past."""
        now = timezone.now()
        Job.objects.filter(pk=job_id).update(**{name: now - ago for name, ago in columns.items()})

    # Recording

    def _name_new(self) -> None:
        """Name each job and workflow by its type, with a number from the second one on."""
        for model in (Workflow, Job):
            rows = model._default_manager.order_by("type", "pk").values_list("pk", "type")
            for pk, kind in rows:
                if str(pk) not in self._names:
                    self._names[str(pk)] = self._free(f"<{kind}>")

    def _free(self, name: str) -> str:
        taken, number, found = set(self._names.values()), 1, name
        while found in taken:
            number += 1
            found = f"{name[:-1]} {number}>"
        return found

    def _events(self) -> list[dict[str, Any]]:
        fresh = list(Event.objects.filter(pk__gt=self._seen).order_by("pk"))
        self._seen = max((event.pk for event in fresh), default=self._seen)
        rows = [self.row(event) for event in fresh]
        # Events of one statement about several jobs have no order, those about one job have.
        return sorted(rows, key=lambda row: row["subject"])

    def record(self) -> dict[str, Any]:
        """Everything that was done, and the current rows of the tables."""
        tallies.count()
        jobs = Job.objects.all()
        found: dict[str, Any] = {
            "steps": self.steps,
            "jobs": {self.plain(job.pk): self.row(job) for job in jobs},
        }
        for model in TABLES:
            rows = [self.row(row) for row in model._default_manager.order_by("pk")]
            if rows:
                found[model._meta.model_name or ""] = sorted(rows, key=written)
        counters = [self._counted(row) for row in JobCounter.objects.all()]
        found["counters"] = sorted(counters, key=written)
        found["jobs"] = dict(sorted(found["jobs"].items()))
        return found

    def row(self, row: models.Model) -> dict[str, Any]:
        """The columns of a row that differ from the model's defaults."""
        left_out = LEFT_OUT.get(type(row), set())
        found = {}
        for field in row._meta.concrete_fields:
            value = getattr(row, field.attname)
            default = field.get_default()
            if field.name not in left_out and (type(value), value) != (type(default), default):
                found[field.attname] = self.plain(value)
        if "starts" in found:
            # Numbers of slices since 1970, and the number of starts in each.
            found["starts"] = [count for _, count in found["starts"]]
        return found

    def _counted(self, row: JobCounter) -> dict[str, Any]:
        """A row of counters; for a histogram, only the number of values."""
        shown = self.row(row)
        shown["durations"] = {
            state: sum(each["counts"]) for state, each in sorted(row.durations.items())
        }
        shown["queue_times"] = sum(row.queue_times.get("counts", []))
        return shown

    def plain(self, value: Any) -> Any:
        """The value as JSON, without ids and clocks."""
        match value:
            case None | bool() | int():
                return value
            case float():
                return value
            case datetime():
                return self._moment(value)
            case timedelta():
                return f"{value.total_seconds():g} s"
            case UUID():
                return self._named(str(value))
            case str():
                return self._text(value)
            case orjson.Fragment():
                return self.plain(orjson.loads(orjson.dumps(value)))
            case ClaimedJob():
                return self.plain(orjson.loads(orjson.dumps(claimed_envelope(value))))
            case Outcome():
                members = ("job_id", "state", "attempt", "max_attempts", "at", "retry_at")
                shown = {name: self.plain(getattr(value, name)) for name in members}
                return shown | {"error": value.error.code if value.error else None}
            case models.Model():
                return self.row(value)
            case Mapping():
                return {self._text(str(key)): self._member(key, value[key]) for key in value}
            case set() | frozenset():
                return sorted((self.plain(each) for each in value), key=written)
            case Iterable():
                return [self.plain(each) for each in value]
        if hasattr(value, "type") and hasattr(value, "id"):
            return self._named(str(value.id))
        return type(value).__name__

    def _member(self, name: Any, value: Any) -> Any:
        if name in MEASURED and type(value) in (int, float):
            scale = timedelta(milliseconds=1) if name.endswith("_ms") else timedelta(seconds=1)
            return f"about {self._rounded(value * scale)}"
        return self.plain(value)

    def _text(self, text: str) -> str:
        try:
            return self._moment(parse_timestamp(text))
        except ValueError:
            return UUIDS.sub(lambda found: self._named(found[0]), text)

    def _named(self, identifier: str) -> str:
        return self._names.setdefault(identifier, self._free("<id>"))

    def _moment(self, moment: datetime) -> str:
        offset = self._rounded(moment.astimezone(UTC) - self.start)
        return "now" if offset == "0" else f"now {offset}"

    def _rounded(self, length: timedelta) -> str:
        steps = round(length / GRAIN)
        return f"{steps * GRAIN // timedelta(minutes=1):+} min" if steps else "0"


def written(value: Any) -> str:
    """The value as in the file, where 1800 and 1800.0 differ."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2).decode()


def kinds(record: dict[str, Any]) -> Counter[str]:
    """How often each kind of event was recorded."""
    return Counter(event["type"] for step in record["steps"] for event in step["events"])

"""Marks of a range of time: what explains a change in a chart.

Deployments and notes have a table of their own; pauses, drains and maintenance are read from the
audit, which has them already.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import (
    BigIntegerField,
    Case,
    CharField,
    Exists,
    IntegerField,
    JSONField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    TextField,
    Value,
    When,
)
from django.db.models.functions import Cast

from jobs.access.audit import Actor, record_action
from jobs.access.projects import scope_to
from jobs.models import OperatorAction
from jobs.models.audit import MARKED
from jobs.record.rollup import KEEP
from jobs.store import clock
from jobs.store.database import atomic

from ..models import FleetOperation, Mark, MarkKind, Worker

MOST = 100
"""Most marks of a range."""
OTHERS = 5
"""How many times as many are read to find those of one queue."""
KINDS = {
    "pause_queue": "pause",
    "resume_queue": "resume",
    "drain_queue": "drain",
    "drain_fleet": "drain",
    "maintenance": "maintenance",
}
"""Verb of the audit → kind of the mark."""
ALL_KINDS = (*MarkKind.values, *dict.fromkeys(KINDS.values()))
BATCH_SIZE = 500


@dataclass(frozen=True)
class Entry:
    """A mark, or an action of the audit that is shown as one."""

    at: datetime
    kind: str
    """One of `ALL_KINDS`."""
    text: str
    """The version, the note, or the reason of an action."""
    by: str
    source: str
    project: str = ""
    mark_id: int | None = None
    action_id: int | None = None
    verb: str = ""
    """Of an action."""
    count: int = 0
    """How many queues were paused, or workers are drained."""
    targets: tuple[str, ...] = ()
    """The first of them."""
    change: str = ""
    """What an action switched to: `on` or `off`, or the new state of a drain."""
    operation_id: int | None = None
    """The drain, if it is one."""

    def is_about(self, queue: str) -> bool:
        """Whether it concerns this queue: not if it was done to others."""
        is_of_queues = self.verb.endswith("_queue")
        return not is_of_queues or queue in self.targets or self.count > len(self.targets)


def add(actor: Actor, kind: str, text: str, *, project: str = "") -> Mark:
    """Mark this moment.

    Args:
        kind: one of `MarkKind`.
        project: empty means all.
    """
    with atomic():
        mark = Mark.objects.create(
            kind=kind,
            text=text,
            project=project,
            by=actor.name[:255],
            source=actor.source,
            at=clock.now(),
        )
        # Django's history has what is added in a form; the mark itself has the rest.
        record_action(
            actor, "add_mark", [mark], selection={"kind": kind, "text": text}, history=False
        )
    return mark


def of_mark(mark: Mark) -> Entry:
    return Entry(mark.at, mark.kind, mark.text, mark.by, mark.source, mark.project, mark_id=mark.pk)


def entries(
    since: datetime,
    until: datetime | None = None,
    *,
    kinds: Collection[str] = (),
    queue: str = "",
    project: str = "",
    most: int = MOST,
) -> list[Entry]:
    """The latest marks of a time, the newest first: one query.

    Args:
        kinds: some of `ALL_KINDS`; empty means all.
        queue: leave out what was done to other queues.
        project: only its marks; empty means all marks, and those of the audit.
    """
    until = until or clock.now()
    wanted = set(kinds or ALL_KINDS)
    own = wanted.intersection(MarkKind.values)
    verbs = [] if project else [verb for verb in MARKED if KINDS[verb] in wanted]
    reads: list[QuerySet[Any, Any]] = []
    if verbs:
        actions = OperatorAction.objects.filter(
            verb__in=verbs, done_at__gte=since, done_at__lte=until
        )
        reads.append(_of_audit(actions))
    if own:
        marks = Mark.objects.filter(kind__in=own, at__gte=since, at__lte=until)
        reads.append(_of_table(scope_to(marks, project)))
    if not reads:
        return []
    # The names of the columns are those of the first.
    latest = "-done_at" if verbs else "-at"
    rows = reads[0].union(reads[1], all=True) if len(reads) > 1 else reads[0]
    found = map(_entry, rows.order_by(latest)[: most * OTHERS if queue else most])
    return [entry for entry in found if not queue or entry.is_about(queue)][:most]


def _of_audit(actions: QuerySet[Any]) -> QuerySet[Any, Any]:
    operations = FleetOperation.objects.filter(action_id=OuterRef("pk")).order_by("pk")
    return actions.order_by().values_list(
        "done_at",
        "verb",
        "reason",
        "actor",
        "source",
        Value("", CharField()),
        "pk",
        "count",
        "selection",
        Case(When(verb="drain_fleet", then=Subquery(operations.values("pk")[:1]))),
    )


def _of_table(marks: QuerySet[Any]) -> QuerySet[Any, Any]:
    """The same columns."""
    return marks.order_by().values_list(
        "at",
        "kind",
        Cast("text", TextField()),
        "by",
        "source",
        "project",
        "pk",
        Value(0, IntegerField()),
        Value({}, JSONField()),
        Value(None, BigIntegerField()),
    )


def _entry(row: tuple[Any, ...]) -> Entry:
    at, name, text, by, source, project, pk, count, selection, operation = row
    if name not in KINDS:
        return Entry(at, name, text, by, source, project, mark_id=pk)
    targets = tuple(map(str, selection.get("ids", ())))
    change = str(selection.get("switched") or selection.get("to") or "")
    if name == "drain_fleet" and change and targets:
        operation = int(targets[0])
    return Entry(
        at,
        KINDS[name],
        text,
        by,
        source,
        action_id=pk,
        verb=name,
        count=count,
        targets=targets,
        change=change,
        operation_id=operation,
    )


def prune() -> int:
    """Delete one batch of marks that no chart shows any more.

    A version that workers still have stays: their restart is no deployment.
    """
    old = Mark.objects.filter(at__lt=clock.now() - KEEP[3600])
    running = Worker.objects.filter(version=OuterRef("text"))
    gone = old.exclude(Q(kind=MarkKind.DEPLOYMENT) & Exists(running))
    ids = list(gone.order_by("at").values_list("pk", flat=True)[:BATCH_SIZE])
    return Mark.objects.filter(pk__in=ids).delete()[0]

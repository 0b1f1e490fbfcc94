"""Orders to a fleet: the workers they select, what keeps running, and the outcomes.

Every order (admin, shell, rolling drain) goes through `order()`, which directs the workers and
writes the history of each and the audit, all in one transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext

from jobs.access.audit import Actor, record_action
from jobs.access.projects import scope_to
from jobs.conf import ojs_settings, protocol_of
from jobs.errors import WorkerNotFound
from jobs.protocols import Reports
from jobs.spec.worker_ids import spellings
from jobs.store import clock, looks
from jobs.store.database import atomic
from jobs.store.expressions import JSONArrayHas
from jobs.store.rows import insert_rows

from ..lifecycle import WorkerState
from ..models import FOLLOWED, Answer, Directive, Worker, places
from ..models.querysets import WorkerQuerySet

BATCH = 2000
VERBS = {
    WorkerState.QUIET: "quiet_worker",
    WorkerState.TERMINATE: "terminate_worker",
    WorkerState.RUNNING: "resume_worker",
}
"""Directive → the permission it takes."""


@dataclass(frozen=True)
class Selector:
    """Selects live workers: those that carry all the labels and match the rest."""

    labels: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    worker_ids: tuple[str, ...] = ()
    """Stored names or, if projects are given, the ids that one of these uses."""
    projects: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it has no criteria, and so selects all workers."""
        return not self.document()

    def document(self) -> dict[str, list[str]]:
        return {name: list(texts) for name, texts in vars(self).items() if texts}

    def workers(self) -> WorkerQuerySet:
        found: Any = Worker.objects.live()
        for label in self.labels:
            found = found.filter(JSONArrayHas("labels", label))
        if self.queues:
            found = found.filter(any_of("queues", self.queues))
        names = [
            name
            for worker_id in self.worker_ids
            for project in self.projects or ("",)
            for name in spellings(worker_id, project)
        ]
        for column, texts in (
            ("hostname", self.hosts),
            ("version", self.versions),
            ("worker_id", names),
            ("project", self.projects),
        ):
            if texts:
                found = found.filter(**{f"{column}__in": texts})
        return found.order_by("pk")


def any_of(column: str, texts: Iterable[str]) -> Q:
    """Workers whose list contains at least one of these."""
    found = Q()
    for text in texts:
        found |= Q(JSONArrayHas(column, text))
    return found


def find(worker_id: str, *, project: str = "") -> Worker:
    """Return the worker that a key of `project` knows by this id.

    Raises:
        WorkerNotFound: there is no such worker, or it is not in this project.
    """
    named = Worker.objects.filter(pk__in=spellings(worker_id, project))
    found = {worker.pk: worker for worker in scope_to(named, project)}
    worker: Worker | None = found.get(worker_id) or next(iter(found.values()), None)
    if worker is None:
        raise WorkerNotFound(worker_id)
    return worker


@dataclass(frozen=True)
class Order:
    """An order as given."""

    heard: list[str]
    """Ids of the workers to which the directive is new."""
    action_id: int | None = None
    """The operator's action in the audit."""


def order(
    workers: Any,
    directive: WorkerState,
    *,
    actor: Actor,
    reason: str = "",
    selection: dict[str, Any] | None = None,
    part_of: int | None = None,
) -> Order:
    """Ask matched workers to move to `directive` (`running` withdraws a quiet); see `direct()`.

    Args:
        selection: how they were selected, for the audit.
        part_of: the action in the audit that this order is part of, if there is one already.
    """
    with atomic():
        wanted = Worker.objects.filter(pk__in=workers.order_by().values("pk")).order_by("pk")
        ids = list(wanted.select_for_update().values_list("pk", flat=True))
        # Filter again now that the rows are locked: a subquery is not re-evaluated after the
        # wait for a lock.
        chosen = list(workers.filter(pk__in=ids).order_by("pk"))
        named = Worker.objects.filter(pk__in=[worker.pk for worker in chosen])
        hearing = named.quieted() if directive == WorkerState.RUNNING else named.behind(directive)
        heard = list(hearing.order_by("pk").values_list("pk", flat=True))
        hearers = Worker.objects.filter(pk__in=heard)
        if directive == WorkerState.RUNNING:
            hearers.resume()
        else:
            hearers.direct(directive)
        if part_of is None and chosen:
            part_of = record_action(
                actor,
                VERBS[directive],
                chosen,
                count=len(heard),
                selection=selection,
                reason=reason,
                message=_told(directive),
            ).pk
        _remember(heard, directive, actor, reason, part_of)
    return Order(heard, part_of)


def _told(directive: WorkerState) -> str:
    if directive == WorkerState.RUNNING:
        return gettext("Resumed.")
    return gettext("Directed to “%(state)s”.") % {"state": directive}


def _remember(
    heard: list[str], directive: WorkerState, actor: Actor, reason: str, action_id: int | None
) -> None:
    now = clock.now()
    Directive.objects.filter(worker_id__in=heard, answer=Answer.WAITING).update(
        answer=Answer.SUPERSEDED, answered_at=now
    )
    insert_rows(
        Directive(
            worker_id=worker_id,
            state=directive,
            action_id=action_id,
            asked_by=actor.name,
            source=actor.source,
            reason=reason,
            asked_at=now,
        )
        for worker_id in heard
    )


# Outcomes of orders


def answer_of(directive: Directive, worker: Worker | None) -> tuple[str, datetime | None]:
    """The answer to an order, judged by what its worker reports now."""
    if directive.answer != Answer.WAITING:
        return directive.answer, directive.answered_at
    if worker is None:
        return Answer.GONE, directive.asked_at
    if worker.state == WorkerState.TERMINATED:
        stopped = directive.state == WorkerState.TERMINATE and worker.left_at is not None
        answer = Answer.REPORTED if stopped else Answer.GONE
        return answer, worker.left_at or worker.died_at or worker.last_heartbeat_at
    if worker.last_heartbeat_at < directive.asked_at:
        return Answer.WAITING, None
    if not reports_its_state(worker):
        answer = Answer.RELAYED if can_hear(worker, directive.state) else Answer.ENFORCED
    elif _is_in(worker, directive.state):
        answer = Answer.REPORTED
    else:
        return Answer.WAITING, None
    return answer, worker.last_heartbeat_at


def reports_its_state(worker: Worker) -> bool:
    """Whether the worker reports its state, so that its answer can be awaited."""
    reports = protocol_of(worker.protocol).reports
    return reports == Reports.ALWAYS or (reports == Reports.OPTIONALLY and worker.reports_state)


def can_hear(worker: Worker, state: str) -> bool:
    """Whether the worker can be asked to enter `state`.

    If not, the order is enforced at fetch, and its process does not stop by itself.
    """
    return protocol_of(worker.protocol).can_hear(state)


def _is_in(worker: Worker, state: str) -> bool:
    if state == WorkerState.RUNNING:
        return worker.state == WorkerState.RUNNING
    return WorkerState(worker.state).rank >= WorkerState(state).rank


def _waiting() -> QuerySet[Directive]:
    return Directive.objects.filter(answer=Answer.WAITING)


@looks.only_if_any(_waiting)
def note_answers() -> int:
    """Record the answers to orders: the reaper does it, so that no heartbeat has to."""
    waiting = list(_waiting().order_by("-id")[:BATCH])
    workers = Worker.objects.in_bulk({directive.worker_id for directive in waiting})
    count = 0
    for directive in waiting:
        answer, when = answer_of(directive, workers.get(directive.worker_id))
        if answer != Answer.WAITING:
            row = Directive.objects.filter(pk=directive.pk, answer=Answer.WAITING)
            count += row.update(answer=answer, answered_at=when)
    return count


def prune_directives() -> int:
    """Delete one batch of answered orders older than the retention of events."""
    old = Directive.objects.filter(asked_at__lte=Now() - ojs_settings.EVENT_RETENTION)
    ids = list(old.exclude(answer=Answer.WAITING).order_by("pk").values_list("pk", flat=True)[:500])
    return Directive.objects.filter(pk__in=ids).delete()[0]


@dataclass(frozen=True)
class Convergence:
    """The progress of an order."""

    rows: list[tuple[Directive, Worker | None, str, datetime | None]]
    """Order, worker, answer, when."""

    def count(self, answer: str) -> int:
        return sum(row[2] == answer for row in self.rows)

    @property
    def followed(self) -> int:
        """How many workers are known to have obeyed."""
        return sum(row[2] in FOLLOWED for row in self.rows)

    @property
    def is_over(self) -> bool:
        return not self.count(Answer.WAITING)

    @property
    def unheard(self) -> list[Worker]:
        """Workers not heard since the order, the longest silent first."""
        found = [
            worker
            for directive, worker, answer, _ in self.rows
            if answer == Answer.WAITING and worker and worker.last_heartbeat_at < directive.asked_at
        ]
        return sorted(found, key=lambda worker: worker.last_heartbeat_at)


def convergence(action_id: int) -> Convergence:
    """The progress of the orders of an operator's action."""
    directives = list(Directive.objects.filter(action_id=action_id).order_by("worker_id", "id"))
    workers = Worker.objects.in_bulk({directive.worker_id for directive in directives})
    rows = []
    for directive in directives:
        worker = workers.get(directive.worker_id)
        rows.append((directive, worker, *answer_of(directive, worker)))
    return Convergence(rows)


# What keeps running


def serving(without: Collection[str] = ()) -> list[Worker]:
    """Workers that are heard, are running and are to stay so.

    Not those that were just resumed: they are given jobs, but may not know it yet.
    """
    running: Any = Worker.objects.given_jobs().filter(state=WorkerState.RUNNING)
    rows = running.only("pk", "queues", "concurrency", "labels", "registered_at", "project")
    return [worker for worker in rows if worker.pk not in without]


def capacity(workers: Iterable[Worker]) -> dict[str, int]:
    """Queue → the most jobs of it that these workers run at once."""
    found: dict[str, int] = {}
    for worker in workers:
        for queue in set(worker.queues):
            found[queue] = found.get(queue, 0) + places(worker.concurrency)
    return found


def unflag(worker_ids: Collection[Any]) -> list[str]:
    """Clear the flags of these workers; return those that were flagged."""
    flagged = Worker.objects.filter(pk__in=worker_ids, flagged_at__isnull=False)
    with atomic():
        found = list(flagged.select_for_update().order_by("pk").values_list("pk", flat=True))
        Worker.objects.filter(pk__in=found).update(flagged_at=None)
    return found


def unserved_without(worker_ids: Collection[str], project: str = "") -> list[str]:
    """Queues that would be left without a running worker if these took no more jobs.

    Args:
        project: the project whose jobs are to run; workers of other projects do not count.
    """
    now = [worker for worker in serving() if not project or worker.project in ("", project)]
    gone = set(worker_ids)
    served = {queue for worker in now for queue in worker.queues}
    left = {queue for worker in now if worker.pk not in gone for queue in worker.queues}
    return sorted(served - left)

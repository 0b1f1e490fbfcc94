"""Takes the next step of each rolling drain: quiet, wait until idle, terminate, move on.

An operation lives in its rows: any process can take the next step, so it survives any restart. One
lock serializes the steps of all operations: otherwise two could each take one of a queue's last
two workers.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from django.utils.translation import gettext_noop

from jobs.access.audit import Actor
from jobs.models import Source
from jobs.store import clock, looks
from jobs.store.database import atomic, connection

from ..lifecycle import WorkerState
from ..models import (
    IN_WORK,
    UNFINISHED,
    FleetOperation,
    OperationState,
    OperationStep,
    Phase,
    Sweep,
    Worker,
    places,
)
from .condition import in_hand
from .orders import capacity, order, reports_its_state, serving

LOCK = "fleet-operations"
# Stored untranslated: the reader has a language, the reaper has none.
FLOOR = gettext_noop("queue “%(queue)s”: %(running)d jobs at once, and never under %(floor)d")
REPLACEMENTS = gettext_noop("%(fresh)d of %(taken)d replacements “%(label)s” run")


def _unfinished() -> QuerySet[FleetOperation]:
    return FleetOperation.objects.filter(state__in=UNFINISHED)


@looks.only_if_any(_unfinished)
def drive() -> int:
    """Advance every unfinished operation by one step; return how many workers were moved."""
    unfinished = _unfinished()
    ids = list(unfinished.order_by("pk").values_list("pk", flat=True))
    Sweep.objects.get_or_create(pk=LOCK, defaults={"ran_at": clock.now()})
    skip = connection().features.has_select_for_update_skip_locked
    moved = 0
    for pk in ids:
        with atomic():
            turn = Sweep.objects.filter(pk=LOCK).select_for_update(skip_locked=skip).first()
            if turn is None:
                return moved  # another reaper holds the lock
            operation = unfinished.filter(pk=pk).select_for_update().first()
            if operation is not None:
                moved += _Round(operation).run()
    return moved


class _Round:
    """One step of an operation."""

    def __init__(self, operation: FleetOperation) -> None:
        self.operation = operation
        self.now = clock.now()
        self.moved = 0
        self.waits_for = ""
        self.actor = Actor(operation.started_by, Source.SERVER)
        self.steps = list(operation.steps.filter(is_open=True).order_by("position"))
        names = [step.worker_id for step in self.steps]
        self.workers: dict[str, Any] = Worker.objects.annotate(in_hand=in_hand()).in_bulk(names)

    def run(self) -> int:
        for step in self.steps:
            self._look(step)
        if self.operation.state == OperationState.RUNNING:
            self._terminate_drained()
            self._quiet_more()
        state: dict[str, Any] = {"waits_for": self.waits_for[:255]}
        if not any(step.is_open for step in self.steps):
            state |= {"state": OperationState.COMPLETED, "finished_at": self.now, "waits_for": ""}
        if any(getattr(self.operation, name) != value for name, value in state.items()):
            FleetOperation.objects.filter(pk=self.operation.pk).update(**state)
        return self.moved

    def _look(self, step: OperationStep) -> None:
        worker = self.workers.get(step.worker_id)
        if (
            worker is None
            or worker.state == WorkerState.TERMINATED
            or worker.incarnation != step.incarnation
        ):
            self._move(step, Phase.GONE)
        elif step.phase == Phase.DRAINING and worker.may_fetch:
            # It was resumed on purpose: do not quiet it again, and above all do not terminate it.
            self._move(step, Phase.LEFT_ALONE)

    def _move(self, step: OperationStep, phase: Phase, **changes: Any) -> None:
        step.phase = phase
        if phase not in (Phase.WAITING, *IN_WORK):
            step.is_open = False
            changes["finished_at"] = self.now
        OperationStep.objects.filter(pk=step.pk).update(
            phase=phase, is_open=step.is_open, **changes
        )
        self.moved += 1

    def _of(self, *phases: str) -> list[OperationStep]:
        return [step for step in self.steps if step.is_open and step.phase in phases]

    def _terminate_drained(self) -> None:
        drained = [step for step in self._of(Phase.DRAINING) if self._is_drained(step)]
        if not drained:
            return
        if not self.operation.terminates:
            for step in drained:
                self._move(step, Phase.HELD)
            return
        # Checked again under the lock: an operator may be resuming it at this moment.
        quiet = Worker.objects.filter(
            Q(directive=WorkerState.QUIET) | Q(state=WorkerState.QUIET, directive=""),
            pk__in=[step.worker_id for step in drained],
        )
        heard = set(self._order(quiet, WorkerState.TERMINATE))
        for step in drained:
            ends = self.workers[step.worker_id].desired_state == WorkerState.TERMINATE
            if step.worker_id in heard or ends:
                self._move(step, Phase.TERMINATING, terminated_at=self.now)

    def _is_drained(self, step: OperationStep) -> bool:
        worker = self.workers[step.worker_id]
        limit = self.operation.idle_limit
        if limit is not None and step.quieted_at and self.now - step.quieted_at >= limit:
            return True
        # A fetch may have been under way when it was quieted. Rely on the state that the worker
        # reports, or else on its having been heard since.
        is_sure = worker.state != WorkerState.RUNNING or (
            not reports_its_state(worker)
            and worker.last_heartbeat_at > (step.quieted_at or self.now)
        )
        return is_sure and not worker.in_hand

    def _quiet_more(self) -> None:
        room = self.operation.max_unavailable - len(self._of(*IN_WORK))
        waiting = self._of(Phase.WAITING)
        if room <= 0 or not waiting:
            return
        running = serving()
        if not self._are_replaced(running):
            return
        serves = {worker.pk for worker in running}
        left = capacity(running)
        chosen: list[OperationStep] = []
        for step in waiting:
            if len(chosen) == room:
                break
            worker = self.workers[step.worker_id]
            if worker.pk not in serves or self._spares(worker, left):
                chosen.append(step)
        self._quiet(chosen)

    def _spares(self, worker: Worker, left: dict[str, int]) -> bool:
        """Whether no queue falls below its floor without this worker; if so, deduct the worker."""
        for queue in set(worker.queues):
            floor = self.operation.floors.get(queue, 0)
            if left[queue] - places(worker.concurrency) < floor:
                about = {"queue": queue, "running": left[queue], "floor": floor}
                self.waits_for = FLOOR % about
                return False
        for queue in set(worker.queues):
            left[queue] -= places(worker.concurrency)
        return True

    def _are_replaced(self, running: list[Worker]) -> bool:
        label = self.operation.replacement_label
        if not label:
            return True
        taken = self.operation.steps.filter(phase=Phase.GONE, quieted_at__isnull=False).count()
        # If no worker to be drained carries the label, it identifies the replacements, whenever
        # they came.
        carried = any(label in worker.labels for worker in self.workers.values())
        since = self.operation.started_at
        fresh = sum(
            not carried or (worker.registered_at is not None and worker.registered_at >= since)
            for worker in running
            if label in worker.labels
        )
        if fresh >= taken:
            return True
        self.waits_for = REPLACEMENTS % {"fresh": fresh, "taken": taken, "label": label}
        return False

    def _quiet(self, steps: list[OperationStep]) -> None:
        if not steps:
            return
        workers = Worker.objects.filter(pk__in=[step.worker_id for step in steps])
        heard = set(self._order(workers, WorkerState.QUIET))
        for step in steps:
            self._move(
                step,
                Phase.DRAINING,
                quieted_at=self.now,
                was_quiet=step.worker_id not in heard,
            )

    def _order(self, workers: Any, directive: WorkerState) -> list[str]:
        operation = self.operation
        given = order(
            workers,
            directive,
            actor=self.actor,
            reason=operation.reason,
            part_of=operation.action_id,
        )
        return given.heard

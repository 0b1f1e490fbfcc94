"""Starts, pauses, continues and aborts rolling drains; `rolling.drive` takes the steps."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from django.db import IntegrityError
from django.utils.translation import gettext

from jobs.access.audit import Actor, record_action
from jobs.errors import Conflict, InvalidRequest
from jobs.store import clock
from jobs.store.database import atomic
from jobs.store.rows import insert_rows

from ..lifecycle import WorkerState
from ..models import UNFINISHED, FleetOperation, OperationState, OperationStep, Phase, Worker
from .orders import capacity, order, serving

AMOUNT = re.compile(r"(\d{1,6})(%?)", re.ASCII)


def amount(text: str, whole: int, field: str, *, up: bool) -> int:
    """Read a number, or a percentage of `whole` rounded `up` or down.

    Raises:
        InvalidRequest: it is neither.
    """
    match = AMOUNT.fullmatch(text.strip())
    if match is None or (match[2] and int(match[1]) > 100):
        raise InvalidRequest(
            f"{field} must be a number or a percentage, not {text!r}.", field=field
        )
    number = int(match[1])
    if not match[2]:
        return number
    return math.ceil(whole * number / 100) if up else whole * number // 100


def floors(text: str, queues: Collection[str], running: dict[str, int]) -> dict[str, int]:
    """Read `4`, `50%` or `mail=2 default=50%`: queue → jobs at once that must stay possible.

    A percentage is relative to what runs now.

    Raises:
        InvalidRequest: it is none of these.
    """
    found: dict[str, int] = {}
    for word in text.replace(",", " ").split():
        queue, equals, value = word.rpartition("=")
        # Validated even if there is no queue to apply it to.
        amount(value, 0, "floor", up=True)
        for name in [queue] if equals else sorted(queues):
            found[name] = amount(value, running.get(name, 0), "floor", up=True)
    return found


def start(
    worker_ids: Collection[str],
    *,
    actor: Actor,
    max_unavailable: str = "1",
    floor: str = "",
    idle_limit: timedelta | None = None,
    terminates: bool = True,
    replacement_label: str = "",
    reason: str = "",
    selection: dict[str, Any] | None = None,
) -> FleetOperation:
    """Start to drain these workers; the reaper does the rest (`drive`).

    Raises:
        InvalidRequest: a number cannot be read, or none of the workers is left.
        Conflict: another operation has one of them.
    """
    with atomic():
        workers = list(
            Worker.objects.live().filter(pk__in=worker_ids).order_by("pk").select_for_update()
        )
        if not workers:
            raise InvalidRequest("None of these workers exists any more.", field="workers")
        queues = {queue for worker in workers for queue in worker.queues}
        at_once = max(1, amount(max_unavailable, len(workers), "max_unavailable", up=False))
        action = record_action(
            actor,
            "drain_fleet",
            workers,
            selection=selection,
            reason=reason,
            message=gettext("Rolling drain started."),
        )
        operation = FleetOperation.objects.create(
            selection=selection or {},
            max_unavailable=at_once,
            floors=floors(floor, queues, capacity(serving())),
            idle_limit=idle_limit,
            terminates=terminates,
            replacement_label=replacement_label,
            started_by=actor.name,
            source=actor.source,
            reason=reason,
            action_id=action.pk,
            started_at=clock.now(),
        )
        _claim(operation, workers)
    return operation


def _claim(operation: FleetOperation, workers: Sequence[Worker]) -> None:
    """Create the steps; a unique constraint decides which operation has a worker.

    Raises:
        Conflict: another operation has one of them.
    """
    try:
        with atomic():
            insert_rows(
                OperationStep(
                    operation=operation,
                    worker_id=worker.pk,
                    incarnation=worker.incarnation,
                    position=position,
                )
                for position, worker in enumerate(workers)
            )
    except IntegrityError:
        raise _taken([worker.pk for worker in workers]) from None


def _taken(worker_ids: Collection[str]) -> Conflict:
    taken = OperationStep.objects.filter(is_open=True, worker_id__in=list(worker_ids))
    names = sorted(taken.values_list("worker_id", flat=True))
    return Conflict(f"Another operation has {', '.join(names[:5])}.", workers=names[:100])


# Operators' actions on an operation


def pause(pk: int, *, actor: Actor, reason: str = "") -> bool:
    """Quiet and terminate no further workers until continued; return whether it was running."""
    return _switch(pk, OperationState.RUNNING, OperationState.PAUSED, actor, reason)


def go_on(pk: int, *, actor: Actor, reason: str = "") -> bool:
    """Continue a paused operation; return whether it was paused."""
    return _switch(pk, OperationState.PAUSED, OperationState.RUNNING, actor, reason)


def _switch(pk: int, before: str, after: str, actor: Actor, reason: str) -> bool:
    with atomic():
        moved = FleetOperation.objects.filter(pk=pk, state=before).update(state=after, waits_for="")
        if moved:
            _record(pk, after, actor, reason)
    return bool(moved)


def _record(pk: int, what: str, actor: Actor, reason: str) -> int:
    operations = list(FleetOperation.objects.filter(pk=pk))
    selection = {"to": str(what)}
    text = gettext("Now %(state)s.") % {"state": what}
    return record_action(
        actor, "drain_fleet", operations, selection=selection, reason=reason, message=text
    ).pk


def abort(pk: int, *, actor: Actor, reason: str = "") -> bool:
    """End it, and resume the workers that it quieted; return whether it was unfinished.

    Workers that were directed to terminate still do: there is no way back (§2.3).
    """
    with atomic():
        unfinished = FleetOperation.objects.filter(pk=pk, state__in=UNFINISHED)
        if unfinished.select_for_update().first() is None:
            return False
        now = clock.now()
        action_id = _record(pk, OperationState.ABORTED, actor, reason)
        steps = OperationStep.objects.filter(operation=pk)
        quieted = steps.filter(phase__in=(Phase.DRAINING, Phase.HELD), was_quiet=False)
        workers = Worker.objects.filter(pk__in=list(quieted.values_list("worker_id", flat=True)))
        given = order(workers, WorkerState.RUNNING, actor=actor, reason=reason, part_of=action_id)
        quieted.filter(worker_id__in=given.heard).update(phase=Phase.RESUMED, finished_at=now)
        steps.filter(is_open=True).update(is_open=False, finished_at=now)
        unfinished.update(state=OperationState.ABORTED, waits_for="", finished_at=now)
    return True

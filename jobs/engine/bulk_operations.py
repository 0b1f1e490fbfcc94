"""Retry, cancel or delete all jobs of a filter in the background, with progress and a stop.

A request changes at most `bulk.MOST` jobs. A bulk operation lives in its row: any reaper takes the
next batch, a transaction that also notes how far it is, so after a crash it continues there.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import F, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext

from ..access.audit import Actor, record_action
from ..errors import Conflict, InvalidRequest
from ..models import BulkOperation, BulkState, BulkVerb, Job, OperatorAction
from ..models.querysets import JobQuerySet
from ..record.events import bulk_event, record
from ..spec.fields import Document
from ..store import clock, looks, pace
from ..store.database import atomic, connection
from ..store.stores import store
from . import bulk
from .bulk_selection import OPERATIONS, filtered

COUNTED = 100_000
"""Most jobs that are counted before the start, for the share that is done."""
COUNTED_AMONG = 1_000_000
"""Oldest jobs among which those are counted that a deletion would change."""
WINDOW = 20_000
"""Jobs among which one batch looks for those that match. No index has them in the order of ids, and
nearly all jobs of a large table are finished: a batch would read all of them for a few."""
FEW = 20
"""If fewer jobs of a window can be retried, and not too many to count could be before the start, an
index finds the next ones sooner. It reads all of them for each batch."""


LATEST = 200
"""Operations of an operator among which that of a form is looked for."""


def matching(verb: str, wanted: Document, *, now: Any = None) -> JobQuerySet:
    """The jobs that an operation would change.

    Raises:
        InvalidRequest: the filter is invalid, or no state in it allows the verb.
    """
    operation = OPERATIONS[verb]
    jobs = filtered(wanted, operation.default, now=now)
    states = wanted.get("state") or sorted(operation.default)
    allowed = operation.states.intersection([states] if isinstance(states, str) else states)
    if not allowed:
        raise InvalidRequest(
            f"Jobs in these states cannot be {operation.did}: "
            f"the states are {', '.join(sorted(operation.states))}.",
            field="filter.state",
        )
    if verb == "delete" and wanted.get("workflow"):
        raise InvalidRequest("Jobs of a workflow are deleted with it.", field="filter.workflow")
    return jobs.filter(state__in=sorted(allowed))


def preview(verb: str, wanted: Document) -> tuple[int, bool]:
    """Return how many jobs it would change, at most `COUNTED`, and whether there may be more."""
    jobs = OPERATIONS[verb].of(matching(verb, wanted)).order_by()
    end = _place(None, COUNTED_AMONG) if verb == BulkVerb.DELETE else None
    if end is not None:
        jobs = jobs.filter(pk__lte=end)
    found = 0
    # One by one: the indexes of waiting jobs are for one state each.
    for state in sorted(OPERATIONS[verb].states):
        found += jobs.filter(state=state)[: COUNTED + 1 - found].count()
    return min(found, COUNTED), found > COUNTED or end is not None


def start(
    verb: str, wanted: Document, *, actor: Actor, reason: str = "", form: UUID | None = None
) -> BulkOperation:
    """Start an operation; reapers carry it out (`advance`).

    Args:
        verb: `retry`, `cancel` or `delete`.
        wanted: a filter as in bulk requests; jobs enqueued from now on never match.
        form: the id of the form that was sent; each starts one operation.

    Raises:
        InvalidRequest: the filter is invalid, or no state in it allows the verb.
        Conflict: that form has started one; `details["operation"]` is its key.
    """
    count, has_more = preview(verb, wanted)
    sent = {} if form is None else {"form": str(form)}
    with atomic():
        if form is not None:
            # The same form may be sent twice at once.
            store().lock_keys({form.int % 2**64 - 2**63})
            made = _started_by(actor, form)
            if made is not None:
                raise Conflict("This operation was started already.", operation=made)
        action = record_action(
            actor,
            OPERATIONS[verb].permission,
            kind="job",
            count=0,
            selection={"filter": wanted} | sent,
            reason=reason,
            history=False,
        )
        return BulkOperation.objects.create(
            verb=verb,
            filter=wanted,
            total=None if has_more else count,
            started_by=actor.name,
            source=actor.source,
            reason=reason,
            action_id=action.pk,
            started_at=clock.now(),
        )


def _started_by(actor: Actor, form: UUID) -> int | None:
    """The key of the operation that this form has started, among the actor's latest; else None."""
    latest = BulkOperation.objects.filter(started_by=actor.name).order_by("-pk")
    keys = {action: pk for pk, action in latest.values_list("pk", "action_id")[:LATEST]}
    actions = OperatorAction.objects.filter(pk__in=list(keys), selection__form=str(form))
    return next((keys[action] for action in actions.values_list("pk", flat=True)), None)


def stop(pk: int, *, actor: Actor, reason: str = "") -> bool:
    """Change no more jobs until it is continued; return whether it was running.

    A batch that is under way is finished.
    """
    return _switch(pk, BulkState.RUNNING, BulkState.STOPPED, actor, reason)


def go_on(pk: int, *, actor: Actor, reason: str = "") -> bool:
    """Continue a stopped operation where it was; return whether it was stopped."""
    return _switch(pk, BulkState.STOPPED, BulkState.RUNNING, actor, reason)


def _switch(pk: int, before: BulkState, after: BulkState, actor: Actor, reason: str) -> bool:
    with atomic():
        moved = BulkOperation.objects.filter(pk=pk, state=before).update(state=after)
        if moved:
            record_action(
                actor,
                "run_bulkoperation",
                list(BulkOperation.objects.filter(pk=pk)),
                selection={"to": str(after)},
                reason=reason,
                message=gettext("Now %(state)s.") % {"state": after.label},
            )
    return bool(moved)


def _running() -> QuerySet[BulkOperation]:
    return BulkOperation.objects.filter(state=BulkState.RUNNING)


@looks.only_if_any(_running)
def advance() -> int:
    """Take batches of the running operations, one of each at a time, until the turn is over.

    Each operation gets one batch at least. Returns how many jobs changed.
    """
    waiting = list(_running().order_by("pk").values_list("pk", flat=True))
    changed = 0
    for _ in pace.turn():
        moved = {pk: _take_batch(pk) for pk in waiting}
        changed += sum(count for count, _ in moved.values())
        waiting = [pk for pk in waiting if moved[pk][1]]
        if not waiting:
            break
    return changed


def _take_batch(pk: int) -> tuple[int, bool]:
    """Change the next jobs of an operation; return how many, and whether there may be more."""
    skip = connection().features.has_select_for_update_skip_locked
    with atomic():
        running = _running().filter(pk=pk)
        # Another process that holds the row is taking this batch, or stopping the operation.
        operation = running.select_for_update(skip_locked=skip).first()
        if operation is None:
            return 0, False
        jobs = matching(operation.verb, operation.filter, now=operation.started_at)
        jobs = jobs.filter(created_at__lte=operation.started_at)
        if operation.last_id is not None:
            jobs = jobs.filter(pk__gt=operation.last_id)
        verb = OPERATIONS[operation.verb]
        # A workflow's ids are close to each other.
        is_windowed = "workflow" not in operation.filter
        end = _place(operation.last_id, WINDOW) if is_windowed else None
        extra: dict[str, Any] = {}
        if operation.verb == "cancel":
            extra = {"cancelled_by": operation.started_by, "reason": operation.reason}
        window = jobs if end is None else jobs.filter(pk__lte=end)
        ids = verb.act(window, most=bulk.BATCH, **extra)
        is_countable = operation.verb == BulkVerb.RETRY and operation.total is not None
        if end is not None and len(ids) < FEW and is_countable:
            ids += verb.act(jobs.filter(pk__gt=end), most=bulk.BATCH - len(ids))
            end = None
        changes: dict[str, Any] = {"done": F("done") + len(ids)}
        if ids:
            changes["last_id"] = ids[-1]
        has_more = len(ids) == bulk.BATCH
        if not has_more and end is not None:
            changes["last_id"], has_more = end, True
        if not has_more:
            changes |= {"state": BulkState.COMPLETED, "finished_at": Now()}
            total = operation.done + len(ids)
            counts = {"total": total, verb.did: total, "skipped": 0}
            record([bulk_event(operation.verb, **counts)])
        running.update(**changes)
        # The audit says what happened so far, also after a crash or a stop.
        if operation.action_id is not None:
            of_operator = OperatorAction.objects.filter(pk=operation.action_id)
            of_operator.update(count=F("count") + len(ids))
    return len(ids), has_more


def _place(after: UUID | None, count: int) -> UUID | None:
    """Return the id of the job so many places after this one; None if there are fewer jobs."""
    jobs = Job.objects.order_by("pk").values_list("pk", flat=True)
    if after is not None:
        jobs = jobs.filter(pk__gt=after)
    return jobs[count : count + 1].first()

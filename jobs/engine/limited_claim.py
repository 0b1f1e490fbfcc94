"""Claims under the limits of queues, rate keys, tenants and worker pools (OJS rate limiting,
multi-tenancy, fair scheduling; worker protocol §8.3).

Used only if one of the queues has limits or has seen jobs with limits, or if the worker's pool has
rules. The steps: lock the pool, find the open keys with waiting jobs, lock their partitions in key
order, count the running jobs, choose jobs by priority and age, and claim exactly those. All in one
transaction, so that no two fetches can take the same free place; running jobs are counted each
time, so that no counter can drift.

In a queue that tenants share, each takes its turn (`turns`), within its own limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.db.models.functions import Now

from ..access.projects import scope_to
from ..errors import InvalidRequest
from ..models import Event as EventRow
from ..models import Job, Queue, RateLimit
from ..models.querysets import JobQuerySet
from ..record.events import PREVIOUS, job_event, partition_event, record
from ..spec import rate_policy
from ..spec.lifecycle import Event, State
from ..spec.rate_policy import Memory, Room
from ..spec.tenants import MOST_PRIORITY
from ..store import clock
from ..store.claimed import ClaimedJob
from ..store.contract import ClaimRequest
from ..store.portable import open_queues, skips_locked
from ..store.stores import store
from . import pool_rules, turns
from .ends import discard_waiting
from .flow import ending
from .limits import QUEUE_KEY, keys_waiting, make_known, running_jobs
from .tenants import active_jobs, most_active

BATCH = 100
LOOKED_AT = 1_000
"""Oldest waiting jobs of a key among which those are looked for that do not want to wait."""
KEYS = 200
"""Most keys of one queue that a fetch considers; only open ones count, so closed ones hide none."""


@dataclass(slots=True)
class Partition:
    """A locked rate limit, and how much of it this fetch has used."""

    row: RateLimit
    policy: dict[str, Any]
    running: int
    """How many of its jobs are active."""
    room: Room
    taken: int = 0
    first: UUID | None = None
    """The first job given a place."""

    @property
    def left(self) -> int:
        return self.room.jobs - self.taken

    def give(self, job_id: UUID) -> None:
        self.taken += 1
        self.first = self.first or job_id


def claim_within_limits(request: ClaimRequest) -> list[ClaimedJob]:
    """Claim queue by queue, never exceeding the limit of a queue or a key.

    Claims from a limited queue take turns locking its row, those for a key its partition.
    """
    claimed: list[ClaimedJob] = []
    with ending() as ended:
        # First of all locks: configuring a pool locks its queues afterwards.
        pool = pool_rules.locked(request.pool)
        if pool is not None:
            request = replace(request, count=pool.room(request.count))
            if request.count < 1:
                return []
        queues = open_queues(request.queues, request.pool)
        found = Queue.objects.limited().filter(pk__in=queues).order_by("pk")
        capped = Q(concurrency__isnull=False) | Q(config__has_key="rate_limit")
        capped |= Q(has_tenants=True)
        limited = {queue.pk: queue for queue in found.filter(capped).select_for_update()}
        keyed = {queue.pk: _open_keys(queue.pk) for queue in found if queue.has_limits}
        partitions = _locked({QUEUE_KEY + name for name in limited}.union(*keyed.values()))
        shared = {
            name: _tenants(queue, request) for name, queue in limited.items() if queue.has_tenants
        }
        rooms = _tenant_rooms({name for tenants in shared.values() for name in tenants})
        # Read after the locks were acquired.
        now, request = store().admit(request)
        if request.count < 1:
            return []
        suiting = Job.objects.all().suiting(request.types, request.able, request.versions)
        suiting = scope_to(suiting, request.project)
        _measure(partitions, now)
        plan = [(queue, request.count) for queue in queues]
        if pool is not None:
            plan = pool.plan(queues, request.count, now)
        for queue, most in plan:
            left = min(most, request.count - len(claimed))
            room = _room(limited.get(queue), partitions, left)
            if room < 1:
                continue
            keys = [key for key in keyed.get(queue, ()) if partitions[key].left > 0]
            if queue in shared:
                heads = _choose_by_turn(
                    limited[queue],
                    shared[queue],
                    rooms,
                    keys,
                    partitions,
                    room,
                    suiting,
                    request.project,
                )
                chosen = {job_id: key for job_id, (key, _) in heads.items()}
                given = store().claim_chosen(list(chosen), request, now)
                for job in given:
                    tenant = heads[job.id][1]
                    if tenant in rooms:
                        rooms[tenant] -= 1
            elif keys:
                chosen = _choose(queue, keys, partitions, room, suiting)
                given = store().claim_chosen(list(chosen), request, now)
            else:
                free = replace(request, queues=[queue], count=room, asks_limits=False)
                chosen, given = {}, store().claim(free).jobs
            for job in given:
                for key in (chosen.get(job.id, ""), QUEUE_KEY + queue):
                    if key in partitions:
                        partitions[key].give(job.id)
            claimed += given
        if pool is not None:
            pool.take(claimed, now)
        ended += _settle(partitions, keyed, now)
    return claimed


def _open_keys(queue: str) -> list[str]:
    """Return the keys that have available jobs in the queue and may have room for them."""
    _promote_due(queue)
    waiting = _known_keys_waiting(queue)
    if not waiting:
        return []
    now = clock.now()
    running = running_jobs(waiting)
    found = []
    for row in RateLimit.objects.filter(pk__in=waiting).order_by("pk"):
        policy = row.effective(now)
        full = running[row.pk] >= policy.get("concurrency", rate_policy.MOST)
        closed = full or (row.closed_until is not None and row.closed_until > now)
        # Closed keys are kept if the event is not recorded yet, or if their jobs do not just wait.
        if closed and row.exceeded_at is not None and policy.get("on_limit", "wait") == "wait":
            continue
        found.append(row.pk)
    return found[:KEYS]


def _locked(keys: set[str]) -> dict[str, Partition]:
    """Lock partitions in one order, so that two fetches cannot wait for each other."""
    if not keys:
        return {}
    rows = RateLimit.objects.filter(pk__in=keys).order_by("pk").select_for_update()
    return {row.pk: Partition(row, {}, 0, Room(0)) for row in rows}


def _known_keys_waiting(queue: str) -> list[str]:
    """Return the rate keys of available jobs in the queue; each has a partition."""
    keys = keys_waiting(queue)
    known = set(RateLimit.objects.filter(pk__in=keys).values_list("pk", flat=True))
    lost = [key for key in keys if key not in known]
    if lost:
        # After a restore from a backup, or a pruning: the jobs still carry their policy.
        jobs = Job.objects.filter(queue=queue, state=State.AVAILABLE)
        make_known({key: _policy_of(jobs.filter(rate_key=key).first()) for key in lost})
    return keys


def _policy_of(job: Job | None) -> dict[str, Any]:
    if job is None:
        return {}
    try:
        return rate_policy.job_policy((job.attributes or {}).get("rate_limit"), job.queue)
    except (InvalidRequest, AttributeError):
        return {}


def _promote_due(queue: str) -> None:
    """Promote a batch of the queue's due jobs: a fetch does not depend on the reaper."""
    due = list(
        Job.objects.due()
        .filter(queue=queue)
        .order_by("scheduled_at")
        .select_for_update(skip_locked=skips_locked())
        .only("type", "queue", "attempt")[:BATCH]
    )
    if due:
        Job.objects.these(due).transition(Event.TIMER, State.AVAILABLE, enqueued_at=Now())
        now = clock.now()
        record(job_event("job.enqueued", job, time=now) for job in due)


def _oldest(queue: str, partition: Partition, on_limit: str) -> list[Job]:
    """Lock the first waiting jobs of a key that say `on_limit`, or all if an operator says it.

    Another producer may have enqueued jobs with the same key that are to wait.
    """
    row = partition.row
    waiting = Job.objects.filter(queue=queue, rate_key=row.pk, state=State.AVAILABLE)
    waiting = waiting.order_by("-priority", "enqueued_at", "id")
    if partition.policy is row.policy or "on_limit" not in row.override:
        found = waiting.values("pk")[:LOOKED_AT]
        waiting = waiting.filter(pk__in=found, attributes__rate_limit__on_limit=on_limit)
    return list(
        waiting.select_for_update(skip_locked=skips_locked()).only(
            "type", "queue", "state", "attempt", "followed"
        )[:BATCH]
    )


def _drop(queue: str, partition: Partition, now: datetime) -> list[UUID]:
    """Discard a batch of jobs that may not start; return those with dependents (§6.2)."""
    key = partition.row.pk
    jobs = _oldest(queue, partition, "drop")
    message = f"Dropped: the rate limit '{key}' was reached."
    discarded = discard_waiting(jobs, code="rate_limited", message=message, now=now)
    dropped = [
        partition_event("rate_limit.dropped", key, job_id=str(job.pk), job_type=job.type)
        for job in jobs
    ]
    record(event for pair in zip(discarded, dropped, strict=True) for event in pair)
    return [job.pk for job in jobs if job.followed]


def _reschedule(queue: str, partition: Partition, until: datetime) -> None:
    """Postpone a batch of jobs until the limit may allow them (§6.2 `reschedule`)."""
    jobs = _oldest(queue, partition, "reschedule")
    Job.objects.these(jobs).transition(Event.DEFER, State.SCHEDULED, scheduled_at=until)
    data = {"scheduled_at": until.isoformat(), PREVIOUS: "available"}
    now = clock.now()
    record(job_event("job.scheduled", job, time=now, data=data) for job in jobs)


def _measure(partitions: dict[str, Partition], now: datetime) -> None:
    running = running_jobs(key for key in partitions if not key.startswith(QUEUE_KEY))
    for key, partition in partitions.items():
        partition.policy = partition.row.effective(now)
        partition.running = running[key]
        partition.room = _room_of(partition, now)


def _room_of(partition: Partition, now: datetime) -> Room:
    row = partition.row
    return rate_policy.room(
        partition.policy,
        Memory(row.starts, row.next_at),
        partition.running + partition.taken,
        now,
        row.held_until,
    )


def _room(queue: Queue | None, partitions: dict[str, Partition], room: int) -> int:
    if queue is None:
        return room
    if queue.concurrency is not None:
        active = Job.objects.active().filter(queue=queue.pk, reserved_for__isnull=False)
        room = min(room, queue.concurrency - active.count())
    scope_to = partitions.get(QUEUE_KEY + queue.pk)
    return room if scope_to is None else min(room, scope_to.left)


def _choose(
    queue: str,
    keys: Sequence[str],
    partitions: dict[str, Partition],
    room: int,
    suiting: JobQuerySet,
) -> dict[UUID, str]:
    """Choose the first jobs of the queue by priority and age, each key within its room (§8.2)."""
    waiting = suiting.unexpired().filter(queue=queue, state=State.AVAILABLE)
    waiting = waiting.order_by("-priority", "enqueued_at", "id").select_for_update(
        skip_locked=skips_locked()
    )
    heads: list[Any] = []
    for key in ("", *keys):
        most = min(room, partitions[key].left) if key else room
        columns = ("priority", "enqueued_at", "id", "rate_key")
        heads += waiting.filter(rate_key=key).values_list(*columns)[:most]
    heads.sort(key=lambda head: (-head[0], head[1], head[2]))
    return {head[2]: head[3] for head in heads[:room]}


def _tenants(queue: Queue, request: ClaimRequest) -> dict[str, int]:
    """Return the tenants with available jobs in the queue, and their highest priority."""
    if request.project:
        return {request.project: MOST_PRIORITY}
    return turns.waiting(queue)


def _tenant_rooms(tenants: set[str]) -> dict[str, int]:
    """Lock the tenants that have a limit; return how many of their jobs may start now."""
    limits = most_active(tenants)
    if not limits:
        return {}
    # Not their rows, which enqueues lock before those of queues.
    store().lock_keys({_lock_of(name) for name in limits})
    running = active_jobs(limits)
    return {name: most - running[name] for name, most in limits.items()}


def _lock_of(tenant: str) -> int:
    return int.from_bytes(sha256(f"tenant/{tenant}".encode()).digest()[:8], signed=True)


def _choose_by_turn(
    queue: Queue,
    tenants: dict[str, int],
    rooms: dict[str, int],
    keys: Sequence[str],
    partitions: dict[str, Partition],
    room: int,
    suiting: JobQuerySet,
    project: str,
) -> dict[UUID, tuple[str, str]]:
    """Choose jobs of the queue, tenant by tenant within the highest priority that waits.

    Returns:
        Their ids, each with its rate key and its tenant.
    """
    waiting = suiting.unexpired().filter(queue=queue.pk, state=State.AVAILABLE)
    waiting = waiting.order_by("-priority", "enqueued_at", "id").select_for_update(
        skip_locked=skips_locked()
    )
    left = {key: min(room, partitions[key].left) for key in keys}
    heads: dict[str, list[Any]] = {}
    free = dict(rooms)
    tops = {name: top for name, top in tenants.items() if free.get(name, room) > 0}
    # Jobs from before the queue was shared have no tenant, and no index: those that are first in
    # the whole queue take part. A fetch for one project has no other jobs.
    if not project:
        first = _heads(waiting, [key for key in keys if "@" not in key], left, room)
        heads[""] = [head for head in first if not head[4]]
    if heads.get(""):
        tops = {"": heads[""][0][0]} | tops
    turn = turns.Turns(queue, list(tops))
    chosen: dict[UUID, tuple[str, str]] = {}
    while tops and len(chosen) < room:
        level = max(tops.values())
        tenant = turn.next({name for name, top in tops.items() if top == level})
        if tenant not in heads:
            most = min(room - len(chosen), free.get(tenant, room))
            own = [key for key in keys if "@" not in key or key.startswith(f"{tenant}@")]
            heads[tenant] = _heads(scope_to(waiting, tenant), own, left, most)
        rest = heads[tenant]
        while rest and left.get(rest[0][3], 1) < 1:
            rest.pop(0)
        if rest and rest[0][0] == level:
            _, _, job_id, key, _ = rest.pop(0)
            chosen[job_id] = (key, tenant)
            free[tenant] = free.get(tenant, room) - 1
            turn.take()
            if key:
                left[key] -= 1
            while rest and left.get(rest[0][3], 1) < 1:
                rest.pop(0)
        if rest and free.get(tenant, room) > 0:
            tops[tenant] = rest[0][0]
        else:
            del tops[tenant]
    if chosen:
        turn.save(queue)
    return chosen


def _heads(waiting: JobQuerySet, keys: Sequence[str], left: dict[str, int], most: int) -> list[Any]:
    """Return the first jobs of `waiting`, of each key only as many as may start."""
    heads: list[Any] = []
    for key in ("", *keys):
        columns = ("priority", "enqueued_at", "id", "rate_key", "project")
        rows = waiting.filter(rate_key=key).values_list(*columns)
        heads += rows[: min(most, left.get(key, most))]
    return sorted(heads, key=lambda head: (-head[0], head[1], head[2]))


def _settle(
    partitions: dict[str, Partition], keyed: dict[str, list[str]], now: datetime
) -> list[UUID]:
    """Save what was taken, record which limits were met or left, and act on the remaining jobs.

    Returns the dropped jobs that have dependents or a workflow.
    """
    events: list[EventRow] = []
    ended: list[UUID] = []
    for key, partition in partitions.items():
        row = partition.row
        changes: dict[str, Any] = {}
        if partition.taken:
            memory = Memory(row.starts, row.next_at)
            rate_policy.remember(partition.policy, memory, partition.taken, now)
            row.starts, row.next_at = memory.starts, memory.next_at
            changes = {"starts": row.starts, "next_at": row.next_at, "closed_until": None}
            if row.exceeded_at is not None:
                row.exceeded_at = changes["exceeded_at"] = None
                strategy, job_id = partition.room.strategy, str(partition.first)
                events.append(
                    partition_event("rate_limit.released", key, strategy=strategy, job_id=job_id)
                )
        rest = _room_of(partition, now)
        if rest.jobs < 1:
            changes["closed_until"] = rest.again_at
            queues = [queue for queue, keys in keyed.items() if key in keys and _waits(key, queue)]
            if queues and row.exceeded_at is None:
                changes["exceeded_at"] = now
                events.append(_exceeded(key, rest))
            action = partition.policy.get("on_limit", "wait")
            for queue in queues:
                if action == "drop":
                    ended += _drop(queue, partition, now)
                elif action == "reschedule":
                    _reschedule(queue, partition, rest.again_at or now + timedelta(seconds=1))
        if changes:
            RateLimit.objects.filter(pk=key).update(**changes, updated_at=now)
    record(events)
    return ended


def _waits(key: str, queue: str) -> bool:
    return Job.objects.filter(queue=queue, rate_key=key, state=State.AVAILABLE).exists()


def _exceeded(key: str, room: Room) -> EventRow:
    return partition_event(
        "rate_limit.exceeded",
        key,
        strategy=room.strategy,
        limit=room.limit,
        current=room.current,
    )

"""Limits at FETCH: of queues, and of jobs by key (OJS rate limiting; worker protocol §8.3).

A fetch comes here only if one of its queues has limits or has seen jobs that have. Then: look which
keys wait and are open, lock their partitions in the order of their keys, count what runs, choose
jobs by priority and age, claim exactly those. All in one transaction, so that no two fetches can
take the same free place; how many run is counted each time, so that no counter can drift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
from django.db.models import Count, Q

from ..access.projects import own
from ..models import Job, Queue, RateLimit
from ..models.querysets import JobQuerySet
from ..record.events import partition_event, record
from ..spec import rate_policy
from ..spec.lifecycle import State
from ..spec.rate_policy import Memory, Room
from ..spec.validation import NewJob
from ..store import clock
from ..store.database import atomic, connection, is_postgresql, run
from .claim_portable import claim_chosen, open_queues
from .claimed import Admission, Asked, ClaimedJob
from .rationed import drop, keys_waiting, make_known, promote_due, reschedule

KEYS = 200
"""Most keys of one queue looked at by one fetch: open ones, so that closed ones hide nobody."""
QUEUE_KEY = "queue/"
"""Before the name of a queue in the key of its own partition; no client's key has a slash."""
Take = Callable[[Asked], list[ClaimedJob]]


def know(new: Sequence[NewJob]) -> None:
    """Remember the policies of new jobs; the newest of a key counts (OJS rate limiting §6.2)."""
    if not new:
        return
    # Queues before partitions, as a fetch locks them.
    queues = {job.queue for job in new}
    Queue.objects.bulk_create([Queue(name=name) for name in sorted(queues)], ignore_conflicts=True)
    Queue.objects.filter(pk__in=queues, has_limits=False).update(has_limits=True)
    make_known({job.rate_key: dict(job.rate_limit or {}) for job in new})


@dataclass(slots=True)
class Partition:
    """A locked rate limit, and what of it this fetch has taken."""

    row: RateLimit
    policy: dict[str, Any]
    running: int
    """How many of its jobs are active."""
    room: Room
    taken: int = 0
    first: UUID | None = None
    """The first job it let through."""

    @property
    def left(self) -> int:
        return self.room.jobs - self.taken

    def give(self, job_id: UUID) -> None:
        self.taken += 1
        self.first = self.first or job_id


def claim_within(take: Take, asked: Asked) -> list[ClaimedJob]:
    """Claim queue by queue, never over a limit of a queue or of a key.

    Claimers of a limited queue take turns at its row, those of a key at its partition.

    Args:
        take: claims available jobs that have no limit of their own.
    """
    claimed: list[ClaimedJob] = []
    with atomic():
        queues = open_queues(asked.queues)
        found = Queue.objects.limited().filter(pk__in=queues).order_by("pk")
        capped = Q(concurrency__isnull=False) | Q(config__has_key="rate_limit")
        limited = {queue.pk: queue for queue in found.filter(capped).select_for_update()}
        keyed = {queue.pk: _open_keys(queue.pk) for queue in found if queue.has_limits}
        partitions = _locked({QUEUE_KEY + name for name in limited}.union(*keyed.values()))
        now, asked = _as_it_stands(asked)
        if asked.count < 1:
            return []
        suiting = Job.objects.all().suiting(asked.types, asked.able, asked.versions)
        suiting = own(suiting, asked.project)
        _measure(partitions, now)
        for queue in queues:
            room = _room(limited.get(queue), partitions, asked.count - len(claimed))
            if room < 1:
                continue
            keys = [key for key in keyed.get(queue, ()) if partitions[key].left > 0]
            if keys:
                chosen = _choose(queue, keys, partitions, room, suiting)
                given = claim_chosen(list(chosen), asked.worker_id, asked.period, now)
            else:
                chosen, given = {}, take(replace(asked, queues=[queue], count=room))
            for job in given:
                for key in (chosen.get(job.id, ""), QUEUE_KEY + queue):
                    if key in partitions:
                        partitions[key].give(job.id)
            claimed += given
        _settle(partitions, keyed, now)
    return claimed


AS_IT_STANDS = """
    SELECT statement_timestamp(), room, able::text, versions::text FROM ({gate}
    ) AS gate
"""


def _open_keys(queue: str) -> list[str]:
    """Keys that have available jobs in the queue and may have room for them."""
    promote_due(queue)
    waiting = keys_waiting(queue)
    if not waiting:
        return []
    now = clock.now()
    running = _running(waiting)
    found = []
    for row in RateLimit.objects.filter(pk__in=waiting).order_by("pk"):
        policy = row.effective(now)
        full = running[row.pk] >= policy.get("concurrency", rate_policy.MOST)
        closed = full or (row.closed_until is not None and row.closed_until > now)
        # One that was not told yet is looked at, and one whose jobs do not simply wait.
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


def _as_it_stands(asked: Asked) -> tuple[datetime, Asked]:
    """The time, and what the worker may have: both read after the locks were got."""
    if not is_postgresql():
        return clock.now(), asked.looked()
    able = orjson.dumps(list(asked.able)).decode()
    rows = run(
        AS_IT_STANDS.format(gate=asked.gate.sql), {"worker_id": asked.worker_id, "able": able}
    )
    ((now, room, words, versions),) = rows
    found = Admission(room, orjson.loads(words), orjson.loads(versions or "null") or asked.versions)
    return now, asked.admitted(found)


def _running(keys: Iterable[str]) -> Counter[str]:
    # The second condition lets PostgreSQL use the partial index on `rate_key`.
    active = Job.objects.active().filter(rate_key__in=list(keys), rate_key__gt="").order_by()
    return Counter(dict(active.values_list("rate_key").annotate(jobs=Count("pk"))))


def _measure(partitions: dict[str, Partition], now: datetime) -> None:
    running = _running(key for key in partitions if not key.startswith(QUEUE_KEY))
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
    own = partitions.get(QUEUE_KEY + queue.pk)
    return room if own is None else min(room, own.left)


def _choose(
    queue: str,
    keys: Sequence[str],
    partitions: dict[str, Partition],
    room: int,
    suiting: JobQuerySet,
) -> dict[UUID, str]:
    """The first jobs of the queue by priority and age, each key within its room (§8.2)."""
    waiting = suiting.unexpired().filter(queue=queue, state=State.AVAILABLE)
    skip = connection().features.has_select_for_update_skip_locked
    waiting = waiting.order_by("-priority", "enqueued_at", "id").select_for_update(skip_locked=skip)
    heads: list[Any] = []
    for key in ("", *keys):
        most = min(room, partitions[key].left) if key else room
        columns = ("priority", "enqueued_at", "id", "rate_key")
        heads += waiting.filter(rate_key=key).values_list(*columns)[:most]
    heads.sort(key=lambda head: (-head[0], head[1], head[2]))
    return {head[2]: head[3] for head in heads[:room]}


def _settle(partitions: dict[str, Partition], keyed: dict[str, list[str]], now: datetime) -> None:
    """Write down what was taken, tell which limits were met or left, and act on the rest."""
    events: list[Any] = []
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
            events += _act(partition, queues, rest.again_at or now + timedelta(seconds=1), now)
        if changes:
            RateLimit.objects.filter(pk=key).update(**changes, updated_at=now)
    record(events)


def _waits(key: str, queue: str) -> bool:
    return Job.objects.filter(queue=queue, rate_key=key, state=State.AVAILABLE).exists()


def _exceeded(key: str, room: Room) -> Any:
    return partition_event(
        "rate_limit.exceeded",
        key,
        strategy=room.strategy,
        limit=room.limit,
        current=room.current,
    )


def _act(
    partition: Partition, queues: Sequence[str], again_at: datetime, now: datetime
) -> Iterable[Any]:
    """Drop or reschedule what still waits, where its policy says so (§6.2)."""
    key = partition.row.pk
    action = partition.policy.get("on_limit", "wait")
    for queue in queues:
        if action == "drop":
            yield from drop(queue, key, now)
        elif action == "reschedule":
            yield from reschedule(queue, key, again_at)


def rooms(keys: Iterable[str]) -> dict[str, Room]:
    """How many jobs of each key may start now, and what stands in the way: to be shown."""
    now = clock.now()
    rows = {row.pk: row for row in RateLimit.objects.filter(pk__in=list(keys))}
    running = _running(key for key in rows if not key.startswith(QUEUE_KEY))
    return {
        key: rate_policy.room(
            row.effective(now), Memory(row.starts, row.next_at), running[key], now, row.held_until
        )
        for key, row in rows.items()
    }


def remaining(key: str, rate: dict[str, Any]) -> tuple[int, datetime]:
    """How many jobs of the key may still start, and when surely one may (§10.4)."""
    now = clock.now()
    row = RateLimit.objects.filter(pk=key).first()
    memory = Memory(row.starts if row else [], None)
    found = rate_policy.room({"rate": rate}, memory, 0, now, None)
    return found.jobs, now if found.jobs else found.again_at or now


def hold(key: str, until: datetime, reason: str) -> None:
    """Start no job of the key before `until`: a handler met its API's own limit (§9.1)."""
    with atomic():
        later = Q(held_until__isnull=True) | Q(held_until__lt=until)
        held = RateLimit.objects.filter(later, pk=key)
        if held.update(held_until=until, closed_until=until, updated_at=clock.now()):
            told = {"until": until.isoformat(), "reason": reason[:255]}
            record([partition_event("rate_limit.dynamic_adjusted", key, **told)])

"""Operations on whole queues: configuration, draining, deletion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db.models import Q

from ..errors import Conflict, NotFound
from ..models import Job, Queue, RateLimit, Tenant
from ..record.events import queue_event, record
from ..spec import queue_config, reserved
from ..spec.fields import refuse
from ..spec.lifecycle import WAITING, State
from ..spec.timestamps import format_timestamp
from ..store import clock, wakeup
from ..store.database import atomic
from . import bulk, content, queue_marks, queue_policy, schemas
from .ends import discard_waiting
from .flow import ending
from .limits import QUEUE_KEY


def configure(name: str, changes: dict[str, Any], *, create: bool = True) -> Queue:
    """Change the queue's configuration by a checked one; null removes a member (§9.1).

    It takes effect with the next enqueue and the next fetch; jobs already there stay as they are
    (OJS queue configuration §4).

    Raises:
        NotFound: there is no such queue, and `create` is false.
        InvalidRequest: it is its own `dead_letter_queue`.
    """
    with atomic():
        if create:
            queue_policy.make([name], queue_policy.default_policy())
        queue = locked(name)
        known = queue.config
        if queue.concurrency is not None:
            known = known | {"concurrency": queue.concurrency}
        config = queue_config.merged(known, changes)
        target = config.get("dead_letter_queue")
        if target == name:
            raise refuse("dead_letter_queue", "A queue cannot be its own dead letter queue.")
        if target != known.get("dead_letter_queue"):
            config[queue_config.DEAD_LETTER_SINCE] = format_timestamp(clock.now())
        concurrency = config.pop("concurrency", None)
        is_shared = queue_config.by_tenant(config) or (
            queue.has_tenants and Tenant.objects.filter(max_concurrency__isnull=False).exists()
        )
        Queue.objects.filter(pk=name).update(
            config=config,
            concurrency=concurrency,
            max_depth=config.get("max_depth"),
            has_limits=queue.has_limits or "rate_limit" in config or is_shared,
            has_tenants=is_shared,
            is_guarded=queue.is_draining
            or is_shared
            or queue_config.says_something_about_new_jobs(config),
            is_pressed=queue.is_pressed and "max_depth" in config,
            updated_at=clock.now(),
        )
        queue_policy.remember_rate(name, config.get("rate_limit"))
        record([queue_event("queue.config_updated", name, changed=sorted(changes))])
        wakeup.notify([name])
    return Queue.objects.get(pk=name)


def create(name: str, config: dict[str, Any]) -> Queue:
    """Create a queue before its first job (OJS queue configuration §5.2).

    Raises:
        Conflict: the queue exists.
    """
    with atomic():
        policy = queue_policy.default_policy()
        columns = queue_policy.columns(policy)
        _, created = Queue.objects.get_or_create(name=name, defaults=columns)
        if not created:
            raise Conflict(f"Queue '{name}' already exists.", queue=name)
        queue_policy.remember_rate(name, policy.get("rate_limit"), is_new=True)
        record([queue_event("queue.created", name)])
        return configure(name, config)


def drain(name: str, *, draining: bool = True) -> Queue:
    """Accept no new jobs and work off the existing ones; or accept jobs again (§5.1)."""
    with atomic():
        queue = locked(name)
        about_jobs = queue_config.says_something_about_new_jobs(queue.config)
        guarded = draining or queue.has_tenants or about_jobs
        Queue.objects.filter(pk=name).update(is_draining=draining, is_guarded=guarded)
        record([queue_event("queue.draining" if draining else "queue.resumed", name)])
    return Queue.objects.get(pk=name)


def delete(name: str, *, strategy: str, target: str = "") -> tuple[int, bool]:
    """Delete a queue; return how many jobs that affected, and whether it is gone (§5.3).

    `reject` refuses while jobs are unfinished; `discard` and `move` process a bounded number of
    them. If more or active ones are left, the queue stays, draining, and the caller calls again.

    Raises:
        InvalidRequest: jobs of this server's own would be moved to where others get them.
        NotFound: there is no such queue, or no target.
        Conflict: it has unfinished jobs, and the strategy is `reject`; or a pool isolates it.
    """
    if strategy == "move":
        reserved.refuse_queues([name], "queue")
    with atomic():
        _refuse_isolated(locked(name))
        if strategy == "reject":
            _refuse_unfinished(name)
        else:
            drain(name)
            if strategy == "move":
                queue_policy.make([target], queue_policy.default_policy())
    touched = 0
    if strategy == "discard":
        touched = _discard(name)
    elif strategy == "move":
        touched = _move(name, target)
    # Every process must make sure of it again before it stores a job in it.
    with schemas.changing():
        _refuse_isolated(locked(name))
        if _unfinished(name).exists():
            return touched, False
        Queue.objects.filter(pk=name).delete()
        RateLimit.objects.filter(pk=QUEUE_KEY + name).delete()
        record([queue_event("queue.deleted", name, strategy=strategy)])
    return touched, True


def locked(name: str) -> Queue:
    """
    Raises:
        NotFound: there is no such queue.
    """
    queue = Queue.objects.select_for_update().filter(pk=name).first()
    if queue is None:
        raise NotFound(f"Queue '{name}' not found.", resource_type="queue", resource_id=name)
    return queue


def _refuse_isolated(queue: Queue) -> None:
    # The next job would make it again, for every worker.
    if queue.isolated_by:
        raise Conflict(
            f"The worker pool '{queue.isolated_by}' isolates the queue '{queue.pk}'.",
            hint="Take it out of the pool first.",
            pool=queue.isolated_by,
            queue=queue.pk,
        )


def _unfinished(name: str) -> Any:
    waiting = Q(state__in=sorted(WAITING)) | Q(state=State.ACTIVE)
    return Job.objects.filter(waiting, queue=name)


def _refuse_unfinished(name: str) -> None:
    if _unfinished(name).exists():
        raise Conflict(
            f"Queue '{name}' has unfinished jobs.",
            queue=name,
            hint="Use the strategy 'discard' or 'move', or let workers finish them.",
        )


def _each_batch(name: str, act: Callable[[list[Job]], tuple[int, list[UUID]]]) -> int:
    """Call `act` with locked batches of the queue's waiting jobs; a bounded number per call.

    Args:
        act: returns how many jobs it affected, and the ended ones with dependents or a workflow.
    """
    touched = 0
    while touched < bulk.MOST:
        with ending() as ended:
            waiting = Job.objects.filter(queue=name, state__in=sorted(WAITING)).order_by("pk")
            columns = ("type", "queue", "attempt", "state", "rate_key", "project", "followed")
            batch = list(waiting.select_for_update().only(*columns)[: bulk.BATCH])
            if not batch:
                break
            count, ended[:] = act(batch)
            touched += count
    return touched


def _discard(name: str) -> int:
    message = f"Its queue '{name}' was deleted."

    def discard(batch: list[Job]) -> tuple[int, list[UUID]]:
        now = clock.now()
        record(discard_waiting(batch, code="queue_deleted", message=message, now=now))
        return len(batch), [job.pk for job in batch if job.followed]

    return _each_batch(name, discard)


def _move(name: str, target: str) -> int:
    def move(batch: list[Job]) -> tuple[int, list[UUID]]:
        queue_marks.prepare(batch, target)
        content.rename_keys([job.pk for job in batch], target)
        return Job.objects.these(batch).update(queue=target), []

    touched = _each_batch(name, move)
    wakeup.notify([target])
    return touched

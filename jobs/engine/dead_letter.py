"""Dead letter queues: where jobs that died are enqueued again (OJS queue configuration §6.4)."""

from __future__ import annotations

from django.db.models import QuerySet

from ..models import Job, Queue
from ..spec.queue_config import DEAD_LETTER_SINCE
from ..spec.timestamps import parse_timestamp
from ..store import looks
from ..store.database import atomic, connection
from ..store.expressions import Among, JSONMerged
from . import content
from .control import lock_retriable, retriable, retry

BATCH_SIZE = 500
FROM = "ojs.dead_letter.queue"
"""Member of `meta` that names the queue in which a job died."""


def _with_dead_letter_queue() -> QuerySet[Queue]:
    return Queue.objects.filter(config__has_key="dead_letter_queue")


@looks.only_if_any(_with_dead_letter_queue)
def forward_dead() -> int:
    """Enqueue one batch of dead jobs in the `dead_letter_queue` of their queue; return how many.

    They start with fresh attempts and keep their errors, and `meta` names the queue they come from.
    A job is moved once: if it dies again, it stays in the dead letter. So does one that died before
    its queue had a dead letter queue.
    """
    for name, config in list(_with_dead_letter_queue().order_by("pk").values_list("pk", "config")):
        target = config["dead_letter_queue"]
        if target != name and (moved := _forward(name, target, config.get(DEAD_LETTER_SINCE))):
            return moved
    return 0


def _forward(name: str, target: str, since: str | None) -> int:
    dead = retriable(Job.objects.dead()).filter(queue=name).exclude(meta__has_key=FROM)
    if since is not None:
        dead = dead.filter(finished_at__gte=parse_timestamp(since))
    found = list(dead.order_by("pk").values_list("pk", flat=True)[:BATCH_SIZE])
    if not found:
        return 0
    skip = connection().features.has_select_for_update_skip_locked
    with atomic():
        # Looked at again under their locks: an operator may have retried or deleted some.
        chosen = lock_retriable(dead.filter(Among("pk", found)), skip_locked=skip)
        ids = [job.pk for job in chosen]
        if not ids:
            return 0
        content.rename_keys(ids, target)
        Job.objects.filter(Among("pk", ids)).update(
            queue=target, meta=JSONMerged("meta", {FROM: name})
        )
        return retry(ids)

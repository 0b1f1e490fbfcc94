"""Why a job is not running: facts, each checked now, none guessed.

Whoever knows of more reasons adds a function with `reason`: the workers' app does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..lifecycle import WAITING, State
from ..models import Job, Maintenance, Queue
from .display import absolute, distance

Source = Callable[[Any], Iterable[str]]
_sources: list[Source] = []
MOST = 1000


def reason(source: Source) -> Source:
    _sources.append(source)
    return source


def why(job: Any) -> list[str]:
    """What keeps a waiting job from running; nothing for one that runs or has finished."""
    if job.state not in WAITING:
        return []
    found = [text for source in _sources for text in source(job)]
    return found or [_("Nothing is in its way: the next fetch takes it.")]


@reason
def not_its_time(job: Any) -> Iterator[str]:
    if job.state == State.PENDING:
        yield _("It is pending: it waits until somebody activates it.")
    if job.state not in (State.SCHEDULED, State.RETRYABLE) or job.scheduled_at is None:
        return
    if job.scheduled_at <= timezone.now():
        yield _("It was due %(distance)s.") % {"distance": distance(job.scheduled_at)}
        return
    about = {"moment": absolute(job.scheduled_at), "distance": distance(job.scheduled_at)}
    if job.state == State.SCHEDULED:
        yield _("It is scheduled for %(moment)s, %(distance)s.") % about
    else:
        yield _("Its next attempt is due at %(moment)s, %(distance)s.") % about


@reason
def expired(job: Any) -> Iterator[str]:
    if job.expires_at is not None and job.expires_at <= timezone.now():
        yield _("It expired %(distance)s and will be discarded.") % {
            "distance": distance(job.expires_at)
        }


@reason
def maintenance(job: Any) -> Iterator[str]:
    switch = Maintenance.objects.on().first()
    if switch:
        yield _("Maintenance mode is on: nothing is fetched.") + (
            f" {switch.reason}" if switch.reason else ""
        )


@reason
def held_up_in_its_queue(job: Any) -> Iterator[str]:
    queue = Queue.objects.filter(pk=job.queue).first()
    if queue is None:
        return
    if queue.is_paused:
        parts = [_("The queue “%(queue)s” is paused") % {"queue": queue.name}]
        if queue.paused_by:
            parts.append(_("by %(who)s") % {"who": queue.paused_by})
        if queue.paused_until:
            parts.append(_("until %(moment)s") % {"moment": absolute(queue.paused_until)})
        yield " ".join(parts) + (f": {queue.pause_reason}" if queue.pause_reason else ".")
    if queue.concurrency is not None:
        active = Job.objects.active().filter(queue=queue.name, reserved_until__isnull=False).count()
        if active >= queue.concurrency:
            text = _("The queue's limit is reached: %(active)d of %(limit)d jobs are active.")
            yield text % {"active": active, "limit": queue.concurrency}


@reason
def behind_others(job: Any) -> Iterator[str]:
    if job.state != State.AVAILABLE:
        return
    same = Q(priority=job.priority)
    earlier = Q(enqueued_at__lt=job.enqueued_at) | Q(enqueued_at=job.enqueued_at, pk__lt=job.pk)
    before = Job.objects.filter(Q(priority__gt=job.priority) | (same & earlier))
    ahead = before.filter(queue=job.queue, state=State.AVAILABLE).values("pk")[: MOST + 1].count()
    if ahead:
        text = ngettext(
            "%(count)s job of its queue comes before it.",
            "%(count)s jobs of its queue come before it.",
            ahead,
        )
        yield text % {"count": f"{MOST}+" if ahead > MOST else ahead}

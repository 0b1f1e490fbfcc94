"""Why a job is not running: facts, each checked now, none guessed.

Other apps can add reasons with `reason`, as the workers' app does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from django.db.models import Q
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..engine import maintenance as modes
from ..engine import tenants
from ..engine.limits import QUEUE_KEY, rooms
from ..models import CronJob, CronRun, Dependency, Job, Maintenance, Queue, RateLimit, Tenant
from ..spec.lifecycle import WAITING, State
from ..store import clock
from .display import absolute, distance, page_url
from .words import word


class Reason(str):
    """What prevents a job from running, and a link.

    Args:
        to: the object whose page has more, or the model whose list does.
        query: what the list is narrowed to.
        resumes: the paused queue that the reader may resume.
    """

    to: Any
    query: dict[str, str]
    resumes: Any

    def __new__(cls, text: str, to: Any = None, resumes: Any = None, **query: str) -> Reason:
        made = super().__new__(cls, text)
        made.to, made.resumes, made.query = to, resumes, query
        return made

    def url(self, site: Any, request: Any) -> str:
        """The URL of that page; empty for a user who may not view it."""
        if self.to is None:
            return ""
        if not isinstance(self.to, type):
            return page_url(site, request, type(self.to), "change", self.to.pk)
        url = page_url(site, request, self.to, "changelist")
        return f"{url}?{urlencode(self.query)}" if url and self.query else url


Source = Callable[[Any], Iterable[str]]
_sources: list[Source] = []
MOST = 1000


def reason(source: Source) -> Source:
    _sources.append(source)
    return source


last_served: list[Callable[[Any], datetime | None]] = []
"""Returns when a worker that serves a job was last given one, if that is known. Set by the app that
knows workers."""


def why(job: Any) -> list[str]:
    """Return what keeps a waiting job from running; empty for one that runs or has finished.

    If `job.maintenance` is set, it is the switch of maintenance mode or None; this saves a query.
    """
    if job.state not in WAITING:
        return []
    found = [text for source in _sources for text in source(job)]
    return found or [_nothing(job)]


def _nothing(job: Any) -> str:
    """What is said of a job that could be fetched now, if a worker asked."""
    served = max((at for find in last_served if (at := find(job)) is not None), default=None)
    if served is None:
        return _("Nothing known is in its way: it waits for a worker of its queue to fetch.")
    text = _(
        "Nothing is in its way: the next fetch takes it. A worker of its queue was last given a "
        "job %(distance)s."
    )
    return text % {"distance": distance(served)}


def in_words(texts: Iterable[str], site: Any, request: Any) -> list[tuple[str, str, Any]]:
    """Return reasons for a page: each text, another page about it, and the queue to resume."""
    queues = site._registry.get(Queue)
    may_resume = queues is not None and "resume" in queues.get_actions(request)
    found = []
    for text in texts:
        url = text.url(site, request) if isinstance(text, Reason) else ""
        resumes = getattr(text, "resumes", None) if may_resume else None
        found.append((str(text), "" if url == request.path else url, resumes))
    return found


def queue_of(job: Any) -> Queue | None:
    """The queue of a job, read once for all reasons."""
    if not hasattr(job, "in_queue"):
        job.in_queue = Queue.objects.filter(pk=job.queue).first()
    queue: Queue | None = job.in_queue
    return queue


@reason
def pending(job: Any) -> Iterator[str]:
    if job.state != State.PENDING:
        return
    waits = list(_others(job))
    yield from waits or [_("It is pending: it waits until somebody activates it.")]


def _others(job: Any) -> Iterator[str]:
    """The jobs that it waits for, and the earlier runs of its cron job."""
    edges = Dependency.objects.filter(waiter=job.pk, settled=False)
    count = edges.values("pk")[: MOST + 1].count()
    if count:
        some = edges.order_by("position").values_list(
            "predecessor_id", "predecessor__type", "predecessor__state", "condition"
        )
        named = ", ".join(
            f"{kind} {job_id} ({word(state)})" for job_id, kind, state, _how in some[:5]
        )
        text = ngettext(
            "It waits for %(count)s job to end: %(named)s.",
            "It waits for %(count)s jobs to end: %(named)s.",
            count,
        )
        more = f"{named}, …" if count > 5 else named
        sentence = text % {"count": f"{MOST}+" if count > MOST else count, "named": more}
        yield Reason(sentence, Job(pk=some[0][0]))
        # One transaction releases a thousand dependents: this is a later one.
        if not edges.filter(predecessor__finished_at=None).exists():
            yield _("What it waits for has ended: the reaper will release it.")
    for name in CronRun.objects.filter(held=True, job_id=job.pk).values_list(
        "cron_name", flat=True
    ):
        text = _("It waits until earlier runs of the cron job “%(name)s” have ended.")
        yield Reason(text % {"name": name}, CronJob(pk=name))


@reason
def not_its_time(job: Any) -> Iterator[str]:
    if job.state not in (State.SCHEDULED, State.RETRYABLE) or job.scheduled_at is None:
        return
    if job.scheduled_at <= clock.now():
        yield _("It was due %(distance)s.") % {"distance": distance(job.scheduled_at)}
        return
    about = {"moment": absolute(job.scheduled_at), "distance": distance(job.scheduled_at)}
    if job.state == State.SCHEDULED:
        yield _("It is scheduled for %(moment)s, %(distance)s.") % about
    else:
        yield _("Its next attempt is due at %(moment)s, %(distance)s.") % about


@reason
def expired(job: Any) -> Iterator[str]:
    if job.expires_at is not None and job.expires_at <= clock.now():
        yield _("It expired %(distance)s and will be discarded.") % {
            "distance": distance(job.expires_at)
        }


@reason
def maintenance(job: Any) -> Iterator[str]:
    switch = job.maintenance if hasattr(job, "maintenance") else modes.current()
    if switch:
        text = _("Maintenance mode is on: nothing is fetched.")
        yield Reason(f"{text} {switch.reason}".strip(), Maintenance)


@reason
def held_up_in_its_queue(job: Any) -> Iterator[str]:
    queue = queue_of(job)
    if queue is None:
        return
    if queue.is_paused:
        parts = [_("The queue “%(queue)s” is paused") % {"queue": queue.name}]
        if queue.paused_by:
            parts.append(_("by %(who)s") % {"who": queue.paused_by})
        if queue.paused_until:
            parts.append(_("until %(moment)s") % {"moment": absolute(queue.paused_until)})
        why_paused = f": {queue.pause_reason}" if queue.pause_reason else "."
        yield Reason(" ".join(parts) + why_paused, queue, resumes=queue)
    if queue.concurrency is not None:
        active = Job.objects.active().filter(queue=queue.name, reserved_for__isnull=False).count()
        if active >= queue.concurrency:
            text = _("The queue's limit is reached: %(active)d of %(limit)d jobs are active.")
            if not queue.concurrency:
                text = _("The queue's limit is 0: none of its jobs starts.")
            yield Reason(text % {"active": active, "limit": queue.concurrency}, queue)


@reason
def tenant_limited(job: Any) -> Iterator[str]:
    """Its project has as many active jobs as it may (OJS multi-tenancy §8)."""
    for name, most in tenants.most_active([job.project] if job.project else []).items():
        active = tenants.active_jobs([name])[name]
        if active >= most:
            text = _("The limit of the tenant “%(tenant)s” is 0: none of its jobs starts.")
            if most:
                text = _(
                    "The limit of the tenant “%(tenant)s” is reached: %(active)d of %(limit)d "
                    "jobs are active."
                )
            yield Reason(text % {"tenant": name, "active": active, "limit": most}, Tenant(pk=name))


@reason
def rate_limited(job: Any) -> Iterator[str]:
    named = {
        QUEUE_KEY + job.queue: _("The rate limit of the queue “%(name)s”") % {"name": job.queue}
    }
    if job.rate_key:
        named[job.rate_key] = _("Its rate limit “%(name)s”") % {"name": job.rate_key}
    for key, room in rooms(named).items():
        if room.jobs > 0:
            continue
        about = {"limit": named[key], "active": room.current, "most": room.limit}
        if room.again_at is not None:
            about["moment"] = absolute(room.again_at)
        if room.strategy != "held" and not room.limit:
            text = _("%(limit)s is 0: no job starts.")
        elif room.strategy == "concurrency" or room.again_at is None:
            text = _("%(limit)s is reached: %(active)d of %(most)d jobs are active.")
        elif room.strategy == "held":
            text = _("%(limit)s is held until %(moment)s, as a handler asked.")
        else:
            text = _("%(limit)s is reached: it lets the next job start at %(moment)s.")
        yield Reason(text % about, RateLimit(pk=key))


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
        sentence = text % {"count": f"{MOST}+" if ahead > MOST else ahead}
        yield Reason(sentence, Job, queue=job.queue, state=str(State.AVAILABLE))

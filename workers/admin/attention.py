"""The most urgent problems for an operator: each source yields what is wrong, or nothing.

An app with something to watch adds a function with `watch`. A source is one kind of problem, and
one line: several of a kind are counted, and folded under their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, ngettext_lazy

from jobs.admin import display
from jobs.admin.maintenance import in_words
from jobs.engine import maintenance
from jobs.models import ApiKey, CronJob, DeadJob, Job, Maintenance
from jobs.models.cron import LATE, Outcome
from jobs.spec.lifecycle import State
from jobs.spec.versions import version_text
from jobs.store import clock

from ..chores import reaper
from ..fetching.abilities import takes_version
from ..fleet.condition import Condition
from ..models import Worker

MOST = 1000
"""Upper limit of counts."""
LOOKED_AT = 100
"""Most jobs checked in one queue."""
LOOKED_INTO = 2
"""Most queues checked, longest wait first: each costs the dashboard a query."""
NAMED = 5
"""Cron jobs and API keys that are named one by one."""


@dataclass(frozen=True)
class Item:
    """One thing that needs attention, or several of a kind."""

    text: str
    url: str = ""
    is_error: bool = False
    count: int = 1
    """The number of problems it represents."""
    items: tuple[Item, ...] = ()
    """The individual problems of the kind."""
    key: str = ""
    """Identifies the fold of the kind."""


Source = Callable[[Any], Iterable[Item]]
"""Called with the figures of `workers.admin.figures`."""
_sources: list[tuple[Source, Any]] = []


def watch(several: Any = "") -> Callable[[Source], Source]:
    """Call the source whenever the dashboard is drawn.

    Args:
        several: the line for more than one item, an `ngettext_lazy` with `%(count)s`; without it,
            each item has a line of its own.
    """

    def register(source: Source) -> Source:
        _sources.append((source, several))
        return source

    return register


def attention(figures: Any) -> list[Item]:
    """Everything that is wrong, one line for each kind, errors first."""
    lines: list[Item] = []
    for source, several in _sources:
        items = sorted(source(figures), key=lambda item: not item.is_error)
        lines += [_folded(items, source.__name__, several)] if len(items) > 1 and several else items
    return sorted(lines, key=lambda item: not item.is_error)


def _folded(items: list[Item], key: str, several: Any) -> Item:
    count = sum(item.count for item in items)
    is_error = any(item.is_error for item in items)
    text = several % {"count": count}
    return Item(text, is_error=is_error, count=count, items=tuple(items), key=key)


@watch()
def maintenance_mode(figures: Any) -> Iterator[Item]:
    switch = maintenance.current()
    if switch is not None:
        url = figures.list_of(Maintenance)
        yield Item(in_words(switch), url)


@watch()
def silent_reaper(figures: Any) -> Iterator[Item]:
    seen = figures.reaper_seen
    if not reaper.is_silent(seen):
        return
    if seen is None:
        yield Item(_("The reaper has never run: start “manage.py runreaper”."), is_error=True)
    else:
        span = display.span(clock.now() - seen)
        yield Item(_("The reaper has not run for %(span)s.") % {"span": span}, is_error=True)


@watch()
def dead_workers(figures: Any) -> Iterator[Item]:
    dead = figures.workers.get(Condition.DEAD, 0)
    if dead:
        text = ngettext("%(count)d worker is dead.", "%(count)d workers are dead.", dead)
        url = figures.list_of(Worker, state="dead")
        yield Item(text % {"count": dead}, url, is_error=True)


@watch()
def silent_workers(figures: Any) -> Iterator[Item]:
    silent = figures.workers.get(Condition.SILENT, 0)
    if silent:
        text = ngettext("%(count)d worker is silent.", "%(count)d workers are silent.", silent)
        url = figures.list_of(Worker, state="silent")
        yield Item(text % {"count": silent}, url, is_error=True)


@watch(ngettext_lazy("%(count)s queue is paused.", "%(count)s queues are paused.", "count"))
def paused_queues(figures: Any) -> Iterator[Item]:
    for row in figures.queues:
        queue = row.queue
        if not queue.is_paused:
            continue
        parts = [_("The queue “%(queue)s” is paused") % {"queue": queue.name}]
        if queue.paused_by:
            parts.append(_("by %(who)s") % {"who": queue.paused_by})
        parts.append(_("for %(span)s") % {"span": display.span(clock.now() - queue.paused_at)})
        reason = f": {queue.pause_reason}" if queue.pause_reason else "."
        yield Item(" ".join(parts) + reason, row.url)


@watch(
    ngettext_lazy(
        "Jobs have been waiting too long in %(count)s queue.",
        "Jobs have been waiting too long in %(count)s queues.",
        "count",
    )
)
def long_waits(figures: Any) -> Iterator[Item]:
    """Queues whose jobs wait although workers serve them, the longest wait first."""
    late = [row for row in figures.queues if row.is_late and row.workers]
    for row in sorted(late, key=lambda row: row.wait, reverse=True):
        text = _("A job has been waiting in “%(queue)s” for %(span)s.")
        about = {"queue": row.queue.name, "span": display.span(row.wait)}
        yield Item(text % about, row.url, is_error=True)


@watch(
    ngettext_lazy(
        "Jobs wait in %(count)s queue that no live worker serves.",
        "Jobs wait in %(count)s queues that no live worker serves.",
        "count",
    )
)
def unserved_queues(figures: Any) -> Iterator[Item]:
    for row in figures.queues:
        if row.wait is not None and not row.workers:
            text = _("Jobs wait in “%(queue)s”, and no live worker serves it.")
            yield Item(text % {"queue": row.queue.name}, row.url, is_error=True)


@watch(
    ngettext_lazy(
        "%(count)s version of a job waits that no live worker takes.",
        "%(count)s versions of jobs wait that no live worker takes.",
        "count",
    )
)
def unwanted_versions(figures: Any) -> Iterator[Item]:
    """Versions that no worker takes, among the next jobs of a queue with a long wait.

    Only where every worker of a queue has declared ranges: any other takes all versions.
    """
    waiting = [row for row in figures.queues if row.is_late]
    looked_into = 0
    for row in sorted(waiting, key=lambda row: row.wait, reverse=True):
        declared = figures.versions_taken_in(row.queue.name)
        if not declared or not all(declared) or looked_into == LOOKED_INTO:
            continue
        looked_into += 1
        for kind, number in _next_versions(row.queue.name):
            if not any(takes_version(ranges, kind, number) for ranges in declared):
                text = _(
                    "Version %(version)s of “%(type)s” waits in “%(queue)s”, and no live worker "
                    "takes it."
                )
                about = {"version": version_text(number), "type": kind, "queue": row.queue.name}
                yield Item(text % about, row.url, is_error=True)


def _next_versions(queue: str) -> list[tuple[str, int]]:
    """Types and versions of the jobs that a fetch would check first."""
    jobs = Job.objects.filter(queue=queue, state=State.AVAILABLE, rate_key="")
    jobs = jobs.order_by("-priority", "enqueued_at", "id")
    found = jobs.values_list("type", "version_number")[:LOOKED_AT]
    return sorted({(kind, number) for kind, number in found if number is not None})


@watch()
def growing_dead_letter(figures: Any) -> Iterator[Item]:
    lately = DeadJob.objects.filter(finished_at__gte=clock.now() - timedelta(hours=1))
    count = lately.values("pk")[: MOST + 1].count()
    if count:
        text = ngettext(
            "%(count)s job went to the dead letter in the last hour.",
            "%(count)s jobs went to the dead letter in the last hour.",
            count,
        ) % {"count": f"{MOST}+" if count > MOST else count}
        yield Item(text, figures.list_of(DeadJob, since="1h"))


@watch(
    ngettext_lazy("%(count)s cron job did not run.", "%(count)s cron jobs did not run.", "count")
)
def idle_schedules(figures: Any) -> Iterator[Item]:
    """Schedules that did not run: late, no next run, or a latest run that enqueued nothing."""
    crons: list[Any] = list(CronJob.objects.that_did_not_run().order_by("pk")[: MOST + 1])
    yield from (_idle(cron, figures) for cron in crons[:NAMED])
    others = len(crons[:MOST]) - NAMED
    if others > 0:
        text = ngettext(
            "%(count)s more cron job did not run.", "%(count)s more cron jobs did not run.", others
        )
        shown = f"{others}+" if len(crons) > MOST else others
        yield Item(text % {"count": shown}, figures.list_of(CronJob), count=others)


def _idle(cron: Any, figures: Any) -> Item:
    """What is wrong with a cron job that did not run."""
    now, about, is_error = clock.now(), {"name": cron.pk}, True
    if cron.next_run_at is None:
        text = _("The cron job “%(name)s” is enabled and has no next run.")
    elif cron.next_run_at <= now - LATE:
        about["span"] = display.span(now - cron.next_run_at)
        text = _("The cron job “%(name)s” should have run %(span)s ago.")
    else:
        about |= {"span": display.span(now - cron.last_decided_at), "reason": cron.last_reason}
        is_error = cron.last_outcome == Outcome.REFUSED
        text = (
            _("The cron job “%(name)s” was refused %(span)s ago: %(reason)s")
            if is_error
            else _(
                "The cron job “%(name)s” was skipped %(span)s ago: its earlier run has not "
                "finished."
            )
        )
    return Item(text % about, figures.page_of(cron), is_error)


@watch(ngettext_lazy("%(count)s API key expires soon.", "%(count)s API keys expire soon.", "count"))
def expiring_keys(figures: Any) -> Iterator[Item]:
    keys: list[Any] = list(ApiKey.objects.expiring().order_by("expires_at")[: MOST + 1])
    for key in keys[:NAMED]:
        text = _("The API key “%(name)s” expires in %(span)s.")
        about = {"name": key.name, "span": display.span(key.expires_at - clock.now())}
        yield Item(text % about, figures.page_of(key))
    others = len(keys) - NAMED
    if others > 0:
        text = _("More API keys expire within 14 days.")
        yield Item(text, figures.list_of(ApiKey, state="expiring"), count=others)

"""The problems an operator must know first: each source yields what is wrong, or nothing.

An app with something to watch adds a function with `watch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.admin import display
from jobs.admin.maintenance import in_words
from jobs.conf import ojs_settings
from jobs.engine import maintenance
from jobs.models import ApiKey, CronJob, DeadJob, Job
from jobs.models.cron import LATE, Outcome
from jobs.spec.lifecycle import State
from jobs.spec.versions import version_text
from jobs.store import clock

from ..chores import reaper
from ..fetching.abilities import takes_version
from ..fleet.condition import Condition

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
    """One thing that needs attention."""

    text: str
    url: str = ""
    is_error: bool = False


Source = Callable[[Any], Iterable[Item]]
"""Called with the figures of `workers.admin.figures`."""
_sources: list[Source] = []


def watch(source: Source) -> Source:
    """Call `source` whenever the dashboard is drawn."""
    _sources.append(source)
    return source


def attention(figures: Any) -> list[Item]:
    """Everything that is wrong, errors first."""
    items = [item for source in _sources for item in source(figures)]
    return sorted(items, key=lambda item: not item.is_error)


@watch
def maintenance_mode(figures: Any) -> Iterator[Item]:
    switch = maintenance.current()
    if switch is not None:
        url = display.admin_url(figures.site_name, "ojs_jobs_maintenance", "changelist")
        yield Item(in_words(switch), url)


@watch
def silent_reaper(figures: Any) -> Iterator[Item]:
    seen = figures.reaper_seen
    if not reaper.is_silent(seen):
        return
    if seen is None:
        yield Item(_("The reaper has never run: start “manage.py runreaper”."), is_error=True)
    else:
        span = display.span(clock.now() - seen)
        yield Item(_("The reaper has not run for %(span)s.") % {"span": span}, is_error=True)


@watch
def lost_workers(figures: Any) -> Iterator[Item]:
    url = display.admin_url(figures.site_name, "ojs_workers_worker", "changelist")
    dead = figures.workers.get(Condition.DEAD, 0)
    if dead:
        text = ngettext("%(count)d worker is dead.", "%(count)d workers are dead.", dead)
        yield Item(text % {"count": dead}, f"{url}?state=dead", is_error=True)
    silent = figures.workers.get(Condition.SILENT, 0)
    if silent:
        text = ngettext("%(count)d worker is silent.", "%(count)d workers are silent.", silent)
        yield Item(text % {"count": silent}, f"{url}?state=silent", is_error=True)


@watch
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


@watch
def long_waits(figures: Any) -> Iterator[Item]:
    for row in figures.queues:
        if row.wait is not None and row.wait > ojs_settings.WAIT_LIMIT and not row.queue.is_paused:
            text = _("A job has been waiting in “%(queue)s” for %(span)s.")
            about = {"queue": row.queue.name, "span": display.span(row.wait)}
            yield Item(text % about, row.url, is_error=True)


@watch
def unserved_queues(figures: Any) -> Iterator[Item]:
    for row in figures.queues:
        if row.wait is not None and not row.workers:
            text = _("Jobs wait in “%(queue)s”, and no live worker serves it.")
            yield Item(text % {"queue": row.queue.name}, row.url, is_error=True)


@watch
def unwanted_versions(figures: Any) -> Iterator[Item]:
    """Versions that no worker takes, among the next jobs of a queue with a long wait.

    Only where every worker of a queue has declared ranges: any other takes all versions.
    """
    waiting = [row for row in figures.queues if row.wait and row.wait > ojs_settings.WAIT_LIMIT]
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


@watch
def growing_dead_letter(figures: Any) -> Iterator[Item]:
    lately = DeadJob.objects.filter(finished_at__gte=clock.now() - timedelta(hours=1))
    count = lately.values("pk")[: MOST + 1].count()
    if count:
        text = ngettext(
            "%(count)s job went to the dead letter in the last hour.",
            "%(count)s jobs went to the dead letter in the last hour.",
            count,
        ) % {"count": f"{MOST}+" if count > MOST else count}
        yield Item(text, display.admin_url(figures.site_name, "ojs_jobs_deadjob", "changelist"))


@watch
def idle_schedules(figures: Any) -> Iterator[Item]:
    """Schedules that did not run: late, no next run, or a latest run that enqueued nothing."""
    crons: list[Any] = list(CronJob.objects.that_did_not_run().order_by("pk")[: MOST + 1])
    yield from (_idle(cron, figures.site_name) for cron in crons[:NAMED])
    others = len(crons[:MOST]) - NAMED
    if others > 0:
        text = ngettext(
            "%(count)s more cron job did not run.", "%(count)s more cron jobs did not run.", others
        )
        url = display.admin_url(figures.site_name, "ojs_jobs_cronjob", "changelist")
        yield Item(text % {"count": f"{others}+" if len(crons) > MOST else others}, url)


def _idle(cron: Any, site_name: str) -> Item:
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
    url = display.admin_url(site_name, "ojs_jobs_cronjob", "change", cron.pk)
    return Item(text % about, url, is_error)


@watch
def expiring_keys(figures: Any) -> Iterator[Item]:
    keys: list[Any] = list(ApiKey.objects.expiring().order_by("expires_at")[: NAMED + 1])
    url = display.admin_url(figures.site_name, "ojs_jobs_apikey", "changelist")
    for key in keys[:NAMED]:
        text = _("The API key “%(name)s” expires in %(span)s.")
        about = {"name": key.name, "span": display.span(key.expires_at - clock.now())}
        page = display.admin_url(figures.site_name, "ojs_jobs_apikey", "change", key.pk)
        yield Item(text % about, page)
    if len(keys) > NAMED:
        yield Item(_("More API keys expire within 14 days."), f"{url}?state=expiring")

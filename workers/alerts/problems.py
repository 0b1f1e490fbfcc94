"""Every kind of problem that an operator may need to know about, declared once.

The dashboard lists what is wrong now (*Attention*), with each kind's own limits. A rule asks for
one kind, with limits and a scope of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db.models import Q, Sum
from django.utils import formats
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy

from jobs.conf import ojs_settings
from jobs.engine import maintenance
from jobs.models import (
    ApiKey,
    CronJob,
    DeadJob,
    Job,
    Maintenance,
    QueueRollup,
    Rollup,
    RollupMark,
    TypeRollup,
)
from jobs.models.cron import Outcome
from jobs.record import rollup
from jobs.record.dashboard import grouped
from jobs.record.wording import span
from jobs.spec.lifecycle import State
from jobs.spec.versions import version_text
from jobs.store import clock

from ..fetching.abilities import takes_version
from ..fleet.condition import Condition
from ..liveness import reapers
from ..models import Dashboard, WebhookSubscription, Worker
from .situation import Situation

MOST = 1000
"""Upper limit of counts."""
LOOKED_AT = 100
"""Most jobs checked in one queue."""
LOOKED_INTO = 2
"""Most queues checked, longest wait first: each costs the dashboard a query."""


@dataclass(frozen=True)
class Link:
    """The admin page of a row or, without a key, a list of rows."""

    model: Any
    key: Any = None
    query: Mapping[str, str] = field(default_factory=dict)
    page: str = "changelist"
    """Which page of the model, without a key."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong now."""

    subject: str
    """What it is about: the name of a queue or of a cron job; empty for the whole server."""
    text: str
    """A sentence for an operator."""
    link: Link | None = None
    is_error: bool = True
    count: int = 1
    """The number of things it represents."""


@dataclass(frozen=True)
class Parameter:
    """A number that limits when something is a problem."""

    name: str
    label: Any
    unit: str
    """`s`, `min`, `d`, `%`, or empty for a count."""
    default: int | Callable[[], int]
    least: int = 0
    most: int = 1_000_000
    said: Any = ""
    """What a list says of it, an `ngettext_lazy` with `%(count)s`; without it, the label and the
    number."""
    dashboard: int | None = None
    """The limit of the dashboard, where it is not the default of a rule."""

    def in_words(self, limit: int) -> str:
        if self.said:
            return str(self.said % {"count": limit})
        return f"{self.label} {limit} {self.unit}".rstrip()

    @property
    def proposed(self) -> int:
        return self.default() if callable(self.default) else self.default


@dataclass(frozen=True)
class Terms:
    """The limits of a rule, and which part of the server it is about."""

    limits: Mapping[str, int]
    """Name of a parameter → number."""
    queue: str = ""
    type: str = ""
    project: str = ""

    def __getitem__(self, name: str) -> int:
        return self.limits[name]

    def seconds(self, name: str) -> timedelta:
        return timedelta(seconds=self[name])

    def minutes(self, name: str) -> timedelta:
        return timedelta(minutes=self[name])


Find = Callable[[Situation, Terms], Iterable[Problem]]


@dataclass(frozen=True)
class Kind:
    """A kind of problem: how it is found, and what a rule may choose about it."""

    name: str
    label: Any
    find: Find
    parameters: tuple[Parameter, ...] = ()
    scope: tuple[str, ...] = ()
    """By which of `queue`, `type` and `project` a rule may narrow it down."""
    several: Any = ""
    """The dashboard's line for more than one, an `ngettext_lazy` with `%(count)s`; without it,
    each has a line of its own."""
    on_dashboard: bool = True
    covered_by: str = ""
    """A kind that says more: the dashboard leaves out what has a line there."""

    def __call__(self, situation: Situation, terms: Terms | None = None) -> Iterable[Problem]:
        return self.find(situation, terms or self.terms())

    def terms(
        self, limits: Mapping[str, int] | None = None, *, on_dashboard: bool = False, **scope: str
    ) -> Terms:
        """The given limits, and the default for each that is missing."""
        found = {
            each.name: each.dashboard
            if on_dashboard and each.dashboard is not None
            else each.proposed
            for each in self.parameters
        }
        given = {name: number for name, number in (limits or {}).items() if name in found}
        return Terms(found | given, **scope)


KINDS: dict[str, Kind] = {}


def kind(label: Any, *parameters: Parameter, **how: Any) -> Callable[[Find], Kind]:
    """Declare a kind of problem; its name is that of the function."""

    def declare(find: Find) -> Kind:
        found = Kind(find.__name__, label, find, parameters, **how)
        KINDS[found.name] = found
        return found

    return declare


WORKERS = ngettext_lazy("at least %(count)s worker", "at least %(count)s workers", "count")


def _seconds(label: Any, default: int | Callable[[], int], **how: Any) -> Parameter:
    return Parameter("seconds", label, "s", default, **how)


def _minutes(label: Any, default: int, **how: Any) -> Parameter:
    return Parameter("minutes", label, "min", default, **how)


@kind(gettext_lazy("Maintenance mode is on"))
def maintenance_mode(situation: Situation, terms: Terms) -> Iterator[Problem]:
    switch = maintenance.current()
    if switch is not None:
        yield Problem("", maintenance.in_words(switch), Link(Maintenance), is_error=False)


@kind(
    gettext_lazy("The reaper does not run"),
    _seconds(
        gettext_lazy("silent for more than"),
        lambda: int(ojs_settings.REAPER_SILENT.total_seconds()),
        least=5,
    ),
)
def silent_reaper(situation: Situation, terms: Terms) -> Iterator[Problem]:
    seen = situation.reaper_seen
    if not reapers.is_silent(seen, terms.seconds("seconds")):
        return
    if seen is None:
        yield Problem("", _("The reaper has never run: start “manage.py runreaper”."))
    else:
        text = _("The reaper has not run for %(span)s.")
        yield Problem("", text % {"span": span(clock.now() - seen)})


@kind(
    gettext_lazy("Workers died"),
    Parameter("workers", gettext_lazy("at least this many workers"), "", 1, least=1, said=WORKERS),
    _minutes(gettext_lazy("within the last"), 15, least=1, most=24 * 60, dashboard=24 * 60),
)
def dead_workers(situation: Situation, terms: Terms) -> Iterator[Problem]:
    since = clock.now() - terms.minutes("minutes")
    dead = sum(
        member.condition == Condition.DEAD and member.died_at is not None and member.died_at > since
        for member in situation.fleet
    )
    if dead >= terms["workers"]:
        text = ngettext("%(count)d worker is dead.", "%(count)d workers are dead.", dead)
        yield Problem("", text % {"count": dead}, Link(Worker, query={"state": "dead"}))


@kind(
    gettext_lazy("Workers are silent"),
    Parameter("workers", gettext_lazy("at least this many workers"), "", 1, least=1, said=WORKERS),
)
def silent_workers(situation: Situation, terms: Terms) -> Iterator[Problem]:
    silent = situation.workers.get(Condition.SILENT, 0)
    if silent >= terms["workers"]:
        text = ngettext("%(count)d worker is silent.", "%(count)d workers are silent.", silent)
        yield Problem("", text % {"count": silent}, Link(Worker, query={"state": "silent"}))


def _rows(situation: Situation, terms: Terms) -> list[Any]:
    """The queues that a rule is about."""
    return situation.queue(terms.queue) if terms.queue else situation.queues


@kind(
    gettext_lazy("A queue is paused"),
    _minutes(gettext_lazy("for more than"), 60, dashboard=0),
    scope=("queue",),
    several=ngettext_lazy("%(count)s queue is paused.", "%(count)s queues are paused.", "count"),
)
def paused_queues(situation: Situation, terms: Terms) -> Iterator[Problem]:
    for row in _rows(situation, terms):
        queue = row.queue
        if not queue.is_paused or clock.now() - queue.paused_at < terms.minutes("minutes"):
            continue
        parts = [_("The queue “%(queue)s” has been paused") % {"queue": queue.name}]
        if queue.paused_by:
            parts.append(_("by %(who)s") % {"who": queue.paused_by})
        parts.append(_("for %(span)s") % {"span": span(clock.now() - queue.paused_at)})
        if queue.paused_until:
            left = span(queue.paused_until - clock.now())
            parts[-1] += ", " + _("and will be for another %(span)s") % {"span": left}
        reason = f": {queue.pause_reason}" if queue.pause_reason else "."
        link = Link(type(queue), queue.pk)
        yield Problem(queue.pk, " ".join(parts) + reason, link, is_error=False)


@kind(
    gettext_lazy("Jobs wait too long in a queue"),
    _seconds(gettext_lazy("for more than"), lambda: int(ojs_settings.WAIT_LIMIT.total_seconds())),
    scope=("queue", "project"),
    several=ngettext_lazy(
        "Jobs have been waiting too long in %(count)s queue.",
        "Jobs have been waiting too long in %(count)s queues.",
        "count",
    ),
    covered_by="unserved_queues",
)
def long_waits(situation: Situation, terms: Terms) -> Iterator[Problem]:
    """Queues whose jobs wait, the longest wait first."""
    rows = [row for row in _rows(situation, terms) if row.waits_longer(terms.seconds("seconds"))]
    if terms.project:
        waits = _waits_of(terms, {row.queue.pk: row.queue for row in rows})
    else:
        waits = {row.queue: row.wait for row in rows}
    for queue in sorted(waits, key=lambda queue: waits[queue], reverse=True):
        text = _("A job has been waiting in “%(queue)s” for %(span)s.")
        about = {"queue": queue.name, "span": span(waits[queue])}
        yield Problem(queue.pk, text % about, Link(type(queue), queue.pk))


def _waits_of(terms: Terms, queues: Mapping[str, Any]) -> dict[Any, timedelta]:
    """How long jobs of a project have been waiting in each of these queues."""
    now = clock.now()
    jobs = Job.objects.filter(state=State.AVAILABLE, project=terms.project).exclude(project="")
    late = jobs.filter(queue__in=list(queues), enqueued_at__lt=now - terms.seconds("seconds"))
    found: dict[Any, timedelta] = {}
    for name, since in late.order_by("enqueued_at").values_list("queue", "enqueued_at")[:MOST]:
        found.setdefault(queues[name], now - since)
    return found


@kind(
    gettext_lazy("Jobs wait in a queue that no live worker serves"),
    _seconds(gettext_lazy("for more than"), 30, dashboard=0),
    scope=("queue",),
    several=ngettext_lazy(
        "Jobs wait in %(count)s queue that no live worker serves.",
        "Jobs wait in %(count)s queues that no live worker serves.",
        "count",
    ),
)
def unserved_queues(situation: Situation, terms: Terms) -> Iterator[Problem]:
    for row, wait, project in situation.unserved(_rows(situation, terms)):
        if wait < terms.seconds("seconds"):
            continue
        if project is None:
            text = _("Jobs wait in “%(queue)s”, and no live worker serves it.")
        elif project:
            text = _(
                "Jobs of the project “%(project)s” wait in “%(queue)s”, and no live worker serves "
                "them."
            )
        else:
            text = _("Jobs without a project wait in “%(queue)s”, and no live worker serves them.")
        link = Link(type(row.queue), row.queue.pk)
        about = {"queue": row.queue.name, "project": project}
        yield Problem(row.queue.pk, text % about, link)


@kind(
    gettext_lazy("A version of a job waits that no live worker takes"),
    _seconds(gettext_lazy("for more than"), lambda: int(ojs_settings.WAIT_LIMIT.total_seconds())),
    scope=("queue",),
    several=ngettext_lazy(
        "%(count)s version of a job waits that no live worker takes.",
        "%(count)s versions of jobs wait that no live worker takes.",
        "count",
    ),
)
def unwanted_versions(situation: Situation, terms: Terms) -> Iterator[Problem]:
    """Versions that no worker takes, among the next jobs of a queue with a long wait.

    Only where every worker of a queue has declared ranges: any other takes all versions.
    """
    waiting = [row for row in _rows(situation, terms) if row.waits_longer(terms.seconds("seconds"))]
    looked_into = 0
    for row in sorted(waiting, key=lambda row: row.wait, reverse=True):
        declared = situation.versions_taken_in(row.queue.name)
        if not declared or not all(declared) or looked_into == LOOKED_INTO:
            continue
        looked_into += 1
        for name, number in _next_versions(row.queue.name):
            if not any(takes_version(ranges, name, number) for ranges in declared):
                text = _(
                    "Version %(version)s of “%(type)s” waits in “%(queue)s”, and no live worker "
                    "takes it."
                )
                version = version_text(number)
                about = {"version": version, "type": name, "queue": row.queue.name}
                subject = f"{row.queue.name}: {name}@{version}"[:255]
                yield Problem(subject, text % about, Link(type(row.queue), row.queue.pk))


def _next_versions(queue: str) -> list[tuple[str, int]]:
    """Types and versions of the jobs that a fetch would check first."""
    jobs = Job.objects.filter(queue=queue, state=State.AVAILABLE, rate_key="")
    jobs = jobs.order_by("-priority", "enqueued_at", "id")
    found = jobs.values_list("type", "version_number")[:LOOKED_AT]
    return sorted({(name, number) for name, number in found if number is not None})


@kind(
    gettext_lazy("Many attempts fail"),
    Parameter(
        "percent",
        gettext_lazy("more than this share fails"),
        "%",
        10,
        most=99,
        said=ngettext_lazy("more than %(count)s %% fails", "more than %(count)s %% fail", "count"),
    ),
    _minutes(gettext_lazy("within the last"), 15, least=1, most=24 * 60),
    Parameter(
        "attempts",
        gettext_lazy("of at least this many attempts"),
        "",
        20,
        least=1,
        said=ngettext_lazy(
            "of at least %(count)s attempt", "of at least %(count)s attempts", "count"
        ),
    ),
    scope=("queue", "type"),
    on_dashboard=False,
)
def error_rate(situation: Situation, terms: Terms) -> Iterator[Problem]:
    """As on the dashboard: of the attempts that ended, those that failed.

    Read from the roll-ups, which are a minute or two behind.
    """
    model: Any = Rollup
    part: dict[str, str] = {}
    if terms.queue:
        model, part = QueueRollup, {"queue": terms.queue}
    elif terms.type:
        model, part = TypeRollup, {"type": terms.type}
    mark = RollupMark.objects.filter(pk="jobs").first()
    length = terms.minutes("minutes")
    # Figures that are no longer updated say nothing about the present.
    if mark is None or mark.until < clock.now() - length - rollup.LATE:
        return
    since = mark.until - length
    rows = model.objects.filter(resolution=60, start__gte=since, start__lt=mark.until, **part)
    sums = rows.aggregate(completed=Sum("completed"), failed=Sum("failed"))
    failed = sums["failed"] or 0
    attempts = failed + (sums["completed"] or 0)
    if attempts >= terms["attempts"] and failed * 100 > terms["percent"] * attempts:
        yield _failing(failed / attempts, attempts, terms)


def _failing(rate: float, attempts: int, terms: Terms) -> Problem:
    name = terms.queue or terms.type
    text = _("%(percent)s %% of %(attempts)s attempts failed in the last %(minutes)s minutes.")
    link = Link(Dashboard, page="breakdown")
    if terms.queue:
        text = _(
            "%(percent)s %% of %(attempts)s attempts in “%(name)s” failed in the last "
            "%(minutes)s minutes."
        )
        link = Link(Dashboard, query={"by": "queue", "name": name}, page="breakdown")
    elif terms.type:
        text = _(
            "%(percent)s %% of %(attempts)s attempts of “%(name)s” failed in the last "
            "%(minutes)s minutes."
        )
        link = Link(Dashboard, query={"by": "type", "name": name}, page="breakdown")
    about = {
        "percent": formats.number_format(100 * rate, 1),
        "attempts": grouped(attempts),
        "minutes": terms["minutes"],
        "name": name,
    }
    return Problem(name, text % about, link)


@kind(
    gettext_lazy("The dead letter grows"),
    Parameter(
        "jobs",
        gettext_lazy("by at least this many jobs"),
        "",
        1,
        least=1,
        most=MOST,
        said=ngettext_lazy("by at least %(count)s job", "by at least %(count)s jobs", "count"),
    ),
    _minutes(gettext_lazy("within the last"), 60, least=1, most=7 * 24 * 60),
    scope=("queue", "type", "project"),
)
def growing_dead_letter(situation: Situation, terms: Terms) -> Iterator[Problem]:
    minutes = terms["minutes"]
    named = {"queue": terms.queue, "type": terms.type, "project": terms.project}
    narrowed = {name: value for name, value in named.items() if value}
    since = clock.now() - terms.minutes("minutes")
    lately = DeadJob.objects.filter(finished_at__gte=since, **narrowed)
    count = lately.values("pk")[: MOST + 1].count()
    if count < terms["jobs"] or not count:
        return
    shown = f"{MOST}+" if count > MOST else count
    link = Link(DeadJob, query={"since": "1h"} if minutes <= 60 else {})
    if minutes == 60 and not narrowed:
        text = ngettext(
            "%(count)s job went to the dead letter in the last hour.",
            "%(count)s jobs went to the dead letter in the last hour.",
            count,
        )
        yield Problem("", text % {"count": shown}, link, is_error=False)
        return
    text = ngettext(
        "%(count)s job went to the dead letter in the last %(span)s.",
        "%(count)s jobs went to the dead letter in the last %(span)s.",
        count,
    ) % {"count": shown, "span": span(terms.minutes("minutes"))}
    subject = ", ".join(narrowed.values())
    yield Problem(subject[:255], f"{text} ({subject})" if subject else text, link, is_error=False)


@kind(
    gettext_lazy("A cron job did not run"),
    scope=("project",),
    several=ngettext_lazy(
        "%(count)s cron job did not run.", "%(count)s cron jobs did not run.", "count"
    ),
)
def idle_schedules(situation: Situation, terms: Terms) -> Iterator[Problem]:
    """Schedules that did not run: late, no next run, or a latest run that enqueued nothing."""
    idle = CronJob.objects.that_did_not_run().order_by("pk")
    if terms.project:
        idle = idle.filter(project=terms.project)
    crons: list[Any] = list(idle[: MOST + 1])
    yield from (_idle(cron) for cron in crons[: situation.named])
    others = len(crons[:MOST]) - situation.named
    if others > 0:
        text = ngettext(
            "%(count)s more cron job did not run.", "%(count)s more cron jobs did not run.", others
        )
        shown = f"{others}+" if len(crons) > MOST else others
        yield Problem("", text % {"count": shown}, Link(CronJob), is_error=False, count=others)


def _idle(cron: Any) -> Problem:
    """What is wrong with a cron job that did not run."""
    now, about, is_error = clock.now(), {"name": cron.pk}, True
    if cron.next_run_at is None:
        text = _("The cron job “%(name)s” is enabled and has no next run.")
    elif cron.is_late(now):
        about["span"] = span(now - cron.next_run_at)
        text = _("The cron job “%(name)s” should have run %(span)s ago.")
    else:
        about |= {"span": span(now - cron.last_decided_at), "reason": cron.last_reason}
        is_error = cron.last_outcome == Outcome.REFUSED
        text = (
            _("The cron job “%(name)s” was refused %(span)s ago: %(reason)s")
            if is_error
            else _(
                "The cron job “%(name)s” was skipped %(span)s ago: its earlier run has not "
                "finished."
            )
        )
    return Problem(cron.pk, text % about, Link(CronJob, cron.pk), is_error)


@kind(
    gettext_lazy("A webhook subscription was disabled"),
    scope=("project",),
    on_dashboard=False,
)
def disabled_webhooks(situation: Situation, terms: Terms) -> Iterator[Problem]:
    """Subscriptions that the server has disabled, because nothing reaches them."""
    disabled = WebhookSubscription.objects.disabled().order_by("pk")
    if terms.project:
        disabled = disabled.filter(project=terms.project)
    for row in disabled[: situation.named]:
        text = _("The webhook subscription of %(host)s was disabled: %(reason)s")
        about = {"host": row.host, "reason": row.disabled_reason}
        link = Link(WebhookSubscription, row.pk)
        yield Problem(row.name, text % about, link)


@kind(
    gettext_lazy("An API key expires soon"),
    scope=("project",),
    several=ngettext_lazy(
        "%(count)s API key expires soon.", "%(count)s API keys expire soon.", "count"
    ),
)
def expiring_keys(situation: Situation, terms: Terms) -> Iterator[Problem]:
    expiring = ApiKey.objects.expiring().filter(Q(project=terms.project) if terms.project else Q())
    keys: list[Any] = list(expiring.order_by("expires_at")[: MOST + 1])
    for key in keys[: situation.named]:
        text = _("The API key “%(name)s” expires in %(span)s.")
        about = {"name": key.name, "span": span(key.expires_at - clock.now())}
        yield Problem(f"#{key.pk}", text % about, Link(ApiKey, key.pk), is_error=False)
    others = len(keys) - situation.named
    if others > 0:
        text = _("More API keys expire within 14 days.")
        link = Link(ApiKey, query={"state": "expiring"})
        yield Problem("", text, link, is_error=False, count=others)

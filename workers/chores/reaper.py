"""Sweeps of the reaper. The list of chores below documents them.

Sweeps converge: each takes a small batch under SKIP LOCKED and repairs whatever it finds. Any
number of reapers may run, without an election; after a crash, the next sweep finishes the work.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db.models import Case, Exists, F, OuterRef, Q, Value, When
from django.db.models.functions import Now

from jobs import engine
from jobs.access import refusals
from jobs.conf import ojs_settings
from jobs.models import Job
from jobs.record import rollup, tracing
from jobs.record.events import record, worker_event
from jobs.signals import send_on_commit
from jobs.store import clock, looks, pace, planner
from jobs.store.database import atomic, connection
from jobs.store.trouble import described, is_away, needs_an_operator
from jobs.store.watchdog import bounded

from ..alerts import delivery, evaluation
from ..fleet import marks, rolling
from ..fleet import orders as fleet
from ..fleet import samples as fleet_sample
from ..lifecycle import WorkerState
from ..liveness import holdings

# Part of what this module offers.
from ..liveness.reapers import is_silent as is_silent
from ..liveness.reapers import last_seen as last_seen
from ..liveness.reapers import own_name as own_name
from ..liveness.reapers import sign_of_life as sign_of_life
from ..models import Reaper, Sweep, Worker
from ..models.querysets import WorkerQuerySet
from ..signals import worker_left, workers_died
from ..webhooks import delivery as webhooks
from ..webhooks import fan_out
from . import long_histories, tallies, webhook_worker

logger = logging.getLogger("workers.reaper")

BATCH_SIZE = 500
BATCHES = 50


@looks.only_if_any(Worker.objects.silent)
def declare_dead_workers() -> int:
    """Declare dead one batch of workers that missed their heartbeat timeout (§10.1)."""
    skip = connection().features.has_select_for_update_skip_locked
    with atomic():
        # A worker whose row is locked is having a heartbeat recorded right now: not silent.
        silent = Worker.objects.silent().order_by("pk").select_for_update(skip_locked=skip)
        ids = list(silent.values_list("pk", flat=True)[:BATCH_SIZE])
        if not ids:
            return 0
        # Checked again in the UPDATE: without SKIP LOCKED, a heartbeat may have come in between.
        dead = Worker.objects.silent().filter(pk__in=ids)
        drained = Q(state__in=(WorkerState.QUIET, WorkerState.TERMINATE)) & ~Exists(
            Job.objects.held_by(OuterRef("pk"))  # type: ignore[arg-type]
        )
        # A directive stays for a worker that may come back, and ends with one that has obeyed it:
        # after a worker heard `terminate` and fell silent, its id means another process.
        unheard = Q(directive=WorkerState.TERMINATE, directed_at__gt=F("last_heartbeat_at"))
        stands = ~drained & (Q(directive=WorkerState.QUIET) | unheard)
        now = clock.now()  # not `Now()`: Citus takes no function of the clock in a CASE
        dead.update(
            state=WorkerState.TERMINATED,
            directive=Case(When(stands, then=F("directive")), default=Value("")),
            # A worker that took no more jobs and had none left has left, not died.
            left_at=Case(When(drained, then=Value(now)), default=None),
            died_at=Case(When(drained, then=F("died_at")), default=Value(now)),
            active_job_ids=[],
        )
        gone = Worker.objects.filter(pk__in=ids, left_at__isnull=False)
        left = set(gone.values_list("pk", flat=True))
        record(
            worker_event("worker.stopped", name, reason="shutdown" if name in left else "error")
            for name in ids
        )
    for name in sorted(left):
        send_on_commit(worker_left, Worker, worker_id=name)
    died = [name for name in ids if name not in left]
    if died:
        send_on_commit(workers_died, Worker, worker_ids=died)
    return len(ids)


def _gone_with_jobs() -> WorkerQuerySet:
    held = Job.objects.active().filter(reserved_for__isnull=False)
    return Worker.objects.filter(state=WorkerState.TERMINATED, pk__in=held.values("reserved_by"))


@looks.only_if_any(_gone_with_jobs)
def reclaim_orphans() -> int:
    """Reclaim one batch of jobs whose worker is terminated (§10.2).

    §10.2 names the jobs of the last heartbeat, but the worker also holds jobs fetched after it. The
    reservation covers both, and never a job that has moved on (§5.6).
    """
    skip = connection().features.has_select_for_update_skip_locked
    with atomic():
        # The worker is locked first, as a heartbeat does: one that returns right now either
        # keeps its jobs or hears that it has lost them (§10.3).
        gone = _gone_with_jobs().order_by("pk").select_for_update(skip_locked=skip)
        dead: list[Any] = list(gone.annotate(now=Now())[:BATCH_SIZE])
        if not dead:
            return 0
        silent = {worker.pk: worker.silence_at(worker.now) for worker in dead}
        return holdings.reclaim(dead, silent)


@looks.only_if_any(Job.objects.overdue)
def expire_reservations() -> int:
    """Expire one batch of reservations whose visibility timeout has passed (§5.5).

    The live workers that held them may be hanging: they are flagged for an operator to check
    (AGQ §5.2). Flagging comes first: a crash in between flags them again and loses nothing.
    """
    overdue = Job.objects.overdue()
    hanging = Worker.objects.live().filter(pk__in=overdue.values("reserved_by"))
    with atomic():
        # Locked in the order of ids, as in every batch, then checked again: a heartbeat may have
        # extended the job during the wait for its worker's row.
        ids = list(hanging.order_by("pk").select_for_update().values_list("pk", flat=True))
        if ids:
            hanging.filter(pk__in=ids).update(flagged_at=Now())
    return engine.expire()


def prune_workers() -> int:
    """Delete one batch of workers that left or died long enough ago."""
    long_ago = Now() - ojs_settings.WORKER_RETENTION
    gone = Worker.objects.filter(state=WorkerState.TERMINATED, last_heartbeat_at__lte=long_ago)
    # The record of a worker that still holds jobs is needed to recover them.
    holding = Job.objects.active().filter(reserved_for__isnull=False).values("reserved_by")
    ids = list(gone.exclude(pk__in=holding).values_list("pk", flat=True)[:BATCH_SIZE])
    Reaper.objects.filter(seen_at__lte=Now() - timedelta(hours=1)).delete()
    return Worker.objects.filter(pk__in=ids, state=WorkerState.TERMINATED).delete()[0]


def analyze_grown_tables() -> int:
    """Analyze tables that have grown a lot; always returns 0, because nothing is left to do."""
    planner.analyze_grown()
    return 0


@dataclass(frozen=True)
class Chore:
    """One chore: `run` does a batch and returns how many it touched."""

    name: str
    run: Callable[[], int]
    did: str
    """For the log: "3 reservations expired"."""
    every: timedelta | None = None
    """Its period: the first process to come runs it, at most this often. None means every round."""
    batches: int | None = None
    """Most batches in a row, so that the others get their turn; None means `BATCHES`."""
    span: str = ""
    """Its OpenTelemetry span, if it has done something (OJS distributed tracing §4.2)."""
    is_throttled: bool = False
    """No one waits for it: it rests after each batch, so that other work is not slowed down."""

    @property
    def may_rest(self) -> bool:
        """It is run every round, and has nothing to go on with if it has found nothing."""
        return self.every is None and self.batches is None


CHORES = (
    Chore("dead-workers", declare_dead_workers, "workers declared dead", span="ojs.reaper.check"),
    Chore("fleet-operations", rolling.drive, "workers moved by rolling drains"),
    Chore("directives", fleet.note_answers, "directives answered"),
    # Before orphans: a worker whose heartbeats are about its jobs may be silent until their time is
    # up. If no reaper has run for a while, it seems dead, too.
    Chore("timeouts", engine.time_out, "jobs ran too long"),
    Chore(
        "orphaned-jobs",
        reclaim_orphans,
        "jobs of dead workers recovered",
        span="ojs.reaper.reclaim",
    ),
    Chore(
        "expired-reservations",
        expire_reservations,
        "reservations expired",
        span="ojs.visibility.check",
    ),
    Chore("total-timeouts", engine.discard_overdrawn, "jobs did not end in time"),
    Chore("dead-letter-queues", engine.forward_dead, "dead jobs enqueued in another queue"),
    Chore("schedules", engine.enqueue_due_schedules, "schedules became due"),
    Chore("due-jobs", engine.promote_due, "jobs became due", span="ojs.scheduler.poll"),
    Chore("expired-jobs", engine.discard_expired, "jobs expired before they ran"),
    # These two take batches of their own, for as long as a turn lasts (`pace.turn`).
    Chore("dependents", engine.release_more, "dependents released", batches=1),
    Chore(
        "bulk-operations",
        engine.bulk_operations.advance,
        "jobs changed by bulk operations",
        batches=1,
    ),
    Chore("grown-tables", analyze_grown_tables, "tables that have grown analyzed"),
    Chore("tenants", engine.tenants.declare, "tenants of the settings made"),
    Chore("webhooks", fan_out.fan_out, "events read for webhooks"),
    # Half the intended period: the reaper waits two, leaving the first to django-q2's cluster.
    Chore("statistics", rollup.roll_up, "minutes rolled up", timedelta(seconds=30)),
    Chore("queue-samples", rollup.sample, "queues sampled", timedelta(seconds=30)),
    Chore("fleet-samples", fleet_sample.sample, "workers sampled", timedelta(seconds=30)),
    Chore("workflows", engine.repair, "workflows repaired", timedelta(minutes=1)),
    Chore("queues", engine.queue_marks.mend, "queues made or marked", timedelta(seconds=30)),
    Chore("pressure", engine.relieve, "queues have room again", timedelta(seconds=5)),
    # Often, so that it is little each time.
    Chore(
        "finished-jobs",
        engine.prune_jobs,
        "finished jobs deleted",
        timedelta(seconds=5),
        is_throttled=True,
    ),
    Chore("old-results", engine.prune_results, "results deleted", timedelta(minutes=1)),
    Chore("old-workflows", engine.prune_workflows, "workflows deleted", timedelta(minutes=1)),
    Chore(
        "event-partitions",
        engine.event_partitions.make_ahead,
        "partitions of the record of events made",
        timedelta(seconds=30),
    ),
    Chore(
        "stored-arguments",
        engine.stored_arguments.collect,
        "stored arguments deleted",
        timedelta(minutes=15),
    ),
    Chore(
        "old-events",
        engine.prune_events,
        "events deleted",
        timedelta(seconds=5),
        is_throttled=True,
    ),
    Chore(
        "long-histories",
        long_histories.trim,
        "events of long histories deleted",
        # Half the intended period, as above.
        timedelta(seconds=30),
    ),
    Chore("old-refusals", refusals.prune, "refusals forgotten", timedelta(minutes=1)),
    # Half the intended period, as above: rules are checked every ten seconds.
    Chore("alerts", evaluation.evaluate, "rules checked", timedelta(seconds=5)),
    Chore("old-alerts", evaluation.prune, "alerts forgotten", timedelta(minutes=1)),
    Chore("old-deliveries", webhooks.prune, "deliveries forgotten", timedelta(minutes=1)),
    Chore("tallies", tallies.count, "outcomes counted", timedelta(seconds=5)),
    Chore("old-directives", fleet.prune_directives, "directives forgotten", timedelta(minutes=1)),
    Chore("old-marks", marks.prune, "marks forgotten", timedelta(minutes=1)),
    Chore("old-workers", prune_workers, "workers forgotten", timedelta(minutes=1)),
)
SLOW = tuple(chore for chore in CHORES if chore.every)
SENDERS: dict[
    str, tuple[Callable[[], contextlib.AbstractContextManager[None]], Callable[[], Any]]
] = {
    "alerts": (delivery.outbox.sending, delivery.deliver_due),
    "webhooks": (webhook_worker.hosted, webhook_worker.run_waiting),
}
"""Chore → what sends the messages that it writes in this process: as long as a context lasts, and
once."""
STUCK, STUCK_SLOW = 60.0, 300.0
"""Seconds that a statement may take in a chore, and in a slow one; twice that ends a reaper."""
LOOKING = 5
"""A chore of every round may spend one in so many seconds on looks that find nothing."""
LONGEST_REST = 10.0
"""Seconds that it rests at most."""
THROTTLED_LOOKING, LONGEST_THROTTLED_REST = 50, 60.0
"""The same for a throttled chore, which looks less often."""
THROTTLED_TURN = 2.0
"""Seconds after which a throttled chore leaves the round to the next chore, and any other no longer
rests between the pieces of its work."""
BEHIND = 60.0
"""Seconds after which a throttled chore that still has more to do no longer rests."""
APART = 5.0
"""Seconds without a batch in this process after which another may have finished the chore."""
PATIENCE = 2.0
"""Periods after which the reaper does what a cluster has left undone."""


_complaints: dict[str, set[str]] = {}
"""Chore → its distinct failures since it last succeeded."""
NUMBER = re.compile(r"[0-9a-f-]*\d[0-9a-f-]*")


def complain(chore: Chore, problem: Exception) -> None:
    """Log why a chore failed, unless it has failed in the same way since it last succeeded.

    A failing chore fails in every round, several times a second; failures that differ only in
    numbers count as the same.
    """
    text = f"{type(problem).__name__}: {NUMBER.sub('#', str(problem))}"
    known = _complaints.setdefault(chore.name, set())
    if text not in known:
        known.add(text)
        if needs_an_operator(problem):
            logger.error("The chore %s failed. %s", chore.name, described(problem))
        else:
            logger.error("The chore %s failed.", chore.name, exc_info=problem)


@contextlib.contextmanager
def sending(only: Collection[str] = ()) -> Iterator[None]:
    """Send what the chores write as long as the context lasts.

    Args:
        only: names of the chores; empty means all.
    """
    with contextlib.ExitStack() as stack:
        for name, (lasting, _) in SENDERS.items():
            if not only or name in only:
                stack.enter_context(lasting())
        yield


def send_due(only: Collection[str] = ()) -> None:
    """Send what is due now."""
    for name, (_, send) in SENDERS.items():
        if not only or name in only:
            send()


@dataclass
class Rests:
    """When chores rest in a process that sweeps again and again.

    A chore that has looked long in vain rests in the next rounds. A look takes milliseconds. But as
    long as an open transaction keeps vacuum away, it reads all that was settled since, and would
    keep a processor busy.

    A throttled chore also rests after each batch, for as long as the batch took, and every chore
    after each piece of a batch that it has cut into pieces (`pace`). On a machine whose processors
    are mostly busy, everything else would be slow until it had finished.
    """

    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] = time.sleep
    throttles: bool = True
    """False in a process that runs a chore once: it is to finish soon."""
    _until: dict[str, float] = field(default_factory=dict)
    _unfinished: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Throttled chore → since when it has had more to do, and when its last batch ended."""

    def has(self, chore: Chore) -> bool:
        return self.now() < self._until.get(chore.name, 0.0)

    def note_vain(self, chore: Chore, since: float) -> None:
        """The chore has looked since `since`, and found nothing."""
        self._unfinished.pop(chore.name, None)
        looking, longest = (
            (THROTTLED_LOOKING, LONGEST_THROTTLED_REST)
            if chore.is_throttled
            else (LOOKING, LONGEST_REST)
        )
        now = self.now()
        self._until[chore.name] = now + min(longest, (looking - 1) * (now - since))

    def rest_between(self, took: float, began: float) -> None:
        """Rest after a piece of a batch, for as long as it took.

        Args:
            took: seconds.
            began: when the turn of the chore began, which the rests are not to make much longer.
        """
        if self.throttles and self.now() - began < THROTTLED_TURN:
            self.pause(took)

    def rest_after(self, chore: Chore, since: float) -> None:
        """Rest after a batch of a throttled chore that began at `since`."""
        began, ended = self._unfinished.get(chore.name, (since, since))
        if since - ended > APART:
            began = since
        now = self.now()
        if now - began < BEHIND:
            self.pause(min(THROTTLED_TURN, now - since))
        self._unfinished[chore.name] = began, self.now()


def sweep(
    only: Collection[str] = (),
    *,
    rests: Rests | None = None,
    stop: Callable[[], bool] = lambda: False,
    give_up: Callable[[], object] | None = None,
    failed: Callable[[Chore, Exception], object] = complain,
) -> dict[str, int]:
    """Run every chore once, batch after batch until nothing is left; return what was done.

    A failing chore does not keep the others from their turn; only a lost connection ends the round.

    Args:
        only: names of the chores to run; empty means all.
        rests: those of a process that sweeps again and again; None means that no chore rests.
        stop: called between batches; True ends the round.
        give_up: called in another thread if a chore hangs for good.
        failed: called with each chore that failed, and why.
    """
    done: dict[str, int] = {}
    due: set[str] | None = None
    rests = rests or Rests(throttles=False)
    for chore in CHORES:
        if stop() or (only and chore.name not in only) or rests.has(chore):
            continue
        try:
            if chore.every and not only:
                if due is None:
                    due = _due(give_up)
                if chore.name not in due or not _is_our_turn(chore, give_up):
                    continue
            count = run(chore, rests, stop=stop, give_up=give_up)
        except Exception as problem:
            if is_away(problem):
                raise  # the caller waits until the database is back
            failed(chore, problem)
            continue
        if _complaints.pop(chore.name, None):
            logger.info("The chore %s works again.", chore.name)
        if count:
            done[chore.name] = count
    return done


def _due(give_up: Callable[[], object] | None) -> set[str]:
    """Return the names of the slow chores that are due.

    One query in a round, instead of a guarded update for each chore.
    """
    with bounded("Which chores are due", STUCK, give_up):
        rows = Sweep.objects.annotate(now=Now()).values_list("pk", "ran_at", "now")
        waited = {name: now - ran_at for name, ran_at, now in rows}
    return {
        chore.name
        for chore in CHORES
        if chore.every and waited.get(chore.name, timedelta.max) >= chore.every * PATIENCE
    }


def _is_our_turn(chore: Chore, give_up: Callable[[], object] | None) -> bool:
    """`take_turn()` with a time limit, because it queries the database too."""
    with bounded(f"The turn of the chore {chore.name}", STUCK, give_up):
        return take_turn(chore)


def run(
    chore: Chore,
    rests: Rests | None = None,
    *,
    stop: Callable[[], bool] = lambda: False,
    give_up: Callable[[], object] | None = None,
) -> int:
    """Run one chore until it finds nothing more; return how many rows it touched.

    A slow chore that has used up its batches or its time and may have more to do goes on in the
    next round instead of at its next period. Else what is deleted in a period would be limited, and
    the tables of a busy server would grow for ever.

    Args:
        rests: those of a process that sweeps again and again; None means that no chore rests.
        give_up: called in another thread if a batch hangs although its connection was cut.
    """
    rests = rests or Rests(throttles=False)
    is_throttled = chore.is_throttled and rests.throttles
    total = 0
    began = rests.now()
    with engine.in_one_pass(), pace.resting(lambda took: rests.rest_between(took, began)):
        for _ in range(chore.batches or BATCHES):
            since = rests.now()
            limit = STUCK_SLOW if chore.every else STUCK
            with (
                bounded(f"The chore {chore.name}", limit, give_up),
                tracing.internal(chore.span) as activity,
            ):
                count = chore.run()
                if activity is not None:
                    activity.count(count)
            total += count
            if not count and (chore.is_throttled or (chore.may_rest and not total)):
                rests.note_vain(chore, since)
            if not count or stop():
                return total
            if is_throttled:
                rests.rest_after(chore, since)
                if rests.now() - began >= THROTTLED_TURN:
                    break
    if chore.every:
        _give_back_turn(chore)
    return total


def _give_back_turn(chore: Chore) -> None:
    """Make a slow chore due now, for whichever process comes first."""
    assert chore.every is not None
    Sweep.objects.filter(pk=chore.name).update(ran_at=Now() - chore.every * PATIENCE)


def take_turn(chore: Chore, patience: float = PATIENCE) -> bool:
    """Whether a slow chore is due and this process is to run it: a guarded update decides.

    Args:
        patience: periods to wait. django-q2's cluster waits less than one, a reaper two, so that
            the reaper only steps in where no cluster runs.
    """
    assert chore.every is not None
    due = Sweep.objects.filter(pk=chore.name, ran_at__lte=Now() - chore.every * patience)
    if due.update(ran_at=Now()):
        return True
    _, created = Sweep.objects.get_or_create(pk=chore.name, defaults={"ran_at": Now()})
    return created


def report(done: dict[str, int]) -> Iterable[str]:
    """Describe what a round did, in words."""
    words = {chore.name: chore.did for chore in CHORES}
    return (f"{count} {words[name]}" for name, count in done.items())

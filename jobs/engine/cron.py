"""Cron: register schedules, and enqueue the jobs that are due (OJS cron §6 to §8).

No leader is elected. The reaper that locks a schedule's row decides its occurrence and moves
`next_run_at` in the same transaction: however many reapers run, an occurrence is decided once
(§7.1), and the death of any one of them stops nothing.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F
from django.db.models.functions import Now

from ..access.projects import assign_project
from ..conf import ojs_settings
from ..errors import Conflict, DuplicateJob, NotFound, OJSError, PermissionDenied
from ..models import CronJob, CronRun, Maintenance, OverlapPolicy
from ..models.cron import Outcome
from ..record import tracing
from ..record.events import cron_event, record
from ..spec.cron_requests import NewCronJob, check_schedule
from ..spec.schedules import (
    InvalidSchedule,
    Occurrence,
    is_readable,
    new_schedule,
    read_schedule,
)
from ..spec.tenants import tenant_of
from ..spec.timestamps import format_timestamp
from ..spec.validation import NewJob, accepted_job
from ..store import clock, looks
from ..store.database import atomic, connection
from ..store.trouble import is_away, is_transient
from . import content, schemas
from .control import cancel_jobs
from .cron_runs import held_runs, release_held_runs, unfinished_runs
from .enqueue import enqueue

logger = logging.getLogger("jobs.cron")

BATCH_SIZE = 100
MANY_WAITING = 2
"""More waiting runs than this cause a warning (§6.1)."""


@dataclass
class Decision:
    """The outcome of one occurrence."""

    outcome: Outcome
    reason: str = ""
    job: NewJob | None = None


def upsert_cron(new: NewCronJob) -> tuple[CronJob, bool]:
    """Register or update a cron job; return it and whether it is new (§8.1).

    A site registers its schedules every time it starts. An unchanged one keeps its next run;
    otherwise an `@every 24h` of a site deployed daily would never run.

    Raises:
        InvalidSchedule: the expression or the time zone is not valid.
        PermissionDenied: another project has a cron job of this name.
        InvalidRequest: its jobs name another tenant than its project.
        InvalidArguments, JobTooLarge: its new template would be refused now (see `content.check`).
    """
    new_schedule(new.expression, new.timezone)
    now = clock.now()
    job = accepted_job(new.template, now)
    tenant = _tenant_of(job, new.project)
    new, asked = replace(new, enabled=new.enabled is not False), new.enabled
    wanted: dict[str, Any] = {
        "expression": new.expression,
        "timezone": new.timezone,
        "template": new.template,
        "overlap_policy": new.overlap_policy,
        "enabled": new.enabled,
        "description": new.description,
        "project": new.project,
        # Registering it by hand takes it over from the code.
        "declared_by": "",
    }
    with atomic():
        _, created = CronJob.objects.get_or_create(
            pk=new.name,
            defaults=wanted | _timing(new, now) | {"created_at": now},
        )
        row = CronJob.objects.select_for_update().get(pk=new.name)
        if not created and new.project and row.project != new.project:
            raise PermissionDenied(f"Cron job '{new.name}' is not of this project.")
        if created or row.template != new.template:
            # Not one that has been accepted: a schema may be newer, and each run says so.
            schemas.refresh()
            content.check([job], tenant)
        if not created:
            wanted |= {"project": row.project, "enabled": row.enabled if asked is None else asked}
            same = ("expression", "timezone", "enabled")
            if _is_stopped(row) or any(getattr(row, name) != wanted[name] for name in same):
                wanted |= _timing(replace(new, enabled=wanted["enabled"]), now)
            CronJob.objects.filter(pk=new.name).update(**wanted)
            row.refresh_from_db()
    return row, created


def _tenant_of(job: NewJob, project: str) -> str:
    mode = ojs_settings.MULTI_TENANCY
    return project if mode == "off" else tenant_of(job.meta, project, required=mode == "required")


@dataclass(frozen=True)
class RegisteredCron:
    """Names of the schedules that the site's code declares, by what was done with them."""

    made: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    """Left unchanged, because a person, a client or another site created them."""


COMPARED = ("expression", "timezone", "template", "overlap_policy", "description")


def register_cron(declared: Sequence[NewCronJob], *, site: str) -> RegisteredCron:
    """Make the rows of the site's code match its declarations, whatever other processes do.

    Unchanged declarations are not written, so any number of processes may start at once. Once a
    schedule exists, people decide whether it is enabled.

    Args:
        site: the site that declares them; sites that share a database leave each other's
            schedules alone.

    Raises:
        InvalidSchedule: an expression or a time zone is not valid; nothing is changed.
    """
    for new in declared:
        new_schedule(new.expression, new.timezone)
    done = RegisteredCron()
    rows = CronJob.objects.in_bulk([new.name for new in declared])
    for new in declared:
        row = rows.get(new.name)
        if row is not None and row.declared_by != site:
            done.foreign.append(new.name)
        elif row is None or _is_stopped(row) or _differs(row, new):
            _declare(new, site, done)
    gone = CronJob.objects.filter(declared_by=site).exclude(pk__in=[new.name for new in declared])
    for name in gone.order_by("pk").values_list("pk", flat=True):
        # Not if a person has taken it over meanwhile.
        if CronJob.objects.filter(pk=name, declared_by=site).delete()[0]:
            done.removed.append(name)
    return done


def _declare(new: NewCronJob, site: str, done: RegisteredCron) -> None:
    """Create or change one row that the code declares."""
    now = clock.now()
    wanted = {name: getattr(new, name) for name in COMPARED} | {"declared_by": site}
    with atomic():
        row, created = CronJob.objects.get_or_create(
            pk=new.name, defaults=wanted | _timing(new, now) | {"created_at": now}
        )
        if created:
            done.made.append(new.name)
            return
        row = CronJob.objects.select_for_update().get(pk=new.name)
        if row.declared_by != site:
            done.foreign.append(new.name)
            return
        if not (_is_stopped(row) or _differs(row, new)):
            return
        if _is_stopped(row) or (row.expression, row.timezone) != (new.expression, new.timezone):
            wanted |= _timing(replace(new, enabled=row.enabled), now)
        CronJob.objects.filter(pk=new.name, declared_by=site).update(**wanted)
        done.changed.append(new.name)


def _differs(row: CronJob, new: NewCronJob) -> bool:
    return any(getattr(row, name) != getattr(new, name) for name in COMPARED)


def _is_stopped(row: CronJob) -> bool:
    """Whether it is enabled and yet has no next run."""
    return row.enabled and row.next_run_at is None


def _timing(cron: Any, anchor: datetime) -> dict[str, Any]:
    """Compute the next run after `anchor`; none for a disabled cron job (§8.5)."""
    found = read_schedule(cron.expression, cron.timezone).after(anchor) if cron.enabled else None
    return {"anchored_at": anchor, "next_run_at": found.at if found else None}


def _found(name: str) -> CronJob:
    row = CronJob.objects.select_for_update().filter(pk=name).first()
    if row is None:
        raise NotFound(
            f"Cron job '{name}' not found.",
            hint="Register it with POST /ojs/v1/cron.",
            resource_type="cron_job",
            resource_id=name,
        )
    return row


def set_cron_enabled(name: str, *, enabled: bool) -> CronJob:
    """Enable or disable a cron job; one that is re-enabled starts afresh from now (§8.5).

    Raises:
        NotFound: there is none with this name.
        InvalidRequest: this process does not know its time zone, or cannot read its expression.
    """
    row, _is_changed = switch_cron(name, enabled=enabled)
    return row


def switch_cron(name: str, *, enabled: bool) -> tuple[CronJob, bool]:
    """Do the same, and return as well whether that changed it."""
    with atomic():
        row = _found(name)
        if row.enabled == enabled and not _is_stopped(row):
            return row, False
        row.enabled = enabled
        if enabled:
            check_schedule("cron", row.expression, row.timezone, read=read_schedule)
        changes = _timing(row, clock.now())
        CronJob.objects.filter(pk=name).update(enabled=enabled, **changes)
        row.refresh_from_db()
    return row, True


def change_cron(name: str, change: Callable[[NewCronJob], NewCronJob]) -> CronJob:
    """Change a registration, as if it were registered again; its row is locked meanwhile.

    Args:
        change: returns what it becomes.

    Raises:
        NotFound: there is none with this name.
        InvalidSchedule: the expression or the time zone is not valid.
        InvalidRequest: its jobs name another tenant than its project.
        InvalidArguments, JobTooLarge: its new template would be refused now.
    """
    with atomic():
        row = _found(name)
        columns = (*COMPARED, "name", "project")
        before = NewCronJob(enabled=None, **{column: getattr(row, column) for column in columns})
        return upsert_cron(change(before))[0]


def delete_cron(name: str) -> CronJob:
    """Remove a registration; jobs it has enqueued are not affected (§8.4).

    Raises:
        NotFound: there is none with this name.
        Conflict: the site's code declares it, and would register it again.
    """
    with atomic():
        row = _found(name)
        if row.declared_by:
            raise Conflict(
                f"Cron job '{name}' is declared by the code of {row.declared_by}, which would "
                "register it again.",
                hint="Disable it, remove it from that code, or register it again to take it over.",
                declared_by=row.declared_by,
            )
        CronJob.objects.filter(pk=name).delete()
    return row


def run_cron_now(name: str) -> CronRun:
    """Run a cron job once, now, outside its schedule; its overlap policy applies.

    Raises:
        NotFound: there is none with this name.
    """
    with atomic():
        row = _found(name)
        return _decide(row, clock.now(), manual=True)


@looks.only_if_any(held_runs, CronJob.objects.due)
def enqueue_due_schedules() -> int:
    """Decide every occurrence that is due; return how many there were (§7.3).

    None is due during maintenance: one run afterwards catches up on what was missed
    (OJS admin API §12.1).

    One that cannot be run stops no other. It is recorded as refused and waits for its next
    occurrence; if the database may take it at the next try, it stays due, and the error is raised
    once all have had their turn.
    """
    if Maintenance.objects.on().exists():
        return 0
    count = release_held_runs()
    names = _due_names()
    later: Exception | None = None
    for name in names:
        try:
            count += _take(name)
        except Exception as problem:
            if is_away(problem):
                raise
            problem.add_note(f"Cron job {name}")
            later = later or problem
    if later is not None:
        raise later
    return count


def _due_names() -> list[str]:
    """Return the schedules that have been due longest, and those that this process cannot read.

    The latter are in no batch: they stay due, and would keep the others out of it.
    """
    due = CronJob.objects.due().order_by("next_run_at", "pk")
    rows = due.values_list("pk", "expression", "timezone")
    names: list[str] = []
    unreadable: list[str] = []
    for start in itertools.count(0, BATCH_SIZE):
        found = list(rows[start : start + BATCH_SIZE])
        for name, expression, timezone in found:
            (names if is_readable(expression, timezone) else unreadable).append(name)
        if len(found) < BATCH_SIZE or len(names) >= BATCH_SIZE:
            break
    return names[:BATCH_SIZE] + unreadable


def _due(name: str) -> CronJob | None:
    """Lock the row of a schedule that is due; None if another process has it or has run it."""
    skip = connection().features.has_select_for_update_skip_locked
    return CronJob.objects.due().filter(pk=name).select_for_update(skip_locked=skip).first()


def _take(name: str) -> bool:
    """Decide one due occurrence, unless another process does; pass over it if that fails.

    Raises:
        Error: the database may do it at the next try.
    """
    try:
        return _decide_due(name)
    except Exception as problem:
        if is_transient(problem):
            raise
        return _pass_over(name, problem)


def _decide_due(name: str) -> bool:
    with atomic():
        row = _due(name)
        if row is None or row.next_run_at is None:
            return False
        now = clock.now()
        schedule = read_schedule(row.expression, row.timezone)
        _tell_of_lost_times(row, schedule.after(row.anchored_at))
        _decide(row, row.next_run_at)
        # This one run makes up for all missed occurrences: the next is in the future (§7.3).
        following = schedule.after(row.next_run_at)
        anchor = row.next_run_at if following and following.at > now else now
        CronJob.objects.filter(pk=name).update(**_timing(row, anchor))
    return True


def _pass_over(name: str, problem: Exception) -> bool:
    """Record that a due occurrence could not be decided, and go on to the next.

    A schedule that this process cannot read stays due: other processes may have a newer time zone
    database. If none of them has run it within a minute, that is recorded, once.
    """
    with atomic():
        row = _due(name)
        if row is None or row.next_run_at is None:
            return False
        now, at = clock.now(), row.next_run_at
        timing: dict[str, Any] = {}
        try:
            timing = _timing(row, now)
        except Exception:
            refused = CronRun.objects.filter(cron_name=name, outcome=Outcome.REFUSED)
            if not row.is_late(now) or refused.filter(scheduled_for=at).exists():
                return False
        decision = Decision(Outcome.REFUSED, _reason(name, problem))
        _skipped(row, at, "refused", message=decision.reason)
        _write_run(row, at, decision)
        if timing:
            CronJob.objects.filter(pk=name).update(**timing)
    return True


def _reason(name: str, problem: Exception) -> str:
    """Return why a run was refused, in words for the history, the API and the admin.

    The text of an error that is no refusal may quote the job's arguments. It is logged, once for
    each kind of error in a row.
    """
    if isinstance(problem, OJSError):
        return problem.message
    if isinstance(problem, InvalidSchedule):
        return str(problem)
    reason = f"An unexpected {type(problem).__name__}; the server's log says more."
    runs = CronRun.objects.filter(cron_name=name).order_by("-id")
    if runs.values_list("reason", flat=True).first() != reason:
        logger.error("Cron job %s could not be run.", name, exc_info=problem)
    return reason


def let_time_pass(by: timedelta) -> int:
    """Decide the occurrences due within `by`, as if that time had passed; return how many.

    For tests of host sites. Every occurrence is decided, not only the last, as if a reaper had been
    running all the time. The gap between a schedule's next occurrence and its `next_run_at` is how
    far its clock is ahead of the real one.
    """
    count = release_held_runs()
    for row in CronJob.objects.exclude(next_run_at=None).order_by("name"):
        schedule = read_schedule(row.expression, row.timezone)
        occurrence = schedule.after(row.anchored_at)
        if occurrence is None or row.next_run_at is None:
            continue
        ahead = occurrence.at - row.next_run_at + by
        with atomic():
            while occurrence is not None and occurrence.at - ahead <= clock.now():
                _decide(row, occurrence.at)
                row.anchored_at = occurrence.at
                occurrence = schedule.after(occurrence.at)
                count += 1
            CronJob.objects.filter(pk=row.pk).update(
                anchored_at=row.anchored_at,
                next_run_at=occurrence.at - ahead if occurrence else None,
            )
    return count


def _tell_of_lost_times(row: CronJob, occurrence: Occurrence | None) -> None:
    if occurrence is not None and occurrence.skipped_at is not None:
        _skipped(row, occurrence.skipped_at, "dst_skip", count=occurrence.skipped)


def _decide(row: CronJob, at: datetime, *, manual: bool = False) -> CronRun:
    """Apply the overlap policy, then enqueue (OJS extension interactions §13)."""
    unfinished = unfinished_runs(row.pk)
    decision = Decision(Outcome.TRIGGERED, "manual" if manual else "")
    held = bool(unfinished) and row.overlap_policy == OverlapPolicy.ENQUEUE
    if unfinished and row.overlap_policy == OverlapPolicy.SKIP:
        decision = Decision(Outcome.SKIPPED, "overlap_skip")
        _skipped(row, at, "overlap_skip", active_job_id=str(unfinished[0].pk))
        return _write_run(row, at, decision)
    try:
        with atomic():
            if row.overlap_policy == OverlapPolicy.CANCEL_PREVIOUS:
                cancel_jobs([job.pk for job in unfinished], reason="cron: a newer run is due")
            with tracing.internal("ojs.cron.trigger"):
                decision.job = _enqueued(_new_job(row, at, held=held))
    except Exception as problem:
        if is_transient(problem):
            raise
        decision = Decision(Outcome.REFUSED, _reason(row.pk, problem))
        _skipped(row, at, "refused", message=decision.reason)
        return _write_run(row, at, decision)
    if held and len(unfinished) >= MANY_WAITING:
        logger.warning(
            "Cron job %s: %d runs wait for the one that is being executed.",
            row.pk,
            len(unfinished),
        )
    _triggered(row, at, decision.job)
    return _write_run(row, at, decision, held=held)


def _enqueued(new: NewJob) -> NewJob:
    """
    Raises:
        DuplicateJob: its own unique policy ignored it (OJS extension interactions §13).
    """
    enqueue([new])
    if new.existing is not None:
        raise DuplicateJob(f"Job {new.existing.id} exists already, and the template is unique.")
    return new


def _new_job(row: CronJob, at: datetime, *, held: bool) -> NewJob:
    now = clock.now()
    # The protocol that registered it has checked the type, which may be in that protocol's syntax.
    job = accepted_job(row.template, now)
    # The correlation key and the time (§6.3).
    meta = {"cron_name": row.pk, "cron_triggered_at": format_timestamp(at)}
    job.meta = job.meta | meta
    if held:
        job.hold()
    assign_project([job], row.project, lenient=True)
    return job


def _write_run(row: CronJob, at: datetime, decision: Decision, *, held: bool = False) -> CronRun:
    job = decision.job
    return CronRun.objects.create(
        cron_name=row.pk,
        job_id=job.id if job else None,
        scheduled_for=at,
        outcome=decision.outcome,
        reason=decision.reason,
        unfinished=job is not None,
        held=held,
        decided_at=clock.now(),
    )


def _triggered(row: CronJob, at: datetime, job: NewJob | None) -> None:
    assert job is not None
    CronJob.objects.filter(pk=row.pk).update(last_run_at=Now(), run_count=F("run_count") + 1)
    about = _about(row, at) | {
        "job_id": str(job.id),
        "run_count": row.run_count + 1,
        "scheduled_at": format_timestamp(at),
        "actual_time": format_timestamp(clock.now()),
    }
    record([cron_event("cron.triggered", row.pk, **about)])


def _skipped(row: CronJob, at: datetime, reason: str, **more: Any) -> None:
    if "active_job_id" in more:
        more["existing_job_id"] = more["active_job_id"]
    record([cron_event("cron.skipped", row.pk, **_about(row, at), reason=reason, **more)])


def _about(row: CronJob, at: datetime) -> dict[str, Any]:
    """The event members that both documents require of an occurrence (OJS cron §9, events §4.5)."""
    return {
        "cron_name": row.pk,
        "cron_expression": row.expression,
        "cron_expr": row.expression,
        "timezone": row.timezone,
        "job_type": _type_of(row.template),
        "scheduled_time": format_timestamp(at),
    }


def _type_of(template: Any) -> str:
    """Return the type of the jobs; empty if no job can be made of the template."""
    return str(template.get("type", "")) if isinstance(template, dict) else ""

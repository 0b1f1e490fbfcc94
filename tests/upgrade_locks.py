"""Migrates a filled database from its first release, and prints what each statement locked.

`python -m tests.upgrade_locks ROWS`, with DATABASE_URL naming an empty PostgreSQL database. It
writes a line of JSON for each table that others could not write to while a statement ran: the
statement, the table, the lock, how many of its rows the statement read, and whether it rewrote it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import django
from django.core.management import call_command
from django.utils import timezone

from tests.database import atomic, connection

APPS = ("ojs_jobs", "ojs_workers")
STRONG = ("ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock")
"""Locks that keep others from writing; in order of their strength."""
LARGE = ("ojs_jobs_job", "ojs_jobs_joberror", "ojs_jobs_event", "ojs_jobs_operatoraction")
"""The tables that grow with the number of jobs, or of what operators do to them."""
WITHOUT_A_TRANSACTION = "CONCURRENTLY"
LOOK = """
    SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0), pg_relation_filenode(relid),
           ARRAY(SELECT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = relid)
      FROM pg_stat_xact_user_tables
     WHERE relname = ANY(%s)
"""
FILL = """
    INSERT INTO {table} ({columns})
    SELECT {values} FROM {table}, generate_series(1, %s)
"""


class Seen(NamedTuple):
    """A table at one moment."""

    rows: int
    """How many the present transaction has read."""
    file: int
    locks: list[str]


def look() -> dict[str, Seen]:
    with connection.connection.cursor() as cursor:
        found = cursor.execute(LOOK, [list(LARGE)]).fetchall()
    return {name: Seen(rows, file, locks) for name, rows, file, locks in found}


def observe(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
    text = " ".join(str(sql).split())
    if WITHOUT_A_TRANSACTION in text and not connection.in_atomic_block:
        # It waits for others, and lets them write.
        return execute(sql, params, many, context)
    with contextlib.nullcontext() if connection.in_atomic_block else atomic():
        before = look()
        found = execute(sql, params, many, context)
        after = look()
    for name, seen in after.items():
        strong = [mode for mode in STRONG if mode in seen.locks]
        if strong:
            rows, rewritten = seen.rows - before[name].rows, seen.file != before[name].file
            line = {"table": name, "lock": strong[-1], "rows": rows, "rewritten": rewritten}
            print(json.dumps({"statement": text} | line), flush=True)
    return found


def fill(rows: int) -> None:
    from django.db.migrations.executor import MigrationExecutor

    executor = MigrationExecutor(connection)
    state = executor.loader.project_state([(app, "0001_initial") for app in APPS])
    now = timezone.now()
    times = dict.fromkeys(("created_at", "enqueued_at", "finished_at"), now)
    jobs, errors, events, actions = (
        state.apps.get_model("ojs_jobs", name)
        for name in ("Job", "JobError", "Event", "OperatorAction")
    )
    job = jobs.objects.create(type="email.send", state="completed", **times)
    errors.objects.create(job=job, attempt=1, type="ValueError", occurred_at=now)
    events.objects.create(type="job.completed", subject=str(job.pk), time=now)
    actions.objects.create(verb="refuse_request", count=1, done_at=now)
    for model in (jobs, errors, events, actions):
        multiply(model, rows)


def multiply(model: Any, rows: int) -> None:
    """Copy the only row of a table."""
    fields = model._meta.local_concrete_fields
    values = {f'"{field.column}"': f'"{field.column}"' for field in fields}
    if model._meta.pk.get_internal_type() == "UUIDField":
        values['"id"'] = "gen_random_uuid()"
    else:
        del values['"id"']
    statement = FILL.format(
        table=model._meta.db_table, columns=", ".join(values), values=", ".join(values.values())
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, [rows])


def main(rows: int) -> None:
    for app in APPS:
        call_command("migrate", app, "0001_initial", verbosity=0)
    fill(rows)
    with connection.execute_wrapper(observe):
        call_command("migrate", verbosity=0)


if __name__ == "__main__":
    django.setup()
    main(int(sys.argv[1]))

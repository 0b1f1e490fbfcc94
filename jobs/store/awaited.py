"""Wakes waiters when a job or a workflow ends: LISTEN/NOTIFY on PostgreSQL, else polls.

A waiter for a job is announced in two rows: the job is `followed`, so that the statement that ends
it leaves the rest to `engine.flow`, and a listener has its name, so that jobs without a waiter
notify nothing. Jobs without a waiter pay for none of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from uuid import UUID

from ..conf import ojs_settings
from . import wakeup
from .choice import is_portable
from .database import connection, is_postgresql, run
from .sql import CHANNEL

REFRESH = 20
"""Seconds between two signs of life of a waiter; the reaper removes silent ones."""
IN_A_TRANSACTION = 0.25
"""Seconds between two polls in a transaction, in which a listener cannot be announced."""

FOLLOW = """
    UPDATE ojs_jobs_job
       SET followed = true
     WHERE id = %s AND finished_at IS NULL AND NOT followed
 RETURNING id
"""
SIGN = """
    INSERT INTO ojs_jobs_listener (name, seen_at) VALUES (%s, statement_timestamp())
    ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at
 RETURNING name
"""
TELL = f"""
    DELETE FROM ojs_jobs_listener
     WHERE name = ANY(%s)
 RETURNING pg_notify({CHANNEL}, name)
"""
# For the portable store, in two statements, as in `wakeup`.
FORGET = "DELETE FROM ojs_jobs_listener WHERE name = ANY(%s) RETURNING name"
# A row that is visible although its transaction is in progress was written by this transaction.
# xmin has 32 bits, and the transaction's full number is near that of the current snapshot.
CANNOT_SEE = """
    WITH present AS (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xid)
    SELECT current_setting('transaction_isolation') <> 'read committed'
           OR coalesce(pg_xact_status(greatest(3, present.xid
                  + (job.xmin::text::bigint - present.xid + 2147483648 + 4294967296 * 1073741824)
                  %% 4294967296 - 2147483648)::text::xid8) = 'in progress', false)
      FROM present, ojs_jobs_job AS job
     WHERE job.id = %s
"""


def pause() -> float:
    """Return the seconds between two queries for what may have ended, outside transactions."""
    if not is_postgresql():
        return wakeup.SHORT_POLL
    return ojs_settings.WAIT_POLL_INTERVAL.total_seconds()


def job_name(job_id: UUID) -> str:
    return f"job:{job_id}"


def workflow_name(workflow_id: UUID) -> str:
    return f"workflow:{workflow_id}"


class WakeEvent:
    """Wakes a waiter when one of the names has ended."""

    def __init__(self, name: str, ring: Callable[[], object]) -> None:
        self.names = frozenset({name})
        self._ring = ring

    def wants(self, names: Collection[str]) -> bool:
        return not self.names.isdisjoint(names)

    def ring(self, names: Collection[str] = ()) -> None:
        self._ring()


class Wait:
    """A waiter: `sign()` before each query, then sleep until woken or for `pause()` seconds."""

    def __init__(self, name: str, job_id: UUID | None, ring: Callable[[], object]) -> None:
        self._name = name
        self._job_id = job_id
        self._ring = ring
        self._signed_at = -float(REFRESH)
        self._stack = contextlib.ExitStack()

    def sign(self) -> bool:
        """Register for wake-ups; return whether it just did, in which case a query is due.

        An end that commits after the registration wakes the waiter.
        """
        if not is_postgresql() or connection().in_atomic_block:
            return False
        if time.monotonic() - self._signed_at < REFRESH:
            return False
        if self._signed_at < 0:
            self._stack.enter_context(wakeup._subscribed(WakeEvent(self._name, self._ring)))
        self._signed_at = time.monotonic()
        run(SIGN, [self._name])
        if self._job_id is not None:
            run(FOLLOW, [self._job_id])
        return True

    def pause(self) -> float:
        """Return the seconds after which to query without having been woken."""
        if is_postgresql() and connection().in_atomic_block:
            return IN_A_TRANSACTION
        return pause()

    def rest(self) -> None:
        """Return a pooled connection, so that others can use it during the sleep."""
        wakeup._give_back_connection()

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def waiting(name: str, job_id: UUID | None) -> Iterator[tuple[Wait, threading.Event]]:
    """Wait in this thread."""
    wake = threading.Event()
    wait = Wait(name, job_id, wake.set)
    try:
        yield wait, wake
    finally:
        wait.close()


def tell(names: Iterable[str]) -> None:
    """Wake the waiters for what ends in this transaction, once it commits."""
    ended = sorted(names)
    if not ended or not is_postgresql():
        return
    if not is_portable():
        run(TELL, [ended])
    elif known := run(FORGET, [ended]):
        run(wakeup.SEND, [[name for (name,) in known]])


def cannot_see_the_end(job_id: UUID) -> bool:
    """Whether the current transaction would never see the job end.

    Either it enqueued or changed the job itself, so that no worker gets it before the commit; or
    it keeps one snapshot: on SQLite, and on PostgreSQL with a stricter isolation level than usual.
    """
    if not connection().in_atomic_block:
        return False
    return not is_postgresql() or any(hidden for (hidden,) in run(CANNOT_SEE, [job_id]))

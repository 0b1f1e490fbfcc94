"""A database in memory: what the portable store writes to in the tests of a site.

It is SQLite behind Django's own wrapper, but none of `settings.DATABASES`: whatever migrates,
flushes, checks or forbids databases does not know of it. Inside `Database.using()` the models of
both apps live there, for the thread that has entered it. Everywhere else they are where they were.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from django.apps import apps
from django.db import connections, models, router
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.utils import timezone

ALIAS = "ojs_memory"
APPS = ("ojs_jobs", "ojs_workers")
SETTINGS: dict[str, Any] = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": ":memory:",
    "ATOMIC_REQUESTS": False,
    "AUTOCOMMIT": True,
    "CONN_HEALTH_CHECKS": False,
    "CONN_MAX_AGE": None,
    "OPTIONS": {},
    "TIME_ZONE": None,
    "TEST": {},
}


@dataclass
class Clock:
    """A clock that can be stopped, and moved on."""

    stopped_at: datetime | None = None
    ahead: timedelta = timedelta(0)

    def now(self) -> datetime:
        return (self.stopped_at or timezone.now()) + self.ahead

    def strftime(self, form: str, moment: str) -> str:
        """Take the place of SQLite's own, which is what `Now()` means there."""
        if moment != "NOW":
            raise ValueError(f"Only the present is asked for, not {moment!r}.")
        now = self.now()
        return (now.astimezone(UTC) if now.tzinfo else now).replace(tzinfo=None).isoformat(" ")


class Connection(DatabaseWrapper):
    """A connection that is there from the start, and is allowed to everybody.

    Test frameworks forbid databases by replacing `ensure_connection` in the base class. Event loops
    may use it, because it never waits.
    """

    # Nobody looks at the statements, even where DEBUG is on.
    queries_logged = False

    def __init__(self, clock: Clock) -> None:
        super().__init__(SETTINGS, ALIAS)
        self.clock = clock
        """What `jobs.store.clock` goes by."""
        self.committed: list[Callable[[], object]] = []
        """What is to be done after the commits there were."""
        self.inc_thread_sharing()
        self.connection = self.get_new_connection(self.get_connection_params())
        self.connection.create_function("strftime", 2, clock.strftime)
        self.set_autocommit(True)

    def ensure_connection(self) -> None:
        """It is connected."""

    def on_commit(self, func: Callable[[], object], robust: bool = False) -> None:
        if self.in_atomic_block:
            super().on_commit(func, robust)
        else:
            self.committed.append(func)

    def run_and_clear_commit_hooks(self) -> None:
        self.committed += [function for _, function, *_ in self.run_on_commit]
        self.run_on_commit = []


for _name in (
    *("get_new_connection", "cursor", "commit", "rollback", "close"),
    *("savepoint", "savepoint_commit", "savepoint_rollback"),
):
    # Without the decorator that refuses to be called in an event loop.
    setattr(Connection, _name, inspect.unwrap(getattr(DatabaseWrapper, _name)))


class Database:
    """Tables of its own, empty at first. They go when nothing refers to it any more."""

    def __init__(self, clock: Clock) -> None:
        self._connection = Connection(clock)
        _template().backup(self._connection.connection)
        weakref.finalize(self, self._connection.connection.close)
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Let the models of both apps live here, for one thread at a time.

        What is to be done after a commit is done at the end, when they no longer do: signals are
        for the site.
        """
        if _current.get() is self._connection:
            yield
            return
        committed: list[Callable[[], object]] = []
        try:
            with self._lock, _taking_part(self._connection):
                self._connection.committed = committed
                yield
        finally:
            for function in committed:
                function()


class Router:
    """Sends the models of both apps to the connection that takes part, if one does."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        if _current.get() is None or model._meta.app_label not in APPS:
            return None
        return ALIAS

    db_for_write = db_for_read

    def allow_relation(self, one: Any, other: Any, **hints: Any) -> bool | None:
        return True if self.db_for_read(one) and self.db_for_read(other) else None


ROUTER = Router()
_current: ContextVar[Connection | None] = ContextVar("ojs_memory", default=None)
_count = 0
"""How many take part just now, in all threads."""
_counting = threading.Lock()


@contextlib.contextmanager
def _taking_part(connection: Connection) -> Iterator[None]:
    _route(+1)
    before = _current.get()
    token = _current.set(connection)
    connections[ALIAS] = connection
    try:
        yield
    finally:
        _current.reset(token)
        if before is None:
            del connections[ALIAS]
        else:
            connections[ALIAS] = before
        _route(-1)


def _route(change: int) -> None:
    """Have our router asked before those of the site while anything takes part."""
    global _count
    with _counting:
        _count += change
        # Another list: the one there is may be being read. A test that overrides the setting makes
        # a list anew as well.
        others = [other for other in router.routers if other is not ROUTER]
        router.routers = [ROUTER, *others] if _count else others


@cache
def _template() -> sqlite3.Connection:
    """The tables, made once: to copy them takes a hundredth of the time."""
    template = Connection(Clock())
    template.check_database_version_supported()
    with _taking_part(template), template.schema_editor() as editor:
        for model in _models():
            editor.create_model(model)
    atexit.register(template.connection.close)
    connection: sqlite3.Connection = template.connection
    return connection


def _models() -> Iterator[type[models.Model]]:
    for label in APPS:
        if label in apps.app_configs:
            for model in apps.get_app_config(label).get_models(include_auto_created=True):
                if model._meta.managed and not model._meta.proxy:
                    yield model

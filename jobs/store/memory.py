"""A database in memory, which the portable store writes to in the tests of a site.

It is SQLite behind Django's own wrapper, but not in `settings.DATABASES`: code that migrates,
flushes, checks or forbids databases does not see it. Inside `Database.using()` it holds the models
of both apps, for the thread that entered it. Everywhere else they stay where they were.
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
from django.db import connections, models
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.utils import timezone

from .database import APPS
from .routing import Installed

ALIAS = "ojs_memory"
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
    """A clock that can be stopped and advanced."""

    stopped_at: datetime | None = None
    ahead: timedelta = timedelta(0)

    def now(self) -> datetime:
        return (self.stopped_at or timezone.now()) + self.ahead

    def strftime(self, form: str, moment: str) -> str:
        """Replace SQLite's own function, which `Now()` compiles to."""
        if moment != "NOW":
            raise ValueError(f"Only 'now' is supported, not {moment!r}.")
        now = self.now()
        return (now.astimezone(UTC) if now.tzinfo else now).replace(tzinfo=None).isoformat(" ")


class Connection(DatabaseWrapper):
    """A connection that is open from the start and always allowed.

    Test frameworks forbid databases by replacing `ensure_connection` in the base class. Event loops
    may use it, because it never waits.
    """

    # The statements are never read, even if DEBUG is on.
    queries_logged = False

    def __init__(self, clock: Clock) -> None:
        super().__init__(SETTINGS, ALIAS)
        self.clock = clock
        """The clock that `jobs.store.clock` uses."""
        self.committed: list[Callable[[], object]] = []
        """Functions to call for the commits made so far."""
        self.inc_thread_sharing()
        self.connection = self.get_new_connection(self.get_connection_params())
        self.connection.create_function("strftime", 2, clock.strftime)
        self.set_autocommit(True)

    def ensure_connection(self) -> None:
        """Do nothing: it is always connected."""

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
    """A separate set of tables, empty at first. They are dropped with the last reference to it."""

    def __init__(self, clock: Clock) -> None:
        self._connection = Connection(clock)
        _template().backup(self._connection.connection)
        weakref.finalize(self, self._connection.connection.close)
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Route the models of both apps here, for one thread at a time.

        Functions registered for after a commit run at the end, when the models no longer are:
        signals are for the site.
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
    """Routes the models of both apps to the active connection, if there is one."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        if _current.get() is None or model._meta.app_label not in APPS:
            return None
        return ALIAS

    db_for_write = db_for_read

    def allow_relation(self, one: Any, other: Any, **hints: Any) -> bool | None:
        return True if self.db_for_read(one) and self.db_for_read(other) else None


installed = Installed(Router())
_current: ContextVar[Connection | None] = ContextVar("ojs_memory", default=None)


@contextlib.contextmanager
def _taking_part(connection: Connection) -> Iterator[None]:
    with installed():
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


@cache
def _template() -> sqlite3.Connection:
    """Create the tables once: copying them takes a hundredth of the time."""
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
            # Tables between two models are created with the first.
            for model in apps.get_app_config(label).get_models():
                if model._meta.managed and not model._meta.proxy:
                    yield model

"""System checks: a misconfiguration is reported, never a traceback at import."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import django
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from . import conf, keepalive
from .database import alias
from .middleware import enqueue_chain, execution_chain

TASKS_BACKEND = "jobs.backends.OJSBackend"


@checks.register("ojs")
def check_settings(**kwargs: Any) -> list[checks.CheckMessage]:
    given = getattr(settings, "OJS", {}) or {}
    found: list[checks.CheckMessage] = []
    for place, known in conf.unknown_options(given) if isinstance(given, Mapping) else ():
        close = difflib.get_close_matches(place.split("'")[-2], known, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else "See the configuration reference."
        found.append(checks.Error(f"Unknown option OJS{place}.", hint=hint, id="ojs.E001"))
    try:
        options = conf.configured()
    except ImproperlyConfigured as problem:
        return [*found, checks.Error(str(problem), id="ojs.E002")]
    return [
        *found,
        *_check_safety(options),
        *_check_times(options),
        *_check_middleware(),
        *_check_tasks(),
    ]


def _check_safety(options: conf.Settings) -> list[checks.CheckMessage]:
    found: list[checks.CheckMessage] = []
    if options.ALLOW_ANONYMOUS and not settings.DEBUG:
        found.append(
            checks.Error(
                'OJS["ALLOW_ANONYMOUS"] serves everybody; it is refused outside DEBUG.',
                hint="Make API keys with `manage.py createapikey`.",
                id="ojs.E003",
            )
        )
    if options.CONFORMANCE_MODE and not settings.DEBUG:
        found.append(
            checks.Error(
                'OJS["CONFORMANCE_MODE"] lets any client delete all jobs; refused outside DEBUG.',
                id="ojs.E004",
            )
        )
    return found


def _check_times(options: conf.Settings) -> list[checks.CheckMessage]:
    found: list[checks.CheckMessage] = []
    if options.HEARTBEAT_TIMEOUT < 3 * options.HEARTBEAT_INTERVAL:
        found.append(
            checks.Warning(
                "HEARTBEAT_TIMEOUT is under three HEARTBEAT_INTERVALs: brief delays kill workers.",
                hint="OJS worker protocol §10.3.",
                id="ojs.W002",
            )
        )
    if options.GRACE_PERIOD > options.VISIBILITY_TIMEOUT:
        found.append(
            checks.Warning(
                "GRACE_PERIOD is longer than VISIBILITY_TIMEOUT: draining jobs may be taken back.",
                id="ojs.W005",
            )
        )
    return found


def _check_middleware() -> list[checks.CheckMessage]:
    found: list[checks.CheckMessage] = []
    for chain in (enqueue_chain, execution_chain):
        for entry in chain.entries:
            try:
                chain.load(entry)
            except ImproperlyConfigured as problem:
                found.append(checks.Error(str(problem), id="ojs.E005"))
    return found


def has_tasks() -> bool:
    """Whether the site names our backend for Django Tasks."""
    given = getattr(settings, "TASKS", None)
    return isinstance(given, Mapping) and any(
        isinstance(params, Mapping) and params.get("BACKEND") == TASKS_BACKEND
        for params in given.values()
    )


def watch_tasks() -> None:
    """Let the Tasks framework check its backends, which it does only where it is imported."""
    if has_tasks():
        framework = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
        # Without the package there is a check of ours.
        with contextlib.suppress(ImportError):
            import_module(f"{framework}.checks")


def _check_tasks() -> list[checks.CheckMessage]:
    if has_tasks():
        try:
            import_module("jobs.backends")
        except ImportError as problem:
            return [checks.Error(f"TASKS: {problem}", id="ojs.E015")]
    return []


@checks.register("ojs", checks.Tags.database)
def check_database(databases: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    name = alias()
    if not databases or name not in databases:
        return []
    database = connections[name]
    if database.vendor == "sqlite":
        if database.settings_dict["OPTIONS"].get("transaction_mode", "").upper() != "IMMEDIATE":
            return [
                checks.Warning(
                    "SQLite transactions are not IMMEDIATE: workers will see 'database is locked'.",
                    hint='Set OPTIONS["transaction_mode"] = "IMMEDIATE" and a timeout.',
                    id="ojs.W006",
                )
            ]
    elif not database.features.has_select_for_update_skip_locked:
        return [
            checks.Warning(
                "The database has no SKIP LOCKED: workers will wait for each other.",
                hint="PostgreSQL is what this is made for.",
                id="ojs.W003",
            )
        ]
    return _check_keepalives(name)


def _check_keepalives(name: str) -> list[checks.CheckMessage]:
    lacking = keepalive.unguarded()
    if not lacking:
        return []
    return [
        checks.Warning(
            "Server threads will hang for a quarter of an hour or longer if the database's machine "
            "falls silent.",
            hint=f'Add to DATABASES["{name}"]["OPTIONS"]: '
            + ", ".join(f'"{option}": {number}' for option, number in lacking.items()),
            id="ojs.W020",
        )
    ]

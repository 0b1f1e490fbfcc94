"""System checks: a misconfiguration is reported, not raised as a traceback at import."""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.db.models import DO_NOTHING
from django.utils.module_loading import import_string

from . import conf
from .errors import InvalidRequest
from .middleware import enqueue_chain, execution_chain
from .protocols import DEFAULT_PACKAGES, OJS
from .spec.members import Object
from .spec.tenants import check_id, check_name, read_tenant
from .store import keepalive, references
from .store.choice import CHOICES, fits
from .store.database import alias, is_postgresql

APP_LABELS = ("ojs_jobs", "ojs_workers")
CERTIFICATE_OPTIONS = ("TLS_CERTIFICATE", "TLS_KEY")
TASKS_BACKEND = "jobs.backends.OJSBackend"


@checks.register("ojs")
def check_settings(**kwargs: Any) -> list[checks.CheckMessage]:
    given = getattr(settings, "OJS", {}) or {}
    found: list[checks.CheckMessage] = []
    for place, name, known in conf.unknown_options(given) if isinstance(given, Mapping) else ():
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else "See the configuration reference."
        found.append(checks.Error(f"Unknown option OJS{place}.", hint=hint, id="ojs.E001"))
    try:
        options = conf.configured()
    except ImproperlyConfigured as problem:
        return [*found, checks.Error(str(problem), id="ojs.E002")]
    return [
        *found,
        *_check_time_zones(),
        *_check_placement(),
        *_check_store(options),
        *_check_cells(options),
        *_check_addresses(options),
        *_check_exporter(options),
        *_check_token(options),
        *_check_protocols(),
        *_check_certificates(options),
        *_check_safety(options),
        *_check_times(options),
        *_check_schemas(options),
        *_check_tenants(options),
        *_check_middleware(),
        *_check_payloads(options),
        *_check_triggers(options),
        *_check_tasks(),
        *_check_cron(),
        *_check_networks(options),
        *_check_references(),
    ]


def _check_references() -> list[checks.CheckMessage]:
    """Checks keys of the site's own models that refer to jobs."""
    return [
        checks.Warning(
            f"{field.model._meta.label}.{field.name} refers to a job with DO_NOTHING: retention "
            "stops at the first old job that a row refers to.",
            hint="Use SET_NULL, or CASCADE. Silence this if the key has an ON DELETE in the "
            "database.",
            obj=field,
            id="ojs.W033",
        )
        for field in references.references_of_sites(apps.get_model("ojs_jobs", "Job"))
        if field.remote_field.on_delete is DO_NOTHING and field.db_constraint
    ]


def _check_networks(options: conf.Settings) -> list[checks.CheckMessage]:
    """Checks `OJS["OUTBOUND_NETWORKS"]`."""
    try:
        for text in options.OUTBOUND_NETWORKS:
            ipaddress.ip_network(text)
    except ValueError as problem:
        text = f'OJS["OUTBOUND_NETWORKS"]: {problem}.'
        return [checks.Error(text, hint='Write it as "10.20.0.0/16".', id="ojs.E023")]
    return []


_has_tolerance: ContextVar[bool] = ContextVar("ojs_checks_tolerate_schedules", default=False)


@contextlib.contextmanager
def tolerating_schedules() -> Iterator[None]:
    """Do not check the schedules of the code in this block: the command logs their errors itself,
    and does the rest of its work."""
    token = _has_tolerance.set(True)
    try:
        yield
    finally:
        _has_tolerance.reset(token)


def _check_cron() -> list[checks.CheckMessage]:
    """Checks `OJS["CRON"]`, and what the modules of handlers and tasks declare."""
    from . import crontab

    if _has_tolerance.get():
        return []
    try:
        for declared in crontab.of_settings():
            declared.read()
    except ImproperlyConfigured as problem:
        return [checks.Error(str(problem), id="ojs.E016")]
    try:
        crontab.autodiscover()
        crontab.declared()
    except ImproperlyConfigured as problem:
        return [checks.Error(str(problem), id="ojs.E045")]
    except Exception as problem:
        # What only workers have installed, perhaps: a site migrates without it.
        return [
            checks.Warning(
                "The modules of handlers and tasks cannot be imported here, so their schedules are "
                f"not checked: {type(problem).__name__}: {problem}",
                id="ojs.W041",
            )
        ]
    return []


def _check_time_zones() -> list[checks.CheckMessage]:
    if settings.USE_TZ:
        return []
    return [
        checks.Error(
            "USE_TZ is False: every deadline of a job is a moment with a time zone, but Django "
            "then keeps moments without one, which mean another time elsewhere and in winter.",
            hint="Set USE_TZ = True. Django's documentation of time zones has a migration guide.",
            id="ojs.E020",
        )
    ]


SUPPORTED = ("postgresql", "sqlite")
UNCONFIGURED = "unknown"
"""The vendor of Django's backend for sites without a database: a worker over HTTP needs none."""


def _check_placement() -> list[checks.CheckMessage]:
    """Checks where the tables are; makes no query."""
    name = alias()
    vendor = connections[name].vendor
    if vendor not in (*SUPPORTED, UNCONFIGURED):
        return [
            checks.Error(
                f"Jobs cannot live in the database {name!r}: it is {vendor!r}, and only PostgreSQL "
                "and SQLite have what recovery and fetching in turn rely on.",
                hint="Give jobs a PostgreSQL database of their own: name it in DATABASES, and have "
                "a database router send the apps ojs_jobs and ojs_workers there.",
                id="ojs.E021",
            )
        ]
    models = [
        model
        for label in APP_LABELS
        if label in apps.app_configs
        for model in apps.get_app_config(label).get_models(include_auto_created=True)
    ]
    strays = sorted(
        f"{model._meta.label} is {done} {place!r}"
        for model in models
        for done, place in (
            ("written to", router.db_for_write(model)),
            ("read from", router.db_for_read(model)),
        )
        if place != name
    )
    if not strays:
        return []
    return [
        checks.Error(
            f"The database router tears apart what belongs to the database {name!r}: {strays[0]}"
            + (f", and {len(strays) - 1} more." if len(strays) > 1 else "."),
            hint=f"Have db_for_read and db_for_write return {name!r} for all models of the apps "
            "ojs_jobs and ojs_workers: what was just written decides what comes next, and a "
            "replica does not have it yet.",
            id="ojs.E022",
        )
    ]


def _check_store(options: conf.Settings) -> list[checks.CheckMessage]:
    if options.STORE not in CHOICES:
        known = ", ".join(map(repr, CHOICES))
        message = f'OJS["STORE"] is one of {known}, not {options.STORE!r}.'
        return [checks.Error(message, id="ojs.E030")]
    if not fits(options.STORE):
        message = (
            f'OJS["STORE"] is {options.STORE!r}, and the database {alias()!r} is not PostgreSQL.'
        )
        return [checks.Error(message, hint='Leave it out: the default is "auto".', id="ojs.E030")]
    return _check_standby(options.READ_DATABASE)


def _check_standby(name: str) -> list[checks.CheckMessage]:
    if not name:
        return []
    place = f'OJS["READ_DATABASE"] is {name!r}'
    if name not in connections or connections[name].vendor != "postgresql":
        message = f"{place}, which is no PostgreSQL database in DATABASES."
        return [checks.Error(message, id="ojs.E031")]
    if name == alias() or not is_postgresql():
        message = f"{place}: that has no effect, since it is no standby of {alias()!r}."
        return [checks.Warning(message, hint="Name a standby of it.", id="ojs.W030")]
    return []


def _is_address(url: Any) -> bool:
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        return False
    try:
        return bool(urlsplit(url).hostname)
    except ValueError:
        return False


def _check_addresses(options: conf.Settings) -> list[checks.CheckMessage]:
    return [
        checks.Error(
            f'OJS["{name}"] is no URL, but {url!r}.',
            hint='Write it as "https://jobs.example.com".',
            id="ojs.E034",
        )
        for name in ("SITE_URL", "CODEC_SERVER_URL")
        if (url := getattr(options, name)) and not _is_address(url)
    ]


def _check_exporter(options: conf.Settings) -> list[checks.CheckMessage]:
    path = options.METRICS_EXPORTER
    try:
        if path:
            import_string(path)
    except ImportError as problem:
        message = f'OJS["METRICS_EXPORTER"]: cannot import {path!r}: {problem}.'
        hint = "The exporter of OTLP is installed by: pip install 'django-ojs[otlp]'"
        return [checks.Error(message, hint=hint, id="ojs.E035")]
    return []


def _check_token(options: conf.Settings) -> list[checks.CheckMessage]:
    path = options.CODEC_SERVER_TOKEN_FOR
    try:
        if path and not callable(import_string(path)):
            raise ImportError(f"{path!r} is not callable")
    except ImportError as problem:
        message = f'OJS["CODEC_SERVER_TOKEN_FOR"] names no function: {problem}.'
        hint = "Give the dotted path of a function that takes a user and returns a token."
        return [checks.Error(message, hint=hint, id="ojs.E037")]
    return []


def _check_protocols() -> list[checks.CheckMessage]:
    if any(protocol.name == OJS for protocol in conf.protocols()):
        return []
    return [
        checks.Warning(
            f'OJS["WORKER_PROTOCOLS"] lacks {DEFAULT_PACKAGES[0]!r}, which has the endpoints for '
            "health, metrics, autoscaling, progress and the API description as well.",
            hint="Add it, unless your server has none of these.",
            id="ojs.W038",
        )
    ]


def _check_certificates(options: conf.Settings) -> list[checks.CheckMessage]:
    files = {
        f'OJS["SERVER_{name}"]': getattr(options, f"SERVER_{name}") for name in CERTIFICATE_OPTIONS
    } | {
        f'OJS["{group}"]["{name}"]': getattr(own, name, "")
        for group, own in conf.protocol_options().items()
        for name in CERTIFICATE_OPTIONS
    }
    return [
        checks.Warning(
            f"{place} is {path!r}, and there is no such file here.",
            hint="The server does not start without it. Silence this where no server runs.",
            id="ojs.W039",
        )
        for place, path in files.items()
        if path and not Path(path).is_file()
    ]


def _check_cells(options: conf.Settings) -> list[checks.CheckMessage]:
    wrong = [name for name, url in options.CELLS.items() if not _is_address(url)]
    return [
        checks.Error(
            f'OJS["CELLS"][{name!r}] is no URL.',
            hint='Give that of the admin: "https://jobs.example.com/admin/".',
            id="ojs.E032",
        )
        for name in wrong
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
    if options.WEBHOOKS_ALLOW_HTTP and not settings.DEBUG:
        found.append(
            checks.Warning(
                'OJS["WEBHOOKS_ALLOW_HTTP"] sends events in clear.',
                hint="OJS webhooks §8.4: it is for development and tests.",
                id="ojs.W007",
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


def _check_schemas(options: conf.Settings) -> list[checks.CheckMessage]:
    modes = ("strict", "warn", "off")
    if options.SCHEMA_VALIDATION in modes:
        return []
    known = ", ".join(map(repr, modes))
    message = f'OJS["SCHEMA_VALIDATION"] is one of {known}, not {options.SCHEMA_VALIDATION!r}.'
    return [checks.Error(message, id="ojs.E027")]


def _check_tenants(options: conf.Settings) -> list[checks.CheckMessage]:
    found: list[checks.CheckMessage] = []
    modes = ("optional", "required", "off")
    if options.MULTI_TENANCY not in modes:
        known = ", ".join(map(repr, modes))
        message = f'OJS["MULTI_TENANCY"] is one of {known}, not {options.MULTI_TENANCY!r}.'
        found.append(checks.Error(message, id="ojs.E024"))
    if options.DEFAULT_TENANT != conf.Settings.DEFAULT_TENANT:
        try:
            check_id(options.DEFAULT_TENANT, 'OJS["DEFAULT_TENANT"]')
        except InvalidRequest as refusal:
            found.append(checks.Error(refusal.message, id="ojs.E025"))
    for name, limits in options.TENANTS.items():
        try:
            read_tenant(Object().check(limits, "limits"), check_name(name))
        except InvalidRequest as refusal:
            message = f'OJS["TENANTS"][{name!r}]: {refusal.message}'
            found.append(checks.Error(message, id="ojs.E025"))
    return found


def _check_middleware() -> list[checks.CheckMessage]:
    found: list[checks.CheckMessage] = []
    for chain in (enqueue_chain, execution_chain):
        for entry in chain.entries:
            try:
                chain.load(entry)
            except ImproperlyConfigured as problem:
                found.append(checks.Error(str(problem), id="ojs.E005"))
    return found or _check_codecs()


def _check_triggers(options: conf.Settings) -> list[checks.CheckMessage]:
    from .spec import cloudevents

    try:
        cloudevents.check_triggers(options.CLOUDEVENTS_TRIGGERS)
    except ImproperlyConfigured as problem:
        return [checks.Error(str(problem), id="ojs.E026")]
    return []


def _check_payloads(options: conf.Settings) -> list[checks.CheckMessage]:
    name = options.PAYLOAD_STORAGE
    if not name or (name in settings.STORAGES and ":" in options.PAYLOAD_URI):
        return []
    return [
        checks.Error(
            f'OJS["PAYLOAD_STORAGE"] is {name!r}: it must be in STORAGES, and OJS["PAYLOAD_URI"] '
            "must name it.",
            hint='Such as "s3://bucket": references to stored arguments begin with it.',
            id="ojs.E028",
        )
    ]


def _check_codecs() -> list[checks.CheckMessage]:
    """Checks the codecs, and the places of `jobs.codecs` in chains that can be made."""
    from . import codecs

    hint = "See the docs of encryption."
    return [
        *(checks.Error(problem, hint=hint, id="ojs.E029") for problem in codecs.misplaced()),
        *(checks.Error(problem, hint=hint, id="ojs.E036") for problem in codecs.unusable()),
    ]


def has_tasks() -> bool:
    """Whether the site uses our backend for Django Tasks."""
    given = getattr(settings, "TASKS", None)
    return isinstance(given, Mapping) and any(
        isinstance(params, Mapping) and params.get("BACKEND") == TASKS_BACKEND
        for params in given.values()
    )


def watch_tasks() -> None:
    """Let the Tasks framework check its backends, which it does only if it is imported."""
    if has_tasks():
        framework = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
        # If the package is missing, our own check reports it.
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
    mode = database.settings_dict["OPTIONS"].get("transaction_mode") or ""
    if database.vendor == "sqlite" and mode.upper() != "IMMEDIATE":
        return [
            checks.Warning(
                "SQLite transactions are not IMMEDIATE: workers will see 'database is locked'.",
                hint='Set OPTIONS["transaction_mode"] = "IMMEDIATE" and a timeout.',
                id="ojs.W006",
            )
        ]
    return [*_check_isolation(name), *_check_keepalives(name)]


def _check_isolation(name: str) -> list[checks.CheckMessage]:
    from django.db import Error

    from .store import writable

    try:
        found = writable.isolation()
    except Error:
        return []  # the command that checks will report it
    if not found:
        return []
    database = connections[name].ops.quote_name(connections[name].settings_dict["NAME"])
    return [
        checks.Error(
            found,
            hint=f'Set DATABASES["{name}"]["OPTIONS"]["isolation_level"] to '
            f"psycopg.IsolationLevel.READ_COMMITTED, or ALTER DATABASE {database} SET "
            "default_transaction_isolation = 'read committed' (or ALTER ROLE …).",
            id="ojs.E038",
        )
    ]


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

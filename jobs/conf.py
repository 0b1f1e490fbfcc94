"""`OJS` setting: names, types, defaults and descriptions of its options.

Durations are seconds in the site's settings and `timedelta` here. Names follow Appendix A of the
OJS worker protocol, in capitals. The setting is read on first use and again when it changes, so
`settings.OJS = {...}` works in a test.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from .protocols import DEFAULT_PACKAGES, SHARED, WorkerProtocol, declared_by, undeclared
from .spec.durations import LONGEST


def option(default: Any, help_text: str, *, least: int = 0, most: int | None = None) -> Any:
    """Declare a field of a dataclass of options: its default and its description.

    Args:
        least: of a number; both bounds are inclusive.
    """
    metadata = {"help": help_text, "least": least, "most": most}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def port(default: int, help_text: str) -> Any:
    return option(default, help_text, most=65_535)


def duration(amount: float, help_text: str, *, positive: bool = False) -> Any:
    """Declare an option that is a duration; `amount` is its default in seconds.

    Args:
        positive: 0 has no meaning for it, such as "no limit" or "immediately".
    """
    return option(timedelta(seconds=amount), help_text, least=1 if positive else 0)


Options = TypeVar("Options")
DAY = 86_400


@dataclass(frozen=True)
class Settings:
    """Every option of the `OJS` setting, with its default."""

    # Worker protocol, Appendix A
    HEARTBEAT_INTERVAL: timedelta = duration(
        5, "How often workers are to send a heartbeat.", positive=True
    )
    HEARTBEAT_TIMEOUT: timedelta = duration(
        30,
        "Silence after which a worker is declared dead and its jobs are recovered.",
        positive=True,
    )
    VISIBILITY_TIMEOUT: timedelta = duration(
        1800,
        "How long a fetched job is reserved unless the job or the fetch sets a time.",
        positive=True,
    )
    CONCURRENCY: int = option(
        10, "Assumed concurrency of a worker that does not report it.", least=1
    )
    GRACE_PERIOD: timedelta = duration(
        25,
        "How long a terminating worker waits for its jobs; their reservations last as long.",
    )
    REQUIRE_WORKER_ID: bool = option(False, "Refuse ACK and FAIL without a worker id (§5.6).")

    # Access
    ALLOW_ANONYMOUS: bool = option(
        False, "Serve requests without an API key. For development only; refused outside DEBUG."
    )
    API_KEY_CACHE: timedelta = duration(
        10, "How long a checked API key is cached; a revocation takes up to that long."
    )
    PROXIES: int = option(
        0,
        "How many proxies in front add the client's address to `X-Forwarded-For`; with 0 the "
        "header is ignored. The audit, a key's last use and failed logins record that address.",
    )

    # Limits
    MAX_BODY_SIZE: int = option(16 * 1024 * 1024, "Largest request body, in bytes.", least=1)
    BODY_TIMEOUT: timedelta = duration(
        30,
        "How long a request's headers may take to arrive (`manage.py runhttp`), and then its body "
        "(stand-alone project); after that, 408, and the connection is closed. 0: no limit, for a "
        "server behind a proxy that buffers.",
    )
    MAX_UNFINISHED_BODIES: int = option(
        8,
        "Request bodies for which one server process of the stand-alone project waits at the same "
        "time, each with a thread; beyond that the oldest is given up. Bodies that arrive "
        "immediately do not count.",
    )
    MAX_BATCH: int = option(10_000, "Maximum number of jobs or outcomes in one request.", least=1)
    MAX_RESULT_SIZE: int = option(
        1024 * 1024, "Largest result of a job, in bytes of JSON; references have no such limit."
    )
    MAX_BULK: int = option(
        1_000,
        "Maximum number of jobs or ids in one bulk request (OJS bulk operations §9).",
        least=1,
    )
    MAX_FETCH: int = option(1_000, "Maximum number of jobs in one fetch.", least=1)
    MAX_WAIT: timedelta = duration(30, "Longest wait that a fetch may request with `wait_ms`.")
    WAIT_POLL_INTERVAL: timedelta = duration(
        1, "How often a waiting fetch polls, in case a notification was missed.", positive=True
    )

    # Live events (OJS realtime)
    REALTIME_BUFFER_SIZE: int = option(
        1_000,
        "Events kept for a client that reads slowly; beyond that the oldest are dropped, and the "
        "client is notified (`realtime.buffer_size`).",
        least=1,
    )
    REALTIME_RATE_LIMIT_PER_SECOND: int = option(
        100,
        "Events sent to one connection per second; others wait in its buffer. 0: no limit "
        "(`realtime.rate_limit_per_second`).",
    )
    REALTIME_CONNECTIONS: int = option(
        100,
        "Event streams and WebSockets that one API key, or one address without a key, may "
        "keep open in a server process.",
    )
    REALTIME_SUBSCRIPTIONS: int = option(100, "Channels that one WebSocket may subscribe to.")

    # Requests
    SERVER_HOST: str = option("127.0.0.1", "Address on which `manage.py runhttp` listens.")
    SERVER_PORT: int = port(8000, "Its port.")
    SERVER_PROCESSES: int = option(1, "How many processes it has.", least=1)
    SERVER_TLS_CERTIFICATE: str = option(
        "", "PEM file with its certificate and chain; empty: no TLS, as behind a proxy."
    )
    SERVER_TLS_KEY: str = option("", "PEM file with the key, unless that is in the first one.")
    SERVER_THREADS: int = option(
        8,
        "Threads of one ASGI server process that answer requests of workers and producers, each "
        "with a database connection. Waiting requests need none.",
        least=1,
    )
    FAST_PATH: bool = option(
        True,
        "Answer enqueue, fetch, ack, nack and heartbeat over HTTP without REST framework's request "
        "and response and, in the stand-alone project, without Django's middleware. The responses "
        "are the same without it.",
    )

    # The database
    STORE: str = option(
        "auto",
        "Statements that write jobs: `auto`: those for the database; `postgresql`; `citus`: for a "
        "cell on Citus; `portable`: those that every database takes, also on PostgreSQL.",
    )
    READ_DATABASE: str = option(
        "",
        "Name in `DATABASES` of a standby. The dashboard, the large lists of the admin, metrics "
        "and `GET /ojs/v1/events` read from it; their answers may be slightly old, as the header "
        "`OJS-Standby-Lag` says. Empty: none.",
    )
    CELLS: dict = option(
        {},
        "Other deployments that an operator looks after, and this one: name → URL of its admin. "
        "The dashboard links to them.",
    )

    # Housekeeping
    REAPER_INTERVAL: timedelta = duration(0.5, "Pause between two rounds of the reaper.")
    REAPER_SILENT: timedelta = duration(
        30, "Silence of the reaper after which health and admin report it.", positive=True
    )
    COMPLETED_RETENTION: timedelta = duration(7 * DAY, "How long completed jobs are kept.")
    CANCELLED_RETENTION: timedelta = duration(7 * DAY, "How long cancelled jobs are kept.")
    DISCARDED_RETENTION: timedelta = duration(
        30 * DAY, "How long discarded jobs outside the dead letter are kept."
    )
    DEAD_LETTER_RETENTION: timedelta = duration(
        180 * DAY, "How long jobs stay in the dead letter (OJS dead letter §5.2)."
    )
    DEAD_LETTER_MAX: int = option(
        10_000,
        "Maximum size of the dead letter; the oldest jobs are deleted (OJS dead letter §5.2).",
    )
    WORKER_RETENTION: timedelta = duration(DAY, "How long terminated workers stay listed.")
    EVENT_RETENTION: timedelta = duration(7 * DAY, "How long events are kept.")
    EVENTS_PER_JOB: int = option(
        1_000,
        "Events that are kept of one job, such as one that reports progress for hours: the oldest "
        "of more are deleted.",
    )

    # Middleware around every enqueue and execution of this site
    ENQUEUE_MIDDLEWARE: list = option(
        [], "Dotted paths of middleware around `jobs.enqueue()`, outermost first."
    )
    EXECUTION_MIDDLEWARE: list = option(
        [], "Dotted paths of middleware around each execution in `runjobworker`, outermost first."
    )

    # Codecs
    CODECS: list[str] = option(
        ["jobs.codecs.Gzip", "jobs.codecs.Encryption"],
        "Codecs that `jobs.codecs.Encode` applies, in this order.",
    )
    CODEC_KEYS: str = option(
        "jobs.codecs.of_environment",
        "Function that returns the keys: id → 32 bytes. The first one encrypts. By default they "
        "are in the environment: `CODEC_KEYS=id=base64,…`.",
    )
    CODEC_SERVER_URL: str = option(
        "",
        "Codec server that the admin asks for clear text, such as `https://codec.example.com/ojs`; "
        "empty: it shows none. The manifest names it.",
    )
    CODEC_SERVER_TOKEN: str = option("", "Bearer token for it, such as an API key.")
    CODEC_SERVER_TOKEN_FOR: str = option(
        "", "Function that makes such a token for a user of the admin instead, by its dotted path."
    )
    PAYLOAD_STORAGE: str = option(
        "",
        "Name in `STORAGES` where `jobs.codecs.Encode` stores large arguments; empty: nowhere.",
    )
    PAYLOAD_URI: str = option(
        "", "URI of that storage, such as `s3://bucket`: references begin with it."
    )
    PAYLOAD_EXTERNAL_FROM: int = option(
        128 * 1024, "Bytes of JSON from which on an argument is stored there."
    )

    # Schedules
    CRON: dict = option(
        {},
        "Schedules of the site: name → `cron`, `type`, `args`, and optionally `timezone`, "
        "`overlap`, `description` and options of `jobs.enqueue()`.",
    )

    # Schemas
    SCHEMA_VALIDATION: str = option(
        "warn",
        "What happens to jobs whose arguments do not match their registered schema: `strict` "
        "refuses them, `warn` accepts them with a warning, `off` does not look. A mode that is set "
        "for a type or a queue takes precedence.",
    )

    # Tenants
    MULTI_TENANCY: str = option(
        "optional",
        "What `meta.tenant_id` of a new job means: `optional`: if present, the job belongs to the "
        "project of that name; `required`: jobs without a tenant are refused; `off`: nothing, and "
        "the header `X-OJS-Tenant` is refused.",
    )
    DEFAULT_TENANT: str = option(
        "_default",
        "The tenant of jobs that name none, where tenants take turns or it has limits. Jobs that "
        "have a tenant keep it when this changes.",
    )
    TENANTS: dict = option(
        {},
        "Limits and shares of tenants: name → what `PUT /ojs/v1/admin/tenants/{id}` accepts. A "
        "reaper makes those that do not exist; later changes through the API or the admin stay.",
    )

    # Operators
    REDACT_KEYS: list[str] = option(
        [
            "*password*",
            "*passwd*",
            "*secret*",
            "*token*",
            "*api_key*",
            "*api-key*",
            "*apikey*",
            "*authorization",
        ],
        "Keys whose values are hidden from users without the permission `view_job_args`; "
        "`*` matches anything, case is ignored.",
    )
    WAIT_LIMIT: timedelta = duration(
        300, "Wait of a queue's oldest job after which the dashboard reports it."
    )

    SITE_URL: str = option(
        "",
        "Address at which operators reach this server, such as `https://jobs.example.com`: links "
        "in alert notifications begin with it. Empty: they have no links.",
    )
    OUTBOUND_NETWORKS: list[str] = option(
        [],
        "Networks that this server may send webhooks to although they are not public, such as "
        "`10.20.0.0/16` or `127.0.0.1`.",
    )

    WEBHOOKS_ALLOW_HTTP: bool = option(
        False,
        "Accept webhook subscriptions whose URL is not encrypted (`http://`). For development.",
    )

    # CloudEvents
    CLOUDEVENTS_SOURCE: str = option(
        "",
        "`source` of events that are written as CloudEvents: a URI that no other server has. "
        "Empty: `SITE_URL` with `/ojs/v1`, or else the part of this server.",
    )
    CLOUDEVENTS_TYPE_PREFIX: str = option(
        "org.openjobspec.", "What their types begin with (OJS CloudEvents §5.2)."
    )
    CLOUDEVENTS_TRIGGERS: list = option(
        [],
        "Which CloudEvents make which jobs: a list of `match`, `job_type`, and optionally `queue`, "
        "`transform` and `options`. The first that matches counts.",
    )
    CLOUDEVENTS_TRIGGER_PREFIX: str = option(
        "org.openjobspec.trigger.",
        "Other CloudEvents make a job if their type begins with this; the rest is the job type. "
        "Empty: none does.",
    )
    CLOUDEVENTS_WINDOW: timedelta = duration(
        DAY, "How long a CloudEvent with the same id and source makes no second job."
    )

    # Extras
    RECORD_EVENTS: bool = option(
        True, "Write job and worker events to the durable record behind `/ojs/v1/events`."
    )
    RECORD_HEARTBEATS: bool = option(
        False,
        "Write an event for each heartbeat, and for each job it extends (`worker.heartbeat`, "
        "`job.heartbeat`). One row for each: for small fleets, or to investigate a problem.",
    )
    METRICS: bool = option(
        True, "Compute counters from the events, for `/ojs/v1/metrics` and `/ojs/v1/autoscaling`."
    )
    METRICS_MAX_SERIES: int = option(
        2_000,
        "Pairs of queue and job type that are counted separately; others go together.",
    )
    LOG_JOBS: bool = option(
        False,
        "Log a line for each job that is enqueued, fetched (at level DEBUG), completed or "
        "cancelled; failures are always logged (OJS logging §6.1).",
    )
    OPENTELEMETRY: bool = option(
        False,
        "Record OpenTelemetry spans of jobs; needs the extra `opentelemetry` and a tracer "
        "provider. The stand-alone project has one, and sets this if the environment names an "
        "OTLP endpoint.",
    )
    METRICS_EXPORTER: str = option(
        "",
        "Class of an OpenTelemetry metric exporter, made without arguments, to which a reaper "
        "sends the metrics; needs the extra `otlp`. The stand-alone project sets it as above.",
    )
    AUTOSCALE_WITHIN: timedelta = duration(
        60,
        "Time in which the workers that autoscaling requests should work off waiting jobs.",
        positive=True,
    )
    CONFORMANCE_MODE: bool = option(
        False,
        "Test hooks of the public conformance suite (reset, test directives). Never in production.",
    )

    # Worker protocols
    WORKER_PROTOCOLS: list = option(
        list(DEFAULT_PACKAGES),
        "Packages that declare the worker protocols to serve; each may have options of its own.",
    )


def option_names(group: type[Any] = Settings) -> list[str]:
    return [known.name for known in fields(group)]


def option_groups(packages: Sequence[str]) -> dict[str, type[Any]]:
    """Return the options that hold a dictionary of their own, one for each protocol that has any.

    Args:
        packages: the value of `WORKER_PROTOCOLS`.

    Raises:
        ImproperlyConfigured: a package cannot be used.
    """
    found = declared_by(packages)
    return {protocol.group: protocol.options for protocol in found if protocol.options}


def unknown_options(given: Mapping[Any, Any]) -> list[tuple[str, str, list[str]]]:
    """Return each unknown option, as it is written, its name, and those that it may stand for."""
    try:
        groups = option_groups(given.get("WORKER_PROTOCOLS", DEFAULT_PACKAGES))
    except (ImproperlyConfigured, TypeError):
        # Another check reports this error. Options of such a protocol are unknown.
        groups = option_groups(DEFAULT_PACKAGES)
        given = {name: value for name, value in given.items() if not isinstance(value, Mapping)}
    names = [*option_names(), *groups]
    found = [(f"[{name!r}]", str(name), names) for name in given if name not in names]
    for name, group in groups.items():
        inner = given.get(name)
        if isinstance(inner, Mapping):
            known = option_names(group)
            found += [
                (f"[{name!r}][{inside!r}]", str(inside), known)
                for inside in inner
                if inside not in known
            ]
    return found


def _read(group: type[Options], given: Any, place: str = "OJS") -> Options:
    """Return the options of `group` that are given, each as the type it declares.

    Raises:
        ImproperlyConfigured: one is not of that type.
    """
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"{place} must be a dictionary, not {given!r}.")
    wanted = typing.get_type_hints(group)
    return group(
        **{
            known.name: _coerce(
                f'{place}["{known.name}"]', given[known.name], wanted[known.name], known.metadata
            )
            for known in fields(typing.cast(Any, group))
            if known.name in given
        }
    )


def _coerce(place: str, value: Any, wanted: Any, bounds: Mapping[str, Any]) -> Any:
    if wanted is timedelta:
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        if type(seconds) in (int, float) and 0 <= seconds <= LONGEST.total_seconds():
            if not seconds and bounds["least"]:
                raise ImproperlyConfigured(f"{place} must be longer than 0 seconds.")
            return timedelta(seconds=seconds)
        raise ImproperlyConfigured(
            f"{place} must be a number of seconds, a century at most, not {value!r}."
        )
    if wanted is bool and value in (0, 1):
        return bool(value)
    if wanted == list[str]:
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return value
        hint = '; an environment variable takes it as JSON: ["…"]' if isinstance(value, str) else ""
        raise ImproperlyConfigured(f"{place} must be a list of strings, not {value!r}{hint}.")
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        name = getattr(wanted, "__name__", str(wanted))
        raise ImproperlyConfigured(f"{place} must be of type {name}, not {value!r}.")
    if wanted is int:
        least, most = bounds.get("least", 0), bounds.get("most")
        if value < least:
            raise ImproperlyConfigured(f"{place} must be at least {least}, and is {value!r}.")
        if most is not None and value > most:
            raise ImproperlyConfigured(f"{place} must be at most {most}, and is {value!r}.")
    return value


@dataclass(frozen=True, slots=True)
class _Configured:
    settings: Settings
    groups: dict[type[Any], Any]
    """A protocol's dataclass of options, and those of this site."""


def _given() -> Any:
    return getattr(django_settings, "OJS", {}) or {}


@cache
def _load() -> _Configured:
    given = _given()
    settings = _read(Settings, given)
    groups: dict[type[Any], Any] = {}
    for protocol in declared_by(settings.WORKER_PROTOCOLS):
        if protocol.options is None:
            continue
        taken = [name for name in option_names() if name.partition("_")[0] == protocol.group]
        if taken:
            raise ImproperlyConfigured(
                f"The worker protocol {protocol.name!r} needs another name: OJS_{taken[0]} would "
                "be taken for an option of its own."
            )
        place = f'OJS["{protocol.group}"]'
        groups[protocol.options] = _read(protocol.options, given.get(protocol.group, {}), place)
    return _Configured(settings, groups)


def configured() -> Settings:
    """Return the site's options; unknown names are reported by the check `ojs.E001`."""
    return _load().settings


class _Proxy:
    def __getattr__(self, name: str) -> Any:
        return getattr(configured(), name)


ojs_settings: Settings = typing.cast(Settings, _Proxy())


# The worker protocols of this site


@cache
def _protocols() -> dict[str, WorkerProtocol]:
    try:
        found = declared_by(_given()["WORKER_PROTOCOLS"])
    except (ImproperlyConfigured, LookupError, TypeError):
        found = declared_by(DEFAULT_PACKAGES)
    return {protocol.name: protocol for protocol in found}


def protocols() -> Collection[WorkerProtocol]:
    """Return the worker protocols that `WORKER_PROTOCOLS` lists, in its order.

    Never raises, since URLs are set up with it: `configured()` reports errors in the list.
    """
    return _protocols().values()


def protocol_of(name: str) -> WorkerProtocol:
    """Return the protocol called `name`; if it is not listed, an object with only the name."""
    return _protocols().get(name) or undeclared(name)


def options_of(group: type[Options]) -> Options:
    """Return the site's options of a protocol, by their dataclass.

    Raises:
        ImproperlyConfigured: the protocol is not listed.
    """
    try:
        found: Options = _load().groups[group]
    except KeyError:
        raise ImproperlyConfigured(
            f'{group.__module__} is not in OJS["WORKER_PROTOCOLS"].'
        ) from None
    return found


def protocol_options() -> dict[str, Any]:
    """Return the site's options of all listed protocols, by the name of their dictionary."""
    groups = option_groups(configured().WORKER_PROTOCOLS)
    return {name: options_of(group) for name, group in groups.items()}


def is_served(protocol: WorkerProtocol) -> bool:
    """Whether it has HTTP endpoints and they are switched on."""
    return protocol.http is not None and _is_on(protocol, protocol.http.switch)


def path_prefixes(*, served: bool = False) -> tuple[str, ...]:
    """Return the path prefixes of machine clients: of OJS HTTP and of protocols over HTTP.

    Args:
        served: omit protocols that are switched off; a site may use these paths itself.
    """
    return tuple(
        {SHARED: None}
        | {
            one.http.prefix: None
            for one in protocols()
            if one.http and (is_served(one) or not served)
        }
    )


def has_socket(protocol: WorkerProtocol) -> bool:
    """Whether it has a WebSocket at the HTTP port and it is switched on."""
    return protocol.socket is not None and _is_on(protocol, protocol.socket.switch)


def _is_on(protocol: WorkerProtocol, switch: str) -> bool:
    options = protocol.options
    return not switch or (options is not None and bool(getattr(options_of(options), switch)))


def _reset(*, setting: str, **kwargs: Any) -> None:
    if setting == "OJS":
        _load.cache_clear()
        _protocols.cache_clear()


setting_changed.connect(_reset, dispatch_uid="ojs_conf")

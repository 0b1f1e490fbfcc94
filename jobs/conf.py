"""The `OJS` setting: names, types, defaults and a sentence for each.

Durations are seconds in the site's settings and `timedelta` here. Names follow Appendix A of the
OJS worker protocol, in capitals. The setting is read on first use and again when it changes, so
`settings.OJS = {...}` works in a test.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from .spec.durations import LONGEST


def _option(default: Any, help_text: str) -> Any:
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata={"help": help_text})
    return field(default=default, metadata={"help": help_text})


def _seconds(amount: float, help_text: str) -> Any:
    return _option(timedelta(seconds=amount), help_text)


def _group(options: type[Any]) -> Any:
    return field(default_factory=options, metadata={"help": options.__doc__})


DAY = 86_400


@dataclass(frozen=True)
class Flare:
    """Options of the Zeridion Flare binding: `OJS["FLARE"]`, `OJS_FLARE_<NAME>`."""

    ENABLED: bool = _option(False, "Serve the Zeridion Flare protocol under `/flare/v1`.")
    MINIMUM_GRACE: timedelta = _seconds(
        60,
        "Shortest silence after a job's heartbeat before the job is taken for stuck; beyond it "
        "two thirds of the job's `timeout_seconds` count.",
    )


@dataclass(frozen=True)
class AGQ:
    """Options of AGQ's RESP over TCP, `manage.py runagq`: `OJS["AGQ"]`, `OJS_AGQ_<NAME>`."""

    HOST: str = _option("127.0.0.1", "Address `runagq` listens on.")
    PORT: int = _option(6380, "Port `runagq` listens on.")
    URL: str = _option("", "What the manifest calls it, where that is not where it listens.")
    TLS_CERTIFICATE: str = _option(
        "", "PEM file with a certificate and its chain; `runagq` then speaks TLS and nothing else."
    )
    TLS_KEY: str = _option("", "PEM file with the certificate's key, if that is another.")
    AUTH_TIMEOUT: timedelta = _seconds(
        10, "How long a connection that needs a key may take to send a good one; 0: as it likes."
    )
    HEARTBEAT_INTERVAL: timedelta = _seconds(30, "How often AGQ workers are told to be heard.")
    HEARTBEAT_TIMEOUT: timedelta = _seconds(90, "Silence after which an AGQ worker is dead.")
    JOB_TIMEOUT: timedelta = _seconds(
        3600,
        "How long an AGQ worker may take for a job that names no visibility timeout of its own; "
        "beyond it the job is taken back and the worker flagged for investigation.",
    )
    THREADS: int = _option(8, "Commands carried out at once, each with a database connection.")
    MAX_CONNECTIONS: int = _option(10_000, "Most connections of one process.")
    MAX_COMMAND: int = _option(16 * 1024 * 1024, "Largest command, in bytes.")
    MAX_BUFFERED: int = _option(
        256 * 1024 * 1024,
        "Most bytes of unfinished commands, all connections together; an eighth of it is for those "
        "that have not authenticated, and no more.",
    )


@dataclass(frozen=True)
class Rota:
    """Options of Rota's WebSocket, `manage.py runrota`: `OJS["ROTA"]`, `OJS_ROTA_<NAME>`."""

    HOST: str = _option("127.0.0.1", "Address `runrota` listens on.")
    PORT: int = _option(8081, "Port `runrota` listens on.")
    URL: str = _option("", "What the manifest calls it, where that is not where it listens.")
    TLS_CERTIFICATE: str = _option(
        "", "PEM file with a certificate and its chain; `runrota` then speaks TLS and nothing else."
    )
    TLS_KEY: str = _option("", "PEM file with the certificate's key, if that is another.")
    HEARTBEAT_TIMEOUT: timedelta = _seconds(5, "Silence after which a Rota worker is dead.")
    THREADS: int = _option(8, "Messages worked on at once, each with a database connection.")
    MAX_CONNECTIONS: int = _option(10_000, "Most connections of one process.")
    MAX_MESSAGE: int = _option(16 * 1024 * 1024, "Largest message, in bytes.")


@dataclass(frozen=True)
class Settings:
    """Every option of the `OJS` setting, with its default."""

    # Worker protocol, Appendix A
    HEARTBEAT_INTERVAL: timedelta = _seconds(5, "How often workers are told to send a heartbeat.")
    HEARTBEAT_TIMEOUT: timedelta = _seconds(
        30, "Silence after which a worker is declared dead and its jobs are recovered."
    )
    VISIBILITY_TIMEOUT: timedelta = _seconds(
        1800, "How long a fetched job is reserved when neither job nor fetch says otherwise."
    )
    CONCURRENCY: int = _option(10, "Jobs a worker of unknown concurrency is taken to run at once.")
    GRACE_PERIOD: timedelta = _seconds(
        25, "How long a terminating worker waits for its active jobs; their reservations last it."
    )
    REQUIRE_WORKER_ID: bool = _option(
        False, "Refuse ACK and FAIL that do not say which worker sends them (§5.6)."
    )

    # Who may talk to us
    ALLOW_ANONYMOUS: bool = _option(
        False, "Serve requests without an API key. For development only; refused outside DEBUG."
    )
    API_KEY_CACHE: timedelta = _seconds(
        10, "How long a checked API key is remembered; a revocation takes that long to spread."
    )
    PROXIES: int = _option(
        0,
        "How many proxies in front add the client's address to `X-Forwarded-For`; with 0 it is not "
        "believed. The audit, a key's last use and failed logins go by that address.",
    )

    # Limits
    MAX_BODY_SIZE: int = _option(16 * 1024 * 1024, "Largest request body, in bytes.")
    BODY_TIMEOUT: timedelta = _seconds(
        30,
        "How long a request body may take to arrive, in the stand-alone project; then 408, and the "
        "connection is closed. 0: as long as it likes, for a server behind a proxy that buffers.",
    )
    MAX_UNFINISHED_BODIES: int = _option(
        8,
        "Request bodies one server process of the stand-alone project waits for at once, each with "
        "a thread; beyond that the oldest is given up. Bodies that come at once do not count.",
    )
    MAX_BATCH: int = _option(10_000, "Most jobs or outcomes in one request.")
    MAX_RESULT_SIZE: int = _option(
        1024 * 1024, "Largest result of a job, in bytes of JSON; references have no such limit."
    )
    MAX_BULK: int = _option(1_000, "Most jobs or ids in one bulk request (OJS bulk operations §9).")
    MAX_FETCH: int = _option(1_000, "Most jobs handed out by one fetch.")
    MAX_WAIT: timedelta = _seconds(30, "Longest wait a fetch may ask for with `wait_ms`.")
    MAX_WAITING: int = _option(
        24,
        "Requests of one server process that may wait at once, each with a thread: fetches with "
        "`wait_ms`, results with `wait`, progress streams, and enqueues that wait for room. Others "
        "are answered at once with what there is.",
    )
    WAIT_POLL_INTERVAL: timedelta = _seconds(
        1, "How often a waiting fetch looks by itself, in case a notification was missed."
    )

    # How requests are answered
    FAST_PATH: bool = _option(
        True,
        "Answer enqueue, fetch, ack, nack and heartbeat over HTTP without REST framework's request "
        "and response and, in the stand-alone project, past Django's middleware. The answers are "
        "the same without it.",
    )

    # Housekeeping
    REAPER_INTERVAL: timedelta = _seconds(0.5, "Pause between two rounds of the reaper.")
    REAPER_SILENT: timedelta = _seconds(
        30, "Silence of the reaper after which health and admin complain."
    )
    COMPLETED_RETENTION: timedelta = _seconds(7 * DAY, "How long completed jobs are kept.")
    CANCELLED_RETENTION: timedelta = _seconds(7 * DAY, "How long cancelled jobs are kept.")
    DISCARDED_RETENTION: timedelta = _seconds(
        30 * DAY, "How long discarded jobs outside the dead letter are kept."
    )
    DEAD_LETTER_RETENTION: timedelta = _seconds(
        180 * DAY, "How long jobs stay in the dead letter (OJS dead letter §5.2)."
    )
    DEAD_LETTER_MAX: int = _option(
        10_000, "Most jobs in the dead letter; the oldest go first (OJS dead letter §5.2)."
    )
    WORKER_RETENTION: timedelta = _seconds(DAY, "How long terminated workers stay listed.")
    EVENT_RETENTION: timedelta = _seconds(7 * DAY, "How long events are kept.")

    # What runs around every enqueue and execution of this site
    ENQUEUE_MIDDLEWARE: list = _option(
        [], "Dotted paths of what `jobs.enqueue()` passes each job through, outermost first."
    )
    EXECUTION_MIDDLEWARE: list = _option(
        [], "Dotted paths of what wraps each execution in `runjobworker`, outermost first."
    )

    # What operators see
    REDACT_KEYS: list = _option(
        ["*password*", "*passwd*", "*secret*", "*token*", "*api_key*", "*apikey*", "authorization"],
        "Keys whose values are hidden from users without the permission `view_job_args`; "
        "`*` stands for anything, case does not matter.",
    )
    WAIT_LIMIT: timedelta = _seconds(
        300, "Wait of a queue's oldest job from which the dashboard calls for attention."
    )

    # Extras
    RECORD_EVENTS: bool = _option(
        True, "Write job and worker events into the durable record behind `/ojs/v1/events`."
    )
    RECORD_HEARTBEATS: bool = _option(
        False,
        "Write an event for each heartbeat, and for each job it extends (`worker.heartbeat`, "
        "`job.heartbeat`). A row each: for a small fleet, or to look into something.",
    )
    METRICS: bool = _option(
        True, "Count what the events tell, for `/ojs/v1/metrics` and `/ojs/v1/autoscaling`."
    )
    METRICS_MAX_SERIES: int = _option(
        2_000, "Most pairs of queue and job type that are counted apart; others go together."
    )
    AUTOSCALE_WITHIN: timedelta = _seconds(
        60, "How fast the workers that autoscaling asks for shall work off what waits."
    )
    CONFORMANCE_MODE: bool = _option(
        False, "Test hooks of the public conformance suite (reset, test directives). Never in use."
    )

    # The optional bindings
    FLARE: Flare = _group(Flare)
    AGQ: AGQ = _group(AGQ)
    ROTA: Rota = _group(Rota)


GROUPS: dict[str, type[Any]] = {"FLARE": Flare, "AGQ": AGQ, "ROTA": Rota}
"""Options that hold a dictionary of their own, one for each optional binding."""


def option_names(group: type[Any] = Settings) -> list[str]:
    return [option.name for option in fields(group)]


def unknown_options(given: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return each option that is none, as it is written, and the names it may have meant."""
    found = [(f"[{name!r}]", option_names()) for name in given if name not in option_names()]
    for name, group in GROUPS.items():
        inner = given.get(name)
        if isinstance(inner, Mapping):
            known = option_names(group)
            found += [(f"[{name!r}][{option!r}]", known) for option in inner if option not in known]
    return found


def _read(group: type[Any], given: Any, place: str = "OJS") -> Any:
    """Return the options of `group` that are given, each as the type it declares.

    Raises:
        ImproperlyConfigured: one is not of that type.
    """
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"{place} must be a dictionary, not {given!r}.")
    wanted = typing.get_type_hints(group)
    return group(
        **{
            option.name: _coerce(
                f'{place}["{option.name}"]', given[option.name], wanted[option.name]
            )
            for option in fields(group)
            if option.name in given
        }
    )


def _coerce(place: str, value: Any, wanted: Any) -> Any:
    if wanted in GROUPS.values():
        return _read(wanted, value, place)
    if wanted is timedelta:
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        if type(seconds) in (int, float) and 0 <= seconds <= LONGEST.total_seconds():
            return timedelta(seconds=seconds)
        raise ImproperlyConfigured(
            f"{place} must be a number of seconds, a century at most, not {value!r}."
        )
    if wanted is bool and value in (0, 1):
        return bool(value)
    if isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool)):
        if wanted is int and value < 0:
            raise ImproperlyConfigured(f"{place} must not be negative, and is {value!r}.")
        return value
    name = getattr(wanted, "__name__", str(wanted))
    raise ImproperlyConfigured(f"{place} must be of type {name}, not {value!r}.")


@cache
def _load() -> Settings:
    given: dict[str, Any] = getattr(django_settings, "OJS", {}) or {}
    return typing.cast(Settings, _read(Settings, given))


def configured() -> Settings:
    """Return the site's options; unknown names are reported by the check `ojs.E001`."""
    return _load()


class _Proxy(types.SimpleNamespace):
    def __getattr__(self, name: str) -> Any:
        # From now on they are found without asking: a request looks up ten of them.
        vars(self).update(vars(_load()))
        return getattr(_load(), name)


ojs_settings: Settings = typing.cast(Settings, _Proxy())


def _reset(*, setting: str, **kwargs: Any) -> None:
    if setting == "OJS":
        _load.cache_clear()
        vars(ojs_settings).clear()


setting_changed.connect(_reset, dispatch_uid="ojs_conf")

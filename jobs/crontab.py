"""Schedules that the site's code declares: `@jobs.cron(...)` and `OJS["CRON"]` (OJS cron §2).

    @jobs.cron("0 9 * * MON-FRI", timezone="Europe/Berlin", queue="mail")
    @handler("newsletter.send")
    def send(context): ...

    OJS = {"CRON": {"nightly": {"cron": "0 2 * * *", "type": "report.build", "args": []}}}

They are rows, like those of people and clients, marked as declared by the code: `register()` makes
the rows match the code, and removes those that the code no longer declares. Workers, reapers
and web servers call it when they start.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules, import_string

from . import engine
from .composition import item_of
from .conf import configured
from .errors import OJSError
from .options import OverlapPolicyName, StepOptions
from .producer import OPTIONS, step_document
from .spec.cron_requests import new_cron_job
from .spec.validation import OPTION_NAMES, TYPE_PATTERN
from .store import clock

logger = logging.getLogger("jobs.cron")
T = TypeVar("T")

OWN_KEYS = ("cron", "timezone", "overlap", "description", "type", "args", "kwargs")
"""Keys of an entry of `OJS["CRON"]`, besides the options of the job."""


@dataclass(frozen=True)
class Declared:
    """A schedule as the code declares it."""

    target: Any
    cron: str
    name: str = ""
    timezone: str = "UTC"
    overlap: str = "skip"
    description: str = ""
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    options: Mapping[str, Any] | None = None
    place: str = ""
    """Where it is declared, for error messages."""

    def read(self) -> engine.NewCronJob:
        """
        Raises:
            ImproperlyConfigured: it is invalid; the message names the place and the error.
        """
        try:
            item = item_of(self.target, self.args, self.kwargs or {})
            document = step_document({**item, **(self.options or {})})
            # A registration has the type and the arguments at the top level, options separately.
            options = {name: document.pop(name) for name in OPTION_NAMES & document.keys()}
            options |= {
                name: document.pop(name) for name in ("visibility_timeout_ms",) if name in document
            }
            new = new_cron_job(
                {
                    **document,
                    "options": options,
                    "name": self.name or _name_of(document["type"]),
                    "cron": self.cron,
                    "timezone": self.timezone,
                    "overlap_policy": self.overlap,
                    "description": self.description,
                },
                clock.now(),
                type_pattern=TYPE_PATTERN,
                declared=True,
            )
        except (OJSError, TypeError) as problem:
            raise ImproperlyConfigured(f"{self.place}: {problem}") from None
        return new


_declared: dict[tuple[str, str, str], Declared] = {}


def cron(
    expression: str,
    *,
    timezone: str = "UTC",
    name: str = "",
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    overlap: OverlapPolicyName = "skip",
    description: str = "",
    **options: Unpack[StepOptions],
) -> Callable[[T], T]:
    """Run a handler or a Django task on a schedule; place the decorator above theirs.

    Args:
        expression: five or six fields, `@daily` and the like, or `@every 30m` (OJS cron §3).
        timezone: time zone of the expression, such as `Europe/Berlin`.
        name: of the schedule; by default derived from the job's type. A handler with several
            schedules needs one for each.
        args, kwargs: arguments of the call.
        overlap: what happens if a run is due before the previous one has ended (§6).
        options: of its jobs, as for `jobs.enqueue()`.

    Raises:
        ImproperlyConfigured: it decorates neither a handler nor a task, or, when it is registered,
            something is invalid.
    """

    def declare(target: T) -> T:
        if not (hasattr(target, "job_document") or hasattr(target, "module_path")):
            raise ImproperlyConfigured(
                f"@jobs.cron() decorates a handler or a task, not {target!r}: put it above "
                "@handler or @task."
            )
        function: Any = getattr(target, "function", None) or getattr(target, "func", target)
        where = (function.__module__, function.__qualname__, name or expression)
        _declared[where] = Declared(
            target,
            expression,
            name,
            timezone,
            overlap,
            description,
            args,
            kwargs,
            {key: value for key, value in options.items() if value is not None},
            f"@jobs.cron of {function.__module__}.{function.__qualname__}",
        )
        return target

    return declare


def autodiscover() -> None:
    """Import `handlers` and `tasks` of every installed app."""
    autodiscover_modules("handlers")
    autodiscover_modules("tasks")


def declared() -> list[engine.NewCronJob]:
    """Return the schedules that settings and imported modules declare.

    Raises:
        ImproperlyConfigured: one of them is invalid, or two have the same name.
    """
    found: dict[str, str] = {}
    new = []
    for each in [*of_settings(), *_declared.values()]:
        read = each.read()
        if read.name in found:
            raise ImproperlyConfigured(
                f"Two schedules are called {read.name!r}: {found[read.name]} and {each.place}. "
                "Give them a name of their own."
            )
        found[read.name] = each.place
        new.append(read)
    return new


def register() -> engine.RegisteredCron:
    """Make the schedules in the database match those that the code declares; return the changes.

    Import the modules with handlers and tasks first. Schedules created by people, clients and
    other sites are left alone, even if the code declares one with the same name.

    Raises:
        ImproperlyConfigured: one of them is invalid; nothing is changed.
    """
    done = engine.register_cron(declared(), site=site())
    for name in done.foreign:
        logger.warning(
            "Cron job %s was made by a person, a client or another site: the one that the code "
            "declares under this name is not registered.",
            name,
        )
    for what, names in (("Made", done.made), ("Changed", done.changed), ("Removed", done.removed)):
        if names:
            logger.info("%s cron jobs of the code: %s.", what, ", ".join(names))
    return done


def site() -> str:
    """Return the name that distinguishes the schedules of this site's code from those of others.

    Settings often differ between its processes; `ROOT_URLCONF` does not.
    """
    name = getattr(settings, "ROOT_URLCONF", "") or getattr(settings, "SETTINGS_MODULE", "")
    return str(name or "site")[:255]


def forget(name: str) -> None:
    """Drop what a decorator declared under this name or for this expression (tests)."""
    for where in [where for where in _declared if where[2] == name]:
        del _declared[where]


def of_settings() -> list[Declared]:
    return [_entry(name, entry) for name, entry in configured().CRON.items()]


def _entry(name: Any, entry: Any) -> Declared:
    place = f'OJS["CRON"][{name!r}]'
    if not isinstance(entry, Mapping):
        raise ImproperlyConfigured(f"{place} must be a dictionary, not {entry!r}.")
    unknown = sorted(str(key) for key in entry if key not in OWN_KEYS and key not in OPTIONS)
    if unknown:
        raise ImproperlyConfigured(f"{place}: there is no {unknown[0]!r}.")
    missing = [key for key in ("cron", "type") if not isinstance(entry.get(key), str)]
    if missing:
        raise ImproperlyConfigured(f"{place} needs a text {missing[0]!r}.")
    return Declared(
        _target(entry["type"]),
        entry["cron"],
        name,
        entry.get("timezone", "UTC"),
        entry.get("overlap", "skip"),
        entry.get("description", ""),
        entry.get("args", ()),
        entry.get("kwargs"),
        {key: value for key, value in entry.items() if key not in OWN_KEYS},
        place,
    )


def _target(type: str) -> Any:
    """Return the handler or task that a dotted path names, else the job type itself."""
    if "." not in type:
        return type
    try:
        found = import_string(type)
    except ImportError:
        return type
    known = hasattr(found, "job_document") or hasattr(found, "module_path")
    return found if known else type


def _name_of(type: str) -> str:
    """Return the default name of a schedule: the type, in characters that a name may contain."""
    return re.sub(r"[^a-z0-9.-]+", "-", type.lower()).strip("-")

"""Reads the environment variables behind the settings. Knows none of Django's settings."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from jobs.conf import option_groups, option_names
from jobs.protocols import DEFAULT_PACKAGES

TRUE = {"1", "true", "yes", "on"}
FALSE = {"0", "false", "no", "off", ""}

NOT_OPTIONS = {
    # How the stand-alone project reaches its database.
    "OJS_DB_POOL",
    # Read by the test suite.
    "OJS_TEST_DATABASE",
    "OJS_TEST_DATABASE_OF",
    "OJS_TEST_DATABASE_URL",
    # Read by clients of an Open Job Spec server, which may share a shell or a container with it.
    "OJS_AUTH_TOKEN",
    "OJS_BACKEND_URL",
    "OJS_URL",
}
"""Variables with the prefix of an option that are none."""

ADDRESS = re.compile(r"(tcp|udp|sctp)://")
SERVICE = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)\Z")
"""Variables that Kubernetes sets in every container for a Service: one called `ojs-agq` gives
`OJS_AGQ_SERVICE_HOST`, `OJS_AGQ_PORT=tcp://10.0.0.1:6380`, `OJS_AGQ_PORT_6380_TCP_ADDR`, …"""


def flag(environ: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return a variable that means yes or no.

    Raises:
        ImproperlyConfigured: it has another value.
    """
    word = environ.get(name, "1" if default else "0").strip().lower()
    if word in TRUE | FALSE:
        return word in TRUE
    raise ImproperlyConfigured(f"{name} must be 1 or 0, not {word!r}.")


def choice(environ: Mapping[str, str], name: str, *words: str) -> str:
    """Return a variable that is one of `words`; the first of them if it is not set.

    Raises:
        ImproperlyConfigured: it is another word.
    """
    word = environ.get(name, "").strip().lower() or words[0]
    if word not in words:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(words)}, not {word!r}.")
    return word


def log_level(environ: Mapping[str, str], name: str) -> str:
    """Return a variable that is the name of a level of logging; INFO if it is not set.

    Raises:
        ImproperlyConfigured: there is no such level.
    """
    others = ("debug", "warning", "warn", "error", "critical", "fatal", "notset")
    return choice(environ, name, "info", *others).upper()


def number(environ: Mapping[str, str], name: str, default: int) -> int:
    """Return a variable that is a whole number.

    Raises:
        ImproperlyConfigured: it is not one.
    """
    try:
        return int(environ.get(name, default))
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a number, not {environ[name]!r}.") from None


def words(environ: Mapping[str, str], name: str, default: str = "") -> list[str]:
    """Return a variable that is a list separated by commas."""
    return [word.strip() for word in environ.get(name, default).split(",") if word.strip()]


def secret(environ: Mapping[str, str], name: str) -> str:
    """Return a variable, or the content of the file that the variable `<name>_FILE` names.

    Raises:
        ImproperlyConfigured: both are set, or the file cannot be read.
    """
    file = environ.get(f"{name}_FILE", "")
    if not file:
        return environ.get(name, "")
    if environ.get(name):
        raise ImproperlyConfigured(f"Set {name} or {name}_FILE, not both.")
    try:
        return Path(file).read_text().strip()
    except OSError as problem:
        raise ImproperlyConfigured(f"{name}_FILE: {problem}") from None


def data_folder(environ: Mapping[str, str]) -> Path:
    """Return the default folder for files."""
    named = environ.get("DJANGO_DATA_DIR")
    return Path(named).absolute() if named else Path(__file__).resolve().parent.parent / "data"


def value(text: str) -> Any:
    """Return the JSON value that `text` spells, else `text` itself.

    `jobs.conf` knows the types and refuses what does not fit, so nothing is guessed here.
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def ojs_options(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the `OJS` setting given by the variables `OJS_<NAME>`; `misread` reports the rest.

    Raises:
        ImproperlyConfigured: a group is given both as a whole that is no object, and by option; or
            `OJS_WORKER_PROTOCOLS` names a package that cannot be used.
    """
    options: dict[str, Any] = {}
    # In sorted order a group given as a whole (OJS_AGQ) comes before its single options.
    for variable, place in _variables(environ):
        if place is None or _is_service(variable, environ[variable]):
            continue
        group, option = place
        if not group:
            options[option] = value(environ[variable])
            continue
        grouped = options.setdefault(group, {})
        if not isinstance(grouped, dict):
            raise ImproperlyConfigured(f"OJS_{group} must be a JSON object, not {grouped!r}.")
        grouped[option] = value(environ[variable])
    return options


def misread(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the problem with each ignored variable that has our prefix, and a hint.

    Variables that Kubernetes sets beside our options are skipped silently.
    """
    known = [f"OJS_{name}" for name in option_names()]
    groups = _groups(environ)
    known += [f"OJS_{group}_{name}" for group in groups for name in option_names(groups[group])]
    for variable, place in _variables(environ):
        if _is_service(variable, environ[variable]):
            if place is not None:
                yield (
                    f"{variable} is ignored: {environ[variable]!r} is what Kubernetes sets for a "
                    "Service.",
                    "Set enableServiceLinks: false in the pod, or name the Service otherwise, to "
                    "use this option.",
                )
        elif place is None:
            close = difflib.get_close_matches(variable, known, n=1, cutoff=0.8)
            yield (
                f"{variable} is ignored: there is no such option.",
                f"Did you mean {close[0]}?" if close else "`manage.py ojsconfig` lists them.",
            )


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str] | None]]:
    """Yield each variable with our prefix, sorted: its group and option, or None for no option."""
    groups = _groups(environ)
    for variable in sorted(environ):
        if not variable.startswith("OJS_") or variable in NOT_OPTIONS:
            continue
        name = variable.removeprefix("OJS_")
        group, _, option = name.partition("_")
        if group in groups and option:
            yield variable, (group, option) if option in option_names(groups[group]) else None
        else:
            known = name in groups or name in option_names()
            yield variable, ("", name) if known else None


def _groups(environ: Mapping[str, str]) -> dict[str, type[Any]]:
    """Return the options of worker protocols, by the prefixes of their variables' names."""
    packages = environ.get("OJS_WORKER_PROTOCOLS")
    return option_groups(DEFAULT_PACKAGES if packages is None else _packages(packages))


def _packages(text: str) -> list[str]:
    packages = value(text)
    if not isinstance(packages, list):
        raise ImproperlyConfigured(
            f"OJS_WORKER_PROTOCOLS must be a JSON list of packages, not {text!r}."
        )
    return packages


def _is_service(variable: str, text: str) -> bool:
    """Whether Kubernetes set the variable for a Service whose name begins like our options."""
    return bool(SERVICE.search(variable)) or (
        variable.endswith("_PORT") and bool(ADDRESS.match(text))
    )

"""Reads the environment variables that the settings are made of. Knows no setting of Django's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

TRUE = {"1", "true", "yes", "on"}
FALSE = {"0", "false", "no", "off", ""}

GROUPS = ("AGQ", "FLARE", "ROTA")
"""Options of the optional bindings; `OJS_AGQ_PORT` is `OJS["AGQ"]["PORT"]`."""

NOT_OPTIONS = {
    # How the stand-alone project reaches its database.
    "OJS_DB_POOL",
    # Read by the test suite.
    "OJS_TEST_DATABASE",
    "OJS_TEST_DATABASE_URL",
    # Read by clients of an Open Job Spec server, which may share a shell or a container with it.
    "OJS_AUTH_TOKEN",
    "OJS_BACKEND_URL",
    "OJS_URL",
}
"""Variables that begin like an option and are none."""


def flag(environ: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return a variable that says yes or no.

    Raises:
        ImproperlyConfigured: it says something else.
    """
    word = environ.get(name, "1" if default else "0").strip().lower()
    if word in TRUE | FALSE:
        return word in TRUE
    raise ImproperlyConfigured(f"{name} must be 1 or 0, not {word!r}.")


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


def data_folder(environ: Mapping[str, str]) -> Path:
    """Return where files are kept that nobody named a place for."""
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
    """Return the `OJS` setting that the variables `OJS_<NAME>` spell.

    Raises:
        ImproperlyConfigured: a group is given both as a whole that is no object, and by option.
    """
    options: dict[str, Any] = {}
    # In sorted order a group given as a whole (OJS_AGQ) comes before its single options.
    for variable in sorted(environ):
        if not variable.startswith("OJS_") or variable in NOT_OPTIONS:
            continue
        name = variable.removeprefix("OJS_")
        group, _, option = name.partition("_")
        if group not in GROUPS or not option:
            options[name] = value(environ[variable])
            continue
        grouped = options.setdefault(group, {})
        if not isinstance(grouped, dict):
            raise ImproperlyConfigured(f"OJS_{group} must be a JSON object, not {grouped!r}.")
        grouped[option] = value(environ[variable])
    return options

"""Show the options of the `OJS` setting: their defaults, and what is in force here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand

from jobs import conf


def shown(value: Any) -> str:
    """A value as it is written in the settings: durations in seconds."""
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}" if value < timedelta(days=1) else shown_days(value)
    return repr(value)


def shown_days(value: timedelta) -> str:
    return f"{value // timedelta(seconds=1)}"


def every_option(
    group: Any = conf.Settings, values: Any = None, place: str = ""
) -> Iterator[tuple[str, Any, str]]:
    """Every option's name, value and sentence; those of a group as `AGQ["PORT"]`."""
    for option in fields(group):
        name = f'{place}["{option.name}"]' if place else option.name
        if values is not None:
            value = getattr(values, option.name)
        else:
            factory = option.default_factory
            value = option.default if factory is MISSING else factory()
        if option.name in conf.GROUPS:
            yield from every_option(conf.GROUPS[option.name], value, name)
        else:
            yield name, value, option.metadata["help"]


def reference() -> str:
    """The table of the README."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for name, default, meaning in every_option():
        unit = " s" if isinstance(default, timedelta) else ""
        lines.append(f"| `{name}` | {shown(default)}{unit} | {meaning} |")
    return "\n".join(lines)


class Command(BaseCommand):
    help = __doc__ or ""
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "--markdown", action="store_true", help="the reference of all options and defaults"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["markdown"]:
            self.stdout.write(reference())
            return
        for name, value, _ in every_option(values=conf.configured()):
            self.stdout.write(f"{name} = {shown(value)}")

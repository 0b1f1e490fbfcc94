"""Show the options of the `OJS` setting: their defaults, and what is in force here."""

from __future__ import annotations

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


def reference() -> str:
    """The table of the README."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for option in fields(conf.Settings):
        factory = option.default_factory
        default = option.default if factory is MISSING else factory()
        unit = " s" if isinstance(default, timedelta) else ""
        text = f"| `{option.name}` | {shown(default)}{unit} | {option.metadata['help']} |"
        lines.append(text)
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
        effective = conf.configured()
        for option in fields(conf.Settings):
            self.stdout.write(f"{option.name} = {shown(getattr(effective, option.name))}")

"""Show the options of the `OJS` setting: their defaults, and what is in force here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
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
    for name, default, meaning in _options(conf.Settings()):
        unit = " s" if isinstance(default, timedelta) else ""
        lines.append(f"| `{name}` | {shown(default)}{unit} | {meaning} |")
    return "\n".join(lines)


def _options(settings: Any, group: str = "") -> Iterator[tuple[str, Any, str]]:
    """Name, value and meaning of each option; those of a group are named `GROUP.NAME`."""
    for option in fields(settings):
        value = getattr(settings, option.name)
        if is_dataclass(value):
            yield from _options(value, f"{option.name}.")
        else:
            yield f"{group}{option.name}", value, option.metadata["help"]


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
        for name, value, _ in _options(conf.configured()):
            self.stdout.write(f"{name} = {shown(value)}")

"""Show the options of the `OJS` setting: their defaults, and their values on this site."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from jobs import conf
from jobs.management import base


def shown(value: Any) -> str:
    """A value as it is written in the settings; durations in seconds."""
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}" if value < timedelta(days=1) else shown_days(value)
    return repr(value)


def shown_days(value: timedelta) -> str:
    return f"{value // timedelta(seconds=1)}"


def every_option(*, of_this_site: bool = False) -> Iterator[tuple[str, Any, str]]:
    """Yield each option's name, default or value here, and sentence; a protocol's as
    `AGQ["PORT"]`."""
    yield from _options_of(conf.Settings, conf.configured() if of_this_site else None)
    for protocol in conf.protocols():
        if protocol.options is not None:
            values = conf.options_of(protocol.options) if of_this_site else None
            for name, value, meaning in _options_of(protocol.options, values):
                yield f'{protocol.group}["{name}"]', value, meaning


def _options_of(group: type[Any], values: Any) -> Iterator[tuple[str, Any, str]]:
    for option in fields(group):
        if values is not None:
            value = getattr(values, option.name)
        else:
            factory = option.default_factory
            value = option.default if factory is MISSING else factory()
        yield option.name, value, option.metadata["help"]


def reference() -> str:
    """Return the table for the README."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for name, default, meaning in every_option():
        unit = " s" if isinstance(default, timedelta) else ""
        lines.append(f"| `{name}` | {shown(default)}{unit} | {meaning} |")
    return "\n".join(lines)


class Command(base.Command):
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
        try:
            found = list(every_option(of_this_site=True))
        except ImproperlyConfigured as problem:
            raise CommandError(str(problem)) from problem
        for name, value, _ in found:
            self.stdout.write(f"{name} = {shown(value)}")

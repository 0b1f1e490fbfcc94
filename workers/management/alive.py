"""The option `--alive-file` of all long-running commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from workers.runtime import health_signal


def add_argument(parser: Any) -> None:
    parser.add_argument(
        "--alive-file", default="", metavar="PATH", help="touched for as long as all is well"
    )


def check(given: dict[str, Any]) -> None:
    """
    Raises:
        CommandError: no file can be left there.
    """
    if given["alive_file"]:
        try:
            Path(given["alive_file"]).touch()
        except OSError as problem:
            raise CommandError(f"--alive-file: {problem}") from problem


def outside(given: dict[str, Any]) -> health_signal.ExternalHealthSignal:
    """Return the signs of life that the options and systemd ask for, the first one given.

    Raises:
        CommandError: no file can be left there.
    """
    check(given)
    found = health_signal.outside(given["alive_file"])
    found.beat()
    return found

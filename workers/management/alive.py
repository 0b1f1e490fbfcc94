"""The option `--alive-file` of all long-running commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from workers.runtime import health_signal


def add_argument(parser: Any) -> None:
    parser.add_argument(
        "--alive-file",
        default="",
        metavar="PATH",
        help="a file that is touched as long as the process is healthy",
    )


def check(given: dict[str, Any]) -> None:
    """
    Raises:
        CommandError: the file cannot be written.
    """
    if given["alive_file"]:
        try:
            Path(given["alive_file"]).touch()
        except OSError as problem:
            raise CommandError(f"--alive-file: {problem}") from problem


def outside(given: dict[str, Any]) -> health_signal.ExternalHealthSignal:
    """Return the health signal that the options and systemd configure, after a first beat.

    Raises:
        CommandError: the file cannot be written.
    """
    check(given)
    found = health_signal.outside(given["alive_file"])
    found.beat()
    return found

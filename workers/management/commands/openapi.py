"""Write the OpenAPI document of this server, which `/ojs/v1/openapi.json` serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from jobs.management import base
from workers.openapi.generate import NotDescribed, document, written


class Command(base.Command):
    help = __doc__ or ""
    requires_system_checks: Any = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "file", nargs="?", type=Path, help="where to write it; without one, it is printed"
        )
        parser.add_argument(
            "--check", action="store_true", help="write nothing; fail if something is missing"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            text = written(document())
        except NotDescribed as problem:
            raise CommandError(
                f"{problem} is not described: add it to workers/openapi/operations."
            ) from problem
        if options["check"]:
            self.stdout.write("Every endpoint is described.")
        elif options["file"] is None:
            self.stdout.write(text, ending="")
        else:
            try:
                options["file"].write_text(text)
            except OSError as problem:
                raise CommandError(f"{options['file']} cannot be written: {problem}") from None
            self.stdout.write(f"Wrote {options['file']}.")

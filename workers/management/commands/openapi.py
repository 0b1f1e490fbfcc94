"""Write the OpenAPI document anew, or check that the one shipped is what the code says."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from workers.openapi.document import PATH, written


class Command(BaseCommand):
    help = __doc__ or ""
    requires_system_checks: Any = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--check", action="store_true", help="write nothing; fail if it would change"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            from workers.openapi.generate import document
        except ImportError as problem:
            raise CommandError(f"pip install 'django-ojs[openapi]' ({problem})") from problem
        text = written(document())
        if PATH.exists() and PATH.read_text() == text:
            self.stdout.write(f"{PATH.name} is what the code says.")
        elif options["check"]:
            raise CommandError(f"{PATH} is out of date: run `manage.py openapi` and commit it.")
        else:
            PATH.write_text(text)
            self.stdout.write(f"Wrote {PATH}.")

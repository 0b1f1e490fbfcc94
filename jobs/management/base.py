"""Base class of all commands."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error

from jobs.store.trouble import described


class Command(BaseCommand):
    """A command that says in one line that its database failed; `--traceback` shows the rest."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except Error as problem:
            raise CommandError(described(problem)) from problem

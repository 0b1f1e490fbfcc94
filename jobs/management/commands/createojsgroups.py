"""Create the groups OJS viewer, OJS operator and OJS admin, or bring them up to date."""

from __future__ import annotations

from typing import Any

from jobs.access.permissions import create_groups
from jobs.management import base


class Command(base.Command):
    help = __doc__ or ""

    def handle(self, *args: Any, **options: Any) -> None:
        for name, count in create_groups().items():
            outcome = f"{count} permissions added" if count else "is up to date"
            self.stdout.write(f"{name}: {outcome}.")

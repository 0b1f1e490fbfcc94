"""Register job specifications: the checksums that workers must match (usually on deployment)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from jobs import engine
from jobs.access.audit import of_shell, record_action
from jobs.management import base
from jobs.store.database import atomic

LONGEST = 255


class Command(base.Command):
    help = __doc__ or ""

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("specs", nargs="*", metavar="TYPE=CHECKSUM")
        parser.add_argument("--file", help="a JSON object of types and checksums")
        parser.add_argument(
            "--forget", action="append", default=[], metavar="TYPE", help="withdraw one"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        checksums = self._from_file(options["file"]) if options["file"] else {}
        for pair in options["specs"]:
            name, _, checksum = pair.partition("=")
            checksums[name] = checksum
        for name, checksum in checksums.items():
            sizes = (len(name), len(checksum)) if isinstance(checksum, str) else (0, 0)
            if not all(0 < size <= LONGEST for size in sizes):
                raise CommandError(f"{name!r} needs a checksum: write TYPE=CHECKSUM.")
        if not checksums and not options["forget"]:
            raise CommandError("Name at least one TYPE=CHECKSUM, --file or --forget.")
        with atomic():
            forgotten = engine.forget_specs(options["forget"])
            changed = engine.register_specs(checksums)
            if forgotten or changed:
                record_action(
                    of_shell(),
                    "register_spec",
                    kind="jobspec",
                    count=changed + forgotten,
                    selection={"registered": checksums, "withdrawn": options["forget"]},
                )
        self.stdout.write(
            f"{changed} registered, {len(checksums) - changed} as before, {forgotten} withdrawn."
        )

    def _from_file(self, name: str) -> dict[str, str]:
        try:
            found = json.loads(Path(name).read_text())
        except (OSError, ValueError) as problem:
            raise CommandError(f"{name} cannot be read: {problem}") from None
        if not isinstance(found, dict):
            raise CommandError(f"{name} must hold a JSON object of types and checksums.")
        return found

"""Move the record of events into a table partitioned by time (PostgreSQL)."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandError

from jobs.engine import event_partitions
from jobs.management import base
from jobs.store import partitions
from jobs.store.database import is_postgresql
from jobs.store.locks import Busy

TRIES = 120
PAUSE = 1.0


class Command(base.Command):
    help = __doc__ or ""

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "--status", action="store_true", help="only list the partitions and their sizes"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not is_postgresql():
            raise CommandError("Only PostgreSQL can partition the record of events.")
        if options["status"]:
            self._status()
            return
        try:
            event_partitions.move(self._say, lambda: time.sleep(PAUSE), TRIES)
        except Busy as problem:
            reason = str(problem).strip()
            raise CommandError(f"The table is in use; run this again to go on. {reason}") from None

    def _status(self) -> None:
        if not partitions.is_partitioned():
            rows, size = partitions.size()
            self._say(f"Not partitioned: about {rows:,} events, {size / 1e6:,.1f} MB.")
            if partitions.bound() is not None:
                self._say("A move has begun; run the command again to go on with it.")
            return
        there = partitions.layout()
        last_id = partitions.relation().last_id
        self._say(f"{len(there.ranges)} partitions; the last id drawn is {last_id:,}.")
        for part in (*there.ranges, *([there.rest] if there.rest else [])):
            ids = f"{part.lower:,} to {part.upper - 1:,}" if part.upper else "all other ids"
            self._say(
                f"{part.name:<32}{ids:<36}{part.rows:>14,} events{part.bytes / 1e6:>12,.1f} MB"
            )

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()

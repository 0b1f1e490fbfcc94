"""Enqueue jobs as a Django application does, in its own transaction, until stopped."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand
from django.db import DatabaseError, InterfaceError, close_old_connections, transaction

import jobs

from ...ledger import Ledger
from ...work import work

PAUSE = 0.2


class Command(BaseCommand):
    help = __doc__ or ""

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--visibility-timeout", type=float, default=15)

    def handle(self, *args: Any, **options: Any) -> None:
        folder = Path(os.environ["CAMPAIGN_FOLDER"])
        book = Ledger(folder / "enqueued-django.txt")
        while True:
            # The campaign writes the number of currently wanted jobs into it.
            wanted = int((folder / "wanted").read_text() or 0)
            if not wanted:
                time.sleep(PAUSE)
                continue
            try:
                with transaction.atomic():
                    made = jobs.enqueue_many(
                        {
                            "type": "campaign.job",
                            "args": [work(random)],
                            "queue": "campaign",
                            "visibility_timeout": options["visibility_timeout"],
                            "retry": {"max_attempts": 100, "initial_interval": "PT0.2S"},
                        }
                        for _ in range(random.randint(1, wanted))
                    )
                    ids = [str(job.id) for job in made if job is not None]
            except (DatabaseError, InterfaceError) as problem:
                self.stderr.write(f"not enqueued: {problem}".strip())
                # As at the end of a request: a broken connection is closed.
                close_old_connections()
                time.sleep(PAUSE)
                continue
            book.write_all("enqueued", ids)
            if wanted < 5:
                time.sleep(PAUSE)

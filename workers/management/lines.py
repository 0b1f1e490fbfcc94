"""What a long-running command says of itself: to its log if lines are JSON, else to its output."""

from __future__ import annotations

import logging

from django.utils import timezone

from jobs.management import base

from .. import json_log


class SpeakingCommand(base.Command):
    """A command that writes lines while it runs."""

    logger: logging.Logger
    """Gets its lines where the log is JSON."""
    dates_lines = False
    """Whether its lines begin with the time."""

    def say(self, line: str) -> None:
        if json_log.is_used():
            self.logger.info("%s", line)
            return
        moment = f"{timezone.now():%Y-%m-%d %H:%M:%S} " if self.dates_lines else ""
        self.stdout.write(f"{moment}{line}")
        self.stdout.flush()

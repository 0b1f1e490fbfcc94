"""Imported by Python at the start of a process whose machine has the wrong time."""

import os
import time
from datetime import timedelta

AHEAD = timedelta(seconds=float(os.environ["CLOCK_AHEAD"]))
seconds = time.time
time.time = lambda: seconds() + AHEAD.total_seconds()

from django.utils import timezone  # noqa: E402 (with the clock as it will be)

now = timezone.now
timezone.now = lambda: now() + AHEAD

"""What happened to workers, for the site to hang on; sent after commit (see `jobs.signals`)."""

from __future__ import annotations

from django.dispatch import Signal

worker_registered = Signal()
"""`worker_id`, `incarnation`."""
worker_left = Signal()
"""`worker_id`: it deregistered, or fell silent with nothing left to do."""
workers_died = Signal()
"""`worker_ids`: they were declared dead."""
worker_returned = Signal()
"""`worker_id`: it had been declared dead, and speaks again."""

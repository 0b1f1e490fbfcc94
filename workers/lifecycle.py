"""A worker's states and their one-way order (OJS worker protocol §2)."""

from __future__ import annotations

from django.db import models


class WorkerState(models.TextChoices):
    RUNNING = "running"
    QUIET = "quiet"
    TERMINATE = "terminate"
    TERMINATED = "terminated"

    @property
    def rank(self) -> int:
        """Position in the order from which nothing but quiet → running leads back (§2.3)."""
        return list(WorkerState).index(self)


def strictest(*states: str) -> WorkerState:
    """Return the state furthest along; empty ones do not count."""
    return max((WorkerState(state) for state in states if state), key=lambda state: state.rank)

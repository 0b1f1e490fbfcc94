"""A worker's states and their one-way order (OJS worker protocol §2)."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class WorkerState(models.TextChoices):
    RUNNING = "running", _("Running")
    QUIET = "quiet", _("Quiet")
    TERMINATE = "terminate", _("Terminate")
    TERMINATED = "terminated", _("Terminated")

    @property
    def rank(self) -> int:
        """Position in the order; the only way back is quiet → running (§2.3)."""
        return list(WorkerState).index(self)


def strictest(*states: str) -> WorkerState:
    """Return the state furthest along, ignoring empty ones."""
    return max((WorkerState(state) for state in states if state), key=lambda state: state.rank)


def desired(state: str, directive: str) -> WorkerState:
    """The desired state of a worker in `state`, given an operator's `directive` (§4.4).

    Never milder than what the worker reports, unless one directive quieted it and a later one
    resumes it.
    """
    if directive == WorkerState.RUNNING and state == WorkerState.QUIET:
        return WorkerState.RUNNING
    return strictest(state, directive)

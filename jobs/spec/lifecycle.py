"""Life cycle of a job as data: states, events and their transitions (OJS core §6).

Nothing here touches a database. `JobQuerySet.transition()` turns a row of this table into the
`WHERE` of an UPDATE; that is the only way a state changes.
"""

from __future__ import annotations

import enum
from functools import cache

from django.db import models
from django.utils.translation import gettext_lazy as _


class State(models.TextChoices):
    """The eight states of a job (OJS core §6.1)."""

    SCHEDULED = "scheduled", _("Scheduled")
    AVAILABLE = "available", _("Available")
    PENDING = "pending", _("Pending")
    ACTIVE = "active", _("Active")
    COMPLETED = "completed", _("Completed")
    RETRYABLE = "retryable", _("Retryable")
    CANCELLED = "cancelled", _("Cancelled")
    DISCARDED = "discarded", _("Discarded")


class Event(enum.Enum):
    """What can happen to a job."""

    PUSH = "push"
    TIMER = "timer"
    """`scheduled_at` or the backoff delay has been reached."""
    ACTIVATE = "activate"
    READY = "ready"
    """What a pending job waited for is over: other jobs, or earlier runs of its cron job."""
    FETCH = "fetch"
    ACK = "ack"
    FAIL = "fail"
    TIMEOUT = "timeout"
    """The reservation was lost: it expired, or its worker died (OJS worker §5.5, §10.2)."""
    RELEASE = "release"
    """The worker returns the job unfinished; the attempt does not count."""
    CANCEL = "cancel"
    EXPIRE = "expire"
    """`expires_at` passed before a worker took the job (OJS core §5.2)."""
    RETRY = "retry"
    """An operator grants fresh attempts: to a dead job, or to one cancelled by mistake."""
    DEFER = "defer"
    """A rate limit postpones the job (OJS rate limiting §6.2, `reschedule`)."""


TERMINAL = frozenset({State.COMPLETED, State.CANCELLED, State.DISCARDED})

WAITING = frozenset({State.SCHEDULED, State.AVAILABLE, State.PENDING, State.RETRYABLE})
"""Not finished, and not held by a worker."""

# OJS core §6.3, row by row. TIMEOUT → discarded is §5.5.4 of the worker protocol, RELEASE is the
# voluntary counterpart of TIMEOUT, EXPIRE is core §5.2, DEFER rate limiting §6.2, and
# RETRY of a cancelled job §7.4 of the Admin API. READY is to a job that this server made before its
# turn what PUSH is to a step that it makes in its turn.
TRANSITIONS: dict[Event, dict[State | None, frozenset[State]]] = {
    Event.PUSH: {None: frozenset({State.SCHEDULED, State.AVAILABLE, State.PENDING})},
    Event.TIMER: {
        State.SCHEDULED: frozenset({State.AVAILABLE}),
        State.RETRYABLE: frozenset({State.AVAILABLE}),
    },
    Event.ACTIVATE: {State.PENDING: frozenset({State.AVAILABLE})},
    Event.READY: {State.PENDING: frozenset({State.SCHEDULED, State.AVAILABLE})},
    Event.FETCH: {State.AVAILABLE: frozenset({State.ACTIVE})},
    Event.ACK: {State.ACTIVE: frozenset({State.COMPLETED})},
    Event.FAIL: {State.ACTIVE: frozenset({State.RETRYABLE, State.DISCARDED})},
    Event.TIMEOUT: {State.ACTIVE: frozenset({State.AVAILABLE, State.DISCARDED})},
    Event.RELEASE: {State.ACTIVE: frozenset({State.AVAILABLE})},
    Event.CANCEL: {
        state: frozenset({State.CANCELLED}) for state in sorted(WAITING | {State.ACTIVE})
    },
    Event.EXPIRE: {state: frozenset({State.DISCARDED}) for state in sorted(WAITING)},
    Event.RETRY: {
        State.DISCARDED: frozenset({State.AVAILABLE}),
        State.CANCELLED: frozenset({State.AVAILABLE}),
    },
    Event.DEFER: {State.AVAILABLE: frozenset({State.SCHEDULED})},
}


@cache
def sources(event: Event, to: State) -> tuple[State, ...]:
    """Return the states from which `event` may lead to `to`; empty if none (OJS core §6.3)."""
    return tuple(
        state
        for state, targets in TRANSITIONS[event].items()
        if state is not None and to in targets
    )

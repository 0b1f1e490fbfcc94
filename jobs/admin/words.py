"""Labels of the protocols' states on a page; the wire has its own words for them.

A translation context separates a word from the same word elsewhere: an order, or another app's.
"""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

WORDS = {
    # Jobs and workflows
    "scheduled": _("scheduled"),
    "available": _("available"),
    "pending": _("pending"),
    "active": pgettext_lazy("state", "active"),
    "completed": _("completed"),
    "retryable": _("retryable"),
    "cancelled": _("cancelled"),
    "discarded": _("discarded"),
    "waiting": _("waiting"),
    "failed": _("failed"),
    "compensating": _("compensating"),
    "compensated": _("compensated"),
    "not_fired": _("not needed"),
    # Queues
    "paused": _("paused"),
    # Workers
    "running": _("running"),
    "quiet": _("quiet"),
    "terminate": pgettext_lazy("state", "terminate"),
    "terminated": _("terminated"),
}


def word(state: str) -> str:
    """Return the label of a state; the state itself if it has none here."""
    return str(WORDS.get(state, state))

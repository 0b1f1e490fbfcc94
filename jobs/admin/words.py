"""What the states of the protocols are called on a page; the wire has its own words for them.

A context tells a word from the same one elsewhere: an order, or what another app says by it.
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
    # Queues
    "paused": _("paused"),
    # Workers
    "running": _("running"),
    "quiet": _("quiet"),
    "terminate": pgettext_lazy("state", "terminate"),
    "terminated": _("terminated"),
}


def word(state: str) -> str:
    """The operator's word for a state; one that nobody named here is shown as it is."""
    return str(WORDS.get(state, state))

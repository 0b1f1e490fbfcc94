"""Times in words, for pages and for notifications."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta

from django.utils.translation import gettext as _

from ..store import clock

UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def span(length: timedelta) -> str:
    """A duration in its two largest units: `3 s`, `4 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    seconds = max(0, int(length.total_seconds()))
    for (size, unit), (smaller, small_unit) in itertools.pairwise(UNITS):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            rest //= smaller
            return f"{whole} {unit} {rest} {small_unit}" if rest else f"{whole} {unit}"
    return f"{seconds} s"


def distance(moment: datetime) -> str:
    """How far a moment is from now: `12 s ago`, `in 5 min`."""
    ahead = moment - clock.now()
    if ahead > timedelta(seconds=1):
        return _("in %(span)s") % {"span": span(ahead)}
    return _("%(span)s ago") % {"span": span(-ahead)}

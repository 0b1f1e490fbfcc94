"""Reads from a standby, where an answer that is slightly old will do (`OJS["READ_DATABASE"]`).

Inside `answer()` the database of jobs is the standby: `database.alias()` names it, and a router
sends the queries of both apps there. It refuses to write, so nothing can be decided by what is old.
If it is away, or too far behind, the same is answered from the database itself.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError, connections

from ..conf import ojs_settings
from . import clock
from .database import APPS, connection, elsewhere, home, reading_from
from .event_order import NotReplayed
from .routing import Installed

logger = logging.getLogger("jobs.standby")

HEADER = "OJS-Standby-Lag"
"""The header of answers from a standby: how many seconds old they are at most."""
LONGEST_LAG = 60.0
"""Seconds behind the primary from which on the standby is not read."""
AGAIN = 10.0
"""Seconds before a standby that was away is tried again."""
# The time of the last commit that was replayed, by the primary's clock. While nothing is written,
# that grows without anything missing: an upper limit.
REPLAY = "SELECT pg_is_in_recovery(), pg_last_xact_replay_timestamp()"

Answer = TypeVar("Answer", bound=Any)


class Router:
    """Reads the models of both apps from the standby, in threads that do so at the moment."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return (elsewhere() or None) if model._meta.app_label in APPS else None


installed = Installed(Router())
_away_until = 0.0
_is_away = False


def places() -> tuple[str, ...]:
    """Return the databases that this app connects to: that of jobs, and its standby."""
    name = ojs_settings.READ_DATABASE
    return (home(), name) if name else (home(),)


def answer(respond: Callable[[], Answer]) -> Answer:
    """Return the response that `respond` makes, with its reads from the standby if there is one.

    `respond` must be repeatable. A response from the standby has the header `OJS-Standby-Lag`.
    """
    name = ojs_settings.READ_DATABASE
    if not name or name == home() or connections[home()].vendor != "postgresql":
        return respond()
    if time.monotonic() < _away_until:
        return respond()
    try:
        with _reading(name):
            lag = _lag()
            if lag <= LONGEST_LAG:
                response = respond()
                response.headers[HEADER] = f"{lag:.3f}"
                _returned(name)
                return response
        _failed(name, f"it is {lag:.0f} seconds behind")
    except NotReplayed:
        pass
    except (DatabaseError, InterfaceError) as problem:
        # A standby also ends queries that keep it from replaying for too long.
        _failed(name, str(problem))
    return respond()


def _lag() -> float:
    with connection().cursor() as cursor:
        cursor.execute(REPLAY)
        is_standby, replayed = cursor.fetchone()
    if not is_standby:
        return 0.0
    if replayed is None:
        return float("inf")
    return max(0.0, float((clock.now() - replayed).total_seconds()))


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    with installed(), reading_from(name):
        yield


def _failed(name: str, why: str) -> None:
    global _away_until, _is_away
    _away_until = time.monotonic() + AGAIN
    if not _is_away:
        _is_away = True
        logger.warning("The standby %r is not read, but the database itself: %s", name, why)


def _returned(name: str) -> None:
    global _is_away
    if _is_away:
        _is_away = False
        logger.warning("The standby %r is read again.", name)

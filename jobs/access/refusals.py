"""Audit of refused requests: 401 and 403 of every protocol (OJS security §11.1).

One row of the audit counts all similar refusals of a minute, so a scanner cannot fill the table,
neither by repeating itself nor by coming from many addresses. What a client sent is not recorded,
for a mistyped key is nearly a key.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, InterfaceError
from django.db.models import Q
from django.db.models.functions import Now

from ..conf import ojs_settings
from ..errors import NotAuthenticated, OJSError, PermissionDenied
from ..models import OperatorAction, Source
from ..models.audit import REFUSED
from ..store.database import atomic
from .audit import Actor, record_action

logger = logging.getLogger("jobs.access")

AUDITED = (NotAuthenticated, PermissionDenied)
MINUTE = 60.0
ROWS = 20
"""Rows in a minute for unknown callers, and as many for known keys, over all processes: a scanner
cannot hide the use of a revoked key."""
STRANGER = "unknown"
REMEMBERED = 1000
"""Kinds of refusals that a process distinguishes."""
LONGEST_PART = 40
"""Characters recorded of each part of a path. A job's id is shorter, and a key longer."""
BATCH_SIZE = 500

Kind = tuple[str, str, str, str]
"""Address, protocol, reason and name of the key: refusals that agree in these are counted as one
kind."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row to write."""

    kind: Kind
    count: int
    """How many refusals it counts: this one, and those of its kind since the kind's last row."""
    call: str
    scope: str
    others: int
    """Refusals of other kinds that got no row since this process last wrote one."""


class Throttle:
    """Decides what is written. Bounded in memory, thread-safe, and without database access."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: OrderedDict[Kind, list[float]] = OrderedDict()
        """Kind → until when it is only counted, and how often it occurred. Oldest first."""
        self._rows = {True: 0, False: 0}
        """Rows for unknown callers, and for keys, in the minute that ends at `_until`."""
        self._until = 0.0
        self._others = 0

    def take(self, kind: Kind, now: float, *, call: str = "", scope: str = "") -> Refusal | None:
        """Count one refusal; return the row to write, if one is due."""
        with self._lock:
            known = self._kinds.get(kind)
            if known is not None and now < known[0]:
                known[1] += 1
                return None
            if now >= self._until:
                self._until, self._rows = now + MINUTE, {True: 0, False: 0}
            is_stranger = not kind[-1]
            if self._rows[is_stranger] >= ROWS:
                self._others += 1
                return None
            self._rows[is_stranger] += 1
            self._kinds.pop(kind, None)
            self._forget(now)
            self._kinds[kind] = [now + MINUTE, 0]
            others, self._others = self._others, 0
            return Refusal(kind, 1 + int(known[1] if known else 0), call, scope, others)

    def _forget(self, now: float) -> None:
        """Forget kinds whose minute is over, and the oldest of too many; keep their counts."""
        while self._kinds:
            until, count = next(iter(self._kinds.values()))
            if now < until and len(self._kinds) < REMEMBERED:
                return
            self._kinds.popitem(last=False)
            self._others += int(count)

    def put_back(self, refusal: Refusal) -> None:
        """Count a row that could not be written among the others."""
        with self._lock:
            self._others += refusal.count + refusal.others


_throttle = Throttle()


def forget() -> None:
    """Start afresh, as a new process does."""
    global _throttle
    _throttle = Throttle()


def note(problem: Exception, **about: Any) -> None:
    """Record that a request was refused, if it was and if a row is due.

    Args:
        about: the arguments of `seen`.
    """
    refusal = seen(problem, **about)
    if refusal is not None:
        record(refusal)


def seen(
    problem: Exception, *, protocol: str, address: str, key: str = "", call: str = ""
) -> Refusal | None:
    """Count a refusal without a query; return the row that `record` is to write.

    Args:
        problem: the exception; anything but a refusal is ignored.
        key: name of the key that sent the request; empty without a valid one.
        call: the command, or method and path; nothing that the client made up.
    """
    if not isinstance(problem, AUDITED):
        return None
    reason, scope = "permission_denied", ""
    if isinstance(problem, NotAuthenticated):
        reason, key = problem.reason, problem.key or key
    elif isinstance(problem, OJSError):
        scope = str(problem.details.get("scope", ""))
    kind = (address[:255], protocol, reason, key)
    return _throttle.take(kind, time.monotonic(), call=call, scope=scope)


def record(refusal: Refusal) -> None:
    """Write the row, unless other processes have written enough of them in this minute.

    A database that is unavailable, or refuses the row, changes nothing for the client.
    """
    address, protocol, reason, key = refusal.kind
    about: dict[str, Any] = {"protocol": protocol, "reason": reason, "call": refusal.call}
    if refusal.scope:
        about["scope"] = refusal.scope
    if refusal.others:
        about["not_recorded"] = refusal.others
    actor = Actor(key or STRANGER, Source.API, address)
    try:
        with atomic():
            lately = OperatorAction.objects.filter(
                verb=REFUSED, done_at__gt=Now() - timedelta(seconds=MINUTE)
            )
            same = Q(actor=STRANGER)
            # Processes that count at the same moment may each write one row too many.
            if lately.filter(~same if key else same).count() >= ROWS:
                _throttle.put_back(refusal)
                return
            record_action(
                actor,
                REFUSED,
                kind="apikey",
                count=refusal.count,
                selection={name: value for name, value in about.items() if value},
                history=False,
            )
    except (DatabaseError, InterfaceError) as problem:
        _throttle.put_back(refusal)
        logger.warning("A refused request could not be recorded: %s", problem)


def call_of(method: str, path: str) -> str:
    """Return method and path of a request, without anything that might be a misplaced key."""
    parts = (part if len(part) <= LONGEST_PART else "…" for part in path.split("/"))
    return f"{method} {'/'.join(parts)}"[:200]


def prune() -> int:
    """Delete one batch of refusals past the retention of events. Operators' actions are kept."""
    old = OperatorAction.objects.filter(
        verb=REFUSED, done_at__lte=Now() - ojs_settings.EVENT_RETENTION
    )
    ids = list(old.order_by("done_at").values_list("pk", flat=True)[:BATCH_SIZE])
    return OperatorAction.objects.filter(pk__in=ids).delete()[0]

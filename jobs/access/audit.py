"""Audit of operators: one `OperatorAction` for each action, beside Django's own history.

    record_action(of_request(request), "pause_queue", queues, reason=answer.reason)

Call it inside the transaction of the action, so that both are committed or neither is.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db.models import F
from django.http import HttpRequest
from django.utils.encoding import force_str
from django.utils.translation import gettext

from ..models import OperatorAction, Source
from ..store import clock
from .address import address_of

if TYPE_CHECKING:
    from ..http.authentication import Caller

SHOWN = 100
"""Keys of targets that an action lists; the rest are only counted."""
CHANGE = 2
"""Django's flag of a history entry that records a change."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, and through which interface."""

    name: str
    source: Source
    address: str = ""
    user_id: Any = None
    """Key of the site's user, if it is one: Django's history needs it."""


def of_request(request: HttpRequest) -> Actor:
    """The user of the admin who sent this request."""
    user = request.user
    return Actor(user.get_username(), Source.ADMIN, address_of(request.META), user.pk)


def of_caller(caller: Caller, request: HttpRequest) -> Actor:
    """The API key that sent this request."""
    return Actor(caller.name, Source.API, address_of(request.META))


def of_shell() -> Actor:
    """The user who runs this process."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        name = "shell"
    return Actor(name, Source.SHELL, socket.gethostname())


def record_action(
    actor: Actor,
    verb: str,
    targets: Sequence[Any] = (),
    *,
    kind: str = "",
    count: int | None = None,
    selection: dict[str, Any] | None = None,
    reason: str = "",
    message: Any = "",
    flag: int = CHANGE,
    history: bool = True,
) -> OperatorAction:
    """Record what an operator did; for a user of the site, in the history of each target too.

    Args:
        verb: the permission it takes, without its app.
        targets: the affected model instances.
        kind: model name of the targets; by default, that of the first.
        count: how many were changed, where that is not the number of `targets`.
        selection: how they were chosen; the keys of the first are added.
        message: for the history of each target; by default, the verb.
        flag: Django's action flag for it.
        history: False where Django's own form has written the history already.
    """
    chosen = dict(selection or {})
    if targets:
        chosen["ids"] = [str(target.pk) for target in targets[:SHOWN]]
        kind = kind or targets[0]._meta.model_name
    action = OperatorAction.objects.create(
        actor=actor.name[:255],
        source=actor.source,
        address=actor.address[:255],
        verb=verb,
        target_kind=kind,
        count=len(targets) if count is None else count,
        selection=chosen,
        reason=reason,
        done_at=clock.now(),
    )
    if history:
        _write_history(actor, targets or [action], force_str(message or verb), reason, flag)
    return action


class Tally:
    """One action that takes several transactions: each commits what it did with its record."""

    def __init__(self, actor: Actor, verb: str, **about: Any) -> None:
        """
        Args:
            about: as of `record_action()`.
        """
        self._actor, self._verb, self._about = actor, verb, about
        self._key: Any = None

    def add(self, count: int) -> None:
        """Note that so many more were changed."""
        # If the transaction that recorded it was rolled back, there is no such action.
        same = OperatorAction.objects.filter(pk=self._key)
        if not same.update(count=F("count") + count):
            self._key = record_action(self._actor, self._verb, count=count, **self._about).pk


def _write_history(actor: Actor, targets: Sequence[Any], text: str, reason: str, flag: int) -> None:
    """Write one entry of Django's history for each target."""
    if actor.user_id is None or not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin.models import LogEntry

    if reason:
        text = gettext("%(text)s Reason: %(reason)s") % {"text": text, "reason": reason}
    LogEntry.objects.log_actions(actor.user_id, targets, flag, text)

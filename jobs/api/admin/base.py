"""What every endpoint of the Admin API shares: its scope by method, confirmation, the audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ... import fields, projects
from ...audit import Actor, of_caller, record_action
from ...errors import PermissionDenied
from ...fields import Document, refuse
from ...models import Scope
from ..base import READS, OJSViewSet

REASON = 2000


class AdminViewSet(OJSViewSet):
    """An endpoint of operators: to look takes one scope, to change another (§13.1)."""

    purges: ClassVar[frozenset[str]] = frozenset()
    """Actions that delete jobs for good, which takes a scope of its own."""
    is_about_everything: ClassVar[bool] = False
    """It concerns the whole server: nothing for the key of a project."""

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self.is_about_everything and self.caller.project:
            raise PermissionDenied(
                "This API key belongs to a project, and this concerns the whole server.",
                project=self.caller.project,
            )

    @property
    def scope(self) -> str:
        if self.action in self.purges:
            return Scope.ADMIN_PURGE
        return Scope.ADMIN_READ if self.request.method in READS else Scope.ADMIN_WRITE

    @property
    def actor(self) -> Actor:
        return of_caller(self.caller, self.request)

    def own(self, rows: Any) -> Any:
        """What of `rows` the caller may see: all, unless its key belongs to a project."""
        return projects.own(rows, self.caller.project)

    def audit(self, verb: str, targets: Sequence[Any] = (), **how: Any) -> None:
        record_action(self.actor, verb, targets, **how)


def reason_of(body: Document) -> str:
    """Why, for the audit; every request that changes something may say it."""
    return fields.text(body, "reason", "", longest=REASON) or ""


def confirmed(body: Document, what: str) -> None:
    """
    Raises:
        InvalidRequest: the request does not say that it means it (§4.4).
    """
    if not fields.boolean(body, "confirm"):
        raise refuse("confirm", f"The 'confirm' field must be true: {what}", validation="const")

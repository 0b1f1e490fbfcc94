"""Shared by the endpoints of the Admin API: confirmation, the audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...access import Binding, projects
from ...access.audit import Actor, of_caller, record_action
from ...http.base import OJSViewSet
from ...spec.fields import Document, refuse
from ...spec.operator_requests import Confirmed, Reason


class AdminViewSet(OJSViewSet):
    """An endpoint for operators: reading takes one scope, changing another (§13.1)."""

    binding = Binding.ADMIN

    @property
    def actor(self) -> Actor:
        return of_caller(self.caller, self.request)

    def scoped(self, rows: Any) -> Any:
        """The part of `rows` that the caller may see: all, unless its key belongs to a project."""
        return projects.scope_to(rows, self.caller.project)

    def audit(self, verb: str, targets: Sequence[Any] = (), **how: Any) -> None:
        record_action(self.actor, verb, targets, **how)


def reason_of(body: Document) -> str:
    """The reason for the audit; every request that changes something may contain one."""
    return Reason.reason.read(body)


def confirmed(body: Document, what: str) -> None:
    """
    Raises:
        InvalidRequest: the request does not contain the confirmation (§4.4).
    """
    if not Confirmed.confirm.read(body):
        raise refuse("confirm", f"The 'confirm' field must be true: {what}", validation="const")

"""REST framework permissions, from the table of authorization (`jobs.access`, `workers.access`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from .. import access
from ..errors import PermissionDenied

if TYPE_CHECKING:
    from .authentication import ApiKeyAuthentication, Caller
    from .base import OJSViewSet
    from .request import Meta


class MayUseCommand(BasePermission):
    """The table allows the caller to use the command.

    A method that the address does not have is answered 405, with or without a key.
    """

    def has_permission(self, request: Request, view: OJSViewSet) -> bool:  # type: ignore[override]
        """
        Raises:
            NotAuthenticated: there is no valid key.
            PermissionDenied: the table does not allow it; names the missing scope.
        """
        if view.action and not view.is_open:
            access.authorize(view.caller, view.command)
        return True


def check_again(
    before: Caller,
    command: access.Command | None,
    *,
    authentication: ApiKeyAuthentication,
    method: str,
    meta: Meta,
) -> None:
    """Check that the client of a request that waits may still use the command.

    For each look. It costs no query while the key is cached (`API_KEY_CACHE`).

    Args:
        before: the caller when the request arrived.

    Raises:
        NotAuthenticated: the key is no longer valid.
        PermissionDenied: the key no longer allows it, or is bound to something else now.
    """
    caller = authentication.caller(method, meta)
    access.authorize(caller, command)
    if (caller.project, caller.worker_id, caller.label) != (
        before.project,
        before.worker_id,
        before.label,
    ):
        raise PermissionDenied(
            "This API key has been bound to something else while the request was waiting.",
            hint="Send the request again.",
        )


class OfOwnProject(BasePermission):
    """The URL names only objects of the caller's project, if the caller has one."""

    def has_permission(self, request: Request, view: OJSViewSet) -> bool:  # type: ignore[override]
        """
        Raises:
            NotFound: the object belongs to another project.
        """
        if view.action and not view.is_open and view.caller.project:
            view.confine(view.caller, **view.kwargs)
        return True

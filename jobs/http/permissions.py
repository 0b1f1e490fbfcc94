"""REST framework permissions, from the table of authorization (`jobs.access`, `workers.access`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from .. import access

if TYPE_CHECKING:
    from .base import OJSViewSet


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

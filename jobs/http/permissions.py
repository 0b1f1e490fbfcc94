"""REST framework's way to the table of authorization (`jobs.access`, `workers.access`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from .. import access

if TYPE_CHECKING:
    from .base import OJSViewSet


class MayUseCommand(BasePermission):
    """The table opens the command to the caller.

    A method that the address does not have is answered 405, with a key or without.
    """

    def has_permission(self, request: Request, view: OJSViewSet) -> bool:  # type: ignore[override]
        """
        Raises:
            NotAuthenticated: there is no good key.
            PermissionDenied: the table says no; with the scope that is missing.
        """
        if view.action and not view.is_open:
            access.authorize(view.caller, view.command)
        return True


class OfOwnProject(BasePermission):
    """What the URL names is of the caller's project, if it has one."""

    def has_permission(self, request: Request, view: OJSViewSet) -> bool:  # type: ignore[override]
        """
        Raises:
            NotFound: another project's things do not exist for this caller.
        """
        if view.action and not view.is_open and view.caller.project:
            view.confine(view.caller, **view.kwargs)
        return True

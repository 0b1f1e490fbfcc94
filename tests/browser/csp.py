"""The policy under which the admin must work: nothing inline, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

POLICY = "default-src 'self'"


def strict(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def middleware(request: Any) -> Any:
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return middleware

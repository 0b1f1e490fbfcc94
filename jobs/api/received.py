"""A request as the views see it."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest


class Received:
    """Django's request, with the names that views written for REST framework use.

    That framework's own request parses bodies, logs in and negotiates, each on first use and behind
    `__getattr__`. Here nothing of it is left to do, and it took a tenth of a small request's time.
    """

    __slots__ = ("META", "__weakref__", "_request", "method")

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self.META = request.META
        self.method = request.method

    @property
    def query_params(self) -> Any:
        return self._request.GET

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

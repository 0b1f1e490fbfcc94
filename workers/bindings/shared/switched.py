"""URL patterns that match nothing while an option is off, so that a site may use the paths."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.http import Http404
from django.urls.resolvers import RegexPattern, RoutePattern, URLPattern


class Switched(URLPattern):
    """Checks the option for each request whose path no earlier pattern has matched.

    The view is imported on first use; if the option is off, never.
    """

    def __init__(
        self,
        pattern: Any,
        load: Callable[[], Any],
        is_on: Callable[[], bool],
        name: str | None = None,
    ) -> None:
        self._load = cache(load)
        self._is_on = is_on
        super().__init__(pattern, load, name=name)

    @property
    def callback(self) -> Any:
        # `reverse` accesses the view of every pattern once; so does the system check of URLs, which
        # runs beside the one that reports a wrong setting.
        try:
            return self._load() if self._is_on() else _nothing
        except ImproperlyConfigured:
            return _nothing

    @callback.setter
    def callback(self, load: Any) -> None:
        """Django assigns the callback here; it is computed instead."""

    def switched_on(self) -> URLPattern:
        """The pattern as it is with the option on, for documentation of all endpoints."""
        return URLPattern(self.pattern, self._load(), name=self.name)

    def resolve(self, path: str) -> Any:
        return super().resolve(path) if self._is_on() else None


def _nothing(request: Any, **kwargs: Any) -> Any:
    """Placeholder for a view that is not served."""
    raise Http404


def route(path: str, load: Callable[[], Any], is_on: Callable[[], bool], name: str) -> Switched:
    return Switched(RoutePattern(path, name=name, is_endpoint=True), load, is_on, name)


def everything_below(prefix: str, load: Callable[[], Any], is_on: Callable[[], bool]) -> Switched:
    """Match all other paths whose first segment is `prefix`, for a 404 in the format of the
    protocol."""
    return Switched(RegexPattern(rf"^{prefix}(?:/|\Z)"), load, is_on)

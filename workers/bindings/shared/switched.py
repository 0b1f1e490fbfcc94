"""URL patterns that match nothing while an option is off, so that a site may have its own there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.http import Http404
from django.urls.resolvers import RegexPattern, RoutePattern, URLPattern


class Switched(URLPattern):
    """Asked at each request, and only for a path that no other pattern before it took.

    What answers is imported when it is first asked for: switched off, it is never.
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
        # `reverse` looks at the view of every pattern there is, once; so does the system check of
        # URLs, beside the one that tells of a wrong setting.
        try:
            return self._load() if self._is_on() else _nothing
        except ImproperlyConfigured:
            return _nothing

    @callback.setter
    def callback(self, load: Any) -> None:
        """Django keeps here what it is given; we have it already."""

    def switched_on(self) -> URLPattern:
        """The pattern as it is where the option is on, for the description of all there is."""
        return URLPattern(self.pattern, self._load(), name=self.name)

    def resolve(self, path: str) -> Any:
        return super().resolve(path) if self._is_on() else None


def _nothing(request: Any, **kwargs: Any) -> Any:
    """Stands for a view that is not served."""
    raise Http404


def route(path: str, load: Callable[[], Any], is_on: Callable[[], bool], name: str) -> Switched:
    return Switched(RoutePattern(path, name=name, is_endpoint=True), load, is_on, name)


def everything_below(prefix: str, load: Callable[[], Any], is_on: Callable[[], bool]) -> Switched:
    """The pattern of all other paths that begin with the segment `prefix`: a 404 of the protocol's
    own."""
    return Switched(RegexPattern(rf"^{prefix}(?:/|\Z)"), load, is_on)

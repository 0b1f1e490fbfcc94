"""Routers that stand before those of the site only while a thread needs them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from django.db import router


class Installed:
    """Installs a router for as long as any thread is in its context; contexts may be nested."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self._count = 0
        """How many contexts are active now, in all threads."""
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        self._change(+1)
        try:
            yield
        finally:
            self._change(-1)

    def _change(self, by: int) -> None:
        with self._lock:
            self._count += by
            # A new list: the existing one may be being read. A test that overrides the setting
            # creates a new list as well.
            others = [other for other in router.routers if other is not self._own]
            router.routers = [self._own, *others] if self._count else others

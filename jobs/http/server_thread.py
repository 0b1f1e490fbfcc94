"""Threads that each process of a web server has, and no management command."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from django.core import mail
from django.core.signals import request_started


class ServerThread:
    """A daemon thread, started once in a process.

    The first request starts it, or the startup event of `workers.asgi.JobServer`.
    """

    def __init__(self, name: str, target: Callable[[], None]) -> None:
        self.name = name
        self._target = target
        self._begun = threading.Event()

    @property
    def has_begun(self) -> bool:
        return self._begun.is_set()

    def at_first_request(self) -> None:
        """Have the first request of this process start it."""
        request_started.connect(self._on_request, dispatch_uid=self.name)

    def begin(self) -> None:
        """Start it, unless it has begun or the tests of a site are running."""
        request_started.disconnect(dispatch_uid=self.name)
        # Django's test runners, and pytest-django, set this for as long as they run.
        if hasattr(mail, "outbox") or self._begun.is_set():
            return
        self._begun.set()
        threading.Thread(target=self._target, name=self.name, daemon=True).start()

    def _on_request(self, **kwargs: Any) -> None:
        self.begin()

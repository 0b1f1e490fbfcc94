"""What this process would send to Sentry, in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sentry_sdk


class Sent(sentry_sdk.transport.Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.items += [json.loads(item.get_bytes()) for item in envelope.items]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [item for item in self.items if "exception" in item]

    def transaction(self, name: str) -> dict[str, Any]:
        (found,) = (
            item for item in self.items if item.get("transaction") == name and "spans" in item
        )
        return found


@contextmanager
def reported() -> Iterator[Sent]:
    """Keep what is sent as long as the block lasts."""
    sent = Sent()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(
            "https://key@sentry.invalid/1",
            transport=sent,
            traces_sample_rate=1.0,
            auto_enabling_integrations=False,
        )
        yield sent
    sentry_sdk.init()

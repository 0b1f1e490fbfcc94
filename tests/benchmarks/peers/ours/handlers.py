"""No-op job of every peer, as a handler."""

from __future__ import annotations

from typing import Any

from workers.runtime import handler

from .. import peer_jobs


@handler("peers.tick")
def tick(context: Any) -> None:
    peer_jobs.tick()

"""Selects the store that writes heartbeats: that of the jobs' database."""

from __future__ import annotations

from jobs.store.choice import is_portable

from .contract import HeartbeatStore
from .portable import PortableHeartbeatStore
from .postgres import PostgresHeartbeatStore

POSTGRES = PostgresHeartbeatStore()
PORTABLE = PortableHeartbeatStore()


def store() -> HeartbeatStore:
    return PORTABLE if is_portable() else POSTGRES

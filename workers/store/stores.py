"""Selects the store that writes heartbeats: that of the jobs' database."""

from __future__ import annotations

from jobs.store.database import is_postgresql

from .contract import HeartbeatStore
from .portable import PortableHeartbeatStore
from .postgres import PostgresHeartbeatStore

POSTGRES = PostgresHeartbeatStore()
PORTABLE = PortableHeartbeatStore()


def store() -> HeartbeatStore:
    return POSTGRES if is_postgresql() else PORTABLE

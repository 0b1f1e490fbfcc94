"""Selects the store for the database that holds the jobs."""

from __future__ import annotations

from .contract import Store
from .database import is_postgresql
from .portable import PortableStore
from .postgres import PostgresStore

POSTGRES = PostgresStore()
PORTABLE = PortableStore()


def store() -> Store:
    return POSTGRES if is_postgresql() else PORTABLE

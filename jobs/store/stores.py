"""Selects the store: by the database that holds the jobs, or as the site says."""

from __future__ import annotations

from .choice import is_portable
from .contract import Store
from .portable import PortableStore
from .postgres import PostgresStore

POSTGRES = PostgresStore()
PORTABLE = PortableStore()


def store() -> Store:
    return PORTABLE if is_portable() else POSTGRES

"""Which store writes the rows: that of the database in which the jobs live."""

from __future__ import annotations

from .contract import Store
from .database import is_postgresql
from .portable import PortableStore
from .postgres import PostgresStore

POSTGRES = PostgresStore()
PORTABLE = PortableStore()


def store() -> Store:
    return POSTGRES if is_postgresql() else PORTABLE

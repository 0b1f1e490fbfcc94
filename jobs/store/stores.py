"""Selects the store: by the database that holds the jobs, or as the site says."""

from __future__ import annotations

from .choice import CITUS, PORTABLE, POSTGRESQL, chosen
from .citus import CitusStore
from .contract import Store
from .portable import PortableStore
from .postgres import PostgresStore

STORES: dict[str, Store] = {
    POSTGRESQL: PostgresStore(),
    CITUS: CitusStore(),
    PORTABLE: PortableStore(),
}


def store() -> Store:
    return STORES[chosen()]

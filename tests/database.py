"""The database in which the tests have their jobs, whatever alias it goes by."""

from __future__ import annotations

from django.db import connections
from django.utils.connection import ConnectionProxy

from jobs.database import alias, atomic

connection = ConnectionProxy(connections, alias())
"""As `django.db.connection`, of the database that jobs and workers live in."""

__all__ = ["alias", "atomic", "connection"]

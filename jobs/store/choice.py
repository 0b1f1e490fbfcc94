"""Which store writes: the one for PostgreSQL, or the portable one (`OJS["STORE"]`).

The portable store also runs on PostgreSQL, and on engines that speak its protocol but not all of
its dialect: Citus refuses some of the statements made for PostgreSQL, and runs others on another
node than the one that all processes are connected to.
"""

from __future__ import annotations

from ..conf import ojs_settings
from .database import is_postgresql

AUTO, POSTGRESQL, PORTABLE = "auto", "postgresql", "portable"
CHOICES = (AUTO, POSTGRESQL, PORTABLE)


def is_portable() -> bool:
    """Whether statements must be such as any database takes."""
    return ojs_settings.STORE == PORTABLE or not is_postgresql()

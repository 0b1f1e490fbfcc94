"""Which store writes: the one for PostgreSQL, or the portable one (`OJS["STORE"]`).

The portable store also runs on PostgreSQL, and on engines that speak its protocol and refuse the
statements made for it: Citus distributes a schema, but not a statement with several writing parts.
"""

from __future__ import annotations

from ..conf import ojs_settings
from .database import is_postgresql

AUTO, POSTGRESQL, PORTABLE = "auto", "postgresql", "portable"
CHOICES = (AUTO, POSTGRESQL, PORTABLE)


def is_portable() -> bool:
    """Whether statements must be such as any database takes."""
    return ojs_settings.STORE == PORTABLE or not is_postgresql()
